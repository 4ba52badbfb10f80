"""Calibration: the rates of a device, from measured times of layers.

Each time is one linear equation in the seconds per unit of work, forward and backward alike; no work takes negative
time. The square of a residual counts by one over the time that is expected, so that the sum of all layers comes out
right: by one over the square of the measured time it would come out low, for what is too long counts least.

To say what the fit is worth, it is made again without some layers and judged by these. A fit can know a layer without
having seen it: where layers repeat, most have a twin of identical work in the other half. So not only every other
layer is left out, but layers of one shape together, in whichever model they are, and whole models. An update of the
weights moves memory and nothing else; it is part of every fit but those without its model.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from profiles.costs import ELEMENT_BYTES, FloatArray
from profiles.devices import RATE_KEYS
from profiles.errors import InputError
from profiles.models import Model
from validate.fitting.errors import Errors, left_out
from validate.fitting.layer_times import (
    BACKWARD,
    CLASSES,
    FORWARD,
    UPDATE,
    Header,
    read_header,
    samples_of,
    updates_of,
)
from validate.fitting.least_squares import least_squares
from validate.fitting.loading import Record
from validate.fitting.rates import Fit

STAND_INS: Final = {"conv": "matmul", "attention": "matmul", "matmul": "conv"}
"""Whose rate work gets that no measured layer does."""
LEAST_EXPECTED: Final = 0.1
"""No time counts by less than this share of what was measured, also where the rates expect nothing."""
LAYER: Final = ["model", "component", "layer"]
"""Which layer was timed."""


@dataclass(frozen=True, slots=True)
class Fold:
    """A fit, and the samples that it has not seen; ``name`` is what these have in common."""

    name: Hashable
    rates: Fit
    left_out: pd.DataFrame

    @property
    def errors(self) -> Errors:
        """Errors on what was left out."""
        return errors_of(self.rates, self.left_out)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A device's rates, fitted to measured times, and how well they hold on layers that were left out.

    Attributes:
        device: name of the device.
        headers: what the times were measured with, where their files say so.
        samples: all measured times, one a row, with the amounts of work of each class; layers of one ``shape`` do
            identical work.
        fit: to all of them.
        models: the fits without each model; none where there is but one.
        shapes: the fits without each shape of layers; none where there is but one.
        halves: the fits to every other layer, judged by those in between, and the other way round.
    """

    device: str
    headers: tuple[Header, ...]
    samples: pd.DataFrame
    fit: Fit
    models: tuple[Fold, ...]
    shapes: tuple[Fold, ...]
    halves: tuple[Fold, ...]

    @property
    def amounts(self) -> FloatArray:
        """Work of all samples together, by class."""
        return np.asarray(work_of(self.samples).sum(axis=0))

    def by_class(self) -> Iterator[tuple[str, str, Errors]]:
        """Errors of the samples of each class of work, the one that takes most of their time, and quantity."""
        mostly = np.argmax(work_of(self.samples) * self.fit.seconds, axis=1)
        for number, name in enumerate(CLASSES):
            for quantity in (FORWARD, BACKWARD, UPDATE):
                found = self.samples[(mostly == number) & (self.samples["quantity"] == quantity)]
                if len(found):
                    yield name, quantity, errors_of(self.fit, found)

    @property
    def twins(self) -> float:
        """Share of layers left out of one half that have a twin of identical work in the other."""
        first, second = (half.left_out.drop_duplicates(LAYER)["shape"] for half in self.halves)
        return float(pd.concat([first.isin(second), second.isin(first)]).mean())


def calibrate(device: str, models: Sequence[Model], paths: Sequence[Path]) -> Calibration:
    """Fit the rates of a device to files of measured times.

    Args:
        device: its name.
        models: those that were measured.
        paths: files of times; each is of the model that its header names, or of the only one.

    Raises:
        InputError: a file breaks a rule, or is of another model.
    """
    samples: list[Record] = []
    headers = []
    for path in paths:
        header = read_header(path)
        model = model_of(path, header, models)
        samples += samples_of(path, model, header)
        if header:
            samples += updates_of(model, header)
            headers.append(header)
    return calibrate_samples(device, samples, headers)


def calibrate_samples(device: str, records: Sequence[Record], headers: Iterable[Header] = ()) -> Calibration:
    """Fit the rates of a device to measured times.

    Raises:
        InputError: there are too few layers to leave half of them out.
    """
    samples = pd.DataFrame(records)
    samples["shape"] = pd.factorize(samples["shape"])[0]
    layers = samples[samples["quantity"] != UPDATE]
    samples["half"] = layers.groupby(LAYER, sort=False).ngroup() % 2
    times = samples["half"].value_counts()
    if min(times.get(half, 0) for half in (0, 1)) < len(RATE_KEYS):
        number = len(layers.drop_duplicates(LAYER))
        raise InputError(
            f"{number} layers with {len(layers)} times are too few: each half must have {len(RATE_KEYS)}"
        )
    return Calibration(
        device,
        tuple(headers),
        samples,
        fit_times(samples),
        tuple(_folds(samples, "model")),
        tuple(_folds(samples, "shape")),
        tuple(_folds(samples, "half"))[::-1],
    )


def fit_times(samples: pd.DataFrame) -> Fit:
    """Rates that fit measured times best, no work taking negative time."""
    work, measured = work_of(samples), samples["seconds"].to_numpy()

    def weigh(seconds: FloatArray | None) -> FloatArray:
        expected = np.zeros(len(work)) if seconds is None else work @ seconds
        return np.asarray(np.maximum(expected, LEAST_EXPECTED * measured) ** -0.5)

    found = least_squares(work, measured, weigh)
    return Fit(found.values, tuple(found.bound.tolist()), found.condition)


def work_of(samples: pd.DataFrame) -> FloatArray:
    """Amounts of work, shape (samples, classes)."""
    return samples[list(CLASSES)].to_numpy(dtype=float)


def errors_of(rates: Fit, samples: pd.DataFrame) -> Errors:
    """Errors of what rates predict."""
    return Errors(samples["seconds"].to_numpy(), work_of(samples) @ rates.seconds)


def _folds(samples: pd.DataFrame, by: str) -> Iterator[Fold]:
    """For each value of a column the fit to all layers of other values; nothing where there is but one."""
    updates = samples["quantity"] == UPDATE
    for name, unseen in left_out(samples[~updates], by):
        rest = samples.drop(index=unseen.index)
        if by == "model":
            rest = rest[rest["model"] != name]  # the updates of its weights, too
        yield Fold(name, _completed(fit_times(rest), rest), unseen)


def _completed(rates: Fit, samples: pd.DataFrame) -> Fit:
    """Rates in which work that no sample does takes what it does in a device file."""
    done = work_of(samples).sum(axis=0) > 0
    seconds = rates.seconds.copy()
    for name, stand_in in STAND_INS.items():
        if not done[CLASSES.index(name)]:
            seconds[CLASSES.index(name)] = seconds[CLASSES.index(stand_in)]
    return replace(rates, seconds=seconds)


def model_of(path: Path, header: Header | None, models: Sequence[Model]) -> Model:
    """Model that a file of times is of.

    Raises:
        InputError: it is of none of them, of another resolution, or does not say of which.
    """
    names = ", ".join(model.name for model in models)
    if header is None:
        if len(models) > 1:
            raise InputError(f"{path}: no header beside it says which model it is of: {names}")
        return models[0]
    model = next((model for model in models if model.name == header.model), None)
    if model is None:
        raise InputError(f"{path}: is a profile of {header.model}, not of {names}")
    if (header.height, header.width) != (model.height, model.width):
        raise InputError(
            f"{path}: was measured at {header.height}x{header.width}, but the work of {model.name} is counted at"
            f" {model.height}x{model.width}; give the folder that it was written to"
        )
    if header.dtype not in ELEMENT_BYTES:
        raise InputError(f"{path}: dtype is '{header.dtype}', must be one of {', '.join(ELEMENT_BYTES)}")
    return model
