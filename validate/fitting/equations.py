"""Equations: published latencies and ratios of times, as amounts of work.

The cost model is linear in the seconds per unit of work, so a latency is one linear equation, and so is a ratio of two
times: frozen - ratio * trainable = 0. Each is weighted so that its residual is relative.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from profiles.costs import BACKWARD_WORK, FloatArray
from profiles.errors import InputError
from profiles.models import BACKWARDS
from validate.fitting import loading
from validate.fitting.loading import count, load, one_of, positive

OBSERVATIONS: Final = Path(__file__).parent / "observations"
LATENCY: Final = "latency_s"
"""Of so many steps, each a forward pass of the backbones at a batch."""
RATIO: Final = "frozen_over_trainable"
"""Forward time of the frozen part over forward and backward of the rest."""
OBSERVATION_RULES: Final = {
    "source": loading.text,
    "quantity": one_of(LATENCY, RATIO),
    "model": loading.text,
    **dict.fromkeys(("height", "width", "batch", "steps"), count),
    "value": positive,
    "role": one_of("fit", "check"),
    "note": loading.text,
}
AMOUNTS: Final = ("conv_gflop", "matmul_gflop", "attention_gflop", "moved_MB", "kernels")
WORK_RULES: Final = {
    "model": loading.text,
    "component": loading.text,
    "backward": one_of(*BACKWARDS),
    **dict.fromkeys(("height", "width"), count),
    **dict.fromkeys(AMOUNTS, loading.number),
}
WORK_COLUMNS: Final = tuple(WORK_RULES)
WORK_UNITS: Final = np.array([1e-3, 1e-3, 1e-3, 1e-3, 1e-6])
"""From the units of the columns of work to TFLOP, GB and million kernels; over rates in the device file's units
that gives seconds."""

Resolution = tuple[str, int, int]
"""Model, height and width in pixels."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One published number, at ``where`` in a file; a ``check`` is predicted only, a ``fit`` fitted to."""

    source: str
    quantity: str
    model: str
    height: int
    width: int
    batch: int
    steps: int
    value: float
    role: str
    note: str
    where: str = ""

    @property
    def place(self) -> str:
        """What its work is counted at, in words."""
        return f"{self.model} at {self.height}x{self.width}"


class Work(NamedTuple):
    """Forward work of one component at one resolution: TFLOP of three classes, GB, million kernels."""

    component: str
    backward: str
    amounts: tuple[float, ...]

    def forward(self, batch: int) -> FloatArray:
        """Amounts of a forward pass; launches do not grow with the batch."""
        return np.array(self.amounts) * (batch, batch, batch, batch, 1)

    def backward_pass(self, batch: int) -> FloatArray:
        """Amounts of a backward pass."""
        work, attention = BACKWARD_WORK[self.backward]
        return self.forward(batch) * (work, work, attention, work, work)


@dataclass(frozen=True, slots=True)
class Equation:
    """An observation as amounts of work: the numerator's and, for a ratio, the denominator's."""

    observation: Observation
    numerator: FloatArray
    denominator: FloatArray | None

    def predict(self, seconds: FloatArray) -> float:
        """Predicted value, from the seconds per unit of work."""
        over = 1.0 if self.denominator is None else float(self.denominator @ seconds)
        return float(self.numerator @ seconds) / over

    @property
    def coefficients(self) -> FloatArray:
        """Amounts of work whose seconds add up to ``aim``."""
        if self.denominator is None:
            return self.numerator
        return self.numerator - self.observation.value * self.denominator

    @property
    def aim(self) -> float:
        """Seconds of a latency; 0 of a ratio."""
        return self.observation.value if self.denominator is None else 0.0

    def weight(self, seconds: FloatArray | None) -> float:
        """Weight that makes the residual relative near ``seconds``; 0 of a ratio where these are not known yet."""
        if self.denominator is None:
            return 1 / self.observation.value
        return 0.0 if seconds is None else 1 / (self.observation.value * float(self.denominator @ seconds))


def read_observations(path: Path) -> list[Observation]:
    """Published numbers of one device."""
    return [Observation(**record) for record in load(path, OBSERVATION_RULES)]


def read_work(path: Path) -> dict[Resolution, list[Work]]:
    """Counted work by model and resolution."""
    table: dict[Resolution, dict[str, Work]] = {}
    for row in load(path, WORK_RULES):
        model, height, width, name = row["model"], row["height"], row["width"], row["component"]
        components = table.setdefault((model, height, width), {})
        if name in components:
            rule = f"component is '{name}', stands twice for {model} at {height}x{width}"
            raise InputError(f"{row['where']}: {rule}")
        amounts = np.array([row[key] for key in AMOUNTS]) * WORK_UNITS
        components[name] = Work(name, row["backward"], tuple(amounts.tolist()))
    return {place: list(components.values()) for place, components in table.items()}


def equations(observations: Iterable[Observation], work: dict[Resolution, list[Work]]) -> list[Equation]:
    """Equations of observations, whose work must be counted; a component without a backward pass is frozen."""
    return [_equation(row, work.get((row.model, row.height, row.width), [])) for row in observations]


def _equation(row: Observation, parts: Sequence[Work]) -> Equation:
    frozen = [part for part in parts if part.backward == "none"]
    trained = [part for part in parts if part.backward != "none"]
    if not trained or (row.quantity == RATIO and not frozen):
        raise InputError(f"{row.where}: the work of {row.place} is not counted; run python -m validate work")
    forward = sum(part.forward(row.batch) for part in trained) + np.zeros(5)
    if row.quantity == LATENCY:
        return Equation(row, row.steps * forward, None)
    both = forward + sum(part.backward_pass(row.batch) for part in trained)
    return Equation(row, sum(part.forward(row.batch) for part in frozen) + np.zeros(5), both)
