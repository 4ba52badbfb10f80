"""Errors: what predictions are worth, of one fit or of several that each leave something out to be judged by."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from profiles.costs import FloatArray


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of predicted values, relative to the measured or published ones."""

    measured: FloatArray
    predicted: FloatArray

    @classmethod
    def of(cls, pairs: Iterable[tuple[float, float]]) -> "Errors":
        """Errors of pairs, each a measured and a predicted value."""
        measured, predicted = np.array(list(pairs), dtype=float).reshape(-1, 2).T
        return cls(measured, predicted)

    @classmethod
    def join(cls, parts: Iterable["Errors"]) -> "Errors":
        """All errors of several fits."""
        parts = list(parts)
        return cls(*(np.concatenate([getattr(part, key) for part in parts]) for key in cls.__slots__))

    def __len__(self) -> int:
        return len(self.measured)

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
        """Mean error, without sign."""
        return float(np.abs(self.relative).mean())

    @property
    def median(self) -> float:
        """Median error, without sign."""
        return float(np.median(np.abs(self.relative)))

    @property
    def worst(self) -> float:
        """Largest error, without sign."""
        return float(np.abs(self.relative).max())


def left_out(samples: pd.DataFrame, by: str) -> Iterator[tuple[Hashable, pd.DataFrame]]:
    """Each value of a column and the samples of it, to be left out; nothing where there is but one."""
    groups = samples.groupby(by, sort=False)
    if groups.ngroups > 1:
        yield from groups
