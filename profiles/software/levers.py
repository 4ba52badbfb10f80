"""Levers: what sampling gains from fewer steps, fewer bits and smaller exchanges, as factors from published rows.

Their effect on image quality is not modelled. ``levers.toml`` holds factors and sources.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from profiles.errors import InputError, shown, wrong
from profiles.machines.devices import Device
from profiles.machines.laws import Smaller
from profiles.parsing import parse_toml

LEVERS: Final = Path(__file__).parents[1] / "levers.toml"
HALF: Final = "half"
FP8: Final = "fp8"
PRECISIONS: Final = (HALF, FP8)


class Factor(NamedTuple):
    """Ratio of the seconds of products in half precision to those in fp8, with 10 and 90 % quantiles over shapes."""

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
        least_rows: fewest rows of products that were measured in fp8.
        sides: fewest and most of their outputs, and inputs.
        cast_bytes: bytes moved per element that is cast to fp8 before a product.
        products: factors for products in fp8, by device.
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

    def smaller(self, factor: float) -> Smaller:
        """Products in fp8 that are faster by a factor."""
        return Smaller(factor, self.least_rows, *self.sides, self.cast_bytes)


@cache
def load_levers() -> Levers:
    """Return the levers in ``levers.toml``."""
    rows = parse_toml(LEVERS.read_text(encoding="utf-8"))
    fp8 = rows["precision"][FP8]
    products = {
        device: Factor(row["factor"], row["low"], row["high"])
        for row in fp8["products"]
        for device in row["devices"]
    }
    return Levers(
        fp8["weight_bytes"],
        fp8["least_rows"],
        (fp8["least_side"], fp8["most_side"]),
        fp8["cast_bytes"],
        products,
        rows["all_to_all"][FP8]["bytes"],
        {name: Cached(row["steps"], tuple(row["models"])) for name, row in rows["cache"].items()},
    )


def products_in_fp8(device: Device) -> Factor:
    """The factor on a device's products in fp8."""
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
    gained = products_in_fp8(device).factor if factor is None else factor
    return replace(device, own_laws=replace(laws, smaller=load_levers().smaller(gained)))


def cached_share(name: str, model: str) -> float:
    """Return the share of the steps that a published cache skips, or that is written as a number."""
    with suppress(ValueError):
        return float(name)
    cached = load_levers().cached
    if name not in cached:
        rule = f"must be a share of the steps, such as 0.4, or one of {', '.join(cached)}"
        raise wrong("cache_steps", f"is {shown(name)}, {rule}")
    if model not in cached[name].models:
        known = ", ".join(cached[name].models)
        rule = f"whose share was published of {known}, not of {model}: give a share of the steps, such as 0.2"
        raise wrong("cache_steps", f"is {name}, {rule}")
    return cached[name].share
