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
