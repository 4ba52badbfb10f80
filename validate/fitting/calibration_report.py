"""What the command line prints about a calibration, and the device file it writes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.table import Table

from profiles.devices import RATE_KEYS, Device, Rates
from profiles.errors import InputError
from profiles.models import load_model
from profiles.units import GB, GIB, MICROSECOND, TFLOP
from validate.fitting import device_files
from validate.fitting.calibration import STAND_INS, Calibration, calibrate
from validate.fitting.device_files import DIGITS
from validate.fitting.errors import Errors
from validate.fitting.layer_times import CLASSES
from validate.printing import show, table
from validate.writing import write_files

FREE: Final = 1e6
"""The rate, in the units of a device file, of work that a fit gives no time."""
COLUMNS: Final = ("mostly", "pass", "times", "ms", "together", "median error", "worst")


def report_calibration(
    models: Sequence[str], paths: Sequence[Path], device: str, output: Path | None
) -> None:
    """Calibrate a device, print what the fit is worth, and write the device file if asked to."""
    found = calibrate(device, [load_model(name) for name in models], paths)
    show_calibration(found)
    if output is not None:
        write_files(output.parent, {Path(output.name): device_text(found)})


def show_calibration(found: Calibration) -> None:
    """Print what a calibration is worth."""
    show(130, class_table(found), *summary(found))


def class_table(found: Calibration) -> Table:
    """Residuals of the fit to all layers, by the class of work that takes most of a layer's time."""
    rows = (
        [
            name,
            quantity,
            f"{len(errors)}",
            f"{1e3 * errors.measured.sum():.2f}",
            f"{100 * errors.together:+.1f} %",
            f"{100 * errors.median:.1f} %",
            f"{100 * errors.worst:.0f} %",
        ]
        for name, quantity, errors in found.by_class()
    )
    title = f"{found.device}: measured layers and what the fit makes of them"
    return table(title, COLUMNS, rows, left=("mostly", "pass"))


def summary(found: Calibration) -> Iterator[str]:
    """Rates with where they come from, and the errors on layers that were left out, a line each."""
    for key, rate in rates_of(found).items():
        yield f"{key} = {rate:.{DIGITS}g}: {rate_source(found, key)}"
    yield from left_out_lines(found)
    yield f"condition number {found.fit.condition:.0f}"


def left_out_lines(found: Calibration) -> Iterator[str]:
    """Errors on what fits have not seen, the strictest first, a line each."""
    for fold in found.models:
        yield f"left out, all layers of {fold.name}: {_in_words(fold.errors)}"
    if found.shapes:
        what = f"left out, each of {len(found.shapes)} shapes of layers"
        yield f"{what}: {_in_words(Errors.join(fold.errors for fold in found.shapes))}"
    share = f"{found.twins:.0%} of these layers have a twin of identical work in the other half"
    for number, half in enumerate(found.halves, start=1):
        yield f"left out, half {number}: {_in_words(half.errors)} ({share})"


def rates_of(found: Calibration) -> dict[str, float]:
    """Rates of the device file, in its units; those of work that was not measured are another's."""
    rates = {key: min(rate, FREE) for key, rate in found.fit.rates.items()}
    for name, stand_in in STAND_INS.items():
        if not _measured(found, name):
            rates[_key(name)] = rates[_key(stand_in)]
    return rates


def rate_source(found: Calibration, key: str) -> str:
    """Where a rate comes from, and how far the layers determine it."""
    name = CLASSES[RATE_KEYS.index(key)]
    if not _measured(found, name):
        return f"estimate: as {STAND_INS.get(name, 'free')}, for no measured layer does such work"
    values = [half.rates.rates[key] for half in found.halves]
    spread = f"{min(values):.4g} and {max(values):.4g} on either half of the layers"
    if not np.isfinite(found.fit.rates[key]):
        return f"not determined: the fit gives this work no time, written as {FREE:g} ({spread})"
    return f"fitted to measured layers ({spread})"


def calibrated_device(found: Calibration) -> Device:
    """The device as a simulation takes it."""
    conv, matmul, attention, memory, kernel = rates_of(found).values()
    memory_gib = _memory_gib(found)
    return Device(
        name=found.device,
        source=_source(found),
        memory_bytes=None if memory_gib is None else memory_gib * GIB,
        rates=Rates(conv * TFLOP, matmul * TFLOP, attention * TFLOP, memory * GB, kernel * MICROSECOND),
    )


def device_text(found: Calibration) -> str:
    """Text of the device file."""
    sources = {key: rate_source(found, key) for key in RATE_KEYS}
    return device_files.device_text(
        found.device, _source(found), _memory_gib(found), rates_of(found), sources
    )


def _source(found: Calibration) -> str:
    models = ", ".join(found.samples["model"].unique())
    dtypes = ", ".join(dict.fromkeys(header.dtype for header in found.headers)) or "a precision nobody noted"
    left_out = "; ".join(left_out_lines(found))
    return (
        f"rates: python -m validate calibrate, non-negative least squares of {len(found.samples)}"
        f" measured times of layers of {models}, in {dtypes}; {left_out}"
    )


def _in_words(errors: Errors) -> str:
    return (
        f"{len(errors)} times, together {100 * errors.together:+.1f} %,"
        f" median error {100 * errors.median:.1f} %, worst {100 * errors.worst:.0f} %"
    )


def _measured(found: Calibration, name: str) -> bool:
    return bool(found.amounts[CLASSES.index(name)] > 0)


def _key(name: str) -> str:
    return RATE_KEYS[CLASSES.index(name)]


def _memory_gib(found: Calibration) -> float | None:
    sizes = {header.memory_GiB for header in found.headers}
    if len(sizes) > 1:
        raise InputError(
            f"the times were measured on devices of {', '.join(map(str, sizes))} GiB, must be one device"
        )
    return next(iter(sizes), None)
