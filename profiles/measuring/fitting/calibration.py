"""Calibration: the rates of a device, from measured times of layers.

Beside ``times/<device>.csv``, which a model folder is read with, stands a header of the environment
(``times/<device>.toml``).

Each time is one linear equation in the seconds per unit of work, forward and backward alike; no work takes negative
time. Squared residuals are weighted by one over the expected time, so that the sum of all layers comes out right:
weighted by one over the square of the measured time it would come out low, as times that are too long count least.

To judge the fit, it is made again without some layers, which it then predicts. Where layers repeat, a fit can know a
layer without having seen it; so all layers of one shape are left out, in whichever model, and whole models. An update
of the weights only moves memory; it is part of every fit but those without its model.
"""

from argparse import Namespace
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from rich.table import Table as Printed

from profiles.architectures.component_files import TIME_COLUMNS, read_layer_times
from profiles.architectures.models import Model, load_model
from profiles.architectures.shares import ELEMENT_BYTES
from profiles.costs.layer_times import BACKWARD_WORK
from profiles.errors import InputError
from profiles.files import Table, path_kind, read_rows
from profiles.machines.devices import RATE_KEYS, Device
from profiles.machines.laws import Rates
from profiles.measuring.fitting.least_squares import Errors, least_squares
from profiles.measuring.writing import Exact, grouped, show, table, toml_text
from profiles.outputs import write_files
from profiles.software.recipes import RECIPES
from profiles.units import GB, GIB, MILLISECOND, TFLOP, FloatArray, in_si

Record = dict[str, Any]

CLASSES: Final = tuple(key.split("_")[0] for key in RATE_KEYS)
"""Names of the classes of work: conv, matmul, attention, memory, kernel."""
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
QUANTITIES: Final = (FORWARD, BACKWARD)
"""Quantities timed of each layer."""
UPDATE: Final = "optimizer"
LAUNCHES: Final = 1e6


@dataclass(frozen=True, slots=True)
class Header:
    """Header of a profile, as a calibration needs it: model, measurement, and memory of the GPU.

    ``updates`` are measured steps of the optimizer: component, bytes that its memory recipe moves, in GB, and seconds.
    """

    model: str
    height: int
    width: int
    dtype: str
    source: str
    memory_GiB: float | None = None  # noqa: N815  the unit's own spelling
    updates: tuple[tuple[str, float, float], ...] = ()


def read_header(times: Path) -> Header | None:
    """Header beside a file of times; None where there is none."""
    path = times.with_suffix(".toml")
    if path_kind(path) == "nothing":
        return None
    table = Table.read(path)
    updates = []
    for update in table.tables("optimizer"):
        parameters, recipe = update.integer("parameters", minimum=1), update.choice("recipe", tuple(RECIPES))
        moved = parameters * RECIPES[recipe].step_bytes / GB
        updates.append((update.text("component"), moved, update.positive("ms") * MILLISECOND))
    return table.made(Header, updates=tuple(updates))


def samples_of(path: Path, model: Model, header: Header | None) -> list[Record]:
    """Samples of a file of times, without those of zero seconds.

    Memory traffic is counted in the model's precision, and measured in the header's; launches do not grow with the
    batch.
    """
    size = ELEMENT_BYTES[header.dtype] / ELEMENT_BYTES[model.dtype] if header else 1.0
    samples = []
    for name, rows in grouped(read_rows(path, TIME_COLUMNS), lambda row: row.text("component")).items():
        component = next((component for component in model.components if component.name == name), None)
        if component is None:
            known = ", ".join(component.name for component in model.components)
            raise rows[0].fail("component", f"is none of {model.name}'s: {known}")
        for time in read_layer_times(component.layers, rows):
            layer, batch = component.layers[time.layer], time.batch_size
            flop = [each / TFLOP for each in (layer.conv_flop, layer.matmul_flop, layer.attention_flop)]
            amounts = np.array([*flop, size * layer.moved_bytes / GB, layer.kernels / LAUNCHES])
            place = {"model": model.name, "component": name, "layer": time.layer, "batch": batch}
            place["shape"] = (*amounts, layer.backward)
            work, attention = BACKWARD_WORK[layer.backward]
            forward = amounts * (batch, batch, batch, batch, 1)
            backward = forward * (work, work, attention, work, work)
            passes = (FORWARD, time.forward_s, forward), (BACKWARD, time.backward_s, backward)
            samples += [_sample(place, *entry) for entry in passes if entry[1] > 0 and entry[2].any()]
    return samples


def _sample(place: Record, quantity: str, seconds: float, amounts: FloatArray) -> Record:
    return {**place, "quantity": quantity, "seconds": seconds, **dict(zip(CLASSES, amounts, strict=True))}


RATES_FROM: Final = {"conv": "matmul", "attention": "matmul", "matmul": "conv"}
"""The class of work whose rate stands in for that of a class that no measured layer has."""
DIGITS: Final = 5
FREE_RATE: Final = 1e6
"""Rate, in the units of a device file, that is written for work that costs nothing."""
LEAST_EXPECTED: Final = 0.1
"""Least expected time, as a share of the measured one, by which a residual is weighted."""
COLUMNS: Final = ("mostly", "pass", "times", "ms", "together", "median error", "worst")


class Fold(NamedTuple):
    """A fit, and the samples that it has not seen; ``name`` is what these have in common."""

    name: Hashable
    seconds: FloatArray
    left_out: pd.DataFrame

    @property
    def errors(self) -> Errors:
        """Errors on what was left out."""
        return errors_of(self.seconds, self.left_out)


class DeviceCalibration(NamedTuple):
    """A device's seconds per unit of work, fitted to measured times, and how well they hold on layers left out.

    ``samples`` holds all measured times, one per row, with the amounts of work of each class; layers of one ``shape``
    do identical work. The folds leave out each model and each shape, if there are several.
    """

    device: str
    headers: tuple[Header, ...]
    samples: pd.DataFrame
    seconds: FloatArray
    models: tuple[Fold, ...]
    shapes: tuple[Fold, ...]

    @property
    def memory_gib(self) -> float | None:
        """Memory of the device; None where no header says."""
        sizes = {header.memory_GiB for header in self.headers}
        if len(sizes) > 1:
            known = ", ".join(map(str, sizes))
            raise InputError(f"the times were measured on devices of {known} GiB, must be one device")
        return next(iter(sizes), None)

    @property
    def source(self) -> str:
        """Return the source of the rates, and how well they hold."""
        models = ", ".join(self.samples["model"].unique())
        dtypes = ", ".join(dict.fromkeys(header.dtype for header in self.headers)) or "an unknown precision"
        times = f"{len(self.samples)} measured times of layers of {models}, in {dtypes}"
        fit = f"rates: sim measure calibrate, non-negative least squares of {times}"
        return "; ".join([fit, *left_out_lines(self)])


def calibrate(device: str, models: Sequence[Model], paths: Sequence[Path]) -> DeviceCalibration:
    """Fit the rates of a device to files of measured times, each of the model that its header names or the only one."""
    records: list[Record] = []
    headers = []
    for path in paths:
        header = read_header(path)
        model = model_of(path, header, models)
        records += samples_of(path, model, header)
        if header:
            headers.append(header)
            for component, moved, seconds in header.updates:  # of weights, which move what the recipe does
                place = {"model": model.name, "component": component, "layer": -1, "batch": 1, "shape": ()}
                records.append(_sample(place, UPDATE, seconds, np.array([0.0, 0.0, 0.0, moved, 0.0])))
    times = sum(record["quantity"] != UPDATE for record in records)
    if times < len(RATE_KEYS):
        raise InputError(f"{times} times of layers are too few for {len(RATE_KEYS)} rates")
    samples = pd.DataFrame(records)
    samples["shape"] = pd.factorize(samples["shape"])[0]
    models_out, shapes_out = (tuple(_folds(samples, by)) for by in ("model", "shape"))
    return DeviceCalibration(device, tuple(headers), samples, _fit_times(samples), models_out, shapes_out)


def _fit_times(samples: pd.DataFrame) -> FloatArray:
    """Seconds per unit of work that fit measured times best; a class without samples takes that of its stand-in."""
    work, measured = work_of(samples), samples["seconds"].to_numpy()
    seconds = least_squares(
        work, measured, lambda expected: np.maximum(expected, LEAST_EXPECTED * measured) ** -0.5
    )
    fitted = seconds.copy()
    for name, stand_in in RATES_FROM.items():
        if not samples[name].any():
            seconds[CLASSES.index(name)] = fitted[CLASSES.index(stand_in)]
    return seconds


def work_of(samples: pd.DataFrame) -> FloatArray:
    """Amounts of work, shape (samples, classes)."""
    return samples[list(CLASSES)].to_numpy(dtype=float)


def errors_of(seconds: FloatArray, samples: pd.DataFrame) -> Errors:
    """Errors of predictions by fitted seconds per unit of work."""
    return Errors(samples["seconds"].to_numpy(), work_of(samples) @ seconds)


def _folds(samples: pd.DataFrame, by: str) -> Iterator[Fold]:
    """For each value of a column, the fit to all layers with other values; none where there is only one value."""
    groups = samples[samples["quantity"] != UPDATE].groupby(by, sort=False)
    for name, unseen in groups if groups.ngroups > 1 else ():
        rest = samples.drop(index=unseen.index)
        if by == "model":
            rest = rest[rest["model"] != name]  # the updates of its weights, too
        yield Fold(name, _fit_times(rest), unseen)


def model_of(path: Path, header: Header | None, models: Sequence[Model]) -> Model:
    """The model of a file of times."""
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
    calibration = calibrate(options.device, [load_model(name) for name in options.model], options.times)
    show_calibration(calibration)
    if options.output is not None:
        write_files(options.output.parent, {Path(options.output.name): device_text(calibration)})


def show_calibration(calibration: DeviceCalibration) -> None:
    """Print how good a calibration is."""
    show(130, class_table(calibration), *summary(calibration))


def class_table(calibration: DeviceCalibration) -> Printed:
    """Residuals of the fit to all layers, by the class of work that takes most of a layer's time."""
    samples, rows = calibration.samples, []
    mostly = np.argmax(work_of(samples) * calibration.seconds, axis=1)
    for number, name in enumerate(CLASSES):
        for quantity in (FORWARD, BACKWARD, UPDATE):
            chosen = samples[(mostly == number) & (samples["quantity"] == quantity)]
            if len(chosen):
                errors = errors_of(calibration.seconds, chosen)
                shares = (
                    f"{100 * errors.together:+.1f} %",
                    f"{100 * errors.median:.1f} %",
                    f"{100 * errors.worst:.0f} %",
                )
                rows.append([name, quantity, f"{len(errors)}", f"{1e3 * errors.measured.sum():.2f}", *shares])
    title = f"{calibration.device}: measured layers and what the fit makes of them"
    return table(title, COLUMNS, rows, left=("mostly", "pass"))


def summary(calibration: DeviceCalibration) -> Iterator[str]:
    """Rates with where they come from, and the errors on layers that were left out, a line each."""
    for key, rate in rates_of(calibration.seconds).items():
        yield f"{key} = {rate:.{DIGITS}g}: {_rate_source(calibration, key)}"
    yield from left_out_lines(calibration)


def left_out_lines(calibration: DeviceCalibration) -> Iterator[str]:
    """Errors on what fits have not seen, the strictest first, a line each."""
    for fold in calibration.models:
        yield f"left out, all layers of {fold.name}: {_in_words(fold.errors)}"
    if shapes := calibration.shapes:
        errors = (zip(fold.errors.measured, fold.errors.predicted, strict=True) for fold in shapes)
        words = _in_words(Errors.of(chain.from_iterable(errors)))
        yield f"left out, each of {len(shapes)} shapes of layers: {words}"


def _in_words(errors: Errors) -> str:
    return f"{len(errors)} times, together {100 * errors.together:+.1f} %, {errors}"


def rates_of(seconds: FloatArray) -> dict[str, float]:
    """Rates under the keys and in the units of a device file."""
    values = [1 / max(cost, 1 / FREE_RATE) for cost in seconds[:4]]
    return dict(zip(RATE_KEYS, [*map(float, values), float(seconds[4])], strict=True))


def _rate_source(calibration: DeviceCalibration, key: str) -> str:
    """Return the source of a rate, and how well the layers determine it."""
    index = RATE_KEYS.index(key)
    name = CLASSES[index]
    if not calibration.samples[name].any():
        return f"estimate: as {RATES_FROM.get(name, 'free')}, for no measured layer does such work"
    values = [rates_of(fold.seconds)[key] for fold in calibration.shapes]
    spread = f" ({min(values):.4g} to {max(values):.4g} without one of the shapes)" if values else ""
    if key != RATE_KEYS[4] and calibration.seconds[index] <= 1 / FREE_RATE:
        return f"not determined: the fit gives this work no time, written as {FREE_RATE:g}{spread}"
    return f"fitted to measured layers{spread}"


def calibrated_device(calibration: DeviceCalibration) -> Device:
    """Return the calibrated device, for a simulation."""
    rates = Rates(**in_si(rates_of(calibration.seconds)))
    memory_bytes = calibration.memory_gib and calibration.memory_gib * GIB
    return Device(calibration.device, calibration.source, memory_bytes, rates)


def device_text(calibration: DeviceCalibration) -> str:
    """Text of the device file, each rate with its source; without memory where that is not known."""
    values: dict[str, object] = {"name": calibration.device, "source": calibration.source}
    if calibration.memory_gib is not None:
        values["memory_GiB"] = Exact(f"{calibration.memory_gib:g}")
    sources = {key: _rate_source(calibration, key) for key in RATE_KEYS}
    rates = {**rates_of(calibration.seconds), "sources": sources}
    return toml_text({**values, "rates": rates}, f".{DIGITS}g")
