"""Runs of which only the first steps are replayed."""

import pytest
from making import make_cluster, make_link
from test_alike_groups import PIPED, asked, assert_measured_as_the_whole

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from sim.outcomes.parts import main_part, measured_parts, repeated_step
from sim.replay.engine import simulate
from strategies.plans.actions import PatchAction
from strategies.plans.network import Network
from strategies.plans.placement import Placement
from strategies.plans.plan import Op, Plan, Tensor
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make
from strategies.scenario import Scenario

STEPS = {"steps": 20}
REPEATING = {
    "stages in one node": (4, ("hunyuanvideo", "p4de", 8, "pipefusion", {}, STEPS)),
    "stages of teams": (4, ("hunyuanvideo", "p4de", 8, "hybrid", {**PIPED, "guidance_degree": 1}, STEPS)),
    "more patches than stages": (12, ("flux-dev", "p4de", 8, "pipefusion", {"patches": 16}, STEPS)),
}


@pytest.mark.parametrize("name", REPEATING)
def test_a_run_whose_steps_repeat_is_measured_by_its_first_steps(name):
    displaced, question = REPEATING[name]
    sampler, scenario = asked(question)
    part = main_part(measured_parts(sampler, scenario))
    assert {op.action.step for op in part.trace.plan.ops[0]} == set(range(sampler.warmup_steps + displaced))
    assert_measured_as_the_whole(sampler, scenario)


@pytest.mark.parametrize(
    ("name", "parameters"), [("fsdp", {"context_degree": 4, "context": "ring"}), ("zero3", {}), ("ddp", {})]
)
def test_an_iteration_whose_micro_batches_repeat_is_measured_by_the_first(name, parameters):
    strategy = make(name, {**parameters, "micro_batches": 7})
    scenario = Scenario(load_model("pixart"), load_cluster("p4de"), TrainingWorkload(8, 112))
    (part,) = measured_parts(strategy, scenario)
    assert {getattr(op.action, "micro_batch", 0) for op in part.trace.plan.ops[0]} == {-1, *range(4)}
    assert_measured_as_the_whole(strategy, scenario)


@pytest.mark.parametrize(
    ("model", "options"),
    [("pixart", {"frozen": "cached"}), ("sd21", {"self_conditioning": 0.5}), ("cdm-lsun", {})],
)
def test_micro_batches_that_hold_all_inputs_or_do_not_repeat_are_measured_as_the_whole(model, options):
    scenario = Scenario(load_model(model), load_cluster("p4de"), TrainingWorkload(8, 112, **options))
    assert_measured_as_the_whole(make("ddp", {"micro_batches": 7}), scenario)


def test_a_run_whose_steps_do_not_repeat_early_is_replayed_whole():
    sampler, scenario = asked(("pixart", "p4de", 8, "pipefusion", {}, STEPS))
    part = main_part(measured_parts(sampler, scenario))
    assert part.phase.omitted
    assert {op.action.step for op in part.trace.plan.ops[0]} == set(range(20))
    assert_measured_as_the_whole(sampler, scenario)


def repeated(*rows, size_bytes=0.0):
    """What a step adds where each device runs (seconds, seconds of its host) once a step; the first sends to others."""
    count = len(rows)
    ops = [
        [
            Op(PatchAction(device, 0, n), seconds, (n,) * (device > 0), (n,) * (not device), (), host)
            for n, (seconds, host) in enumerate(row)
        ]
        for device, row in enumerate(rows)
    ]
    tensors = tuple(Tensor("hidden", 0, step, size_bytes) for step in range(len(rows[0])))
    placement = Placement(make_cluster(make_link(bandwidth=1.0)), count, count, count)
    plan = Plan(tuple(ops), tensors, placement, host_ahead_s=1e3)
    network = Network(placement)
    return repeated_step(simulate(plan, network), network)


def test_a_host_that_is_slower_than_its_device_catches_up_with_it():
    assert repeated([(100.0, 1.2)] + [(1.0, 1.2)] * 5) is None
    assert repeated([(100.0, 1.0)] + [(1.0, 1.0)] * 5).duration_s == 1.0


def test_messages_that_are_late_catch_up_with_the_device_that_reads_them():
    devices = [(1.0, 0.0)] * 6, [(100.0, 0.0)] + [(1.0, 0.0)] * 5
    assert repeated(*devices, size_bytes=2.0) is None
    assert repeated(*devices, size_bytes=1.0).duration_s == 1.0
