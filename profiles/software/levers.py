"""Levers: fewer bits, fewer steps and smaller exchanges, as laws and factors from measured and published rows.

Their effect on image quality is not modelled. ``levers.toml`` holds numbers and sources.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.errors import InputError, shown, wrong
from profiles.files import load_toml
from profiles.machines.devices import Device
from profiles.machines.laws import Laws, Smaller
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from profiles.units import MICROSECOND

LEVERS: Final = Path(__file__).parents[1] / "levers.toml"
HALF: Final = "half"
FP8: Final = "fp8"
SMALLER: Final = (FP8, "mxfp8", "nvfp4")
PRECISIONS: Final = (HALF, *SMALLER)
EXCHANGED: Final = (HALF, FP8)
"""Precisions of what Ulysses exchanges."""
CAST_OPERATORS: Final = 11
"""Operators that the host dispatches to cast a tensor with its scale. PyTorch's dispatcher counts as many in each cast
of torchao 0.18.0 (float8, scales per tensor): magnitude, maximum, four conversions, two clamps, two products, a
reciprocal. Engines for sampling have one of their own."""
CASTS: Final = 2, 4
"""Tensors that the host casts for each product with a trained weight, forward and backward: input and weight, then the
gradient and they for both gradients (torchao 0.18.0, float8_linear.py). Of a frozen weight, which was cast before, the
input and then the gradient alone."""


class Products(NamedTuple):
    """Matrix products in fewer bits on a device, over its own law in half precision.

    Attributes:
        fixed_us: of a product with the cast before it, however small.
        gain: rate of large products over that in half precision.
        chain_us: as of ``ProductLaw``, as is ``ramp``.
        cast_bytes: as of ``Smaller``.
        low: seconds of the fastest tenth of measured products over those of the law.
        high: seconds of the slowest tenth, likewise.
    """

    fixed_us: float
    gain: float
    chain_us: float
    ramp: float
    cast_bytes: float
    low: float = 1.0
    high: float = 1.0

    def on(self, laws: Laws, element_bytes: float, pace: float = 1.0) -> Smaller:
        """The products on a device of some laws."""
        half, fixed_s = laws.matmul, self.fixed_us * MICROSECOND
        rate, chain_s = self.gain * half.flop_per_s, self.chain_us * MICROSECOND
        law = replace(half, fixed_s=fixed_s, flop_per_s=rate, chain_s=chain_s, ramp=self.ramp, processors=0)
        return Smaller(law, element_bytes, self.cast_bytes, pace)


@cache
def levers() -> Mapping[str, Any]:
    """Return the rows of ``levers.toml``."""
    return load_toml(LEVERS)


def element_bytes(precision: str) -> float:
    """Bytes of a number in fewer bits with its part of a scale."""
    return float(levers()["precision"][precision]["element_bytes"])


def products_in(precision: str, device: Device) -> Products:
    """The matrix products of a device in fewer bits."""
    rows = levers()["precision"][precision]["products"]
    products = {device: row for row in rows for device in row["devices"]}
    if device.name not in products:
        known = ", ".join(sorted(products))
        raise InputError(f"device {device.name} has no measured products in {precision}; choose from {known}")
    return Products(*map(products[device.name].__getitem__, Products._fields))


def device_in(device: Device, precision: str, pace: float = 1.0) -> Device:
    """A device whose products run in a precision, at a pace over that of their law."""
    laws = device.own_laws
    if precision == HALF or laws is None:
        return device
    smaller = products_in(precision, device).on(laws, element_bytes(precision), pace)
    return replace(device, own_laws=replace(laws, smaller=smaller))


def weight_bytes(precision: str) -> float:
    """Bytes of a frozen weight in a precision."""
    return FROZEN_WEIGHT_BYTES if precision == HALF else element_bytes(precision)


def cached_share(name: str, model: str) -> float:
    """Return the share of the steps that a published cache skips, or that is written as a number."""
    with suppress(ValueError):
        return float(name)
    cached = levers()["cache"]
    if name not in cached:
        rule = f"must be a share of the steps, such as 0.4, or one of {', '.join(cached)}"
        raise wrong("cache_steps", f"is {shown(name)}, {rule}")
    if model not in cached[name]["models"]:
        known = ", ".join(cached[name]["models"])
        rule = f"whose share was published of {known}, not of {model}: give a share of the steps, such as 0.2"
        raise wrong("cache_steps", f"is {name}, {rule}")
    return float(cached[name]["steps"])
