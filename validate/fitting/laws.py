"""Laws: how the time of an operation grows with its bytes, fitted robustly."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from profiles.costs import FloatArray
from validate.fitting.errors import Errors
from validate.fitting.least_squares import least_squares

ROUNDS: Final = 30
ALIKE: Final = 0.01
"""Relative residuals below this weigh alike; larger ones weigh with their size, not its square."""
NEEDED: Final = 0.1
"""Mean relative error of one straight line above which two are tried."""
POINTS: Final = 3
"""Fewest sizes on either side of a break."""


@dataclass(frozen=True, slots=True)
class Law:
    """``seconds = fixed_s + volume * s_per_unit``.

    ``break_at`` is the volume at which another line begins, 0 where one line is enough; the law then has the fixed
    time of the lower line and the slope of the upper one, or is the best single line, whichever errs less.
    """

    fixed_s: float
    s_per_unit: float
    break_at: float = 0.0

    def error(self, volumes: FloatArray, seconds: FloatArray) -> float:
        """Mean absolute relative error."""
        return Errors(seconds, self.fixed_s + volumes * self.s_per_unit).mean


def robust_fit(
    columns: FloatArray, target: FloatArray, seconds: FloatArray, upper: FloatArray | float = np.inf
) -> FloatArray:
    """Non-negative coefficients of columns that come nearest to a target.

    Least absolute relative residuals, by re-weighted least squares: a few disturbed measurements do not matter.

    Args:
        columns: one row per measurement.
        target: what the columns should add up to.
        seconds: what a residual is relative to.
        upper: bounds of the coefficients.
    """
    matrix, aim = columns / seconds[:, None], target / seconds

    def weigh(found: FloatArray | None) -> FloatArray:
        if found is None:
            return np.ones(len(aim))
        return np.asarray(np.maximum(np.abs(matrix @ found - aim), ALIKE) ** -0.5)

    return least_squares(matrix, aim, weigh, upper=upper, rounds=ROUNDS).values


def fit_law(volumes: FloatArray, seconds: FloatArray) -> Law:
    """Law of measured times; volumes ascend or not, as they like."""
    order = np.argsort(volumes, kind="stable")
    volumes, seconds = volumes[order], seconds[order]
    line = fit_line(volumes, seconds)
    error = line.error(volumes, seconds)
    breaks = range(POINTS, len(volumes) - POINTS + 1)
    if error <= NEEDED or not breaks:
        return line

    def two_lines(at: int) -> tuple[float, int, Sequence[Law]]:
        parts = [(volumes[:at], seconds[:at]), (volumes[at:], seconds[at:])]
        lines = [fit_line(*part) for part in parts]
        errors = [each.error(*part) * len(part[0]) for each, part in zip(lines, parts, strict=True)]
        return sum(errors) / len(volumes), at, lines

    best, at, (lower, upper) = min(map(two_lines, breaks), key=lambda found: found[0])
    if best > error / 2:
        return line
    both = [
        Law(start, slope.s_per_unit, float(volumes[at]))
        for start, slope in ((lower.fixed_s, upper), (line.fixed_s, line))
    ]
    return min(both, key=lambda law: law.error(volumes, seconds))


def fit_line(volumes: FloatArray, seconds: FloatArray) -> Law:
    """Straight line nearest to measured times."""
    columns = np.column_stack([np.ones_like(volumes), volumes])
    fixed_s, s_per_unit = robust_fit(columns, seconds, seconds)
    return Law(float(fixed_s), float(s_per_unit))
