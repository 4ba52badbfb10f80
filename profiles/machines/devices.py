"""Devices: how much memory one has, and how fast it does each class of work.

Shipped ones go by name. A device of one's own is a file of the same keys, or a ``[device]`` table of a cluster file.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeVar

from profiles.checks import Positive, check_fields
from profiles.files import Table
from profiles.machines.laws import AttentionLaw, Laws, MemoryLaw, ProductLaw, Rates, Traffic
from profiles.names import file_of, names_in
from profiles.units import GIB, TFLOP

Law = TypeVar("Law", bound=Traffic | MemoryLaw)
REQUIRED: Final = {
    "matmul": ("chain_us", "ramp", "data", "weight"),
    "conv": ("forward", "data", "weight"),
    "attention": ("rows", "keys", "channels", "backward_rows"),
}
"""Keys that a file says though a law has a default of them, by class of kernels."""
CACHE: Final = ("cache_MB", "cache_GB_per_s")
"""Keys of which a file says both or neither."""


def _read_laws(table: Table) -> Laws:
    """Laws that a table describes."""
    table.text("peaks")
    peaks = {unit: table.positive(f"peak_{unit}") for unit in ("TFLOP_per_s", "GB_per_s")}
    matmul = _read_law(table, "matmul", ProductLaw, peaks, peak_flop_per_s=peaks["TFLOP_per_s"] * TFLOP)
    conv = _read_law(table, "conv", ProductLaw, peaks, **asdict(matmul))
    attention = _read_law(table, "attention", AttentionLaw, peaks)
    if attention.wide_flop_per_s > peaks["TFLOP_per_s"] * TFLOP:
        raise table.table("attention").fail("wide", "must leave heads of 128 channels below the peak")
    memory = _read_law(table, "memory", MemoryLaw, peaks)
    table.finish()
    return Laws(matmul, conv, attention, memory)


def _read_law(table: Table, key: str, kind: type[Law], peaks: Mapping[str, float], **known: float) -> Law:
    """Law of a class of kernels; no rate but the cache's may exceed the peak of its unit, with which its key ends."""
    inner = table.table(key)
    inner.text("source")
    for name in REQUIRED.get(key, ()):
        inner.number(name)
    for name, other in (CACHE, CACHE[::-1]):
        if name in inner:
            inner.positive(other)
    law = inner.made(kind, **known)
    inner.finish()
    for unit, peak in peaks.items():
        for name, value in inner.values().items():
            if name.endswith(unit) and not name.startswith("cache") and value > peak:
                raise inner.fail(name, f"must be at most {peak:g}")
    return law


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
    memory_bytes: Positive | None
    rates: Rates | None
    own_laws: Laws | None = None

    def __post_init__(self) -> None:
        check_fields(f"device {self.name}", self)

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
    return names_in(DEVICES)


def load_device(name: str) -> Device:
    """A shipped device by name, or any by the path of its file."""
    return find_device(name)[1]


def find_device(name: str) -> tuple[str, Device]:
    """A device, after the name or path to ask for it again."""
    path = file_of("device", name, DEVICES)
    return path.stem if path.parent == DEVICES else name, read_device(path)


def read_device(path: Path) -> Device:
    """Read a device file."""
    return device_of(Table.read(path))


def device_of(table: Table) -> Device:
    """Device that a table describes: a device file, or ``[device]`` of a cluster file."""
    device = table.made(
        Device,
        memory_bytes=None,
        rates=_read_rates(table.table("rates")) if "rates" in table else None,
        own_laws=_read_laws(table.table("laws")) if "laws" in table else None,
    )
    table.finish()
    return device


def _read_rates(table: Table) -> Rates:
    rates, sources = table.made(Rates), table.table("sources")
    for key in RATE_KEYS:
        sources.text(key)
    sources.finish()
    table.finish()
    return rates
