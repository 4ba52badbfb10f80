"""Ports: how long the messages of a pipeline hold them, by a sum done by hand and against the engine."""

import pytest

from sim.replay.engine import simulate
from strategies.plans.network import network_of
from strategies.registry import make_strategy

GBS = 1e9


@pytest.fixture(scope="module")
def scenario(make):
    """Eight equal layers with a skip over all of them on two nodes of two GPUs, whose port is slow."""
    backbone = make.component(
        "backbone", [1e-3] * 8, output_bytes=4e6, carried_bytes=1e6, parameters=10, skips=[(0, 7)]
    )
    cluster = make.cluster(
        make.link(bandwidth=100 * GBS), make.link("nic", bandwidth=0.1 * GBS), devices_per_node=2
    )
    return make.scenario(make.model(backbone), cluster, 4, 16)


def test_a_port_is_held_between_the_first_forward_and_the_last_backward_of_the_first_stage(make):
    # The port of a position in the middle carries what goes on and what goes back.
    backbone = make.component("backbone", [1e-3] * 4, output_bytes=4e6)
    cluster = make.cluster(make.link(), make.link("nic", bandwidth=0.1 * GBS), devices_per_node=1)
    scenario = make.scenario(make.model(backbone), cluster, 4, 8)
    strategy = make_strategy("gpipe", {"pipeline_degree": 4, "micro_batches": 8})
    assert strategy.bound(scenario) == pytest.approx(1e-3 + 8 * 2 * 4e6 / (0.1 * GBS) + 2e-3)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("1f1b", {}), ("interleaved", {"chunks": 2}), ("bidirectional", {})],
)
@pytest.mark.parametrize("extra", [False, True])
def test_where_links_are_slow_the_bound_is_near_the_truth(scenario, name, parameters, extra):
    strategy = make_strategy(name, {"pipeline_degree": 4, "micro_batches": 8, **parameters})
    asked = scenario.with_extra_forward(extra)
    plan = strategy.plan(asked)
    end_s = simulate(plan, network_of(asked, plan.placement)).end_s
    assert 0.7 * end_s < strategy.bound(asked) <= end_s
