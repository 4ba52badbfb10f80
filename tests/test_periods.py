"""Training iterations of long pipelines, measured from an excerpt of their micro-batches."""

from collections import Counter
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from making import make_cluster, make_link

from sim.outcomes import periods
from sim.outcomes.measures import Measures
from sim.outcomes.parts import measured_parts, replay_parts, traces_of
from sim.outcomes.periods import LEAST_MICRO_BATCHES, window_of
from sim.outcomes.runs import run_point, run_within
from sim.replay.engine import simulate
from strategies.orders.excerpts import Repeats
from strategies.orders.named import gpipe_order, interleaved_order, one_forward_one_backward_order
from strategies.plans.actions import StageAction
from strategies.plans.network import Network
from strategies.registry import make_strategy, strategies_of

REPEATING = [name for name, of in strategies_of("train").items() if hasattr(of, "repeats")]
TIMES_S = st.sampled_from([0.003, 0.05, 0.1, 0.1003, 0.137])
often = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def clusters(draw):
    """Cards on switches of two, or nodes of four or two, whose links take less or more time than the layers."""
    rest = {"slowdown": draw(st.sampled_from([1.0, 1.5])), "call_s": 0.01, "memory_bytes_per_s": 1e9}
    speed = draw(st.sampled_from([3e7, 1e8, 1e9]))
    if draw(st.booleans()):
        pcie = {"switch_size": 2, "switch_bandwidth_bytes_per_s": speed, "host_bandwidth_bytes_per_s": speed}
        inside = make_link("pcie", speed, 0.001, 0.002, **pcie)
    else:
        inside = make_link("nvswitch", speed, 0.001, 0.002)
    between = make_link("nic", draw(st.sampled_from([3e7, 4e8])), 0.01, 0.01)
    return make_cluster(inside, between, devices_per_node=draw(st.sampled_from([2, 4, 8])), **rest)


def scenario_of(make, cluster, count, times_s=(0.05, 0.1, 0.1, 0.05), backbones=1, frozen=True, **workload):
    """A backbone, or several, behind a frozen encoder, on eight GPUs with ``count`` samples each."""
    encoder = make.component(
        "encoder", [0.001, 0.002, 0.003], trainable=False, output_bytes=1e6, parameters=10**5
    )
    inputs = ["encoder"] if frozen else []
    unets = [
        make.component(
            f"unet{number}", list(times_s), inputs=inputs, output_bytes=3e6, saved_bytes=4e6, parameters=10**6
        )
        for number in range(backbones)
    ]
    model = make.model(*([encoder] if frozen else []), *unets)
    return make.scenario(model, cluster, 8, 8 * count, **workload)


def check_alike(point, scenario):
    """Compare an iteration that is continued with its whole replay."""
    (found,), (whole,) = measured_parts(point, scenario), replay_parts(point, scenario)
    for of in fields(Measures):
        expected = getattr(whole.measures, of.name)
        scale = whole.measures.duration_s if of.name.endswith("_s") else expected
        assert getattr(found.measures, of.name) == pytest.approx(expected, rel=1e-9, abs=1e-9 * scale), of.name
    assert found.phase.plan.stages == whole.phase.plan.stages
    return found


@often
@given(data=st.data())
def test_an_iteration_continued_from_an_excerpt_is_the_whole_iteration(data, make):
    """Of every strategy whose order repeats itself, at every point of its that has enough micro-batches."""
    name = data.draw(st.sampled_from(REPEATING))
    workload = {
        "checkpointing": data.draw(st.sampled_from(["none", "block", "full"])),
        "placement": data.draw(st.sampled_from(["pipeline-inner", "data-inner"])),
    }
    times_s = data.draw(st.lists(TIMES_S, min_size=4, max_size=12))
    backbones = 2 if name in ("bidirectional", "diffusionpipe") and data.draw(st.booleans()) else 1
    count, frozen = data.draw(st.sampled_from([12, 24, 36, 48, 96])), data.draw(st.booleans())
    cluster = data.draw(clusters())
    scenario = scenario_of(make, cluster, count, times_s, backbones=backbones, frozen=frozen, **workload)
    offered = strategies_of("train")[name].candidates(scenario)
    many = [point for point in offered if point.micro_batches >= LEAST_MICRO_BATCHES]
    assume(many)
    point = data.draw(st.sampled_from(many))
    partition = data.draw(st.sampled_from(["blocks", "optimal"]))
    p2p = data.draw(st.sampled_from(["overlapped"] * 3 + ["blocking"]))
    found = check_alike(replace(point, partition=partition, p2p=p2p), scenario)
    event(f"{name}: {'whole' if found.continued is None else 'continued'}")
