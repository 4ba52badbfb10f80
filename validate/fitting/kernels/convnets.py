"""The cost of layouts of convolutions, read off whole networks.

Kernels of half-precision convolutions need channels last. In PyTorch's own layout cuDNN transposes for them, or runs
kernels that read or write it themselves. The ratio of the seconds that channels-last saves to those of copying once
what the convolutions read and write gives the cost. It is read off networks of convolutions with windows: VGG (Simonyan
and Zisserman, arXiv 1409.1556, table 1) and ResNet-18 and -34 (He et al., arXiv 1512.03385, table 1), on an RTX 3090.
"""

from pathlib import Path
from statistics import median
from typing import Final

from profiles.machines.devices import load_device
from profiles.machines.laws import ELEMENT_BYTES
from validate.fitting.kernels import rows
from validate.fitting.kernels.laws import target

DEVICE: Final = "NVIDIA GeForce RTX 3090"
PEAK: Final = 936.0
"""GB per second (NVIDIA GeForce RTX 3090 data sheet)."""
LIKE: Final = "rtx4090-24gb"
"""Device whose copies reach the same share of their peak."""
SOURCES: Final = {"inference": "timm:infer-amp-", "training": "timm:train-amp-"}
MOVED: Final = {
    "resnet18": 4_666_368, "resnet34": 7_175_168, "vgg13": 20_020_224, "vgg16": 22_629_376, "vgg19": 25_238_528,
    "vgg11_bn": 10_386_432, "vgg13_bn": 20_020_224, "vgg16_bn": 22_629_376, "vgg19_bn": 25_238_528,
}  # fmt: skip
"""Activations that the convolutions of a network read and write for one image of 224 pixels, by the papers.

The networks are those timed in both layouts and both modes (``bn``: with batch norms).
"""
GRADIENTS: Final = 2
"""Convolutions of a backward pass for one of the forward pass."""


def shares(folder: Path) -> dict[str, float]:
    """Seconds of laying out anew over those of copying once: in a forward pass, and in each of the two gradients."""
    laws = load_device(LIKE).laws
    assert laws is not None, LIKE
    pace = laws.memory.copy_bytes_per_s * PEAK / target(LIKE).bytes_peak
    medians = {}
    for mode in SOURCES:
        ratios = []
        for network, moved in MOVED.items():
            sources = (f"{SOURCES[mode]}{layout}" for layout in ("nchw", "nhwc"))
            first, last = (1 / rows.throughput(folder, source, DEVICE, network, mode) for source in sources)
            ratios.append((first - last) * pace / (2 * ELEMENT_BYTES * moved))
        medians[mode] = median(ratios)
    forward = medians["inference"]
    return {"forward": forward, "gradient": (medians["training"] - forward) / GRADIENTS}
