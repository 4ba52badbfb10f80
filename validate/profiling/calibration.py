"""Calibration: the rates of a device, from measured times of layers.

Each time is one linear equation in the seconds per unit of work (``validate.fit``), forward and backward alike; no
work takes negative time. The square of a residual counts by one over the time that is expected, so that the sum of all
layers comes out right: by one over the square of the measured time it would come out low, for what is too long counts
least. To say what the fit is worth, it is made
on every other layer and judged on those in between, and the other way round. An update of the weights
moves memory and nothing else; it is part of every fit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np

from profiles.costs import FloatArray
from profiles.devices import RATE_KEYS
from profiles.errors import InputError
from profiles.models import Layer, Model
from profiles.recipes import RECIPES
from profiles.sampling_costs import ELEMENT_BYTES
from profiles.units import GB, TFLOP
from validate.fit import LATENCY, Equation, Fit, Observation, Work, fit
from validate.profiling.time_files import Header, TimeRow, read_header, read_times
from validate.targets import Target

CLASSES: Final = tuple(key.split("_")[0] for key in RATE_KEYS)
"""Names of the classes of work: conv, matmul, attention, memory, kernel."""
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
UPDATE: Final = "optimizer"
LAUNCHES: Final = 1e6
LEAST_EXPECTED: Final = 0.1
"""No time counts by less than this share of what was measured, also where the rates expect nothing."""


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

    def error(self, rates: Fit) -> float:
        """Return the relative error of what rates predict."""
        return self.equation.predict(rates.seconds) / self.seconds - 1

    def work_class(self, rates: Fit) -> str:
        """Return the class of work that takes most of the time that rates predict."""
        return CLASSES[int(np.argmax(self.equation.numerator * rates.seconds))]


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of some samples: of each one, and of their times together."""

    num_samples: int
    seconds: float
    together: float
    median: float
    worst: float

    @classmethod
    def of(cls, samples: Sequence[Sample], rates: Fit) -> "Errors":
        """Return the errors of what rates predict; the median and the worst are of absolute values."""
        errors = [abs(sample.error(rates)) for sample in samples]
        seconds = sum(sample.seconds for sample in samples)
        predicted = sum(sample.equation.predict(rates.seconds) for sample in samples)
        return cls(len(samples), seconds, predicted / seconds - 1, median(errors), max(errors))


@dataclass(frozen=True, slots=True)
class Calibration:
    """A device's rates, fitted to measured times, and how well they hold on layers that were left out.

    Attributes:
        device: name of the device.
        headers: what the times were measured with, where their files say so.
        samples: all measured times.
        fit: to all of them.
        halves: (fitted to one half of the layers, the samples of the other half), both ways round.
    """

    device: str
    headers: tuple[Header, ...]
    samples: tuple[Sample, ...]
    fit: Fit
    halves: tuple[tuple[Fit, tuple[Sample, ...]], ...]

    @property
    def amounts(self) -> FloatArray:
        """Work of all samples together, by class."""
        amounts: FloatArray = np.sum([sample.equation.numerator for sample in self.samples], axis=0)
        return amounts

    def by_class(self) -> Iterator[tuple[str, str, Errors]]:
        """Yield the class of work that takes most of a layer's time, the quantity, and the errors of such samples."""
        for name in CLASSES:
            for quantity in (FORWARD, BACKWARD, UPDATE):
                found = [
                    sample
                    for sample in self.samples
                    if (sample.work_class(self.fit), sample.quantity) == (name, quantity)
                ]
                if found:
                    yield name, quantity, Errors.of(found, self.fit)

    def left_out(self) -> list[Errors]:
        """Return for each half the errors on the layers that its fit has not seen."""
        return [Errors.of(samples, rates) for rates, samples in self.halves]


def calibrate(device: str, models: Sequence[Model], paths: Sequence[Path]) -> Calibration:
    """Fit the rates of a device to files of measured times.

    Args:
        device: its name.
        models: those that were measured.
        paths: files of times; each is of the model that its header names, or of the only one.

    Raises:
        InputError: a file breaks a rule, or is of another model.
    """
    samples: list[Sample] = []
    headers = []
    for path in paths:
        header = read_header(path)
        model = model_of(path, header, models)
        samples += samples_of(path, model, header)
        if header:
            samples += updates_of(model, header)
            headers.append(header)
    return calibrate_samples(device, samples, headers)


def calibrate_samples(device: str, samples: Sequence[Sample], headers: Iterable[Header] = ()) -> Calibration:
    """Fit the rates of a device to measured times.

    Raises:
        InputError: there are too few layers to leave half of them out.
    """
    updates = [sample for sample in samples if sample.quantity == UPDATE]
    layers = list(dict.fromkeys(_layer(sample) for sample in samples if sample.quantity != UPDATE))
    even, odd = (
        [sample for sample in samples if _layer(sample) in half]
        for half in (set(layers[::2]), set(layers[1::2]))
    )
    if min(len(even), len(odd)) < len(RATE_KEYS):
        raise InputError(
            f"{len(layers)} layers with {len(even) + len(odd)} times are too few: each half must have {len(RATE_KEYS)}"
        )
    halves = tuple(
        (fit_samples(device, [*half, *updates]), tuple(other)) for half, other in ((even, odd), (odd, even))
    )
    return Calibration(device, tuple(headers), tuple(samples), fit_samples(device, samples), halves)


def fit_samples(device: str, samples: Sequence[Sample]) -> Fit:
    """Return the rates that fit measured times best, no work taking negative time."""
    target = Target(device, "measured", "", np.inf, matrix_peak=np.inf, memory_peak=np.inf)
    return fit([sample.equation for sample in samples], target)


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
            _sample(model, row, quantity, seconds, amounts)
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


def model_of(path: Path, header: Header | None, models: Sequence[Model]) -> Model:
    """Return the model that a file of times is of.

    Raises:
        InputError: it is of none of them, of another resolution, or does not say of which.
    """
    names = ", ".join(model.name for model in models)
    if header is None:
        if len(models) > 1:
            raise InputError(f"{path}: no header beside it says which model it is of: {names}")
        return models[0]
    for model in models:
        if model.name == header.model:
            break
    else:
        raise InputError(f"{path}: is a profile of {header.model}, not of {names}")
    if (header.height, header.width) != (model.height, model.width):
        raise InputError(
            f"{path}: was measured at {header.height}x{header.width}, but the work of {model.name} is counted at"
            f" {model.height}x{model.width}; give the folder that it was written to"
        )
    if header.dtype not in ELEMENT_BYTES:
        raise InputError(f"{path}: dtype is '{header.dtype}', must be one of {', '.join(ELEMENT_BYTES)}")
    return model


def _sample(model: Model, row: TimeRow, quantity: str, seconds: float, amounts: FloatArray) -> Sample:
    note = f"{quantity} of layer {row.layer} of {row.component}"
    seen = Observation(
        "measured", LATENCY, model.name, model.height, model.width, row.batch, 1, seconds, "fit", note
    )
    equation = TimedEquation(seen, amounts, None)
    return Sample(model.name, row.component, row.layer, row.batch, quantity, seconds, equation)


def _layer(sample: Sample) -> tuple[str, str, int]:
    return (sample.model, sample.component, sample.layer)
