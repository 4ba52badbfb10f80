"""Growth of the time with the size of the question: `python -m pytest -n 0 tests/benchmarks/bench_growth.py -s`.

Each prints the processor seconds of every size and the exponent that fits them: twice the size takes 2 ** exponent
times as long. Of several rounds the shortest counts, as other programs only delay.
"""

from dataclasses import replace
from math import log
from statistics import linear_regression
from time import process_time

import pytest

from profiles.architectures.models import load_model
from profiles.architectures.synthetic import equal_layers_model
from profiles.machines.clusters import load_cluster
from sim.explore.points import find_points
from sim.explore.search import run_sweep
from sim.explore.sweep import Sweep
from sim.outcomes.runs import run_point
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make as make_strategy
from strategies.scenario import Scenario

ROUNDS = 3


def sweep(scenario, names=None):
    """Sweep over a scenario in one process; the points it has."""
    swept = Sweep(scenario, points=(*find_points(scenario, names),))
    run_sweep(swept, workers=1)
    return len(swept.points)


def over_gpus(num_gpus):
    workload = TrainingWorkload(num_gpus, 32 * num_gpus)
    sweep(Scenario(load_model("sd21"), load_cluster("p4de"), workload))
    return num_gpus


def over_points(samples_per_gpu):
    """The batch has more and more divisors: one backbone on 512 GPUs by three strategies."""
    model = load_model("sd21")
    unet = replace(model.components[model.backbones[0]], inputs=(), self_conditioning=0.0)
    workload = TrainingWorkload(512, 512 * samples_per_gpu, checkpointing="full")
    scenario = Scenario(replace(model, components=(unet,)), load_cluster("p4de"), workload)
    return sweep(scenario, ("1f1b", "gpipe", "spp"))


def layers_model(num_layers):
    return equal_layers_model(
        num_layers, 5e-3, parameters=10**7, output_bytes=1e7, saved_bytes=1e7, device="a100-80gb-sxm"
    )


def over_layers(num_layers):
    sweep(Scenario(layers_model(num_layers), load_cluster("p4de"), TrainingWorkload(8, 64)))
    return num_layers


def over_micro_batches(micro_batches):
    strategy = make_strategy("1f1b", {"pipeline_degree": 8, "micro_batches": micro_batches})
    run_point(strategy, Scenario(layers_model(8), load_cluster("p4de"), TrainingWorkload(8, micro_batches)))
    return micro_batches


@pytest.mark.parametrize(
    ("work", "asked"),
    [
        (over_gpus, (8, 64, 512)),
        (over_points, (12, 60, 840)),
        (over_layers, (24, 48, 96, 192)),
        (over_micro_batches, (32, 128, 512, 1024)),
    ],
)
def test_growth(benchmark, work, asked):
    sizes, seconds = [], []

    def measure():
        for size in asked:
            taken = []
            for _ in range(ROUNDS):
                begin = process_time()
                number = work(size)
                taken.append(process_time() - begin)
            sizes.append(number)
            seconds.append(min(taken))

    work(asked[0])
    benchmark.pedantic(measure, rounds=1)
    exponent = linear_regression([log(n) for n in sizes], [log(s) for s in seconds]).slope
    benchmark.extra_info |= {"sizes": sizes, "seconds": seconds, "exponent": exponent}
    each = ", ".join(f"{n}: {s:.3g} s" for n, s in zip(sizes, seconds, strict=True))
    print(f"\n{work.__name__}: {each}; exponent {exponent:.2f}")
    assert exponent < 2, "twice the size takes more than four times as long"
