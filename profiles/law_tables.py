"""The tables ``[laws.*]`` of a device file: coefficients of its laws, in the units of their keys."""

from dataclasses import replace
from typing import Final

from profiles.files import Table
from profiles.laws import MEMORY_KINDS, AttentionLaw, Laws, MemoryLaw, ProductLaw
from profiles.units import GB, MB, MICROSECOND, TFLOP

CLASSES: Final = ("matmul", "conv", "attention", "memory")


def read_laws(table: Table) -> Laws:
    """Laws that a table describes; no pace may pass the device's peaks.

    Raises:
        InputError: a key breaks a rule.
    """
    table.text("source")
    flop_peak, bytes_peak = table.positive("peak_TFLOP_per_s"), table.positive("peak_GB_per_s")
    classes = {name: table.table(name) for name in CLASSES}
    matmul = _matmul(classes["matmul"], flop_peak, bytes_peak)
    laws = Laws(
        matmul=matmul,
        conv=_conv(classes["conv"], matmul),
        attention=_attention(classes["attention"], flop_peak, bytes_peak),
        memory=_memory(classes["memory"], bytes_peak),
    )
    for each in classes.values():
        each.text("source")
        each.finish()
    table.finish()
    return laws


def _matmul(table: Table, flop_peak: float, bytes_peak: float) -> ProductLaw:
    bytes_per_s = table.positive("GB_per_s", maximum=bytes_peak) * GB
    cached = "cache_MB" in table
    return ProductLaw(
        fixed_s=table.number("fixed_us") * MICROSECOND,
        flop_per_s=table.positive("TFLOP_per_s", maximum=flop_peak) * TFLOP,
        bytes_per_s=bytes_per_s,
        chain_s=table.number("chain_us") * MICROSECOND,
        ramp=table.number("ramp"),
        cache_bytes=table.positive("cache_MB") * MB if cached else 0.0,
        cache_bytes_per_s=table.number("cache_GB_per_s", minimum=bytes_per_s / GB) * GB if cached else 0.0,
        data=table.positive("data"),
        weight=table.positive("weight"),
    )


def _conv(table: Table, matmul: ProductLaw) -> ProductLaw:
    """A convolution takes so many times the seconds of a matrix product of its shape and its bytes."""
    return replace(
        matmul,
        forward=table.positive("forward"),
        data=table.positive("data"),
        weight=table.positive("weight"),
    )


def _attention(table: Table, flop_peak: float, bytes_peak: float) -> AttentionLaw:
    return AttentionLaw(
        fixed_s=table.number("fixed_us") * MICROSECOND,
        flop_per_s=table.positive("TFLOP_per_s", maximum=flop_peak) * TFLOP,
        bytes_per_s=table.positive("GB_per_s", maximum=bytes_peak) * GB,
        rows=table.number("rows"),
        keys=table.number("keys"),
        channels=table.number("channels"),
        backward_flop_per_s=table.positive("backward_TFLOP_per_s", maximum=flop_peak) * TFLOP,
        backward_rows=table.number("backward_rows"),
    )


def _memory(table: Table, bytes_peak: float) -> MemoryLaw:
    paces = {
        f"{kind}_bytes_per_s": table.positive(f"{kind}_GB_per_s", maximum=bytes_peak) * GB
        for kind in MEMORY_KINDS
    }
    return MemoryLaw(fixed_s=table.number("fixed_us") * MICROSECOND, **paces)
