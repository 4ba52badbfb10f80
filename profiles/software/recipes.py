"""Memory recipes: what one trained parameter costs in bytes, and what its optimizer step moves."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

FROZEN_WEIGHT_BYTES: Final = 2
"""A frozen weight is held in half precision, whatever the recipe."""


QUANTIZED: Final = 2 * (1 + 4 / 256)
"""Bytes of both moments of 8-bit Adam: a byte each, and the scale of a block of 256."""
FACTORED: Final = 0.008
"""Bytes of Adafactor's second moment: 4 (n + k) / (n k) of a matrix n by k, here 1,000 by 1,000; wider ones have less.
Convolutions, which it factors by their window alone, have up to 2.7: Adafactor is for transformers."""


@dataclass(frozen=True, slots=True)
class MemoryRecipe:
    """Bytes per trained parameter, by what they hold.

    ``moved_bytes`` are those that a step of an optimizer with kernels of its own moves, whatever the stack: its states
    and intermediate results, without weights in half precision and moving averages; 0 for Adam, whose kernels are the
    stack's.
    """

    name: str
    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    moment_bytes: float
    ema_bytes: int = 0
    moved_bytes: float = 0

    @property
    def optimizer_bytes(self) -> float:
        """Bytes of optimizer state per trained parameter: master weight and both moments."""
        return self.master_bytes + self.moment_bytes

    @property
    def step_bytes(self) -> float:
        """Memory traffic of one optimizer step per parameter.

        The state is read and written, the gradient read, the weight written (and read where it is its own master).
        The moving average is a pass of its own: it reads the master weight, and is itself read and written.
        """
        reread = 0 if self.master_bytes else self.weight_bytes
        averaged = (self.master_bytes or self.weight_bytes) + 2 * self.ema_bytes if self.ema_bytes else 0
        if self.moved_bytes:
            return self.moved_bytes + (self.weight_bytes if self.master_bytes else 0) + averaged
        return self.gradient_bytes + self.weight_bytes + reread + 2 * self.optimizer_bytes + averaged


RECIPES: Final = {
    recipe.name: recipe
    for recipe in (
        MemoryRecipe("mixed", 2, 4, 4, 8),
        MemoryRecipe("mixed-fp16-gradient", 2, 2, 4, 8),
        MemoryRecipe("pulse", 2, 4, 0, 8),  # PULSE, Eq. 14: 7 x the fp16 weights; how the 14 B divide is ours
        MemoryRecipe("fp32", 4, 4, 0, 8),  # activations keep the model's type
        MemoryRecipe("adam8bit", 2, 4, 4, QUANTIZED, moved_bytes=4 + 2 * 4 + 2 * QUANTIZED),
        MemoryRecipe("adafactor", 2, 4, 4, FACTORED, moved_bytes=68),
    )
}
"""Source of 8-bit Adam: bitsandbytes, optim/optimizer.py, Optimizer2State; one kernel. Of Adafactor: Shazeer and Stern,
2018; torch/optim/_adafactor.py, whose operations move so much: norm of the weight 4, both means of squares 8, their
product 4, its division 8, clamp and root 16, gradient 12, norm 4, update 12."""

EMA_BYTES: Final = {"none": 0, "fp32": 4}
"""Bytes per trained parameter of an exponential moving average of the weights (diffusers ``EMAModel``: float32)."""


@cache
def recipe_of(name: str, ema: str) -> MemoryRecipe:
    """The recipe of a name, with the moving average of the weights that ``ema``, a key of ``EMA_BYTES``, names."""
    return replace(RECIPES[name], ema_bytes=EMA_BYTES[ema])
