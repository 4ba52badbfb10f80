"""Why predictions of sampling miss: a text for each row, or group of rows, that is off by more than ``MISSED``."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

from profiles.files import Row, read_rows
from validate.published.sampling_scenes import SamplingPrediction

MISSES: Final = Path(__file__).parent / "sampling_misses.csv"
ASKED: Final = ("source", "figure", "model", "cluster", "num_gpus", "method", "resolution")
COLUMNS: Final = (*ASKED, "why")
MISSED: Final = 0.20
"""Relative error beyond which a row needs a text."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A text, and patterns (with ``*``) of what the rows it is about say, in the order of ``ASKED``."""

    patterns: tuple[str, ...]
    why: str

    @classmethod
    def of(cls, row: Row) -> "Explanation":
        """Return what a row of the file says."""
        return cls(tuple(row.text(column) for column in ASKED), row.text("why"))

    def fits(self, prediction: SamplingPrediction) -> bool:
        """Return whether the text is about a row."""
        row = prediction.row
        said = (
            row["source"],
            row.figure,
            prediction.model,
            prediction.cluster,
            row["num_gpus"],
            row["method"],
            row["resolution_px"],
        )
        return all(map(fnmatchcase, said, self.patterns))


@cache
def explanations() -> tuple[Explanation, ...]:
    """Return all texts, in the order of the file.

    Raises:
        InputError: the file breaks a rule.
    """
    return tuple(Explanation.of(row) for row in read_rows(MISSES, COLUMNS))


def missed(prediction: SamplingPrediction) -> bool:
    """Return whether a prediction is so far off that it needs a text, or says wrongly whether memory suffices."""
    if prediction.outcome is None:
        return False
    wrong = prediction.row.out_of_memory != prediction.out_of_memory
    return wrong or (prediction.error is not None and abs(prediction.error) > MISSED)


def why(prediction: SamplingPrediction) -> str:
    """Return the first text that is about a row; empty where there is none, or the row needs none."""
    if not missed(prediction):
        return ""
    return next((text.why for text in explanations() if text.fits(prediction)), "")
