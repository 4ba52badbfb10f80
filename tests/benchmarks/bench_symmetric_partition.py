"""Speed of the symmetric partition: `python -m pytest -n 0 tests/benchmarks/bench_symmetric_partition.py`."""

import numpy as np
import pytest

from strategies.partitions.symmetric import symmetric_partition

LAYERS = 200
STAGES = range(2, 33, 2)
DENSE = [(layer, LAYERS - 1 - layer) for layer in range(LAYERS // 2 - 1)]


@pytest.fixture(scope="module")
def costs():
    rng = np.random.default_rng(0)
    return rng.uniform(0.5, 1.5, LAYERS), rng.uniform(0.0, 0.3, LAYERS - 1)


def test_every_number_of_stages_with_dense_skips(benchmark, costs):
    benchmark(lambda: [symmetric_partition(*costs, DENSE, num_stages) for num_stages in STAGES])


@pytest.mark.parametrize("num_stages", [4, 16, 32])
@pytest.mark.parametrize("skips", [DENSE, DENSE[::3], DENSE[::10], []], ids=["dense", "33", "10", "none"])
def test_one_number_of_stages(benchmark, costs, skips, num_stages):
    benchmark(symmetric_partition, *costs, skips, num_stages)


@pytest.mark.parametrize("num_layers", [45, 100, 200])
def test_skips_that_cannot_all_be_local(benchmark, num_layers):
    """Twenty skips anywhere, thirty-two stages: the heaviest set that can is sought first."""
    rng = np.random.default_rng(0)
    skips = [tuple(sorted(rng.choice(num_layers, 2, replace=False).tolist())) for _ in range(20)]
    layers, cuts = rng.uniform(0.5, 1.5, num_layers), rng.uniform(0.0, 0.3, num_layers - 1)
    found = benchmark.pedantic(symmetric_partition, (layers, cuts, skips, 32), rounds=2)
    assert found.sent_skips
