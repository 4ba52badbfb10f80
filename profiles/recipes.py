"""Memory recipes: what one trained parameter costs in bytes, and what its optimizer step moves."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

FROZEN_WEIGHT_BYTES: Final = 2
"""A frozen weight is held in half precision, whatever the recipe."""


@dataclass(frozen=True, slots=True)
class MemoryRecipe:
    """Bytes per trained parameter, by what they hold."""

    name: str
    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    moment_bytes: int
    source: str
    ema_bytes: int = 0

    @property
    def parameter_bytes(self) -> int:
        """Bytes resident per trained parameter."""
        return self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.ema_bytes

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state per trained parameter: master weight and both moments."""
        return self.master_bytes + self.moment_bytes

    @property
    def step_bytes(self) -> int:
        """Memory traffic of one optimizer step per parameter.

        The state is read and written, the gradient read, the weight written (and read where it is its own master).
        The moving average is a pass of its own: it reads the master weight, and is itself read and written.
        """
        reread = 0 if self.master_bytes else self.weight_bytes
        averaged = (self.master_bytes or self.weight_bytes) + 2 * self.ema_bytes if self.ema_bytes else 0
        return self.gradient_bytes + self.weight_bytes + reread + 2 * self.optimizer_bytes + averaged


RECIPES: Final = {
    recipe.name: recipe
    for recipe in (
        MemoryRecipe("mixed", 2, 4, 4, 8, "mixed precision with fp32 gradients; Adam"),
        MemoryRecipe(
            "mixed-fp16-gradient", 2, 2, 4, 8, "mixed precision with half-precision gradients; Adam"
        ),
        MemoryRecipe("pulse", 2, 4, 0, 8, "PULSE, Eq. 14: 7 x the fp16 weights; how the 14 B divide is ours"),
        MemoryRecipe(
            "fp32", 4, 4, 0, 8, "fp32 weights and gradients; Adam; activations keep the model's type"
        ),
    )
}

EMA_BYTES: Final = {"none": 0, "fp32": 4}
"""Bytes per trained parameter of an exponential moving average of the weights (diffusers ``EMAModel``: float32)."""


@cache
def recipe_of(name: str, ema: str) -> MemoryRecipe:
    """The recipe of a name with a moving average of the weights, a key of ``EMA_BYTES``."""
    return replace(RECIPES[name], ema_bytes=EMA_BYTES[ema])
