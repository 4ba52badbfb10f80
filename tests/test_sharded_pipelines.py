"""Pipelines whose replicas share the optimizer's states, as Megatron's distributed optimizer has it."""

import pytest
from making import refused

from profiles.errors import InfeasibleError
from sim.outcomes.parts import replay
from sim.outcomes.runs import run_point
from sim.replay.memory import resident_bytes
from strategies.registry import class_of
from strategies.registry import make as make_strategy

LAYERS, PARAMETERS = 8, 10**9
PIPELINES = {"gpipe": {}, "1f1b": {}, "zero-bubble": {}, "interleaved": {"chunks": 2}}
WEIGHT, GRADIENT, STATES = 2.0, 4.0, 12.0
"""Bytes of a parameter by the recipe ``mixed``."""


def scenario(make, gpus=8, **rest):
    unet = make.component("unet", [1.0] * LAYERS, parameters=PARAMETERS, saved_bytes=1e6, output_bytes=1e6)
    cluster = make.cluster(make.link(bandwidth=1e10), devices_per_node=gpus, memory_bytes_per_s=1e12)
    return make.scenario(make.model(unet), cluster, gpus, 32, **rest)


def both(name, **rest):
    shape = {"pipeline_degree": 2, "micro_batches": 4, **PIPELINES[name], **rest}
    return [make_strategy(name, {**shape, "optimizer": kind}) for kind in ("replicated", "sharded")]


@pytest.mark.parametrize("name", PIPELINES)
def test_each_replica_keeps_its_part_of_the_states_and_all_weights_and_gradients(make, name):
    asked = scenario(make)
    plain, shared = ({*resident_bytes(replay(of, asked))} for of in both(name))
    held, replicas = LAYERS / 2 * PARAMETERS, 4
    assert plain == {held * (WEIGHT + GRADIENT + STATES)}
    assert shared == {held * (WEIGHT + GRADIENT + STATES / replicas)}
    saved = LAYERS * 1e6 * 2  # of the two samples of a micro-batch, on one of two stages or the other
    least = [point.coarse_bounds(asked)[1] - saved / 2 for point in both(name)]
    assert least == pytest.approx([*plain, *shared])


@pytest.mark.parametrize("name", PIPELINES)
def test_gradients_are_scattered_and_weights_gathered_once_however_many_micro_batches(make, name):
    asked = scenario(make)
    for count in (4, 8):
        _, shared = both(name, micro_batches=count)
        plan = replay(shared, asked).plan
        sums, gathers = (
            sum(of.size_bytes for of in plan.collectives if of.operation == operation)
            for operation in ("reduce_scatter", "all_gather")
        )
        assert (sums, gathers) == (LAYERS * PARAMETERS * GRADIENT, LAYERS * PARAMETERS * WEIGHT)
        assert {of.operation for of in plan.collectives} == {"reduce_scatter", "all_gather"}
    # an all-reduce sends as much as a scatter and a gather of the same bytes
    sent = [run_point(of, asked).expected.collective_bytes for of in both(name)]
    assert sent[1] / sent[0] == pytest.approx((GRADIENT + WEIGHT) / (2 * GRADIENT))


def test_a_single_replica_has_nobody_to_share_with(make):
    _, shared = both("1f1b", pipeline_degree=8)
    with refused(r"optimizer is sharded, but gpus\(8\) / pipeline_degree\(8\) = 1 replica", InfeasibleError):
        run_point(shared, scenario(make))


def test_sweeps_look_at_it_by_1f1b_where_stages_have_replicas(make):
    offered = list(class_of("1f1b").candidates(scenario(make)))
    shared = [of for of in offered if of.optimizer == "sharded"]
    assert {of.pipeline_degree for of in offered} == {2, 4, 8}
    assert {(of.pipeline_degree, of.group_size) for of in shared} == {(2, 2), (4, 4)}
    for name in ("gpipe", "interleaved", "zero-bubble"):
        assert {of.optimizer for of in class_of(name).candidates(scenario(make))} == {"replicated"}
