"""Time of exact sweeps: `python -m pytest -n 0 tests/benchmarks/bench_sweep.py`.

Targets of the design for the exact best and the best 20: 2 s for 5,000 points, and 5 s for every training strategy of
Stable Diffusion 2.1 on 64 GPUs, process start included (here it is not). The 5,000 points are those of the U-Net of
Stable Diffusion 2.1 alone, on 2,048 A100s, with a batch that has many divisors; activations are recomputed, so that
all strategies have points that fit.
"""

from dataclasses import replace

import pytest

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from sim.explore.points import find_points
from sim.explore.search import run_sweep
from sim.explore.sweep import TOP, Sweep
from strategies.plans.workloads import TrainingWorkload
from strategies.scenario import Scenario

NUM_GPUS, SAMPLES_PER_GPU = 2048, 840


def space():
    """The scenario as a sweep meets it: nothing is known of it yet."""
    model = load_model("sd21")
    unet = replace(model.components[model.backbones[0]], inputs=(), self_conditioning=0.0)
    workload = TrainingWorkload(NUM_GPUS, NUM_GPUS * SAMPLES_PER_GPU, checkpointing="full")
    return Scenario(replace(model, components=(unet,)), load_cluster("p4de"), workload)


def sd21(num_gpus):
    workload = TrainingWorkload(num_gpus, 32 * num_gpus)
    return Scenario(load_model("sd21"), load_cluster("p4de"), workload)


def explore(scenario, workers, names=("1f1b", "gpipe", "spp"), objective="throughput", top=TOP):
    sweep = Sweep(scenario, objective, (*find_points(scenario, names),), top)
    return run_sweep(sweep, workers=workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_five_thousand_points(benchmark, workers):
    sweep = benchmark.pedantic(explore, setup=lambda: ((space(), workers), {}), rounds=3)
    assert len(sweep.points) > 5000
    assert all(point.status == "simulated" for point in sweep.ranked()[:TOP])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("num_gpus", [8, 64, 512])
def test_every_strategy(benchmark, num_gpus, workers):
    sweep = benchmark.pedantic(explore, setup=lambda: ((sd21(num_gpus), workers, None), {}), rounds=3)
    assert all(point.status == "simulated" for point in sweep.ranked()[:TOP])
