"""Host links: how fast a card exchanges data with its host's memory.

``host_links.toml`` says which link a card has; a device that is not in it cannot offload.
"""

from functools import cache
from pathlib import Path
from typing import Final

from profiles.errors import InputError
from profiles.files import Table
from profiles.machines.devices import Device
from profiles.units import GB

LINKS: Final = Path(__file__).parents[1] / "host_links.toml"


@cache
def _links() -> tuple[dict[str, float], float]:
    """Bytes per second of copies from pinned memory in one direction, by device, and pageable memory's share of it."""
    table = Table.read(LINKS)
    reached, pageable = table.number("reached"), table.number("pageable")
    table.text("source")
    table.text("pageable_source")
    rates: dict[str, float] = {}
    for link in table.tables("links"):
        link.text("source")
        bandwidth = link.positive("GB_per_s") * GB * reached
        rates |= dict.fromkeys(link.texts("devices"), bandwidth)
        link.finish()
    table.finish()
    return rates, pageable


def pageable_share() -> float:
    """Share of the rate of copies from pinned memory that those from pageable memory reach."""
    return _links()[1]


def copied_s(device: Device, size_bytes: float) -> float:
    """Seconds of a copy between the host's pinned memory and a card's, in either direction; 0 on the ideal device.

    Raises:
        InputError: the device's link to its host is not known.
    """
    if device.name == "ideal" or not size_bytes:
        return 0.0
    rates, _ = _links()
    if device.name not in rates:
        known = ", ".join(sorted(rates))
        raise InputError(
            f"the link of device {device.name} to its host is not known, so nothing can be offloaded; known are {known}"
        )
    return size_bytes / rates[device.name]
