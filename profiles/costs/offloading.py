"""Offloading: what lies in the host's memory instead of the GPU's, and what it costs to be used from there.

Each GPU reaches its host over its link (``host_links.toml``), which the GPUs of a switch share. The
optimizer's step on the host is bound by the host's memory bandwidth, which all GPUs of a node share. Whether the host
has enough memory is not checked.
"""

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from profiles.errors import InputError
from profiles.files import load_toml
from profiles.machines.clusters import Cluster
from profiles.machines.devices import Device
from profiles.software.recipes import MemoryRecipe
from profiles.units import GB

LINKS: Final = Path(__file__).parents[1] / "host_links.toml"
CARDS_PER_SWITCH: Final = 2
"""Cards behind one PCIe switch that share its way to the host: estimate for boxes with NVSwitch, from the DGX A100,
whose four switches have two GPUs each; where each card has its own, copies are twice as fast. On boards without
NVSwitch each card has its own."""
OWN_WAY: Final = ("gb200", "gb300")
"""Devices each of which has a way to the host of its own, NVSwitch or not."""
STEP_BYTES_PER_S: Final = 110 * GB
"""Bytes per second that the host moves in an optimizer's step, threaded and vectorised. Estimate, 90 to 130 GB/s: 0.22
to 0.30 s for a billion parameters at 28 bytes (ZeRO-Offload, Ren et al., 2021, Table 4, CPU-Adam on a DGX-2). Not
checked: the table is quoted from memory."""


class HostSide(NamedTuple):
    """The host as the GPUs of a node reach it, all at once.

    Attributes:
        gpus: GPUs of the node that use the host.
        sharing: how many of them share one way to it.
    """

    device: Device
    gpus: int
    sharing: int

    @classmethod
    def of(cls, cluster: Cluster, num_gpus: int) -> "HostSide":
        """The host side of a cluster of which so many GPUs are used."""
        gpus = min(num_gpus, cluster.devices_per_node)
        _ = copied_s(cluster.device, 1.0)
        switched = cluster.intra_node.kind == "nvswitch" and cluster.device.name not in OWN_WAY
        return cls(cluster.device, gpus, min(gpus, CARDS_PER_SWITCH) if switched else 1)

    def copied_s(self, size_bytes: float, *, pageable: bool = False) -> float:
        """Seconds in which each GPU sends or receives its bytes; pageable memory is no faster than the host copies."""
        alone_s = copied_s(self.device, size_bytes)
        return max(self.sharing * alone_s, alone_s / _links()[1] if pageable else 0.0)

    def step_s(self, parameters: float, recipe: MemoryRecipe) -> float:
        """Seconds of an optimizer's step on the host, on so many parameters of each GPU.

        Gradients go to the host; weights come back while it steps the next ones (ZeRO-Offload, section 5.1). That part
        of the gradients can go during the backward is left out.
        """
        stepped_s = parameters * self.gpus * recipe.step_bytes / STEP_BYTES_PER_S
        up_s = self.copied_s(parameters * recipe.weight_bytes)
        return self.copied_s(parameters * recipe.gradient_bytes) + max(up_s, stepped_s)


@cache
def _links() -> tuple[dict[str, float], float]:
    """Bytes per second of copies from pinned memory in one direction, by device, and pageable memory's share of it."""
    rows = load_toml(LINKS)
    rates = {
        device: link["GB_per_s"] * GB * rows["reached"]
        for link in rows["links"]
        for device in link["devices"]
    }
    return rates, rows["pageable"]


def copied_s(device: Device, size_bytes: float) -> float:
    """Seconds of a copy between the host's pinned memory and a card's, in either direction; 0 on the ideal device."""
    if device.name == "ideal" or not size_bytes:
        return 0.0
    rates, _ = _links()
    if device.name not in rates:
        known = ", ".join(sorted(rates))
        raise InputError(
            f"the link of device {device.name} to its host is not known, so nothing can be offloaded; known are {known}"
        )
    return size_bytes / rates[device.name]
