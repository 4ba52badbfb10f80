"""Errors: what predictions are worth."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from profiles.costs.layers import FloatArray


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predicted values, relative to the measured or published ones; means and the like are without sign."""

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
