"""The cost of layouts of convolutions, read off whole networks.

Kernels of half-precision convolutions need channels last. In PyTorch's own layout cuDNN transposes for them, or runs
kernels that read or write it themselves. The ratio of the seconds that channels-last saves to those of copying once
what the convolutions read and write gives the cost. It is read off networks of convolutions with windows: VGG (Simonyan
and Zisserman, arXiv 1409.1556, table 1) and ResNet-18 and -34 (He et al., arXiv 1512.03385, table 1), on an RTX 3090.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from profiles.machines.devices import load_device
from profiles.machines.laws import ELEMENT_BYTES
from validate.fitting.kernels import rows
from validate.fitting.kernels.laws import target

IMAGE: Final = 224
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
    laws = load_device(LIKE).laws
    assert laws is not None, LIKE
    pace = laws.memory.copy_bytes_per_s * PEAK / target(LIKE).bytes_peak
    medians = {}
    for mode in SOURCES:
        ratios = []
        for network in NETWORKS:
            sources = (f"{SOURCES[mode]}{layout}" for layout in ("nchw", "nhwc"))
            first, last = (1 / rows.throughput(folder, source, DEVICE, network, mode) for source in sources)
            ratios.append((first - last) * pace / (2 * ELEMENT_BYTES * moved_elements(network)))
        medians[mode] = median(ratios)
    forward = medians["inference"]
    return {"forward": forward, "gradient": (medians["training"] - forward) / GRADIENTS}
