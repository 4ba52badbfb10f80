"""Units: human ones stand in the keys of files, SI (seconds, bytes, FLOP) is used everywhere in memory."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
"""Quantities in SI units."""

MB: Final = 1e6
GB: Final = 1e9
GIB: Final = 2.0**30
MIB: Final = 2.0**20
MILLISECOND: Final = 1e-3
MICROSECOND: Final = 1e-6
GFLOP: Final = 1e9
TFLOP: Final = 1e12

SI: Final = {
    "TFLOP_per_s": ("flop_per_s", TFLOP),
    "GB_per_s": ("bytes_per_s", GB),
    "gflop": ("flop", GFLOP),
    "MB": ("bytes", MB),
    "GiB": ("bytes", GIB),
    "us": ("s", MICROSECOND),
    "ms": ("s", MILLISECOND),
}
"""Ends of keys, with what they are in memory and its factor."""


@cache
def keys_of(name: str) -> tuple[tuple[str, float], ...]:
    """Return the keys of files under which a quantity in SI units can stand, each with the factor of its unit."""
    units = ((unit, *si) for unit, si in SI.items() if f"_{name}".endswith(f"_{si[0]}"))
    return *((name.removesuffix(suffix) + unit, factor) for unit, suffix, factor in units), (name, 1.0)


def in_si(values: Mapping[str, float]) -> dict[str, Any]:
    """Return values in SI units, under keys that say so; keys without a unit stay."""
    result = {}
    for key, value in values.items():
        unit = next((unit for unit in SI if key == unit or key.endswith(f"_{unit}")), "")
        name, factor = SI.get(unit, ("", 1.0))
        result[key.removesuffix(unit) + name] = value * factor
    return result
