"""Time to replay one 1F1B iteration, links and memory on: `python -m pytest -n 0 tests/benchmarks/bench_engine.py`.

Targets of the design: 3 ms for 8 positions x 64 micro-batches, 0.3 s for 64 x 512. Both are of replaying a plan
whose deliveries are known; what it takes to know them is measured beside.
"""

import pytest

from profiles.architectures.synthetic import equal_layers_model
from profiles.machines.clusters import load_cluster
from sim.replay.engine import no_collection, simulate
from sim.replay.memory import peak_memory_bytes
from strategies.plans.network import Network
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make as make_strategy
from strategies.scenario import Scenario

SIZES = pytest.mark.parametrize(("positions", "micro_batches"), [(8, 64), (64, 512)])


def point(positions, micro_batches):
    """A pipeline on A100s of p4de whose every hop carries 10 MB, one sample per micro-batch and GPU."""
    model = equal_layers_model(
        positions, 5e-3, parameters=10**7, output_bytes=1e7, saved_bytes=1e8, device="a100-80gb-sxm"
    )
    workload = TrainingWorkload(positions, micro_batches)
    strategy = make_strategy("1f1b", {"pipeline_degree": positions, "micro_batches": micro_batches})
    return strategy, Scenario(model, load_cluster("p4de"), workload)


def run(benchmark, function):
    """A few rounds, since pytest-benchmark would take hundreds of the short ones and few of the long."""
    return benchmark.pedantic(function, rounds=10, warmup_rounds=2)


@SIZES
def test_replay_with_links_and_memory(benchmark, positions, micro_batches):
    strategy, scenario = point(positions, micro_batches)
    plan = strategy.plan(scenario)
    network = Network(plan.placement)
    trace, peak = run(benchmark, lambda: (t := simulate(plan, network), peak_memory_bytes(t)))
    assert trace.end_s > 3 * 5e-3 * (micro_batches + positions - 1)
    assert peak[0] > peak[-1]


@SIZES
def test_building_the_plan(benchmark, positions, micro_batches):
    strategy, scenario = point(positions, micro_batches)
    with no_collection():
        run(benchmark, lambda: strategy.plan(scenario))
