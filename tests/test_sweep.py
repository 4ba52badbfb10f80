"""The sweep against a simulation of every point: what it finds, what it leaves out, and in which order."""

import re
from dataclasses import replace
from math import inf

import pytest
from making import simulate_everything, simulated, swept

from profiles.architectures.models import load_model
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from sim.explore.points import MAX_MICRO_BATCHES, Point, find_points
from sim.explore.search import run_sweep
from sim.explore.sweep import TOP, Sweep, example_words
from sim.outcomes.runs import run_point
from sim.report.blocks import print_blocks
from sim.report.rankings import sweep_blocks
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make as make_strategy
from strategies.registry import strategies_of
from strategies.scenario import Scenario

TRAINING = [name for name, cls in strategies_of("train").items() if cls.task == "train"]


@pytest.fixture(scope="module")
def scenario():
    """Stable Diffusion 2.1 on half a node, a few hundred points."""
    return sd21(4, 16)


def sd21(num_gpus, batch_size, cluster="p4de", **workload):
    return Scenario(
        load_model("sd21"), load_cluster(cluster), TrainingWorkload(num_gpus, batch_size, **workload)
    )


@pytest.fixture(scope="module")
def sweep(scenario):
    return swept(scenario)


@pytest.fixture(scope="module")
def everything(scenario):
    return Sweep(scenario, "throughput", tuple(simulate_everything(scenario)))


def described(points):
    return [(point.name, point.parameters, point.result.expected) for point in points]


# The same as simulating everything


def test_the_best_twenty_are_those_of_a_simulation_of_every_point(sweep, everything):
    assert len(everything.points) > 2 * TOP
    assert described(simulated(sweep)[:TOP]) == described(simulated(everything)[:TOP])
    for name in TRAINING:
        best, expected = ([p for p in simulated(each) if p.name == name][:1] for each in (sweep, everything))
        assert described(best) == described(expected)


# Identical results


def test_group_sizes_that_change_nothing_are_listed_once(scenario):
    small, large = (make_strategy("1f1b", {"group_size": size}) for size in (2, 4))
    result = run_point(small, scenario)
    alike = replace(result, parameters={**result.parameters, "group_size": 4})
    slower = replace(alike, expected=replace(alike.expected, duration_s=9.0))
    points = [Point(small, "1f1b", 4, result=result), Point(large, "1f1b", 4, result=alike)]
    assert Sweep(scenario, points=tuple(points)).ranked() == points[:1]
    points[1].result = slower
    assert Sweep(scenario, points=tuple(points)).ranked() == points


# What is swept


def test_a_fixed_parameter_holds_for_every_strategy_that_has_it(scenario):
    points = find_points(scenario, fixed={"fill": "partial", "pipeline_degree": 4})
    assert {point.name for point in points} == set(TRAINING)
    for point in points:
        assert point.parameters.get("fill", "partial") == "partial"
        assert point.parameters.get("pipeline_degree", 4) == 4


def test_a_parameter_that_no_strategy_has_is_refused(scenario):
    with pytest.raises(InputError, match=r"no strategy of this sweep has the parameter fill$"):
        find_points(scenario, ["ddp", "1f1b"], {"fill": "partial"})


def test_more_micro_batches_than_a_sweep_looks_at_are_infeasible():
    large = sd21(8, 8 * 4 * MAX_MICRO_BATCHES)
    points = find_points(large, ["ddp"], {"overlap": "none"})
    most = max(points, key=lambda point: point.parameters["micro_batches"])
    sweep = Sweep(large, points=(most,))
    run_sweep(sweep, workers=1)
    assert most.status == "infeasible"
    assert most.reason == "micro_batches(4096) exceeds 1024, the most of a sweep"


# Every model

TOO_LARGE = {"wan2.1-14b"}
"""Models of which 4 GPUs of 80 GiB train none as they are: activations of a whole video."""


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sd21", "wan2.1-14b"])
def test_every_model_is_swept_and_every_strategy_found_or_refused(model, capsys):
    scenario = Scenario(load_model(model), load_cluster("p4de"), TrainingWorkload(4, 4))
    sweep = swept(scenario)
    assert {point.name for point in sweep.points} == set(TRAINING)
    best = {point.name for point in simulated(sweep)}
    assert bool(best) is (model not in TOO_LARGE)
    for point in sweep.points:
        assert point.name in best or point.reason, point
        assert point.reason is None or (point.kind and "\n" not in point.reason)
    print_blocks(sweep_blocks(sweep))
    printed = capsys.readouterr().out
    assert all(f" {name} " in printed for name in best)
    assert all(f"x {kind} (such as " in printed for kind in sweep.infeasible_by_reason())


# Nothing to find


def test_on_one_gpu_pipelines_are_infeasible_with_the_reason():
    sweep = swept(sd21(1, 16))
    whole = {"ddp", "fsdp", "zero2", "zero3"}
    assert {point.name for point in simulated(sweep)} == whole
    reasons = {point.name: point.reason for point in sweep.ranked() if point.status == "infeasible"}
    assert set(reasons) == set(TRAINING) - whole
    reason = "no divisor of gpus(1) between 2 and the 25 blocks of the backbone"
    assert set(reasons.values()) == {reason, f"{reason} / 2 stages per position"}
    assert sweep.infeasible_by_reason() == {"no pipeline degree": len(reasons)}


def test_a_point_out_of_memory_is_infeasible_and_keeps_its_result():
    sweep = swept(sd21(8, 8 * 256), names=["ddp"])
    lacking = [point for point in sweep.points if point.kind == "out of memory"]
    assert re.match(
        r"ddp, micro batches \d+( with \w+ checkpointing)?: needs ", example_words(lacking, "out of memory")
    )
    for point in lacking:
        assert (point.status, point.score("throughput")) == ("infeasible", inf)
        assert "GiB too much" in point.reason
        # what lacks memory whatever its order need not be simulated
        assert point.result is None or not point.result.fits_memory
        assert point.result is not None or point.least_memory_bytes > 80 * 2**30


@pytest.mark.parametrize(
    ("value", "others"), [("optimal", "symmetric, blocks"), ("symmetric", "blocks, optimal")]
)
def test_a_value_that_not_all_strategies_know_leaves_the_others_out(scenario, value, others):
    points = find_points(scenario, ["1f1b", "pulse", "ddp"], {"partition": value})
    refused = [point for point in points if point.strategy is None]
    assert [point.reason for point in refused] == [f"partition is '{value}', must be one of {others}"]
    kept = {point.strategy.partition for point in points if hasattr(point.strategy, "partition")}
    assert kept == {value}
