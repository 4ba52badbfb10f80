"""Levers: what sampling gains from fewer steps, fewer bits and smaller exchanges, as factors from published rows.

They scale what they scale; what they do to the images is not modelled. ``levers.toml`` holds factors and sources.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from profiles.checks import check_positive
from profiles.errors import InputError, shown, wrong
from profiles.files import Table
from profiles.machines.devices import Device
from profiles.machines.laws import Smaller

LEVERS: Final = Path(__file__).parents[1] / "levers.toml"
HALF: Final = "half"
FP8: Final = "fp8"
PRECISIONS: Final = (HALF, FP8)


class Factor(NamedTuple):
    """Seconds of products in half precision over those in a smaller one, with 10 and 90 % quantiles over shapes."""

    factor: float
    low: float
    high: float


class Cached(NamedTuple):
    """Share of the steps that a published cache skips, and the models of which it was published."""

    share: float
    models: tuple[str, ...]


class Levers(NamedTuple):
    """The published levers.

    Attributes:
        weight_bytes: bytes of a parameter in fp8.
        least_rows: rows of the smallest products that were measured in fp8.
        sides: fewest and most of their outputs and inputs.
        cast_bytes: bytes moved per element of what is cast to fp8 before a product.
        products: factors on products in fp8, by device.
        all_to_all: bytes of an all-to-all in fp8 over those in half precision.
        cached: published caches, by name.
    """

    weight_bytes: float
    least_rows: float
    sides: tuple[float, float]
    cast_bytes: float
    products: Mapping[str, Factor]
    all_to_all: float
    cached: Mapping[str, Cached]


@cache
def load_levers() -> Levers:
    """The levers in ``levers.toml``."""
    table = Table.read(LEVERS)
    fp8 = table.table("precision").table(FP8)
    fp8.text("source")
    products: dict[str, Factor] = {}
    for row in fp8.tables("products"):
        found = Factor(*(row.positive(key) for key in Factor._fields))
        check_positive(f"{LEVERS}: products", most=found.factor, low=found.low)
        check_positive(f"{LEVERS}: products", most=found.high, factor=found.factor)
        if "note" in row:
            row.text("note")
        products |= dict.fromkeys(row.texts("devices"), found)
        row.finish()
    exchange, cached = table.table("all_to_all").table(FP8), table.table("cache")
    exchange.text("source")
    shares: dict[str, Cached] = {}
    for name in cached.values():
        row = cached.table(name)
        row.text("source")
        shares[name] = Cached(row.number("steps"), row.texts("models"))
    return Levers(
        fp8.positive("weight_bytes"),
        fp8.positive("least_rows"),
        (fp8.positive("least_side"), fp8.positive("most_side")),
        fp8.positive("cast_bytes"),
        products,
        exchange.positive("bytes"),
        shares,
    )


def products_in_fp8(device: Device) -> Factor:
    """The factor on a device's products in fp8.

    Raises:
        InputError: nobody measured it, or the device has none.
    """
    products = load_levers().products
    if device.name not in products:
        known = ", ".join(sorted(products))
        raise InputError(f"device {device.name} has no factor on products in {FP8}; choose from {known}")
    return products[device.name]


def device_in(device: Device, precision: str, factor: float | None = None) -> Device:
    """A device whose products run in a precision: those of the shapes that were measured, by a factor or the median."""
    laws = device.own_laws
    if precision == HALF or laws is None:
        return device
    levers = load_levers()
    gained = products_in_fp8(device).factor if factor is None else factor
    smaller = Smaller(gained, levers.least_rows, *levers.sides, levers.cast_bytes)
    return replace(device, own_laws=replace(laws, smaller=smaller))


def cached_share(name: str, model: str) -> float:
    """The share of the steps that a published cache skips.

    Raises:
        InputError: there is none of this name, or it was published of other models.
    """
    cached = load_levers().cached
    if name not in cached:
        rule = f"must be a share of the steps, such as 0.4, or one of {', '.join(cached)}"
        raise wrong("cache_steps", f"is {shown(name)}, {rule}")
    if model not in cached[name].models:
        known = ", ".join(cached[name].models)
        raise wrong(
            "cache_steps",
            f"is {name}, whose share was published of {known}, not of {model}: give a share of the steps, such as 0.2",
        )
    return cached[name].share
