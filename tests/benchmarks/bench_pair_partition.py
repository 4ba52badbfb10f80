"""Speed of the two-backbone search: `python -m pytest -n 0 tests/benchmarks/bench_pair_partition.py`."""

from dataclasses import replace

import numpy as np
import pytest

from strategies.partitions.chain import ChainCosts
from strategies.training.diffusionpipe import DiffusionPipe

GPUS = 64


def u_net(num_layers, batch, seed):
    """A chain whose slow layers are outside and whose parameters are inside, so that W and Y pull apart."""
    rng = np.random.default_rng(seed)
    outwards = np.abs(np.linspace(-1, 1, num_layers))
    forward = (0.1 + batch * (0.3 + 1.2 * outwards**2) / 8) * rng.uniform(1.0, 1.1, num_layers) * 1e-3
    backward = 2 * forward * rng.uniform(1.0, 1.1, num_layers)
    cut = 2 * (0.1 + batch * (0.5 + outwards[1:]) / 8) * 3e-4
    sync = (0.2 + 3 * (1 - outwards) ** 2) * rng.uniform(1.0, 1.1, num_layers) * 3e-3
    return ChainCosts(forward, backward, cut, cut, sync, 1e-4)


def backbone(make, name, num_layers, seed):
    """A component that costs what a `u_net` does, as nearly as a model folder says it."""
    costs = [u_net(num_layers, batch, seed) for batch in (0, 1)]
    fixed, each = costs[0].forward_s, costs[1].forward_s - costs[0].forward_s
    return make.component(
        name, each.tolist(), fixed_s=float(fixed.mean()), output_bytes=2e6, parameters=5_000_000
    )


@pytest.mark.parametrize("probability", [0.0, 0.5])
@pytest.mark.parametrize("batch_size", [512, 1024, 1536, 2048])
def test_every_shape_of_64_gpus(benchmark, make, batch_size, probability):
    """Where the product cuts two backbones: every degree, group size and number of micro-batches of a sweep."""
    model = make.model(backbone(make, "down", 100, 0), backbone(make, "up", 100, 1))
    link = make.link(bandwidth=100e9, latency_s=1e-5)
    cluster = make.cluster(link, make.link("nic", 12e9, 1e-5), devices_per_node=8)
    scenario = make.scenario(model, cluster, GPUS, batch_size, self_conditioning=probability)
    points = {replace(point, fill="none") for point in DiffusionPipe.candidates(scenario)}

    def cut():
        fresh = replace(scenario)  # remembers nothing
        return [point.layout(fresh) for point in points]

    assert len(benchmark.pedantic(cut, rounds=1)) == len(points)
    benchmark.extra_info["points"] = len(points)
