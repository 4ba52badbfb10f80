"""Non-negative least squares whose weights follow from the solution, laws of messages, and errors of predictions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from profiles.checks import sum_in_order
from profiles.units import FloatArray


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
ROBUST_ROUNDS: Final = 30
ALIKE: Final = 0.01
"""Relative residuals below this weigh alike; of larger ones the size counts, not its square."""
NEEDED: Final = 0.1
"""Mean relative error of one straight line above which two are tried."""
POINTS: Final = 3
"""Fewest sizes on either side of a break."""


def least_squares(
    columns: FloatArray,
    aim: FloatArray,
    weigh: Callable[[FloatArray], FloatArray],
    rounds: int = MAX_ROUNDS,
) -> FloatArray:
    """Return the non-negative unknowns that minimise the weighted squares of ``columns @ unknowns - aim``.

    ``weigh`` returns the weight of each row, given what ``columns`` make of the unknowns, at first ``aim``. Weights
    are renewed until the solution settles, or for ``rounds`` rounds.
    """
    values = np.zeros(columns.shape[1])
    weights = weigh(aim)
    for _ in range(rounds):
        rows = columns * weights[:, None]
        scale = np.maximum(np.linalg.norm(rows, axis=0), np.finfo(float).tiny)
        solution = lsq_linear(rows / scale, aim * weights, (0, np.inf), method="bvls", tol=1e-14)
        before, values = values, np.where(solution.active_mask < 0, 0.0, solution.x.clip(0) / scale)
        if np.allclose(before, values, rtol=SETTLED, atol=0):
            break
        weights = weigh(columns @ values)
    return values


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
    """Return the law of measured times, given in any order."""
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

    best, at, (lower, upper) = min(map(two_lines, breaks), key=lambda two: two[0])
    if best > error / 2:
        return line
    ends = ((lower, upper), (line, line))
    both = [Law(start.fixed_s, slope.s_per_unit, float(volumes[at])) for start, slope in ends]
    return min(both, key=lambda law: law.error(volumes, seconds))


def _line(volumes: FloatArray, seconds: FloatArray) -> Law:
    """Law of least absolute relative residuals, by re-weighting: a few disturbed times do not matter."""
    matrix, aim = np.column_stack([1 / seconds, volumes / seconds]), np.ones_like(seconds)
    weigh: Callable[[FloatArray], FloatArray] = lambda made: np.maximum(np.abs(made - aim), ALIKE) ** -0.5  # noqa: E731
    fixed_s, s_per_unit = least_squares(matrix, aim, weigh, ROBUST_ROUNDS)
    return Law(float(fixed_s), float(s_per_unit))
