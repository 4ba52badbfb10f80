"""Keys and values of all tokens, kept from step to step, with the step that each row is of."""

import torch
from torch import Tensor

from validate.sampling_runs.settings import HIDDEN, ROWS
from validate.sampling_runs.transformer import tokens

WHOLE = slice(0, ROWS)


class KeysValues:
    """The buffer of one layer.

    Args:
        batch: samples.
        like: a tensor on the device it lies on.
        wrong_version: plant a fault: rows of others are those that lay there before the last write, if any.
    """

    def __init__(self, batch: int, like: Tensor, *, wrong_version: bool = False) -> None:
        self._now = like.new_full((2, batch, ROWS**2, HIDDEN), torch.nan)
        self._steps = [-1] * ROWS
        self._before, self._steps_before = self._now.clone(), list(self._steps)
        self._wrong_version = wrong_version

    def write(self, rows: slice, kept: Tensor, step: int) -> None:
        """Overwrite some rows with keys and values (2, batch, tokens of these rows, hidden) of a step."""
        at = tokens(rows)
        self._before[:, :, at] = self._now[:, :, at]
        self._steps_before[rows] = self._steps[rows]
        self._now[:, :, at] = kept
        self._steps[rows] = [step] * (rows.stop - rows.start)

    def read(self, own: slice) -> tuple[Tensor, list[int]]:
        """Return keys and values of all tokens, and the step of each row; ``own`` are those just computed."""
        if not self._wrong_version:
            return self._now, list(self._steps)
        mixed, steps = self._now.clone(), list(self._steps)
        for row in range(ROWS):
            at = tokens(slice(row, row + 1))
            if self._steps_before[row] >= 0 and row not in range(own.start, own.stop):
                mixed[:, :, at], steps[row] = self._before[:, :, at], self._steps_before[row]
        return mixed, steps
