"""Devices: how much memory one has, and how fast it does each class of work.

Shipped ones go by name. A device of one's own is a file of the same keys, or a ``[device]`` table of a cluster file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Final

from profiles.checks import Positive, check_fields
from profiles.files import Table
from profiles.machines.laws import MEMORY_KINDS, AttentionLaw, Laws, MemoryLaw, ProductLaw, Rates, Traffic
from profiles.names import file_of, names_in
from profiles.units import GIB, TFLOP, in_si

Coefficients = Mapping[str, float]
"""Numbers of a table by key."""

MATMUL_KEYS: Final = ("fixed_us", "TFLOP_per_s", "GB_per_s", "chain_us", "ramp", "data", "weight")
CACHE_KEYS: Final = ("cache_MB", "cache_GB_per_s")
TILE_KEYS: Final = ("processors", "edge")
OVERLAP: Final = "overlap"
WIDE_KEY: Final = "wide"
CONV_KEYS: Final = ("forward", "data", "weight")
ATTENTION_KEYS: Final = (
    *("fixed_us", "TFLOP_per_s", "GB_per_s", "rows", "keys", "channels"),
    *("backward_TFLOP_per_s", "backward_rows"),
)
MEMORY_KEYS: Final = ("fixed_us", *(f"{kind}_GB_per_s" for kind in MEMORY_KINDS))
MAY_BE_ZERO: Final = ("fixed_us", "chain_us", "ramp", "rows", "keys", "channels", "backward_rows")


def read_laws(table: Table) -> Laws:
    """Laws that a table describes; no rate but the cache's may exceed the device's peaks."""
    table.text("peaks")
    peaks = {"TFLOP_per_s": table.positive("peak_TFLOP_per_s"), "GB_per_s": table.positive("peak_GB_per_s")}
    keys = {"matmul": MATMUL_KEYS, "conv": CONV_KEYS, "attention": ATTENTION_KEYS, "memory": MEMORY_KEYS}
    numbers = {name: _numbers(table.table(name), of, peaks) for name, of in keys.items()}
    tiled = {"peak_TFLOP_per_s": peaks["TFLOP_per_s"]} if "processors" in numbers["matmul"] else {}
    matmul = product_law({**numbers["matmul"], **tiled})
    laws = Laws(
        matmul,
        replace(matmul, **in_si(numbers["conv"])),  # factors on the seconds of a product of its shape
        attention_law(numbers["attention"]),
        MemoryLaw(**in_si(numbers["memory"])),
    )
    if laws.attention.wide_flop_per_s > peaks["TFLOP_per_s"] * TFLOP:
        raise table.table("attention").fail(WIDE_KEY, "must leave heads of 128 channels below the peak")
    table.finish()
    return laws


def product_law(values: Coefficients) -> ProductLaw:
    """Law of matrix products."""
    return ProductLaw(**_with_traffic(values))


def attention_law(values: Coefficients) -> AttentionLaw:
    """Law of fused attention."""
    return AttentionLaw(**_with_traffic(values))


def _with_traffic(values: Coefficients) -> dict[str, Any]:
    law: dict[str, Any] = in_si(values)
    rates = {key: law.pop(key) for key in ("bytes_per_s", "cache_bytes", "cache_bytes_per_s") if key in law}
    return law | {"traffic": Traffic(**rates)}


def _numbers(table: Table, keys: tuple[str, ...], peaks: Coefficients) -> Coefficients:
    """Numbers of a table, none above the peak of its unit, with which its key ends."""
    table.text("source")
    values: dict[str, float] = {}
    cached = CACHE_KEYS if "cache_MB" in table else ()
    others = [key for key in (*TILE_KEYS, OVERLAP, WIDE_KEY) if key in table]
    for key in (*keys, *others, *cached):
        if key in MAY_BE_ZERO:
            values[key] = table.number(key)
        elif key == OVERLAP:
            values[key] = table.number(key, minimum=1.0)
        elif key == "cache_GB_per_s":
            memory = max(rate for of, rate in values.items() if of.endswith("GB_per_s"))
            values[key] = table.number(key, minimum=memory)
        else:
            unit = next((unit for unit in peaks if key.endswith(unit)), "")
            values[key] = table.positive(key, maximum=peaks.get(unit, inf))
    table.finish()
    return values


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
        own_laws=read_laws(table.table("laws")) if "laws" in table else None,
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
