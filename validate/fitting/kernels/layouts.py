"""What laying activations out anew for convolutions costs: networks timed in both layouts, NCHW and NHWC.

Kernels of half-precision convolutions want channels last. In PyTorch's own layout cuDNN transposes for them, or runs
kernels that read or write it themselves. The seconds that channels-last saves, over those of copying what the
convolutions read and write once, say how much of that remains. Networks whose convolutions have windows: VGG (Simonyan
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
from validate.fitting.kernels.targets import target

DEVICE: Final = "NVIDIA GeForce RTX 3090"
PEAK: Final = 936.0
"""GB per second (NVIDIA GeForce RTX 3090 data sheet)."""
LIKE: Final = "rtx4090-24gb"
"""Device whose copies reach the same share of their peak."""
SOURCES: Final = {"inference": "timm:infer-amp-", "training": "timm:train-amp-"}
IMAGE: Final = 224
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
    """Seconds of laying out anew over those of copying once: of a forward pass, and of each of the two gradients."""
    found = {mode: _median_share(folder, mode) for mode in SOURCES}
    forward = found["inference"]
    return {"forward": forward, "gradient": (found["training"] - forward) / GRADIENTS}


def _median_share(folder: Path, mode: str) -> float:
    laws = load_device(LIKE).laws
    assert laws is not None, LIKE
    pace = laws.memory.copy_bytes_per_s * PEAK / target(LIKE).bytes_peak
    return median(_saved_s(folder, mode, name) * pace / _copied_bytes(name) for name in NETWORKS)


def _saved_s(folder: Path, mode: str, network: str) -> float:
    """Seconds per image that channels-last saves."""
    first, last = (
        1 / rows.throughput(folder, f"{SOURCES[mode]}{layout}", DEVICE, network, mode)
        for layout in ("nchw", "nhwc")
    )
    return first - last


def _copied_bytes(network: str) -> float:
    """Bytes that are read and written when all that the convolutions of a network move is copied once."""
    return 2 * ELEMENT_BYTES * moved_elements(network)
