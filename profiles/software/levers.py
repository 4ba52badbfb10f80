"""Levers: what sampling gains from fewer steps, fewer bits and smaller exchanges, as factors from published rows.

Their effect on image quality is not modelled. ``levers.toml`` holds factors and sources.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from profiles.architectures.shares import HALF_BYTES
from profiles.errors import InputError, shown, wrong
from profiles.files import Table, naming_file
from profiles.machines.devices import Device
from profiles.machines.laws import Smaller

LEVERS: Final = Path(__file__).parents[1] / "levers.toml"
HALF: Final = "half"
FP8: Final = "fp8"
PRECISIONS: Final = (HALF, FP8)
MOST_CACHED: Final = 0.99
"""Largest share of the steps that a cache may skip."""


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
    """The levers in ``levers.toml``.

    Raises:
        InputError: the file breaks a rule.
    """
    return _read_levers(LEVERS)


@naming_file
def _read_levers(path: Path) -> Levers:
    table = Table.read(path)
    (fp8,) = _tables(table, "precision", FP8)
    (exchange,) = _tables(table, "all_to_all", FP8)
    products, cached = _products(fp8), _caches(table.table("cache"))
    levers = Levers(
        fp8.positive("weight_bytes", maximum=HALF_BYTES),
        fp8.positive("least_rows"),
        (fp8.positive("least_side"), fp8.positive("most_side")),
        fp8.positive("cast_bytes"),
        products,
        exchange.positive("bytes", maximum=1.0),
        cached,
    )
    for sourced in (fp8, exchange):
        sourced.text("source")
        sourced.finish()
    table.finish()
    for factor in products.values():
        levers.smaller(factor.factor)  # which refuses what cannot be
    return levers


def _tables(table: Table, key: str, *names: str) -> Iterator[Table]:
    """The tables of these names under a key, which holds no others."""
    outer = table.table(key)
    yield from map(outer.table, names)
    outer.finish()


def _products(fp8: Table) -> dict[str, Factor]:
    products: dict[str, Factor] = {}
    for row in fp8.tables("products"):
        high = row.positive("high")
        factor = row.positive("factor", maximum=high)
        found = Factor(factor, row.positive("low", maximum=factor), high)
        if "note" in row:
            row.text("note")
        products |= dict.fromkeys(row.texts("devices"), found)
        row.finish()
    return products


def _caches(table: Table) -> dict[str, Cached]:
    shares: dict[str, Cached] = {}
    for name in table.values():
        row = table.table(name)
        row.text("source")
        shares[name] = Cached(row.positive("steps", maximum=MOST_CACHED), row.texts("models"))
        row.finish()
    return shares


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
    gained = products_in_fp8(device).factor if factor is None else factor
    return replace(device, own_laws=replace(laws, smaller=load_levers().smaller(gained)))


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
