"""The sweep over samplers against a simulation of every point: what it finds, on how many GPUs, and what it says."""

from dataclasses import replace

import pytest
from making import simulate_everything, simulated, swept

import sim
from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from profiles.software.stacks import load_stack
from sim.explore.points import Point, find_points
from sim.explore.sweep import TOP, Sweep, pareto_front
from sim.outcomes.tasks import SAMPLING
from sim.report.blocks import print_blocks
from sim.report.frames import rows
from sim.report.rankings import front, sweep_blocks
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import strategies_of
from strategies.sampling_scenario import SamplingScenario

SAMPLERS = list(strategies_of("sample"))
EXACT = (
    "single", "tensor", "ulysses", "ring", "usp", "pipefusion", "hybrid", "naive-patch", "sync-patch", "distrifusion",
)  # fmt: skip
"""Samplers whose bound knows all that blocks them."""


def pixart(num_gpus=4, cluster="a100-nvlink-8", resolution=512, steps=4, **workload):
    workload = SamplingWorkload(num_gpus, resolution, resolution, steps, **workload)
    return SamplingScenario(load_model("pixart"), load_cluster(cluster), workload)


def halved(scenario):
    """The same on nodes of four GPUs."""
    return replace(scenario, cluster=replace(scenario.cluster, devices_per_node=4))


SCENARIOS = {
    "nvlink": pixart,
    "pcie, three images": lambda: pixart(4, "l40-pcie-8", 1024, batch_size=3),
    "two nodes": lambda: halved(pixart(8, "p4de", 512, 2, guidance="none")),
    "guidance in parallel, six devices": lambda: pixart(6, guidance="parallel", batch_size=2),
    "u-net": lambda: SamplingScenario(
        load_model("sdxl"), load_cluster("a100-nvlink-8"), SamplingWorkload(4, 1024, 1024, 3)
    ),
}


@pytest.fixture(scope="module", params=SCENARIOS)
def scenario(request):
    return SCENARIOS[request.param]()


@pytest.fixture(scope="module")
def everything(scenario):
    return simulate_everything(scenario)


# The same as simulating everything


def test_the_best_twenty_and_the_best_of_each_are_those_of_a_simulation_of_every_point(scenario, everything):
    for objective in SAMPLING.objectives:
        exact, sweep = Sweep(scenario, objective, tuple(everything)), swept(scenario, objective)
        scores = [[p.score(objective) for p in simulated(each)] for each in (sweep, exact)]
        if objective != "pareto":
            assert scores[0][:TOP] == scores[1][:TOP]
        for name in {point.name for point in simulated(exact)}:
            best, truth = (next(p for p in simulated(each) if p.name == name) for each in (sweep, exact))
            assert best.score(objective) == truth.score(objective)


def test_the_bound_of_a_sampler_is_its_time_where_no_port_is_shared_and_no_host_pays():
    scenario = replace(pixart(8, steps=3), stack=load_stack("compiled"))
    for point in simulate_everything(scenario):
        if point.name in EXACT:
            there, taken = scenario.on(point.num_gpus), point.result.latency_s
            bound_s, tensors = point.strategy.bound(there), getattr(point.strategy, "tensor_degree", 1) or 1
            ring = getattr(point.strategy, "ring_degree", 1) or 1
            exact = tensors == ring == 1 and point.name not in ("distrifusion", "ring", "attention2d")
            assert bound_s <= taken * (1 + 1e-9), point
            close = 0.02 if point.name == "pipefusion" else 1e-6  # unlike stages wait for one another
            assert not exact or bound_s == pytest.approx(taken, rel=close), point


# On how many GPUs


@pytest.mark.parametrize(("num_gpus", "counts"), [(8, {8, 4, 2}), (6, {6, 4, 2}), (2, {2})])
def test_samplers_are_looked_at_on_smaller_powers_of_two_and_single_on_one(num_gpus, counts):
    points = find_points(pixart(num_gpus))
    of = {name: {p.num_gpus for p in points if p.name == name and p.strategy} for name in SAMPLERS}
    assert of["single"] == {1}
    assert of["naive-patch"] == of["tensor"] == counts
    assert of["usp"] == counts - {2}  # two degrees above 1 need four GPUs


# What a person and a file get


@pytest.mark.parametrize("objective", ["latency", "memory"])
def test_what_leaves_seams_ranks_below_all_that_does_not_and_is_never_the_best(objective):
    sweep = swept(replace(pixart(8), stack=load_stack("compiled")), objective)  # no host to wait for
    ranked = simulated(sweep)
    seams = [point for point in ranked if point.name == "naive-patch"]
    assert seams
    assert ranked[-len(seams) :] == seams
    if objective in ("latency", "throughput"):
        assert seams[0].score(objective) < ranked[0].score(objective), "or the test shows nothing"
    assert sweep.fastest_point() is ranked[0] and sweep.best_point().recommended
    items = rows(sweep)
    assert {item["strategy"] for item in items if not item["recommended"]} == {"naive-patch"}
    assert "naive-patch" not in {item["strategy"] for item in pareto_front(items)}
    assert "naive-patch" not in {point.name for point in front(ranked)}


def test_a_sweep_over_nothing_but_seams_has_no_best(capsys):
    sweep = swept(pixart(2), names=["naive-patch"])
    assert simulated(sweep)
    assert sweep.best_point() is None
    print_blocks(sweep_blocks(sweep))
    out = capsys.readouterr().out
    assert "best: none; every point that fits leaves seams, which is not recommended" in out
    assert Sweep(pixart(), points=(Point(None, "usp", 4, reason="none"),)).best_point() is None


def test_the_best_of_the_recommended_strategy_is_the_recommended_point_though_not_the_fastest():
    found = sim.sweep("pixart", "l20-pcie-8", 8, resolution=2048, steps=2, strategy="hybrid", workers=1)
    assert found.best_point() is not found.ranked()[0]
    assert found.best_of("hybrid") == found.best
    assert found.rows(best_of_each=True)[0]["parameters"] == found.best.to_json()["parameters"]
