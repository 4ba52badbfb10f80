"""The tables ``[laws.*]`` of a device file: coefficients of its laws, in the units of their keys."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Final

from profiles.files import Table
from profiles.machines.laws import MEMORY_KINDS, AttentionLaw, Laws, MemoryLaw, ProductLaw, Traffic
from profiles.units import GB, MB, MICROSECOND, TFLOP

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
    laws = _laws_of(
        matmul=_numbers(table.table("matmul"), MATMUL_KEYS, peaks),
        conv=_numbers(table.table("conv"), CONV_KEYS, peaks),
        attention=_numbers(table.table("attention"), ATTENTION_KEYS, peaks),
        memory=_numbers(table.table("memory"), MEMORY_KEYS, peaks),
    )
    if laws.attention.wide_flop_per_s > peaks["TFLOP_per_s"] * TFLOP:
        raise table.fail(
            f"attention.{WIDE_KEY}", laws.attention.wide, "must leave heads of 128 channels below the peak"
        )
    table.finish()
    return laws


def _laws_of(
    *, matmul: Coefficients, conv: Coefficients, attention: Coefficients, memory: Coefficients
) -> Laws:
    """Laws of coefficients; those of a convolution are factors on the seconds of a product of its shape and bytes."""
    product = product_law(matmul)
    convolution = replace(product, forward=conv["forward"], data=conv["data"], weight=conv["weight"])
    return Laws(product, convolution, attention_law(attention), _memory_law(memory))


def product_law(values: Coefficients) -> ProductLaw:
    """Law of matrix products."""
    return ProductLaw(
        fixed_s=values["fixed_us"] * MICROSECOND,
        flop_per_s=values["TFLOP_per_s"] * TFLOP,
        traffic=_traffic(values),
        chain_s=values["chain_us"] * MICROSECOND,
        ramp=values["ramp"],
        data=values["data"],
        weight=values["weight"],
    )


def _traffic(values: Coefficients) -> Traffic:
    return Traffic(
        bytes_per_s=values["GB_per_s"] * GB,
        cache_bytes=values.get("cache_MB", 0.0) * MB,
        cache_bytes_per_s=values.get("cache_GB_per_s", 0.0) * GB,
    )


def attention_law(values: Coefficients) -> AttentionLaw:
    """Law of fused attention."""
    return AttentionLaw(
        fixed_s=values["fixed_us"] * MICROSECOND,
        flop_per_s=values["TFLOP_per_s"] * TFLOP,
        traffic=_traffic(values),
        rows=values["rows"],
        keys=values["keys"],
        channels=values["channels"],
        backward_flop_per_s=values["backward_TFLOP_per_s"] * TFLOP,
        backward_rows=values["backward_rows"],
        overlap=values.get(OVERLAP, 1.0),
        wide=values.get(WIDE_KEY, 1.0),
    )


def _memory_law(values: Coefficients) -> MemoryLaw:
    """Law of memory-bound kernels."""
    rates = {f"{kind}_bytes_per_s": values[f"{kind}_GB_per_s"] * GB for kind in MEMORY_KINDS}
    return MemoryLaw(fixed_s=values["fixed_us"] * MICROSECOND, **rates)


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
