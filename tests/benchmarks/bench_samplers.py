"""Time to plan and to replay one run of a sampler: `python -m pytest -n 0 tests/benchmarks/bench_samplers.py`.

The design has no target for one run; a sweep over samplers has, and takes hundreds of these.
"""

import pytest

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from sim.outcomes.runs import run_point
from sim.replay.engine import no_collection, simulate
from strategies.plans.network import Network
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make_sampler
from strategies.sampling_scenario import SamplingScenario

POINTS = {
    "pipefusion, 8 stages x 16 patches": ("pixart", 2048, 20, "pipefusion", {"patches": 16}),
    "distrifusion, 50 steps": ("sdxl", 1024, 50, "distrifusion", {}),
    "hybrid, 2 x 2 x 2": (
        "pixart", 2048, 20, "hybrid", {"guidance_degree": 2, "ulysses_degree": 2, "pipeline_degree": 2, "patches": 4},
    ),
    "paradigms, 1000 steps": ("sd21", 512, 1000, "paradigms", {}),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", POINTS)


def point(name):
    """A sampler on eight A100s that NVSwitch connects; nothing is known of the scenario yet."""
    model, pixels, steps, sampler, parameters = POINTS[name]
    workload = SamplingWorkload(8, pixels, pixels, steps)
    scenario = SamplingScenario(load_model(model), load_cluster("a100-nvlink-8"), workload)
    return make_sampler(sampler, parameters), scenario


def run(benchmark, function, setup=None):
    """A few rounds, since pytest-benchmark would take hundreds of the short ones and few of the long."""
    return benchmark.pedantic(function, setup=setup, rounds=10, warmup_rounds=2)


@EACH
def test_a_result(benchmark, name):
    """Planning, replaying and memory: what a sweep spends on each point that it simulates."""
    result = run(benchmark, run_point, lambda: (point(name), {}))
    assert result.latency_s > 0


@EACH
def test_planning(benchmark, name):
    sampler, scenario = point(name)
    with no_collection():
        run(benchmark, lambda: sampler.phases(scenario))


@EACH
def test_replaying(benchmark, name):
    sampler, scenario = point(name)
    phases = sampler.phases(scenario)
    network = Network(phases[0].plan.placement)
    traces = run(benchmark, lambda: [simulate(phase.plan, network) for phase in phases])
    assert all(trace.end_s > 0 for trace in traces)


@EACH
def test_replaying_step_by_step(benchmark, name):
    """The whole run, without the phases that spare all but one of the steps that are alike."""
    sampler, scenario = point(name)
    plan = sampler.plan(scenario)
    network = Network(plan.placement)
    run(benchmark, lambda: simulate(plan, network))


@EACH
def test_the_bound(benchmark, name):
    sampler, scenario = point(name)
    run(benchmark, lambda: sampler.bound(scenario))


@pytest.mark.parametrize("steps", [100, 1000, 10_000])
def test_a_long_run_of_many_patches(benchmark, steps):
    """64 patches; longer runs than 100 steps are continued from where their steps repeat one another."""

    def asked():
        scenario = SamplingScenario(
            load_model("pixart"), load_cluster("a100-nvlink-8"), SamplingWorkload(8, 2048, 2048, steps)
        )
        return (make_sampler("pipefusion", {"patches": 64}), scenario), {}

    assert benchmark.pedantic(run_point, setup=asked, rounds=3).latency_s > 0
