"""Keys and values of all tokens, kept from step to step, with the step that each token is of."""

import torch
from torch import Tensor

from validate.running.sampling.settings import ROWS

NEVER = -1


class KeysValues:
    """The buffer of one layer.

    With a wrong version planted, tokens of others are those that lay there before the last write, if any.
    """

    def __init__(self, batch: int, width: int, like: Tensor, *, wrong_version: bool = False) -> None:
        self._now = like.new_full((2, batch, ROWS**2, width), torch.nan)
        self._steps = torch.full((ROWS**2,), NEVER)
        self._before, self._steps_before = self._now.clone(), self._steps.clone()
        self._wrong_version = wrong_version

    def write(self, tokens: Tensor, kept: Tensor, step: int) -> None:
        """Overwrite some tokens with keys and values (2, batch, these tokens, width) of a step."""
        self._before[:, :, tokens] = self._now[:, :, tokens]
        self._steps_before[tokens] = self._steps[tokens]
        self._now[:, :, tokens] = kept
        self._steps[tokens] = step

    def read(self, tokens: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of some tokens, and the step of each; ``own`` are those just computed."""
        both, steps = self._now[:, :, tokens], self._steps[tokens]
        if self._wrong_version:
            stale = (self._steps_before[tokens] != NEVER) & ~torch.isin(tokens, own)
            both[:, :, stale] = self._before[:, :, tokens[stale]]
            steps[stale] = self._steps_before[tokens[stale]]
        return both, steps
