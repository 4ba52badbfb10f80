"""Speed of the exact partition: `python -m pytest -n 0 tests/benchmarks/bench_partition.py`."""

import numpy as np
import pytest

from strategies.partitions.chain import ChainCosts, optimal_partition


def u_net(num_layers):
    """A chain whose slow layers are outside and whose parameters are inside, so that W and Y pull apart."""
    rng = np.random.default_rng(0)
    outwards = np.abs(np.linspace(-1, 1, num_layers))
    forward = (0.3 + 1.2 * outwards**2) * rng.uniform(1.0, 1.1, num_layers) * 1e-3
    backward = 2 * forward * rng.uniform(1.0, 1.1, num_layers)
    cut = (0.5 + outwards[1:]) * 3e-4
    sync = (0.2 + 3 * (1 - outwards) ** 2) * rng.uniform(1.0, 1.1, num_layers) * 3e-3
    return ChainCosts(forward, backward, cut, cut, sync, 1e-4)


@pytest.mark.parametrize("probability", [0.0, 0.5])
@pytest.mark.parametrize(("num_layers", "num_stages"), [(45, 4), (45, 8), (45, 32), (200, 32)])
def test_optimal_partition(benchmark, num_layers, num_stages, probability):
    benchmark(optimal_partition, u_net(num_layers), num_stages, 8, probability)
