"""Whole convolutional networks: a check of the laws of convolutions, and the cost of their layouts.

No fp16 convolution of an A100 or H100 has been published, so their laws rest on matrix products and on the convolutions
of a V100. Whole networks, to which nothing was fitted, check that: convolutions, batch norms, activations and additions
of ResNet-50 v1.5 (He et al., arXiv 1512.03385, table 1, with strides in the 3 x 3 convolutions), bound by the GPU.

Kernels of half-precision convolutions need channels last. In PyTorch's own layout cuDNN transposes for them, or runs
kernels that read or write it themselves. The ratio of the seconds that channels-last saves to those of copying once
what the convolutions read and write gives the cost. It is read off networks of convolutions with windows: VGG (Simonyan
and Zisserman, arXiv 1409.1556, table 1) and ResNet-18 and -34 (He et al., table 1), on an RTX 3090.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from profiles.machines.devices import load_device
from profiles.machines.laws import ELEMENT_BYTES, PARTS, FloatArray, Laws
from profiles.measuring.fitting.least_squares import Errors
from validate.fitting.kernels import rows
from validate.fitting.kernels.laws import target

IMAGE: Final = 224
BLOCKS: Final = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, number of blocks and first stride of the four stages."""
EXPANSION: Final = 4
NORM_TENSORS: Final = {"training": 3 + 5, "inference": 2}
"""Tensors that a batch norm reads and writes: forward it reads its input twice, for moments and scaling, backward input
and gradient twice; in inference it reads and writes once."""
ACTIVATION_TENSORS: Final = {"training": 2 + 3, "inference": 2}
BATCH: Final = 256


class Check(NamedTuple):
    """Published images per second of one GPU, in mixed precision and channels-last.

    ``fused``: activations run within batch norms (MXNet).
    """

    device: str
    measured: str
    mode: str
    source: str
    fused: bool


CHECKS: Final = (
    Check("a100-80gb-sxm", "NVIDIA A100-SXM4-80GB", "training", "dle:pyt/resnet50", fused=False),
    Check("a100-80gb-sxm", "NVIDIA A100-SXM4-80GB", "training", "dle:mxnet/rn50", fused=True),
    Check("v100-32gb-sxm", "NVIDIA V100-SXM2-32GB", "training", "dle:pyt/resnet50", fused=False),
    Check("v100-32gb-sxm", "NVIDIA V100-SXM2-32GB", "training", "dle:mxnet/rn50", fused=True),
    Check("v100-32gb-sxm", "NVIDIA V100-SXM2-16GB", "inference", "dle:pyt/resnet50", fused=False),
    Check("t4-16gb", "NVIDIA T4", "inference", "dle:pyt/resnet50", fused=False),
    Check("t4-16gb", "NVIDIA T4", "inference", "dle:mxnet/rn50", fused=True),
    Check("rtx4090-24gb", "NVIDIA GeForce RTX 4090", "inference", "timm:infer-amp-nhwc", fused=False),
)


def convolutions(batch: int) -> FloatArray:
    """Convolutions of ResNet-50, columns m, n, k and elements of the input."""

    def layer(size: int, channels: int, out: int, kernel: int, stride: int) -> tuple[int, int, int, int]:
        return batch * (size // stride) ** 2, out, channels * kernel**2, batch * channels * size**2

    found, size, channels = [layer(IMAGE, 3, 64, 7, 2)], IMAGE // 4, 64
    for width, blocks, first in BLOCKS:
        for block in range(blocks):
            stride = first if block == 0 else 1
            if block == 0:
                found.append(layer(size, channels, EXPANSION * width, 1, stride))
            found.append(layer(size, channels, width, 1, 1))
            found.append(layer(size, width, width, 3, stride))
            size, channels = size // stride, EXPANSION * width
            found.append(layer(size, width, channels, 1, 1))
    return np.array(found, dtype=float)


def additions(batch: int) -> FloatArray:
    """Elements that each block adds to its input."""
    size, found = IMAGE // 4, list[int]()
    for width, blocks, first in BLOCKS:
        size //= first
        found += [batch * EXPANSION * width * size**2] * blocks
    return np.array(found, dtype=float)


def _images_per_s(laws: Laws, mode: str, *, fused: bool) -> float:
    """Images per second by the laws; the optimizer and the last, small layers are left out."""
    m, n, k, read = convolutions(BATCH).T
    written = m * n
    moved = ELEMENT_BYTES * (read + written + k * n)
    seconds = 0.0
    for part in PARTS if mode == "training" else PARTS[:1]:
        each = laws.conv_s(1, m, n, k, moved, part=part)
        seconds += float(each[1:].sum() if part == "data" else each.sum())  # images need no gradient
    tensors = NORM_TENSORS[mode] + (0 if fused else ACTIVATION_TENSORS[mode])
    seconds += float(laws.memory_s("pointwise", ELEMENT_BYTES * tensors * written).sum())
    seconds += float(laws.memory_s("pointwise", 3 * ELEMENT_BYTES * additions(BATCH)).sum())
    return BATCH / seconds


def errors(folder: Path) -> Iterator[tuple[Check, Errors]]:
    """Published and predicted images per second of each check."""
    for check in CHECKS:
        laws = load_device(check.device).laws
        assert laws is not None
        published = rows.throughput(folder, check.source, check.measured, "resnet50", check.mode)
        predicted = _images_per_s(laws, check.mode, fused=check.fused)
        yield check, Errors(np.array([published]), np.array([predicted]))


DEVICE: Final = "NVIDIA GeForce RTX 3090"
PEAK: Final = 936.0
"""GB per second (NVIDIA GeForce RTX 3090 data sheet)."""
LIKE: Final = "rtx4090-24gb"
"""Device whose copies reach the same share of their peak."""
SOURCES: Final = {"inference": "timm:infer-amp-", "training": "timm:train-amp-"}
WIDTHS: Final = (64, 128, 256, 512, 512)
VGG: Final = {
    "vgg11": (1, 1, 2, 2, 2), "vgg13": (2, 2, 2, 2, 2), "vgg16": (2, 2, 3, 3, 3), "vgg19": (2, 2, 4, 4, 4),
}  # fmt: skip
"""Convolutions at each of five resolutions."""
NETWORKS: Final = (
    "resnet18", "resnet34", "vgg13", "vgg16", "vgg19", "vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn",
)  # fmt: skip
"""Those timed in both layouts and both modes; ``bn``: with batch norms."""
RESNETS: Final = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
"""Blocks at each of four resolutions."""
GRADIENTS: Final = 2
"""Convolutions of a backward pass for one of the forward pass."""


def moved_elements(network: str) -> int:
    """Activations that the convolutions of a network read and write for one image."""
    name = network.removesuffix("_bn")
    tensors = _vgg(VGG[name]) if name in VGG else _resnet(RESNETS[name])
    return sum(read + written for read, written in tensors)


def _vgg(depths: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    channels, size = 3, IMAGE
    for width, depth in zip(WIDTHS, depths, strict=True):
        sizes = [channels * size**2, *[width * size**2] * depth]
        yield from pairwise(sizes)
        channels, size = width, size // 2


def _resnet(blocks: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Its first convolution, and the pairs of each block; a block of stride 2 has a third beside them."""
    yield 3 * IMAGE**2, WIDTHS[0] * (IMAGE // 2) ** 2
    channels, size = WIDTHS[0], IMAGE // 4
    for width, depth in zip(WIDTHS, blocks, strict=False):
        for block in range(depth):
            read = channels * size**2
            size //= 2 if block == 0 and width != channels else 1
            written = width * size**2
            yield from ((read, written), (written, written))
            if channels != width:
                yield read, written
            channels = width


def shares(folder: Path) -> dict[str, float]:
    """Seconds of laying out anew over those of copying once: in a forward pass, and in each of the two gradients."""
    found = {mode: _median_share(folder, mode) for mode in SOURCES}
    forward = found["inference"]
    return {"forward": forward, "gradient": (found["training"] - forward) / GRADIENTS}


def _median_share(folder: Path, mode: str) -> float:
    laws = load_device(LIKE).laws
    assert laws is not None, LIKE
    pace = laws.memory.copy_bytes_per_s * PEAK / target(LIKE).bytes_peak
    copied = {name: 2 * ELEMENT_BYTES * moved_elements(name) for name in NETWORKS}  # bytes read and written
    return median(_saved_s(folder, mode, name) * pace / copied[name] for name in NETWORKS)


def _saved_s(folder: Path, mode: str, network: str) -> float:
    """Seconds per image that channels-last saves."""
    sources = (f"{SOURCES[mode]}{layout}" for layout in ("nchw", "nhwc"))
    first, last = (1 / rows.throughput(folder, source, DEVICE, network, mode) for source in sources)
    return first - last
