"""Fits: coefficients that come nearest to measured seconds, and their errors on shapes left out.

Residuals are logarithms of predicted over measured seconds, so that a launch of 5 us counts as much as one of 50 ms;
beyond a tenth they count with their size, not its square. Every fifth shape in order is left out, then every fifth
group (the shapes of one weight; the attentions of one kind of heads), so that no similar shape is fitted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import least_squares

from profiles.machines.law_tables import Coefficients
from profiles.machines.laws import FloatArray
from profiles.measuring.fitting.least_squares import Errors
from validate.fitting.kernels.rows import Samples

FOLDS: Final = 5
ALIKE: Final = 0.1
"""Residuals up to about this count with their square, larger ones with their size."""
LEAST_COEFFICIENT: Final = 1e-9
NOTHING: Final = 1e-3
"""A coefficient below this, in the units of a file, becomes 0: the samples show no such cost."""
AT_BOUND: Final = 0.999
"""A coefficient beyond this share of its bound counts as at its bound."""
DIGITS: Final = 4

Predict = Callable[[Coefficients, Samples], FloatArray]
"""Seconds of samples by coefficients."""


@dataclass(frozen=True)
class Unknown:
    """Start of a coefficient, and the most that it may be."""

    start: float
    most: float = 1e9


@dataclass(frozen=True)
class Fit:
    """Coefficients fitted to all samples, and errors of each sample predicted by a fit that leaves it out.

    ``given`` are coefficients that were not fitted, ``ranges`` the least and the largest of the others in these fits,
    ``bound`` those at their bounds, each with the value of a fit without bounds; ``fitted`` are errors of the fit to
    all samples, ``shapes`` and ``groups`` of the left-out ones.
    """

    values: Mapping[str, float]
    given: Coefficients
    ranges: Mapping[str, tuple[float, float]]
    bound: Mapping[str, float]
    fitted: Errors
    shapes: Errors
    groups: Errors

    def __str__(self) -> str:
        number = f"{len(self.shapes)} shapes"
        words = f"{number}; left out, every fifth shape is predicted within {said(self.shapes)}"
        return words + (f", every fifth group of shapes within {said(self.groups)}" if self.groups else "")


def said(errors: Errors) -> str:
    """Median and 90th percentile of errors."""
    return f"{100 * errors.median:.1f} % (median) and {100 * errors.tail:.1f} % (90th percentile)"


def fit(predict: Predict, samples: Samples, unknowns: Mapping[str, Unknown], given: Coefficients) -> Fit:
    """Fit unknown coefficients beside given ones."""
    values = _solve(predict, samples, unknowns, given)
    by_shape, found = _left_out(predict, samples, unknowns, given, np.arange(len(samples), dtype=float))
    by_group, more = _left_out(predict, samples, unknowns, given, samples.groups)
    fits = {key: [of[key] for of in (*found, *more)] for key in unknowns}
    ranges = {key: (min(of), max(of)) for key, of in fits.items()}
    rests = [key for key, unknown in unknowns.items() if values[key] > AT_BOUND * unknown.most]
    unbound = {key: Unknown(unknown.start) for key, unknown in unknowns.items()}
    free = _solve(predict, samples, unbound, given) if rests else {}
    bound = {key: free[key] for key in rests}
    fitted = Errors(samples.seconds, predict({**given, **values}, samples))
    return Fit(values, given, ranges, bound, fitted, by_shape, by_group)


def _left_out(
    predict: Predict,
    samples: Samples,
    unknowns: Mapping[str, Unknown],
    given: Coefficients,
    order: FloatArray,
) -> tuple[Errors, list[dict[str, float]]]:
    """Errors of each sample by a fit without its fold, and the coefficients of these fits; none with only one fold."""
    predicted, found = np.full(len(samples), np.nan), list[dict[str, float]]()
    for fold in range(FOLDS):
        out = order % FOLDS == fold
        if out.any() and not out.all():
            found.append(_solve(predict, samples.at(~out), unknowns, given))
            predicted[out] = predict({**given, **found[-1]}, samples.at(out))
    seen = ~np.isnan(predicted)
    return Errors(samples.seconds[seen], predicted[seen]), found


def _solve(
    predict: Predict, samples: Samples, unknowns: Mapping[str, Unknown], given: Coefficients
) -> dict[str, float]:
    def values(logarithms: FloatArray) -> dict[str, float]:
        return dict(zip(unknowns, np.exp(logarithms).tolist(), strict=True))

    def residuals(logarithms: FloatArray) -> FloatArray:
        return np.log(predict({**given, **values(logarithms)}, samples) / samples.seconds)

    start = np.log([unknown.start for unknown in unknowns.values()])
    most = np.log([unknown.most for unknown in unknowns.values()])
    first, bounds = np.minimum(start, most - 1e-6), (np.full(len(start), np.log(LEAST_COEFFICIENT)), most)
    found = least_squares(residuals, first, bounds=bounds, loss="soft_l1", f_scale=ALIKE)
    return {key: value if value > NOTHING else 0.0 for key, value in values(found.x).items()}
