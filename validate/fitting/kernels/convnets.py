"""ResNet-50 by the laws beside what was published: a check of convolutions, to which nothing was fitted.

No fp16 convolution of an A100 or H100 has been published, so that their laws rest on matrix products and on the
convolutions of a V100. Whole networks say whether that holds: convolutions, batch norms, activations and additions of
ResNet-50 v1.5 (He et al., arXiv 1512.03385, table 1, with strides in the 3 x 3 convolutions), bound by the GPU.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from profiles.machines.devices import load_device
from profiles.machines.laws import ELEMENT_BYTES, PARTS, FloatArray, Laws
from validate.fitting.errors import Errors
from validate.fitting.kernels import rows

IMAGE: Final = 224
BLOCKS: Final = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, number of blocks and first stride of the four stages."""
EXPANSION: Final = 4
NORM_TENSORS: Final = {"training": 3 + 5, "inference": 2}
"""Tensors that a batch norm reads and writes: it reads its input twice for moments and scaling, and backward reads
input and gradient twice; in inference it reads and writes once."""
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


def images_per_s(laws: Laws, mode: str, *, fused: bool) -> float:
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
        predicted = images_per_s(laws, check.mode, fused=check.fused)
        yield check, Errors(np.array([published]), np.array([predicted]))
