"""Rates: the seconds per unit of work of a device, within the bounds that its peaks set."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from profiles.costs import FloatArray
from profiles.devices import RATE_KEYS
from profiles.errors import InputError
from validate.fitting.equations import LATENCY, Equation
from validate.fitting.least_squares import least_squares
from validate.fitting.targets import Target


@dataclass(frozen=True, slots=True)
class Fit:
    """A solution: seconds per unit of work, whether each rests on its bound, and how well-posed it was.

    A class of work that costs nothing has an infinite rate. ``condition`` is the condition number of the
    equations in units of the bounds (a launch: 1 us); 0 where nothing was fitted.
    """

    seconds: FloatArray
    bound: tuple[bool, ...]
    condition: float

    @property
    def rates(self) -> dict[str, float]:
        """Rates under the keys and in the units of a device file."""
        with np.errstate(divide="ignore"):
            values = [*(1 / self.seconds[:4]), self.seconds[4]]
        return {key: float(value) for key, value in zip(RATE_KEYS, values, strict=True)}


def fit(rows: Sequence[Equation], target: Target) -> Fit:
    """Least-squares solution within the bounds; ratios, whose weights depend on it, enter from the second round on.

    Raises:
        InputError: no latency is to be fitted; ratios alone leave the scale open.
    """
    if not target.basis.size:
        return Fit(target.base, (False,) * len(target.modes), 0.0)
    if all(row.denominator is not None for row in rows):
        raise InputError(f"{target.name}: no row has quantity {LATENCY} and role fit, must have one")

    def seconds(unknowns: FloatArray) -> FloatArray:
        return target.base + target.basis @ unknowns

    def weigh(unknowns: FloatArray | None) -> FloatArray:
        near = None if unknowns is None else seconds(unknowns)
        return np.array([row.weight(near) for row in rows])

    work = np.array([row.coefficients for row in rows])
    aim = np.array([row.aim for row in rows]) - work @ target.base
    found = least_squares(work @ target.basis, aim, weigh, lower=target.lower)
    return Fit(seconds(found.values), target.per_class(found.bound), found.condition)


def fit_without_peaks(rows: Sequence[Equation], target: Target) -> Fit:
    """Fit under the one rule that no work takes negative time."""
    return fit(rows, replace(target, matrix_peak=np.inf, memory_peak=np.inf))


def leave_one_out(rows: Sequence[Equation], target: Target) -> list[Fit]:
    """For each row the fit to all others; nothing where they would not determine the unknowns."""
    if len(rows) <= target.basis.shape[1]:
        return []
    return [fit([*rows[:number], *rows[number + 1 :]], target) for number in range(len(rows))]
