"""Two directions on the same positions: Chimera's order, several backbones, their orders and bounds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InfeasibleError
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes
from strategies.orders.list_scheduling import list_schedule, lower_bound_s
from strategies.orders.named import chimera_order
from strategies.orders.problem import evaluate, peak_held
from strategies.pipelining.two_way import SPARE, two_way_rows
from strategies.plans.actions import StageAction, format_order
from strategies.registry import make as make_strategy
from strategies.registry import strategies_of


def both_ways(degree, micro_batches=4, **rest):
    return make_strategy("bidirectional", {"pipeline_degree": degree, "micro_batches": micro_batches, **rest})


@pytest.fixture(scope="module")
def one(make):
    """Return a function to the scenario of one backbone of equal layers on free links."""

    def scenario(layers, samples, forward_s=1.0, backward_s=2.0, cluster=None, num_gpus=None, **workload):
        unet = make.component(
            "unet", [forward_s] * layers, [backward_s] * layers, saved_bytes=1.0, parameters=10
        )
        gpus = num_gpus or layers
        return make.scenario(make.model(unet), cluster or make.cluster(), gpus, samples, **workload)

    return scenario


@pytest.fixture(scope="module")
def several(make):
    """Return a function to the scenario of backbones whose layers take so long, with a frozen encoder or without."""

    def scenario(*backbones, num_gpus=4, batch_size=16, cluster=None, encoder=False, **workload):
        frozen = [make.component("encoder", [0.5], trainable=False, output_bytes=1e6)] if encoder else []
        trained = [
            make.component(
                f"unet{number}", layers, output_bytes=1e6, saved_bytes=1.0, parameters=10 + number,
                inputs=["encoder"] if encoder else [],
            )
            for number, layers in enumerate(backbones)
        ]  # fmt: skip
        return make.scenario(
            make.model(*frozen, *trained), cluster or make.cluster(), num_gpus, batch_size, **workload
        )

    return scenario


# One backbone: Chimera, whose closed forms are among those of validate.closed_forms


def test_chimera_s_order_is_the_published_one():
    assert format_order(both_ways(4, 4).order()) == (
        "0F0 0F1 7F2 7B2 7F3 7B3 0B0 0B1\n"
        "1F0 6F2 1F1 6F3 6B2 1B0 6B3 1B1\n"
        "5F2 2F0 5F3 2F1 2B0 5B2 2B1 5B3\n"
        "4F2 4F3 3F0 3B0 3F1 3B1 4B2 4B3\n"
    )


@pytest.mark.parametrize(
    ("degree", "count", "equation"),
    [(3, 4, r"pipeline_degree\(3\) / 2 directions of one backbone = 1.5"),
     (4, 5, r"micro_batches\(5\) / 2 directions of one backbone = 2.5")],
)  # fmt: skip
def test_what_two_directions_cannot_share_is_refused(one, degree, count, equation):
    with pytest.raises(InfeasibleError, match=equation):
        both_ways(degree, count).order()
    with pytest.raises(InfeasibleError, match=equation):
        both_ways(degree, count).plan(one(degree, count))


def test_one_backbone_is_offered_even_numbers_alone(one):
    offered = list(strategies_of("train")["bidirectional"].candidates(one(12, 36)))
    assert {strategy.pipeline_degree for strategy in offered} == {2, 4, 6, 12}
    assert all(strategy.micro_batches % 2 == 0 for strategy in offered)
    with pytest.raises(InfeasibleError, match="even number"):
        strategies_of("train")["bidirectional"].candidates(one(3, 9))


# Several backbones.


@pytest.mark.parametrize(("micro_batches", "named"), [(2, True), (8, False)])
def test_the_order_of_two_backbones_is_the_shorter_of_two(several, micro_batches, named):
    scenario = several([1.0] * 4, [1.25] * 4, batch_size=micro_batches)
    strategy = both_ways(4, micro_batches)
    layout = strategy.layout(scenario)
    rows = two_way_rows(layout)
    chimera = tuple(
        tuple(StageAction(a.stage, a.kind, a.micro_batch % micro_batches) for a in row)
        for row in chimera_order(4, 2 * micro_batches)
    )
    assert (rows == chimera) == named
    problem = layout.problem()
    limits = tuple(range(4 + SPARE, SPARE, -1)) * 2
    found = list_schedule(replace(problem, in_flight=limits), "longest-tail")
    spans_s = [evaluate(problem, chimera).makespan_s, found.makespan_s]
    assert spans_s[0] < spans_s[1] if named else spans_s[1] < spans_s[0]
    assert simulate(strategy.plan(scenario)).end_s == min(spans_s)


layer_lists = st.lists(st.sampled_from([0.1, 0.25, 0.5, 1.0]), min_size=6, max_size=9)


@settings(max_examples=60)
@given(
    down=layer_lists,
    up=layer_lists,
    degree=st.sampled_from([1, 2, 3, 4, 6]),
    micro_batches=st.sampled_from([1, 2, 4, 8]),
    partition=st.sampled_from(["blocks", "optimal"]),
    blocking=st.booleans(),
    extra=st.booleans(),
)
def test_no_pair_deadlocks_undercuts_a_bound_or_holds_too_much(
    make, several, down, up, degree, micro_batches, partition, blocking, extra
):
    cluster = make.cluster(make.link("nvswitch", 2e7, 0.01))
    scenario = several(
        down, up, num_gpus=2 * degree, batch_size=2 * micro_batches, cluster=cluster, encoder=True,
        extra_forward=extra,
    )  # fmt: skip
    p2p = "blocking" if blocking else "overlapped"
    strategy = both_ways(degree, micro_batches, p2p=p2p, partition=partition)
    trace = simulate(strategy.plan(scenario))
    layout = strategy.layout(scenario)
    problem = layout.problem()
    bounds = (strategy.bound(scenario), strategy.order_bound(scenario), lower_bound_s(problem))
    assert max(bounds) <= trace.end_s * (1 + 1e-12)
    held = peak_held(two_way_rows(layout))
    assert max(held) <= degree + 1 + 2 * SPARE
    least_bytes = strategy.least_memory_bytes(scenario), strategy.coarse_bounds(scenario)[1]
    assert max(least_bytes) <= peak_memory_bytes(trace).max()


def test_three_backbones_are_refused(several):
    with pytest.raises(InfeasibleError, match="two directions train two backbones"):
        both_ways(4, 4).plan(several([0.5] * 4, [0.125] * 4, [0.375] * 4))
