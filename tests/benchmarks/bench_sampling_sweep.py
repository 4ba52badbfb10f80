"""Time of exact sampling sweeps: `python -m pytest -n 0 tests/benchmarks/bench_sampling_sweep.py`.

Targets for the exact best of each sampler and the best 20, over all methods and degrees, on two cores and with the
start of the process (here it is not): 3 s on 8 GPUs, 6 s on 16.
"""

import pytest

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from sim.explore.points import find_points
from sim.explore.sweep import TOP, Sweep, run_sweep
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make_sampler
from strategies.sampling_scenario import SamplingScenario


def space(model_name, num_gpus, resolution, steps=20):
    """The scenario as a sweep meets it: nothing is known of it yet."""
    model = load_model(model_name)
    workload = SamplingWorkload(num_gpus, resolution, resolution, steps, model.guidance)
    return SamplingScenario(model, load_cluster("p4de"), workload)


def explore(scenario, workers, objective="latency"):
    sweep = Sweep(scenario, objective, find_points(scenario))
    run_sweep(sweep, workers=workers)
    return sweep


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("resolution", [1024, 2048])
@pytest.mark.parametrize("num_gpus", [8, 16])
@pytest.mark.parametrize("model", ["pixart", "flux-dev"])
def test_every_sampler(benchmark, model, num_gpus, resolution, workers):
    sweep = benchmark.pedantic(
        explore, setup=lambda: ((space(model, num_gpus, resolution), workers), {}), rounds=3
    )
    assert all(point.status == "simulated" for point in sweep.ranked()[:TOP])


@pytest.mark.parametrize("objective", ["cost", "memory", "pareto"])
def test_every_sampler_by_another_objective(benchmark, objective):
    benchmark.pedantic(explore, setup=lambda: ((space("pixart", 16, 1024), 2, objective), {}), rounds=3)


def test_fifty_steps(benchmark):
    benchmark.pedantic(explore, setup=lambda: ((space("pixart", 16, 1024, 50), 2), {}), rounds=3)


def test_the_bound_of_many_patches(benchmark):
    scenario = space("pixart", 16, 2048, 50)
    sampler = make_sampler("pipefusion", {"pipeline_degree": 16, "patches": 64})
    benchmark(lambda: sampler.bound(scenario))
