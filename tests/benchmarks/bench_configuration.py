"""One configuration from the question to its result: `python -m pytest -n 0 tests/benchmarks/bench_configuration.py`.

It stands beside a bare SimPy loop, which has one process per device and an event per message, but no links, no memory
and no plan. Both are of one 1F1B iteration in one run; `result over loop` in the extra information is the ratio of
their medians, of alternating rounds.
"""

from statistics import median
from time import process_time

import pytest
import simpy

from profiles.architectures.synthetic import equal_layers_model
from profiles.machines.clusters import load_cluster
from sim.outcomes.runs import run_point
from sim.replay.engine import no_collection
from strategies.orders.named import one_forward_one_backward_order
from strategies.plans.actions import FORWARD
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make_strategy
from strategies.scenario import Scenario

SIZES = pytest.mark.parametrize(("positions", "micro_batches"), [(8, 32), (8, 64), (32, 256)])
ROUNDS = 15


def bare_loop(order):
    """The end of a 1F1B iteration of forwards of one second and backwards of two."""
    env, degree = simpy.Environment(), len(order)
    there = [{action: env.event() for action in row} for row in order]

    def device(position, row):
        for action in row:
            source = position - 1 if action.kind == FORWARD else position + 1
            if 0 <= source < degree:
                yield there[source][action._replace(stage=source)]
            yield env.timeout(1.0 if action.kind == FORWARD else 2.0)
            there[position][action].succeed()

    for position, row in enumerate(order):
        env.process(device(position, row))
    env.run()
    return env.now


def point(positions, micro_batches):
    """A pipeline on A100s of p4de whose every hop carries 10 MB; nothing is known of it yet."""
    model = equal_layers_model(
        positions, 5e-3, parameters=10**7, output_bytes=1e7, saved_bytes=1e8, device="a100-80gb-sxm"
    )
    strategy = make_strategy("1f1b", {"pipeline_degree": positions, "micro_batches": micro_batches})
    return strategy, Scenario(model, load_cluster("p4de"), TrainingWorkload(positions, micro_batches))


def seconds(function):
    begin = process_time()
    result = function()
    return process_time() - begin, result


@SIZES
def test_a_result_beside_a_bare_loop(benchmark, positions, micro_batches):
    order = one_forward_one_backward_order(positions, micro_batches)
    loops, results = [], []

    def one_of_each():
        asked = point(positions, micro_batches)
        with no_collection():
            loop_s, end = seconds(lambda: bare_loop(order))
            result_s, result = seconds(lambda: run_point(*asked))
        assert end == 3 * (micro_batches + positions - 1)
        assert result.fits_memory
        loops.append(loop_s)
        results.append(result_s)

    benchmark.pedantic(one_of_each, rounds=ROUNDS, warmup_rounds=2)
    benchmark.extra_info["loop_ms"] = 1e3 * median(loops)
    benchmark.extra_info["result_ms"] = 1e3 * median(results)
    benchmark.extra_info["result over loop"] = median(results) / median(loops)
