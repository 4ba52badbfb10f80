"""Offloading: blocks of the backbone whose weights lie in the host's memory, and come up one after another.

While a block is computed the next one is copied, into the room of the one before: at most two lie on a GPU. In a step
the first block's copy hides behind the last block of the step before. Copies are of pinned memory on a stream of their
own; they hide behind compute alone, not behind exchanges, which take the same way on boards without NVLink.

Source: diffusers, ``enable_group_offload`` by block with ``use_stream``, which fetches the next group ahead
(hooks/group_offloading.py); SGLang's ``--dit-layerwise-offload`` does the same with all blocks.
"""

from typing import Final

import numpy as np

from profiles.costs.layers import FloatArray
from profiles.errors import InfeasibleError
from strategies.patching.held import held_parameters
from strategies.sampling_scenario import SamplingScenario

HELD: Final = 2
"""Offloaded blocks that lie on a GPU at once: the one that is computed, and the next."""


def waits_s(scenario: SamplingScenario, layers_s: FloatArray, tensor: int = 1) -> FloatArray:
    """Seconds that a GPU waits after each layer until the next block has come up, shape (layers,).

    Args:
        scenario: model, cluster and workload.
        layers_s: seconds in which a GPU computes each layer.
        tensor: devices that divide the matrices.
    """
    waits = np.zeros(len(layers_s))
    if not scenario.workload.swapped:
        return waits
    sizes, numbers = _away_bytes(scenario, tensor), _blocks(scenario)
    for number, after in enumerate(np.roll(sizes, -1)):
        own = np.flatnonzero(numbers == number)
        copied_s = scenario.host_side.copied_s(float(after))
        waits[own[-1]] = max(0.0, copied_s - float(layers_s[own].sum()))
    return waits


def away_share(scenario: SamplingScenario, tensor: int = 1) -> float:
    """Share of a GPU's weights of the backbone that never lie on it at once; arguments as for ``waits_s``."""
    if not scenario.workload.swapped:
        return 0.0
    sizes, held = _away_bytes(scenario, tensor), held_parameters(scenario, tensor).sum()
    return float((sizes.sum() - np.sort(sizes)[-HELD:].sum()) / (held * scenario.weight_bytes))


def _blocks(scenario: SamplingScenario) -> FloatArray:
    """The number of each layer's block, in the order in which blocks run, shape (layers,)."""
    known: dict[int, int] = {}
    return np.array([known.setdefault(layer.block, len(known)) for layer in scenario.backbone.layers])


def _away_bytes(scenario: SamplingScenario, tensor: int) -> FloatArray:
    """Bytes of each block that comes up from the host; 0 of those that stay, shape (blocks,).

    Raises:
        InfeasibleError: the backbone has fewer blocks.
    """
    count = scenario.workload.swapped
    own = np.bincount(_blocks(scenario), weights=held_parameters(scenario, tensor))
    sizes = np.asarray(own * scenario.weight_bytes, dtype=np.float64)
    if count > len(sizes):
        raise InfeasibleError(
            f"offload is layers:{count}, but {scenario.backbone.name} has {len(sizes)} blocks",
            "too few blocks to offload",
        )
    sizes[: len(sizes) - count] = 0.0
    return sizes
