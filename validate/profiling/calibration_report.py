"""What the command line prints about a calibration, and the device file it writes."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

from profiles.devices import RATE_KEYS, Device, Rates
from profiles.errors import InputError
from profiles.models import load_model
from profiles.units import GB, GIB, MICROSECOND, TFLOP
from validate.profiling.calibration import Calibration, calibrate
from validate.profiling.left_out import STAND_INS, Errors, twins
from validate.profiling.timed_work import CLASSES
from validate.writing import write_files

DIGITS: Final = 5
FREE: Final = 1e6
"""The rate, in the units of a device file, of work that a fit gives no time."""


def report_calibration(
    models: Sequence[str], paths: Sequence[Path], device: str, output: Path | None
) -> None:
    """Calibrate a device, print what the fit is worth, and write the device file if asked to."""
    found = calibrate(device, [load_model(name) for name in models], paths)
    console = Console(width=130)
    console.print(class_table(found))
    for line in summary(found):
        console.print(line, highlight=False)
    if output is not None:
        write_files(output.parent, {Path(output.name): device_text(found)})


def class_table(found: Calibration) -> Table:
    """Return the residuals of the fit to all layers, by the class of work that takes most of a layer's time."""
    result = Table(
        title=f"{found.device}: measured layers and what the fit makes of them", title_justify="left"
    )
    for column in ("mostly", "pass", "times", "ms", "together", "median error", "worst"):
        result.add_column(column, justify="left" if column in ("mostly", "pass") else "right")
    for name, quantity, errors in found.by_class():
        result.add_row(name, quantity, *_cells(errors))
    return result


def summary(found: Calibration) -> Iterator[str]:
    """Yield the rates with where they come from, and the errors on layers that were left out."""
    for key, rate in rates_of(found).items():
        yield f"{key} = {rate:.{DIGITS}g}: {rate_source(found, key)}"
    yield from left_out_lines(found)
    yield f"condition number {found.fit.condition:.0f}"


def left_out_lines(found: Calibration) -> Iterator[str]:
    """Yield the errors on what fits have not seen, the strictest first."""
    for name, fold in found.models.items():
        yield f"left out, all layers of {name}: {_in_words(Errors.of(fold))}"
    if found.shapes:
        what = f"left out, each of {len(found.shapes)} shapes of layers"
        yield f"{what}: {_in_words(Errors.of(*found.shapes))}"
    share = f"{twins(found.halves):.0%} of these layers have a twin of identical work in the other half"
    for number, errors in enumerate(found.left_out(), start=1):
        yield f"left out, half {number}: {_in_words(errors)} ({share})"


def rates_of(found: Calibration) -> dict[str, float]:
    """Return the rates of the device file, in its units; those of work that was not measured are another's."""
    rates = {key: min(rate, FREE) for key, rate in found.fit.rates.items()}
    for name, stand_in in STAND_INS.items():
        if not _measured(found, name):
            rates[_key(name)] = rates[_key(stand_in)]
    return rates


def rate_source(found: Calibration, key: str) -> str:
    """Return where a rate comes from, and how far the layers determine it."""
    name = CLASSES[RATE_KEYS.index(key)]
    if not _measured(found, name):
        return f"estimate: as {STAND_INS.get(name, 'free')}, for no measured layer does such work"
    values = [half.rates.rates[key] for half in found.halves]
    spread = f"{min(values):.4g} and {max(values):.4g} on either half of the layers"
    if not np.isfinite(found.fit.rates[key]):
        return f"not determined: the fit gives this work no time, written as {FREE:g} ({spread})"
    return f"fitted to measured layers ({spread})"


def calibrated_device(found: Calibration) -> Device:
    """Return the device as a simulation takes it."""
    rates = rates_of(found)
    conv, matmul, attention, memory, kernel = (rates[key] for key in RATE_KEYS)
    memory_gib = _memory_gib(found)
    return Device(
        name=found.device,
        source=_source(found),
        memory_bytes=None if memory_gib is None else memory_gib * GIB,
        rates=Rates(conv * TFLOP, matmul * TFLOP, attention * TFLOP, memory * GB, kernel * MICROSECOND),
    )


def device_text(found: Calibration) -> str:
    """Return the device file."""
    memory = _memory_gib(found)
    lines = [f"name = {json.dumps(found.device)}", f"source = {json.dumps(_source(found))}"]
    lines += [] if memory is None else [f"memory_GiB = {memory:g}"]
    lines += ["", "[rates]", *(f"{key} = {rate:.{DIGITS}g}" for key, rate in rates_of(found).items())]
    lines += [
        "",
        "[rates.sources]",
        *(f"{key} = {json.dumps(rate_source(found, key))}" for key in RATE_KEYS),
    ]
    return "\n".join(lines) + "\n"


def _source(found: Calibration) -> str:
    models = ", ".join(dict.fromkeys(sample.model for sample in found.samples))
    dtypes = ", ".join(dict.fromkeys(header.dtype for header in found.headers)) or "a precision nobody noted"
    left_out = "; ".join(left_out_lines(found))
    return (
        f"rates: python -m validate calibrate, non-negative least squares of {len(found.samples)}"
        f" measured times of layers of {models}, in {dtypes}; {left_out}"
    )


def _in_words(errors: Errors) -> str:
    return (
        f"{errors.num_samples} times, together {100 * errors.together:+.1f} %,"
        f" median error {100 * errors.median:.1f} %, worst {100 * errors.worst:.0f} %"
    )


def _cells(errors: Errors) -> list[str]:
    return [
        f"{errors.num_samples}",
        f"{1e3 * errors.seconds:.2f}",
        f"{100 * errors.together:+.1f} %",
        f"{100 * errors.median:.1f} %",
        f"{100 * errors.worst:.0f} %",
    ]


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
