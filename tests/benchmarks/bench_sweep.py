"""Time of an exact sweep of 5,000 points: `python -m pytest tests/benchmarks/bench_sweep.py`.

Target of the design: 2 s for the exact best and the best 20. The space is the U-Net of Stable Diffusion 2.1 alone,
on 2,048 A100s, with a batch that has many divisors; activations are recomputed, so that all strategies have points
that fit.
"""

from dataclasses import replace

import pytest

from profiles.clusters import load_cluster
from profiles.models import load_model
from sim.sweep import TOP, Sweep, find_points, run_sweep
from strategies.scenario import Scenario, TrainingWorkload

NUM_GPUS, SAMPLES_PER_GPU = 2048, 840


def space():
    """The scenario as a sweep meets it: nothing is known of it yet."""
    model = load_model("sd21")
    unet = replace(model.components[model.backbones[0]], inputs=(), self_conditioning=0.0)
    workload = TrainingWorkload(NUM_GPUS, NUM_GPUS * SAMPLES_PER_GPU, checkpointing="full")
    return Scenario.of(replace(model, components=(unet,)), load_cluster("p4de"), workload)


def explore(scenario, workers):
    sweep = Sweep(scenario, "throughput", find_points(scenario, ["1f1b", "gpipe", "spp"]))
    run_sweep(sweep, workers=workers)
    return sweep


@pytest.mark.parametrize("workers", [1, 2])
def test_five_thousand_points(benchmark, workers):
    sweep = benchmark.pedantic(explore, setup=lambda: ((space(), workers), {}), rounds=3)
    assert len(sweep.points) > 5000
    assert all(point.status == "simulated" for point in sweep.ranked()[:TOP])


def test_finding_the_points(benchmark):
    benchmark.pedantic(find_points, setup=lambda: ((space(), ["1f1b", "gpipe", "spp"]), {}), rounds=5)
