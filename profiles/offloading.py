"""Offloading: what lies in the host's memory instead of the GPU's, and what it costs to be used from there.

Each GPU reaches its host over PCIe, which the GPUs of a switch share. The optimizer's step on the host is bound by the
host's memory, which all GPUs of a node share. Whether the host has the memory is not looked at.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from profiles.clusters import Cluster
from profiles.errors import InputError
from profiles.recipes import MemoryRecipe
from profiles.units import GB

PCIE_GB_PER_S: Final[Mapping[str, float]] = MappingProxyType(
    {
        "v100": 16, "t4": 16,
        "a100": 32, "l20": 32, "l40": 32, "l40s": 32, "rtx4090": 32, "ascend910a": 32,
        "h100": 64, "h200": 64, "h20": 64, "b200": 64,
        "gb200": 450,
    }
)  # fmt: skip
"""GB/s of a card to its host and as many back, by the first part of a device's name. Source: the makers' data sheets:
16 lanes of PCIe 3.0, 4.0 or 5.0; of GB200 NVLink-C2C, 900 GB/s both ways together."""
REACHED: Final = 0.8
"""Share of it that copies from pinned memory reach: estimate; its band is 0.75 to 0.85, about 25 GB/s over PCIe 4.0."""
CARDS_PER_SWITCH: Final = 2
"""Cards behind one switch that share its way to the host: estimate for boxes with NVSwitch, as of DGX A100, whose four
switches have two GPUs each; where each card has its own, copies are twice as fast. On boards without it each has."""
STEP_BYTES_PER_S: Final = 110 * GB
"""Bytes that the host of a box moves in an optimizer's step, threaded and vectorised. Estimate, band 90 to 130 GB/s:
0.22 to 0.30 s for a billion parameters at 28 bytes (ZeRO-Offload, Ren et al., 2021, Table 4, CPU-Adam on a DGX-2; from
memory)."""


@dataclass(frozen=True, slots=True)
class HostSide:
    """The host as the GPUs of a node reach it, all at once.

    Attributes:
        bytes_per_s: of one GPU, each way.
        gpus: GPUs of the node that use it.
    """

    bytes_per_s: float
    gpus: int

    @classmethod
    def of(cls, cluster: Cluster, num_gpus: int) -> "HostSide":
        """The host side of a cluster whose first GPUs are used.

        Raises:
            InputError: nobody knows how fast its devices reach their host.
        """
        gpus, name = min(num_gpus, cluster.devices_per_node), cluster.device.name.partition("-")[0]
        if name not in PCIE_GB_PER_S:
            known = ", ".join(PCIE_GB_PER_S)
            raise InputError(f"--offload needs a card whose way to its host is known: {known}, not {name}")
        alone = name == "gb200" or cluster.intra_node.kind == "pcie"
        shared = 1 if alone else min(gpus, CARDS_PER_SWITCH)
        return cls(REACHED * PCIE_GB_PER_S[name] * GB / shared, gpus)

    def step_s(self, parameters: float, recipe: MemoryRecipe) -> float:
        """Seconds of an optimizer's step on the host, on so many parameters of each GPU.

        Gradients go down, weights come up while the host is at the next ones (ZeRO-Offload, section 5.1); that part of
        the gradients goes down during the backward is not counted on.
        """
        down_s, up_s = (
            parameters * size / self.bytes_per_s for size in (recipe.gradient_bytes, recipe.weight_bytes)
        )
        return down_s + max(up_s, parameters * self.gpus * recipe.step_bytes / STEP_BYTES_PER_S)

    def swapped_s(self, size_bytes: float) -> float:
        """Seconds in which weights come up."""
        return size_bytes / self.bytes_per_s
