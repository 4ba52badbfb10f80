"""The one least squares of this project: non-negative or otherwise bounded, re-weighted until it settles.

What is known beforehand of an unknown is a bound, or one more row with a weight of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from profiles.costs import FloatArray

SETTLED: Final = 1e-12
MAX_ROUNDS: Final = 200
ROUNDING: Final = 1e-13
"""Share of the largest unknown, each in units of its rows, that counts as none."""
NARROWEST: Final = 1e-12
"""The solver wants some room between two bounds."""

Weigh = Callable[[FloatArray | None], FloatArray]
"""Weight of each row, given the unknowns of the round before; None before the first round."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The unknowns, whether each rests on a bound, and the weighted rows that they were found from."""

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

    Args:
        columns: shape (rows, unknowns).
        aim: shape (rows,).
        weigh: weights, which may depend on the solution; it is renewed until it settles.
        lower: bound of each unknown.
        upper: bound of each unknown.
        rounds: after so many the last solution counts.
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
