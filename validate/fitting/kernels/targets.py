"""Targets: what the laws of each device are made of, as ``targets.toml`` says."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from profiles.errors import InputError
from profiles.files import Table
from profiles.machines.law_tables import Coefficients

TARGETS: Final = Path(__file__).parent / "targets.toml"
WORDS: Final = ("rows", "like", "gradients", "backward", "priors", "device", "stream", "launch", "note")


@dataclass(frozen=True)
class Origin:
    """Where the coefficients of one class of kernels come from; '' where a word is not given."""

    rows: tuple[str, ...]
    like: str
    gradients: str
    backward: str
    priors: str
    device: str
    stream: str
    launch: str
    note: str
    cached: bool
    device_peak: float
    seen: float
    overlap: float
    backward_tile: float | None


@dataclass(frozen=True)
class Target:
    """One device: its peaks in the units of a device file, and where each class of laws comes from."""

    name: str
    peaks: str
    flop_peak: float
    bytes_peak: float
    origins: Mapping[str, Origin]

    def scaled(self, values: Coefficients, other: "Target") -> dict[str, float]:
        """Coefficients of another device, its paces scaled by the peaks; a cache's is not."""
        ratios = {
            "TFLOP_per_s": self.flop_peak / other.flop_peak,
            "GB_per_s": self.bytes_peak / other.bytes_peak,
        }
        ratios["cache_GB_per_s"] = 1.0
        return {
            key: value * ratios.get(key, next((ratios[unit] for unit in ratios if key.endswith(unit)), 1.0))
            for key, value in values.items()
        }


@cache
def targets() -> Mapping[str, Target]:
    """Targets by device name, in the order of the file."""
    table = Table.read(TARGETS)
    return {name: _target(name, table.table(name)) for name in table.keys()}  # noqa: SIM118  no mapping


def target(name: str) -> Target:
    """Target of one device.

    Raises:
        InputError: there is none of this name.
    """
    if name not in targets():
        raise InputError(f"no measured kernels of device '{name}'; choose from {', '.join(targets())}")
    return targets()[name]


def _target(name: str, table: Table) -> Target:
    found = Target(
        name=name,
        peaks=table.text("peaks"),
        flop_peak=table.positive("peak_TFLOP_per_s"),
        bytes_peak=table.positive("peak_GB_per_s"),
        origins={each: _origin(table.table(each)) for each in ("matmul", "conv", "attention", "memory")},
    )
    table.finish()
    return found


def _origin(table: Table) -> Origin:
    words = {word: table.text(word) if word in table else "" for word in WORDS if word != "rows"}
    origin = Origin(
        rows=table.texts("rows", ()),
        cached=table.flag("cached") if "cached" in table else False,
        device_peak=table.positive("device_GB_per_s") if "device_GB_per_s" in table else 0.0,
        seen=table.positive("seen_TFLOP_per_s") if "seen_TFLOP_per_s" in table else 0.0,
        overlap=table.positive("overlap") if "overlap" in table else 1.0,
        backward_tile=table.number("backward_tile") if "backward_tile" in table else None,
        **words,
    )
    table.finish()
    return origin
