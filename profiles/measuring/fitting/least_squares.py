"""Non-negative least squares whose weights follow from the solution, laws of messages, and errors of predictions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

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


def least_squares(
    columns: FloatArray, aim: FloatArray, weigh: Callable[[FloatArray], FloatArray], rounds: int = MAX_ROUNDS
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
    """``seconds = fixed_s + volume * s_per_unit``."""

    fixed_s: float
    s_per_unit: float


def fit_law(volumes: FloatArray, seconds: FloatArray) -> Law:
    """Law of least absolute relative residuals, by re-weighting: a few disturbed times do not matter."""
    matrix, aim = np.column_stack([1 / seconds, volumes / seconds]), np.ones_like(seconds)
    weigh: Callable[[FloatArray], FloatArray] = lambda made: np.maximum(np.abs(made - aim), ALIKE) ** -0.5  # noqa: E731
    fixed_s, s_per_unit = least_squares(matrix, aim, weigh, ROBUST_ROUNDS)
    return Law(float(fixed_s), float(s_per_unit))
