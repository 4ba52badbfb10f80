"""The one least squares of this project, non-negative or otherwise bounded, and errors of predictions.

It is re-weighted until it settles. Prior knowledge of an unknown is a bound, or one more row with a weight of its own.
The times of messages follow laws of their bytes, which are fitted robustly.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from profiles.checks import sum_in_order
from profiles.costs.layers import FloatArray


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predicted values, relative to the measured or published ones; mean to worst are of absolute errors."""

    measured: FloatArray
    predicted: FloatArray

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> "Errors":
        """Errors of pairs, each a measured and a predicted value."""
        measured, predicted = np.array(list(pairs), dtype=float).reshape(-1, 2).T
        return cls(measured, predicted)

    def __len__(self) -> int:
        return len(self.measured)

    def __str__(self) -> str:
        return f"median error {100 * self.median:.1f} %, worst {100 * self.worst:.1f} %"

    @property
    def relative(self) -> FloatArray:
        """Error of each value, with its sign."""
        return self.predicted / self.measured - 1

    @property
    def together(self) -> float:
        """Error of the sum of all values, with its sign."""
        return float(self.predicted.sum() / self.measured.sum() - 1)

    @property
    def mean(self) -> float:
        """Mean error."""
        return float(np.abs(self.relative).mean())

    @property
    def median(self) -> float:
        """Median error."""
        return float(np.median(np.abs(self.relative)))

    @property
    def tail(self) -> float:
        """90th percentile of the errors."""
        return float(np.quantile(np.abs(self.relative), 0.9))

    @property
    def worst(self) -> float:
        """Largest error."""
        return float(np.abs(self.relative).max())


SETTLED: Final = 1e-12
MAX_ROUNDS: Final = 200
ROUNDING: Final = 1e-13
"""Share of the largest unknown, each scaled by the norm of its column, that counts as 0."""
NARROWEST: Final = 1e-12
"""Least distance between two bounds, as the solver needs some."""
ROBUST_ROUNDS: Final = 30
ALIKE: Final = 0.01
"""Relative residuals below this weigh alike; of larger ones the size counts, not its square."""
NEEDED: Final = 0.1
"""Mean relative error of one straight line above which two are tried."""
POINTS: Final = 3
"""Fewest sizes on either side of a break."""

Weigh = Callable[[FloatArray | None], FloatArray]
"""Weight of each row, given the unknowns of the round before; None before the first round."""


class Solution(NamedTuple):
    """The unknowns, whether each is at a bound, and the weighted rows that they solve."""

    values: FloatArray
    bound: NDArray[np.bool_]
    rows: FloatArray

    @property
    def condition(self) -> float:
        """Condition number of the weighted rows."""
        return float(np.linalg.cond(self.rows))


def least_squares(
    columns: FloatArray,
    aim: FloatArray,
    weigh: Weigh,
    *,
    lower: FloatArray | float = 0.0,
    upper: FloatArray | float = np.inf,
    rounds: int = MAX_ROUNDS,
) -> Solution:
    """Unknowns within bounds that minimise the weighted squares of ``columns @ unknowns - aim``.

    Weights may depend on the solution: they are renewed until it settles, or for ``rounds`` rounds.
    """
    low = np.broadcast_to(lower, columns.shape[1]).astype(float)
    high = np.maximum(np.broadcast_to(upper, columns.shape[1]), low + NARROWEST)
    solution = _solve(columns, aim, weigh(None), low, high)
    for _ in range(rounds - 1):
        before, solution = solution, _solve(columns, aim, weigh(solution.values), low, high)
        if np.allclose(before.values, solution.values, rtol=SETTLED, atol=0):
            break
    return solution


def _solve(
    columns: FloatArray, aim: FloatArray, weights: FloatArray, low: FloatArray, high: FloatArray
) -> Solution:
    rows = columns * weights[:, None]
    norms = np.linalg.norm(rows, axis=0)
    scale = np.exp2(np.round(np.log2(np.where(norms > 0, norms, 1.0))))  # powers of two round nothing
    found = lsq_linear(rows / scale, aim * weights, (low * scale, high * scale), method="bvls", tol=1e-14)
    rests = found.x <= low * scale + ROUNDING * np.abs(found.x).max()  # or is below, by a rounding
    values = np.where(rests, low, found.x / scale)
    return Solution(values, rests | (found.active_mask != 0), rows)


def robust_fit(
    columns: FloatArray, target: FloatArray, seconds: FloatArray, upper: FloatArray | float = np.inf
) -> FloatArray:
    """Non-negative coefficients of columns that come nearest to a target, up to an upper bound of each.

    Least absolute residuals, relative to ``seconds``, by re-weighting: a few disturbed measurements do not matter.
    """
    matrix, aim = columns / seconds[:, None], target / seconds

    def weigh(found: FloatArray | None) -> FloatArray:
        if found is None:
            return np.ones(len(aim))
        return np.asarray(np.maximum(np.abs(matrix @ found - aim), ALIKE) ** -0.5)

    return least_squares(matrix, aim, weigh, upper=upper, rounds=ROBUST_ROUNDS).values


class Law(NamedTuple):
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


def fit_law(volumes: FloatArray, seconds: FloatArray) -> Law:
    """Law of measured times, given in any order."""
    order = np.argsort(volumes, kind="stable")
    volumes, seconds = volumes[order], seconds[order]
    line = _line(volumes, seconds)
    error = line.error(volumes, seconds)
    breaks = range(POINTS, len(volumes) - POINTS + 1)
    if error <= NEEDED or not breaks:
        return line

    def two_lines(at: int) -> tuple[float, int, list[Law]]:
        parts = [(volumes[:at], seconds[:at]), (volumes[at:], seconds[at:])]
        lines = [_line(*part) for part in parts]
        errors = [each.error(*part) * len(part[0]) for each, part in zip(lines, parts, strict=True)]
        return sum_in_order(errors) / len(volumes), at, lines

    best, at, (lower, upper) = min(map(two_lines, breaks), key=lambda found: found[0])
    if best > error / 2:
        return line
    ends = ((lower, upper), (line, line))
    both = [Law(start.fixed_s, slope.s_per_unit, float(volumes[at])) for start, slope in ends]
    return min(both, key=lambda law: law.error(volumes, seconds))


def _line(volumes: FloatArray, seconds: FloatArray) -> Law:
    fixed_s, s_per_unit = robust_fit(np.column_stack([np.ones_like(volumes), volumes]), seconds, seconds)
    return Law(float(fixed_s), float(s_per_unit))
