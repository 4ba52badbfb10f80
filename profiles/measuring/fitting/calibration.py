"""Calibration: the rates of a device, from measured times of layers.

Each time is one linear equation in the seconds per unit of work, forward and backward alike; no work takes negative
time. Squared residuals are weighted by one over the expected time, so that the sum of all layers comes out right:
weighted by one over the square of the measured time it would come out low, as times that are too long count least.

To judge the fit, it is made again without some layers, which it then predicts. A fit can know a layer without having
seen it: where layers repeat, most have a twin of identical work in the other half. So not only every other layer is
left out, but also all layers of one shape, in whichever model, and whole models. An update of the weights only moves
memory; it is part of every fit but those without its model.
"""

from argparse import Namespace
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pandas as pd
from rich.table import Table

from profiles.architectures.models import Model, load_model
from profiles.costs.layers import ELEMENT_BYTES, FloatArray
from profiles.errors import InputError
from profiles.machines.devices import RATE_KEYS, Device
from profiles.machines.laws import Rates
from profiles.measuring.fitting import layer_times
from profiles.measuring.fitting.layer_times import CLASSES, UPDATE, Header, Record
from profiles.measuring.fitting.least_squares import Errors, least_squares
from profiles.measuring.tables import show, table
from profiles.measuring.writing import Exact, toml_text, write_files
from profiles.units import GB, GIB, MICROSECOND, TFLOP

KEYS: Final = dict(zip(CLASSES, RATE_KEYS, strict=True))
RATES_FROM: Final = {"conv": "matmul", "attention": "matmul", "matmul": "conv"}
"""The class of work whose rate stands in for that of a class that no measured layer has."""
DIGITS: Final = 5
FREE_RATE: Final = 1e6
"""Rate, in the units of a device file, that is written for work that costs nothing."""
LEAST_EXPECTED: Final = 0.1
"""Least expected time, as a share of the measured one, by which a residual is weighted."""
LAYER: Final = ["model", "component", "layer"]
"""Columns that say which layer was timed."""
COLUMNS: Final = ("mostly", "pass", "times", "ms", "together", "median error", "worst")


class RatesFit(NamedTuple):
    """A solution: seconds per unit of work, whether each is at its bound, and the condition number of the equations.

    A class of work that costs nothing has an infinite rate.
    """

    seconds: FloatArray
    bound: tuple[bool, ...]
    condition: float

    @property
    def rates(self) -> dict[str, float]:
        """Rates under the keys and in the units of a device file."""
        with np.errstate(divide="ignore"):
            values = [*(1 / self.seconds[:4]), self.seconds[4]]
        return {key: float(value) for key, value in zip(RATE_KEYS, values, strict=True)}


class Fold(NamedTuple):
    """A fit, and the samples that it has not seen; ``name`` is what these have in common."""

    name: Hashable
    fit: RatesFit
    left_out: pd.DataFrame

    @property
    def errors(self) -> Errors:
        """Errors on what was left out."""
        return errors_of(self.fit, self.left_out)


@dataclass(frozen=True, slots=True)
class DeviceCalibration:
    """A device's rates, fitted to measured times, and how well they hold on layers that were left out.

    ``samples`` holds all measured times, one per row, with the amounts of work of each class; layers of one ``shape``
    do identical work. The folds leave out each model (if there are several), each shape, and every other layer.
    """

    device: str
    headers: tuple[Header, ...]
    samples: pd.DataFrame
    fit: RatesFit
    models: tuple[Fold, ...]
    shapes: tuple[Fold, ...]
    halves: tuple[Fold, ...]

    def by_class(self) -> Iterator[tuple[str, str, Errors]]:
        """Errors by quantity and class of work, each sample in the class that takes most of its time."""
        mostly = np.argmax(work_of(self.samples) * self.fit.seconds, axis=1)
        for number, name in enumerate(CLASSES):
            for quantity in (layer_times.FORWARD, layer_times.BACKWARD, UPDATE):
                found = self.samples[(mostly == number) & (self.samples["quantity"] == quantity)]
                if len(found):
                    yield name, quantity, errors_of(self.fit, found)

    @property
    def twins(self) -> float:
        """Share of layers left out of one half that have a twin of identical work in the other."""
        first, second = (half.left_out.drop_duplicates(LAYER)["shape"] for half in self.halves)
        return float(pd.concat([first.isin(second), second.isin(first)]).mean())


def calibrate(device: str, models: Sequence[Model], paths: Sequence[Path]) -> DeviceCalibration:
    """Rates of a device, fitted to files of measured times, each of the model that its header names or the only one.

    Raises:
        InputError: a file breaks a rule, is of another model, or there are too few layers to leave half of them out.
    """
    samples: list[Record] = []
    headers = []
    for path in paths:
        header = layer_times.read_header(path)
        model = model_of(path, header, models)
        samples += layer_times.samples_of(path, model, header)
        if header:
            samples += layer_times.updates_of(model, header)
            headers.append(header)
    return _calibrated(device, samples, headers)


def _calibrated(device: str, records: Sequence[Record], headers: Iterable[Header]) -> DeviceCalibration:
    samples = pd.DataFrame(records)
    samples["shape"] = pd.factorize(samples["shape"])[0]
    layers = samples[samples["quantity"] != UPDATE]
    samples["half"] = layers.groupby(LAYER, sort=False).ngroup() % 2
    times = samples["half"].value_counts()
    if min(times.get(half, 0) for half in (0, 1)) < len(RATE_KEYS):
        number = f"{len(layers.drop_duplicates(LAYER))} layers with {len(layers)} times"
        raise InputError(f"{number} are too few: each half must have {len(RATE_KEYS)}")
    models, shapes, halves = (tuple(_folds(samples, by)) for by in ("model", "shape", "half"))
    return DeviceCalibration(
        device, tuple(headers), samples, _fit_times(samples), models, shapes, halves[::-1]
    )


def _fit_times(samples: pd.DataFrame) -> RatesFit:
    """Rates that fit measured times best, no work taking negative time."""
    work, measured = work_of(samples), samples["seconds"].to_numpy()

    def weigh(seconds: FloatArray | None) -> FloatArray:
        expected = np.zeros(len(work)) if seconds is None else work @ seconds
        return np.asarray(np.maximum(expected, LEAST_EXPECTED * measured) ** -0.5)

    found = least_squares(work, measured, weigh)
    return RatesFit(found.values, tuple(found.bound.tolist()), found.condition)


def work_of(samples: pd.DataFrame) -> FloatArray:
    """Amounts of work, shape (samples, classes)."""
    return samples[list(CLASSES)].to_numpy(dtype=float)


def errors_of(found: RatesFit, samples: pd.DataFrame) -> Errors:
    """Errors of predictions by fitted rates."""
    return Errors(samples["seconds"].to_numpy(), work_of(samples) @ found.seconds)


def _folds(samples: pd.DataFrame, by: str) -> Iterator[Fold]:
    """For each value of a column, the fit to all layers with other values; none where there is only one value."""
    updates = samples["quantity"] == UPDATE
    groups = samples[~updates].groupby(by, sort=False)
    for name, unseen in groups if groups.ngroups > 1 else ():
        rest = samples.drop(index=unseen.index)
        if by == "model":
            rest = rest[rest["model"] != name]  # the updates of its weights, too
        yield Fold(name, _completed(_fit_times(rest), rest), unseen)


def _completed(found: RatesFit, samples: pd.DataFrame) -> RatesFit:
    """Rates in which a class of work without samples takes that of its stand-in, as in a device file."""
    seconds = found.seconds.copy()
    for name, stand_in in RATES_FROM.items():
        if not samples[name].sum() > 0:
            seconds[CLASSES.index(name)] = seconds[CLASSES.index(stand_in)]
    return found._replace(seconds=seconds)


def model_of(path: Path, header: Header | None, models: Sequence[Model]) -> Model:
    """The model of a file of times.

    Raises:
        InputError: it is none of ``models``, was measured at another resolution, or in an unknown precision.
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
        counted = f"the work of {model.name} is counted at {model.height}x{model.width}"
        rule = f"but {counted}; give the folder that it was written to"
        raise InputError(f"{path}: was measured at {header.height}x{header.width}, {rule}")
    if header.dtype not in ELEMENT_BYTES:
        raise InputError(f"{path}: dtype is '{header.dtype}', must be one of {', '.join(ELEMENT_BYTES)}")
    return model


def report_calibration(options: Namespace) -> None:
    """Calibrate a device, print how good the fit is, and write the device file if one is named."""
    found = calibrate(options.device, [load_model(name) for name in options.model], options.times)
    show_calibration(found)
    if options.output is not None:
        write_files(options.output.parent, {Path(options.output.name): device_text(found)})


def show_calibration(found: DeviceCalibration) -> None:
    """Print how good a calibration is."""
    show(130, class_table(found), *summary(found))


def class_table(found: DeviceCalibration) -> Table:
    """Residuals of the fit to all layers, by the class of work that takes most of a layer's time."""
    rows = []
    for name, quantity, of in found.by_class():
        shares = f"{100 * of.together:+.1f} %", f"{100 * of.median:.1f} %", f"{100 * of.worst:.0f} %"
        rows.append([name, quantity, f"{len(of)}", f"{1e3 * of.measured.sum():.2f}", *shares])
    title = f"{found.device}: measured layers and what the fit makes of them"
    return table(title, COLUMNS, rows, left=("mostly", "pass"))


def summary(found: DeviceCalibration) -> Iterator[str]:
    """Rates with where they come from, and the errors on layers that were left out, a line each."""
    for key, rate in rates_of(found).items():
        yield f"{key} = {rate:.{DIGITS}g}: {_rate_source(found, key)}"
    yield from left_out_lines(found)
    yield f"condition number {found.fit.condition:.0f}"


def left_out_lines(found: DeviceCalibration) -> Iterator[str]:
    """Errors on what fits have not seen, the strictest first, a line each."""
    for fold in found.models:
        yield f"left out, all layers of {fold.name}: {_in_words(fold.errors)}"
    if found.shapes:
        errors = (zip(fold.errors.measured, fold.errors.predicted, strict=True) for fold in found.shapes)
        what = f"left out, each of {len(found.shapes)} shapes of layers"
        yield f"{what}: {_in_words(Errors.of(chain.from_iterable(errors)))}"
    share = f"{found.twins:.0%} of these layers have a twin of identical work in the other half"
    for number, half in enumerate(found.halves, start=1):
        yield f"left out, half {number}: {_in_words(half.errors)} ({share})"


def rates_of(found: DeviceCalibration) -> dict[str, float]:
    """Rates of the device file, in its units; a class of work that was not measured has that of its stand-in."""
    rates = {key: min(rate, FREE_RATE) for key, rate in found.fit.rates.items()}
    for name, stand_in in RATES_FROM.items():
        if not found.samples[name].sum() > 0:
            rates[KEYS[name]] = rates[KEYS[stand_in]]
    return rates


def _rate_source(found: DeviceCalibration, key: str) -> str:
    """Where a rate comes from, and how well the layers determine it."""
    name = CLASSES[RATE_KEYS.index(key)]
    if not found.samples[name].sum() > 0:
        return f"estimate: as {RATES_FROM.get(name, 'free')}, for no measured layer does such work"
    values = [half.fit.rates[key] for half in found.halves]
    spread = f"{min(values):.4g} and {max(values):.4g} on either half of the layers"
    if not np.isfinite(found.fit.rates[key]):
        return f"not determined: the fit gives this work no time, written as {FREE_RATE:g} ({spread})"
    return f"fitted to measured layers ({spread})"


def calibrated_device(found: DeviceCalibration) -> Device:
    """The calibrated device, for a simulation."""
    conv, matmul, attention, memory, kernel = rates_of(found).values()
    memory_gib = _memory_gib(found)
    rates = Rates(conv * TFLOP, matmul * TFLOP, attention * TFLOP, memory * GB, kernel * MICROSECOND)
    memory_bytes = None if memory_gib is None else memory_gib * GIB
    return Device(found.device, _source(found), memory_bytes, rates)


def device_text(found: DeviceCalibration) -> str:
    """Text of the device file, each rate with its source; without memory where that is not known."""
    memory_gib = _memory_gib(found)
    values: dict[str, object] = {"name": found.device, "source": _source(found)}
    values |= {} if memory_gib is None else {"memory_GiB": Exact(f"{memory_gib:g}")}
    sources = {key: _rate_source(found, key) for key in RATE_KEYS}
    return toml_text({**values, "rates": {**rates_of(found), "sources": sources}}, f".{DIGITS}g")


def _source(found: DeviceCalibration) -> str:
    models = ", ".join(found.samples["model"].unique())
    dtypes = ", ".join(dict.fromkeys(header.dtype for header in found.headers)) or "a precision nobody noted"
    times = f"{len(found.samples)} measured times of layers of {models}, in {dtypes}"
    fit = f"rates: sim measure calibrate, non-negative least squares of {times}"
    return "; ".join([fit, *left_out_lines(found)])


def _in_words(errors: Errors) -> str:
    worth = f"median error {100 * errors.median:.1f} %, worst {100 * errors.worst:.0f} %"
    return f"{len(errors)} times, together {100 * errors.together:+.1f} %, {worth}"


def _memory_gib(found: DeviceCalibration) -> float | None:
    sizes = {header.memory_GiB for header in found.headers}
    if len(sizes) > 1:
        there = ", ".join(map(str, sizes))
        raise InputError(f"the times were measured on devices of {there} GiB, must be one device")
    return next(iter(sizes), None)
