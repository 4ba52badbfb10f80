"""Calibration: the rates of a device, from measured times of layers.

Each time is one linear equation in the seconds per unit of work (``validate.fit``), forward and backward alike; no
work takes negative time. The square of a residual counts by one over the time that is expected, so that the sum of all
layers comes out right: by one over the square of the measured time it would come out low, for what is too long counts
least. To say what the fit is worth, it is made without each model, without each shape of layers, and on every other
layer, and judged by what it has not seen (``validate.profiling.left_out``). An update of the weights moves memory and
nothing else; it is part of every fit but those without its model.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiles.costs import ELEMENT_BYTES, FloatArray
from profiles.devices import RATE_KEYS
from profiles.errors import InputError
from profiles.models import Model
from validate.fit import Fit
from validate.profiling.left_out import Errors, Fold, by_model, by_shape, fit_samples, halves
from validate.profiling.time_files import Header, read_header
from validate.profiling.timed_work import BACKWARD, CLASSES, FORWARD, UPDATE, Sample, samples_of, updates_of


@dataclass(frozen=True, slots=True)
class Calibration:
    """A device's rates, fitted to measured times, and how well they hold on layers that were left out.

    Attributes:
        device: name of the device.
        headers: what the times were measured with, where their files say so.
        samples: all measured times.
        fit: to all of them.
        models: the fits without each model, by its name; none where there is but one.
        shapes: the fits without each group of layers of identical work.
        halves: the fits to one half of the layers, judged by the other half.
    """

    device: str
    headers: tuple[Header, ...]
    samples: tuple[Sample, ...]
    fit: Fit
    models: dict[str, Fold]
    shapes: tuple[Fold, ...]
    halves: tuple[Fold, ...]

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
                    yield name, quantity, Errors.of(Fold(self.fit, tuple(found)))

    def left_out(self) -> list[Errors]:
        """Return for each half the errors on the layers that its fit has not seen."""
        return [Errors.of(half) for half in self.halves]


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
    layers: dict[tuple[str, str, int], int] = {}
    for sample in samples:
        if sample.quantity != UPDATE:
            layers[sample.key] = layers.get(sample.key, 0) + 1
    counts = list(layers.values())
    if min(sum(counts[::2]), sum(counts[1::2])) < len(RATE_KEYS):
        raise InputError(
            f"{len(layers)} layers with {sum(counts)} times are too few: each half must have {len(RATE_KEYS)}"
        )
    return Calibration(
        device,
        tuple(headers),
        tuple(samples),
        fit_samples(device, samples),
        by_model(device, samples),
        by_shape(device, samples),
        halves(device, samples),
    )


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
