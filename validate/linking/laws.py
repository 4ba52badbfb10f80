"""Laws: how the time of an operation grows with its bytes, fitted robustly."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

ROUNDS: Final = 30
ALIKE: Final = 0.01
"""Relative residuals below this weigh alike; larger ones weigh with their size, not its square."""
NEEDED: Final = 0.1
"""Mean relative error of one straight line above which two are tried."""
POINTS: Final = 3
"""Fewest sizes on either side of a break."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Law:
    """``seconds = fixed_s + volume * s_per_unit``.

    ``break_at`` is the volume at which another line begins, 0 where one line is enough; the law then has the fixed
    time of the lower line and the slope of the upper one, or is the best single line, whichever errs less.
    """

    fixed_s: float
    s_per_unit: float
    break_at: float = 0.0

    def seconds(self, volumes: Floats) -> Floats:
        """Return the time of each volume."""
        return self.fixed_s + volumes * self.s_per_unit


def robust_fit(columns: Floats, target: Floats, seconds: Floats, upper: Floats | None = None) -> Floats:
    """Return the non-negative coefficients of columns that come nearest to a target.

    Least absolute relative residuals, by re-weighted least squares: a few disturbed measurements do not matter.

    Args:
        columns: one row per measurement.
        target: what the columns should add up to.
        seconds: what a residual is relative to.
        upper: bounds of the coefficients; none by default.
    """
    matrix, aim = columns / seconds[:, None], target / seconds
    scale = np.linalg.norm(matrix, axis=0)
    scale[scale == 0] = 1.0
    bounds = (0.0, np.inf if upper is None else np.maximum(upper, 1e-12) * scale)
    weights = np.ones(len(aim))
    found = np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        found = lsq_linear(matrix / scale * weights[:, None], aim * weights, bounds, method="bvls").x
        residuals = np.abs(matrix / scale @ found - aim)
        weights = 1 / np.sqrt(np.maximum(residuals, ALIKE))
    coefficients: Floats = found / scale
    return coefficients


def fit_law(volumes: Floats, seconds: Floats) -> Law:
    """Return the law of measured times; volumes ascend or not, as they like."""
    order = np.argsort(volumes, kind="stable")
    volumes, seconds = volumes[order], seconds[order]
    line = fit_line(volumes, seconds)
    error = mean_error(line, volumes, seconds)
    if error <= NEEDED:
        return line
    pieces = [
        (fit_line(volumes[:at], seconds[:at]), fit_line(volumes[at:], seconds[at:]), at)
        for at in range(POINTS, len(volumes) - POINTS + 1)
    ]
    if not pieces:
        return line
    lower, upper, at = min(pieces, key=lambda piece: _error_of_pieces(piece, volumes, seconds))
    if _error_of_pieces((lower, upper, at), volumes, seconds) > error / 2:
        return line
    break_at = float(volumes[at])
    both = [
        Law(lower.fixed_s, upper.s_per_unit, break_at),
        Law(line.fixed_s, line.s_per_unit, break_at),
    ]
    return min(both, key=lambda law: mean_error(law, volumes, seconds))


def fit_line(volumes: Floats, seconds: Floats) -> Law:
    """Return the straight line nearest to measured times."""
    columns = np.column_stack([np.ones_like(volumes), volumes])
    fixed_s, s_per_unit = robust_fit(columns, seconds, seconds)
    return Law(float(fixed_s), float(s_per_unit))


def mean_error(law: Law, volumes: Floats, seconds: Floats) -> float:
    """Return the mean absolute relative error of a law."""
    return float(np.abs(law.seconds(volumes) / seconds - 1).mean())


def _error_of_pieces(pieces: tuple[Law, Law, int], volumes: Floats, seconds: Floats) -> float:
    lower, upper, at = pieces
    below = mean_error(lower, volumes[:at], seconds[:at]) * at
    above = mean_error(upper, volumes[at:], seconds[at:]) * (len(volumes) - at)
    return (below + above) / len(volumes)
