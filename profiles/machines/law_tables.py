"""The tables ``[laws.*]`` of a device file: coefficients of its laws, in the units of their keys."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final

from profiles.files import Table
from profiles.machines.laws import MEMORY_KINDS, AttentionLaw, Laws, MemoryLaw, ProductLaw, Traffic
from profiles.units import TFLOP, in_si

Coefficients = Mapping[str, float]
"""Numbers of a table by key."""

MATMUL_KEYS: Final = ("fixed_us", "TFLOP_per_s", "GB_per_s", "chain_us", "ramp", "data", "weight")
CACHE_KEYS: Final = ("cache_MB", "cache_GB_per_s")
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
    matmul = product_law(numbers["matmul"])
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
    attended = [key for key in (OVERLAP, WIDE_KEY) if key in table]
    for key in (*keys, *attended, *cached):
        if key in MAY_BE_ZERO:
            values[key] = table.number(key)
        elif key == OVERLAP:
            values[key] = table.number(key, minimum=1.0)
        elif key == "cache_GB_per_s":
            values[key] = table.number(key, minimum=values["GB_per_s"])
        else:
            unit = next((unit for unit in peaks if key.endswith(unit)), "")
            values[key] = table.positive(key, maximum=peaks.get(unit, inf))
    table.finish()
    return values
