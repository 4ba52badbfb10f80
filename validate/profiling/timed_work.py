"""Timed work: measured times of layers, and of an optimizer's updates, as equations in a device's seconds per work."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from profiles.costs import ELEMENT_BYTES, FloatArray
from profiles.devices import RATE_KEYS
from profiles.models import Layer, Model
from profiles.recipes import RECIPES
from profiles.units import GB, TFLOP
from validate.fit import LATENCY, Equation, Fit, Observation, Work
from validate.profiling.time_files import Header, TimeRow, read_times

CLASSES: Final = tuple(key.split("_")[0] for key in RATE_KEYS)
"""Names of the classes of work: conv, matmul, attention, memory, kernel."""
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
UPDATE: Final = "optimizer"
LAUNCHES: Final = 1e6
LEAST_EXPECTED: Final = 0.1
"""No time counts by less than this share of what was measured, also where the rates expect nothing."""

Shape = tuple[float | str, ...]
"""The counted work of a layer and the kind of its backward pass: layers of one shape do identical work."""


@dataclass(frozen=True, slots=True)
class TimedEquation(Equation):
    """A measured time as amounts of work."""

    def row(self, seconds: FloatArray) -> tuple[FloatArray, float]:
        """Return the equation, scaled by the root of the time expected near ``seconds``."""
        value = self.observation.value
        expected = max(float(self.numerator @ seconds), LEAST_EXPECTED * value)
        root = expected**0.5
        return self.numerator / root, value / root


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured time, as an equation: of a layer's pass, or of an optimizer's update, which is no layer's (-1)."""

    model: str
    component: str
    layer: int
    batch: int
    quantity: str
    seconds: float
    equation: Equation
    shape: Shape

    @property
    def key(self) -> tuple[str, str, int]:
        """Which layer was timed."""
        return (self.model, self.component, self.layer)

    def error(self, rates: Fit) -> float:
        """Return the relative error of what rates predict."""
        return self.equation.predict(rates.seconds) / self.seconds - 1

    def work_class(self, rates: Fit) -> str:
        """Return the class of work that takes most of the time that rates predict."""
        return CLASSES[int(np.argmax(self.equation.numerator * rates.seconds))]


def samples_of(path: Path, model: Model, header: Header | None) -> list[Sample]:
    """Return the samples of a file of times, without those of zero seconds.

    Memory traffic is counted in the model's precision, and measured in the header's.
    """
    size = ELEMENT_BYTES[header.dtype] / ELEMENT_BYTES[model.dtype] if header else 1.0
    layers = {component.name: component.layers for component in model.components}
    samples = []
    for row in read_times(path, model, header):
        work = work_of(row.component, layers[row.component][row.layer], size)
        samples += [
            _sample(model, row, quantity, seconds, amounts, shape=(*work.amounts, work.backward))
            for quantity, seconds, amounts in (
                (FORWARD, row.forward_s, work.forward(row.batch)),
                (BACKWARD, row.backward_s, work.backward_pass(row.batch)),
            )
            if seconds > 0 and amounts.any()
        ]
    return samples


def updates_of(model: Model, header: Header) -> list[Sample]:
    """Return the measured updates of weights, which move memory alone, as the memory recipe counts it."""
    samples = []
    for update in header.updates:
        moved = update.parameters * RECIPES[update.recipe].step_bytes / GB
        row = TimeRow(update.component, -1, 1, 0.0, 0.0)
        amounts = np.array([0.0, 0.0, 0.0, moved, 0.0])
        samples.append(_sample(model, row, UPDATE, update.seconds, amounts))
    return samples


def work_of(component: str, layer: Layer, size: float) -> Work:
    """Return the work of a layer; its memory traffic times ``size``."""
    amounts = (
        layer.conv_flop / TFLOP,
        layer.matmul_flop / TFLOP,
        layer.attention_flop / TFLOP,
        size * layer.moved_bytes / GB,
        layer.kernels / LAUNCHES,
    )
    return Work(component, layer.backward, amounts)


def _sample(
    model: Model, row: TimeRow, quantity: str, seconds: float, amounts: FloatArray, *, shape: Shape = ()
) -> Sample:
    note = f"{quantity} of layer {row.layer} of {row.component}"
    seen = Observation(
        "measured", LATENCY, model.name, model.height, model.width, row.batch, 1, seconds, "fit", note
    )
    equation = TimedEquation(seen, amounts, None)
    return Sample(model.name, row.component, row.layer, row.batch, quantity, seconds, equation, shape)
