"""Devices: how much memory one has, and how fast it does each class of work.

Shipped ones go by name. A device of one's own is a file of the same keys, or a ``[device]`` table of a cluster file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from profiles.files import Table, naming_file
from profiles.machines.law_tables import read_laws
from profiles.machines.laws import Laws, Rates
from profiles.names import file_of
from profiles.units import GIB, in_si

DEVICES: Final = Path(__file__).parents[1] / "devices"
RATE_KEYS: Final = (
    "conv_TFLOP_per_s",
    "matmul_TFLOP_per_s",
    "attention_TFLOP_per_s",
    "memory_GB_per_s",
    "kernel_us",
)


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    Attributes:
        name: by which a shipped device is asked for.
        memory_bytes: what a process can use; None where that is unlimited.
        rates: by class of work.
        own_laws: of its kernels by shape. If only one of ``rates`` and this is None, it follows from the other; if both
            are, all times must be measured.
    """

    name: str
    source: str
    memory_bytes: float | None
    rates: Rates | None
    own_laws: Laws | None = None

    @property
    def laws(self) -> Laws | None:
        """Laws of its kernels: its own, else those that follow from its rates; None where it has neither."""
        if self.own_laws is not None or self.rates is None:
            return self.own_laws
        return Laws.of_rates(self.rates)

    def __repr__(self) -> str:
        memory = "unlimited memory" if self.memory_bytes is None else f"{self.memory_bytes / GIB:.5g} GiB"
        return f"<Device {self.name}: {memory}, {'no rates' if self.laws is None else 'rates'} of its own>"


def device_names() -> list[str]:
    """The names of the shipped devices."""
    return sorted(path.stem for path in DEVICES.glob("*.toml"))


def load_device(name: str) -> Device:
    """A shipped device by name, or any by the path of its file."""
    return find_device(name)[1]


def find_device(name: str) -> tuple[str, Device]:
    """A device, after the name or path to ask for it again."""
    path = file_of("device", name, DEVICES)
    return path.stem if path.parent == DEVICES else name, read_device(path)


@naming_file
def read_device(path: Path) -> Device:
    """Read a device file."""
    return device_of(Table.read(path))


def device_of(table: Table) -> Device:
    """Device that a table describes: a device file, or ``[device]`` of a cluster file."""
    device = Device(
        name=table.text("name"),
        source=table.text("source"),
        memory_bytes=table.positive("memory_GiB") * GIB if "memory_GiB" in table else None,
        rates=_read_rates(table.table("rates")) if "rates" in table else None,
        own_laws=read_laws(table.table("laws")) if "laws" in table else None,
    )
    table.finish()
    return device


def _read_rates(table: Table) -> Rates:
    *rates, kernel = RATE_KEYS
    numbers = {key: table.positive(key) for key in rates} | {kernel: table.number(kernel)}
    sources = table.table("sources")
    for key in RATE_KEYS:
        sources.text(key)
    sources.finish()
    table.finish()
    return Rates(**in_si(numbers))
