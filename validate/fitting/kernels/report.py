"""The command that fits laws of kernels, prints their errors on shapes left out, and writes device files."""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from rich.table import Table

from profiles.errors import InputError
from profiles.files import read_text
from profiles.machines.devices import DEVICES
from profiles.measuring.fitting.least_squares import Errors
from profiles.measuring.tables import show, table
from profiles.measuring.writing import write_file
from validate.fitting.kernels import convnets
from validate.fitting.kernels.build import Builder, Coefficients, law_text
from validate.fitting.kernels.classes import targets

COLUMNS: Final = ("device", "class", "shapes", "fitted", "shapes left out", "groups left out", "coefficients")
HEAD: Final = "\n[laws]\n"


def report_kernels(options: Namespace) -> None:
    """Fit devices (all where none is named), print coefficients and errors, write the files if asked to."""
    builder = Builder(options.data)
    chosen = options.device or list(targets())
    texts = {name: law_text(name, builder) for name in chosen}
    found = convnets.shares(options.data)
    words = f"a forward pass {found['forward']:.2f}, each gradient {found['gradient']:.2f} times their copy"
    title = "Laws of kernels: errors, median / 90th percentile, of seconds"
    errors = table(title, COLUMNS, _rows(builder, chosen), left=("device", "class", "coefficients"))
    show(200, errors, _convnet_table(options.data), f"new layouts of convolutions: {words}")
    if options.write:
        for name, text in texts.items():
            write_file(DEVICES / f"{name}.toml", with_laws(DEVICES / f"{name}.toml", text), "--write")


def with_laws(path: Path, text: str) -> str:
    """Text of a device file, with its laws replaced or added at its end."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; write the device's name, source and memory_GiB first")
    head, _, _ = read_text(path).partition(HEAD)
    return f"{head.rstrip()}\n\n{text}"


def _convnet_table(folder: Path) -> Table:
    """One row per published throughput of ResNet-50, beside what the shipped laws give."""
    title = "ResNet-50 by the shipped laws: a check of convolutions, to which nothing was fitted"
    columns = ("device", "mode", "source", "published images/s", "predicted", "error")
    found = []
    for check, seen in convnets.errors(folder):
        (published,), (predicted,), (error,) = seen.measured, seen.predicted, seen.relative
        numbers = f"{published:.0f}", f"{predicted:.0f}", f"{100 * error:+.1f} %"
        found.append([check.device, check.mode, check.source, *numbers])
    return table(title, columns, found, left=("device", "mode", "source"))


def _rows(builder: Builder, names: Sequence[str]) -> Iterator[list[str]]:
    for name in names:
        for kind, each in builder.classes(name).items():
            yield [name, kind, *_errors(each), _coefficients(each)]


def _errors(each: Coefficients) -> list[str]:
    if each.fit is None:
        return ["", "", "", ""]
    fit = each.fit
    return [str(len(fit.shapes)), *(_pair(errors) for errors in (fit.fitted, fit.shapes, fit.groups))]


def _pair(errors: Errors) -> str:
    return f"{100 * errors.median:.1f} / {100 * errors.tail:.1f} %" if errors else ""


def _coefficients(each: Coefficients) -> str:
    ranges = each.fit.ranges if each.fit else {}
    return ", ".join(
        f"{key} {value:.4g}" + (f" ({ranges[key][0]:.3g} to {ranges[key][1]:.3g})" if key in ranges else "")
        for key, value in each.values.items()
    )
