"""The footprint of sampling: the bytes that lie on a device throughout a run, and blocks whose weights do not.

Blocks that lie in the host's memory come up one after another. While a block is computed the next one is copied, into
the room of the one before: at most two lie on a GPU. In a step the first block's copy hides behind the last block of
the step before. Copies are of pinned memory on a stream of their own; they hide behind compute alone, not behind
exchanges, which take the same way on boards without NVLink.

Source: diffusers, ``enable_group_offload`` by block with ``use_stream``, which fetches the next group ahead
(hooks/group_offloading.py); SGLang's ``--dit-layerwise-offload`` does the same with all blocks.

Sharded blocks come likewise, from the shards of all GPUs, by an all-gather whose share of the multiprocessors is not
modelled; a pass waits for its first. Where they lie on the host, each GPU copies its shard up before.

Source: torch's ``fully_shard`` of each block (vLLM-Omni 0.30.0, distributed/hsdp.py; SGLang 0.5.23, fsdp_load.py), and
vLLM-Omni's distributed layerwise offload, which hides the first block, too (distributed_layerwise_backend.py).
"""

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np

from profiles.architectures.components import Component, divided_parameters
from profiles.architectures.extents import Extent
from profiles.architectures.shares import HALF_BYTES, REPLICATED_SHARE
from profiles.errors import InfeasibleError
from profiles.machines.collectives import Group, collective_time
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from profiles.units import GIB, FloatArray
from strategies.plans.plan import Buffer
from strategies.sampling_scenario import SamplingScenario

RUNTIME_BYTES: Final = 1.9 * GIB
"""CUDA context, libraries and what the allocator keeps free. Source: PixArt on one A100 at 1024 px takes 12.28 GiB
(PipeFusion v1, Fig. 7), 10.2 GiB of them weights, 0.2 GiB activations by the share below."""
NCCL_BYTES: Final = GIB / 4
"""A communicator's buffers: 32 channels, each 4 MiB to send and 4 to receive. Source: NCCL's user guide, defaults of
NCCL_BUFFSIZE and NCCL_MAX_NCHANNELS."""
WORKING_SHARE: Final = 0.52
"""Bytes a forward pass holds at once, over what a layer would keep for its backward pass. Source: one A100 takes
10.2 GiB more for PixArt at 8192 px than at 4096 (PipeFusion v1, Fig. 7): 12.1 hidden states of 23.1 saved ones."""

WEIGHTS: Final = "weights"
PASSING: Final = ("activations", "keys and values", "joined keys and values")
"""Buffers that no denoising step leaves behind for what runs before and after all of them."""


def weights(
    scenario: SamplingScenario, parameters: float, devices: int, tensor: int = 1
) -> tuple[Buffer, ...]:
    """The bytes of some parameters of the backbone, of the frozen components that are kept, and of the runtime.

    ``parameters`` are on one of the ``devices`` that work together, ``tensor`` of which divide the matrices.
    """
    kept = scenario.decoders if scenario.workload.encoders_moved else scenario.model.frozen
    kept = () if scenario.workload.moved else kept
    frozen = sum(scenario.model.components[i].parameters for i in kept)
    return (
        Buffer(WEIGHTS, parameters * scenario.weight_bytes * (1 - away_share(scenario, tensor))),
        Buffer("text encoders and VAE", frozen * FROZEN_WEIGHT_BYTES),
        Buffer("runtime", RUNTIME_BYTES + (NCCL_BYTES if devices > 1 else 0.0)),
    )


def parameters(scenario: SamplingScenario, first: int, end: int, tensor: int = 1) -> float:
    """The parameters of the backbone's layers from ``first`` up to, without, ``end``, that a device holds.

    Those of all experts.
    """
    return float(scenario.backbone.experts * held_parameters(scenario, tensor)[first:end].sum())


def working(scenario: SamplingScenario, first: int, end: int, batch: float, tensor: int = 1) -> Buffer:
    """The largest activations of a layer from ``first`` up to, without, ``end``.

    ``batch`` are the samples of one pass, times the share of the tokens that the device holds.
    """
    extent = scenario.extent
    largest = max((layer.saved_bytes for layer in scenario.backbone.layers[first:end]), default=0.0)
    divided = REPLICATED_SHARE + (1 - REPLICATED_SHARE) / tensor
    size = WORKING_SHARE * largest * extent.tokens * extent.bytes * batch * divided
    return Buffer("activations", size)


def keys_and_values(scenario: SamplingScenario, first: int, end: int, samples: float) -> Buffer:
    """Return the keys and values of all image tokens in the layers from ``first`` up to, without, ``end``."""
    rows = [e for e in scenario.backbone.exchanges if first <= e.layer < end and e.kind == "key_value"]
    size = HALF_BYTES * sum(row.elements for row in rows) * scenario.extent.pixels
    return Buffer("keys and values", samples * size)


def joined_keys_and_values(scenario: SamplingScenario, samples: float) -> Buffer:
    """Return the keys and values of all image tokens of one layer, the largest.

    Where they lie in pieces, one per device, attention needs a copy in one piece.
    """
    layers = range(len(scenario.backbone.layers))
    sizes = (keys_and_values(scenario, layer, layer + 1, samples).size_bytes for layer in layers)
    return Buffer("joined keys and values", max(sizes))


def decoding_bytes(component: Component, extent: Extent, share: float, whole: int = 0) -> float:
    """The largest activations of a decoder that works on a share of the rows at a time, per image.

    A layer holds its input, and its output twice: normalised and convolved.
    It begins with ``whole`` layers on all rows.
    """
    sizes = [layer.output_bytes for layer in component.layers]
    inputs = [0.0, *sizes[:-1]]
    held = [before + 2 * after for before, after in zip(inputs, sizes, strict=True)]
    largest = max([*held[:whole], *(share * size for size in held[whole:])])
    return largest * extent.tokens * extent.bytes


def between_phases(
    scenario: SamplingScenario, resident: Sequence[tuple[Buffer, ...]]
) -> list[tuple[Buffer, ...]]:
    """Bytes that stay on each device before and after denoising steps, of those that lie there meanwhile."""
    gone = (*PASSING, WEIGHTS) if scenario.workload.moved else PASSING
    return [tuple(buffer for buffer in row if buffer.name not in gone) for row in resident]


HELD: Final = 2
"""Blocks that come that lie on a GPU at once: the one that is computed, and the next."""


def waits_s(scenario: SamplingScenario, layers_s: FloatArray, tensor: int = 1) -> FloatArray:
    """Seconds that a GPU waits after each layer, computed in ``layers_s``, until the next block has come up.

    Layers that are streamed wait for their own weights, of pageable memory.
    """
    if scenario.workload.streamed:
        sizes = held_parameters(scenario, tensor) * scenario.weight_bytes
        return np.array([scenario.host_side.copied_s(float(size), pageable=True) for size in sizes])
    waits, sizes, numbers = np.zeros(len(layers_s)), _away_bytes(scenario, tensor), _blocks(scenario)
    for number, after in enumerate(np.roll(sizes, -1) if sizes.any() else ()):
        layers = np.flatnonzero(numbers == number)
        ahead = scenario.workload.swapped or number + 1 < len(sizes)
        hidden_s = float(layers_s[layers].sum()) if ahead else 0.0
        waits[layers[-1]] = max(0.0, _coming_s(scenario, float(after)) - hidden_s)
    return waits


def _coming_s(scenario: SamplingScenario, size_bytes: float) -> float:
    """Seconds until a block that is away has come: its bytes, or a shard of them, from the host, then other shards."""
    shards, cluster = scenario.shards, scenario.streams
    copied_s = scenario.host_side.copied_s(size_bytes / shards) if scenario.workload.swapped else 0.0
    group = Group(shards, ceil(shards / cluster.devices_per_node))
    return copied_s + collective_time(cluster, "all_gather", size_bytes, group).total_s


def away_share(scenario: SamplingScenario, tensor: int = 1) -> float:
    """Share of a GPU's weights of the backbone that never lie on it at once; experts are components, too."""
    if scenario.workload.streamed:
        held = held_parameters(scenario, tensor)
        return float(1 - held.max() / (scenario.backbone.experts * held.sum()))
    if scenario.workload.moved:
        return 1 - 1 / scenario.backbone.experts
    sizes, experts = _away_bytes(scenario, tensor), scenario.backbone.experts
    if not sizes.any():
        return 0.0
    held = experts * held_parameters(scenario, tensor).sum() * scenario.weight_bytes
    away = 1.0 if scenario.workload.swapped else 1 - 1 / scenario.shards
    return max(0.0, float((away * experts * sizes.sum() - np.sort(sizes)[-HELD:].sum()) / held))


def _blocks(scenario: SamplingScenario) -> FloatArray:
    """The number of each layer's block, in the order in which blocks run, shape (layers,)."""
    known: dict[int, int] = {}
    return np.array([known.setdefault(layer.block, len(known)) for layer in scenario.backbone.layers])


def _away_bytes(scenario: SamplingScenario, tensor: int) -> FloatArray:
    """Bytes of each block that comes from the host or from shards; 0 of those that stay, shape (blocks,)."""
    held = np.bincount(_blocks(scenario), weights=held_parameters(scenario, tensor))
    sizes = np.asarray(held * scenario.weight_bytes, dtype=np.float64)
    count = scenario.workload.swapped or len(sizes) * (scenario.shards > 1)
    if count > len(sizes):
        raise InfeasibleError(
            f"`offload` is layers:{count}, but {scenario.backbone.name} has {len(sizes)} blocks",
            "too few blocks to offload",
        )
    sizes[: len(sizes) - count] = 0.0
    return sizes


def held_parameters(scenario: SamplingScenario, tensor: int = 1) -> FloatArray:
    """Parameters of each of the backbone's layers on a GPU, of one expert, shape (layers,).

    Matrices that tokens pass, and convolutions, are divided; norms, embeddings and modulations are whole, as in
    DistriFusion's baseline and in vLLM-Omni (vllm_omni/diffusion/models). SGLang divides those of some models.
    """
    backbone = scenario.backbone
    whole = np.array([layer.parameters for layer in backbone.layers], dtype=np.float64)
    if tensor == 1:
        return whole
    layers = range(len(backbone.layers))
    divided = np.array([divided_parameters(backbone, layer, convolutions=True) for layer in layers])
    return np.asarray(whole - divided + divided / tensor)
