"""Device fits: the rates of a device from published numbers; what the command line prints of them, and the file."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rich.table import Table

from profiles.devices import RATE_KEYS
from profiles.errors import InputError
from validate.fitting import equations, rates
from validate.fitting.equations import LATENCY, OBSERVATIONS, RATIO, Equation, Observation
from validate.fitting.errors import Errors
from validate.fitting.rates import ASSUMED, DIGITS, FREE, TOGETHER, Fit, Target
from validate.printing import show, table
from validate.writing import write_file

FULL: Final = 0.9995
"""A fraction of the peak beyond this is a bound that a fit rests on."""
COLUMNS: Final = (
    *("source", "model", "pixels", "batch"),
    *("published", "predicted", "error", "without it", "role"),
)


class Report(NamedTuple):
    """A fit to the first of all equations, to all of these but one each (where they suffice), and without peaks."""

    target: Target
    rows: tuple[Equation, ...]
    fit: Fit
    without: tuple[Fit, ...]
    without_peaks: Fit

    @property
    def fitted(self) -> tuple[Equation, ...]:
        """Equations that were fitted."""
        return tuple(row for row in self.rows if row.observation.role == "fit")

    def errors(self, role: str) -> Errors:
        """Errors of the latencies of one role."""
        asked = (LATENCY, role)
        rows = [row for row in self.rows if (row.observation.quantity, row.observation.role) == asked]
        return Errors.of((row.observation.value, row.predict(self.fit.seconds)) for row in rows)


def fit_device(name: str, folder: Path = OBSERVATIONS) -> Report:
    """Fit a device to the observations in a folder."""
    names = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in names:
        raise InputError(f"no observations of device '{name}'; choose from {', '.join(names)}")
    target = rates.read_target(folder / f"{name}.toml")
    rows = equations.equations(
        equations.read_observations(folder / f"{name}.csv"), equations.read_work(folder / "work.csv")
    )
    rows.sort(key=lambda row: row.observation.role != "fit")
    fitted = [row for row in rows if row.observation.role == "fit"]
    without, without_peaks = rates.leave_one_out(fitted, target), rates.fit_without_peaks(fitted, target)
    return Report(target, tuple(rows), rates.fit(fitted, target), tuple(without), without_peaks)


def report_fit(name: str, output: Path | None) -> None:
    """Fit a device, print what the fit predicts, and write the device file if asked to."""
    report = fit_device(name)
    show(150, residual_table(report), *summary(report))
    if output:
        write_file(output, device_text(report))


def residual_table(report: Report) -> Table:
    """One row per observation; ``without it`` is the prediction of the fit to all other rows."""
    title = f"{report.target.name}: published and predicted"
    return table(title, COLUMNS, _residual_rows(report), left=("source", "model", "role"))


def _residual_rows(report: Report) -> Iterator[list[str]]:
    for number, row in enumerate(report.rows):
        seen, predicted = row.observation, row.predict(report.fit.seconds)
        left_out = [row.predict(other.seconds) for other in report.without[number : number + 1]]
        yield [
            *(seen.source, seen.model, f"{seen.height}x{seen.width}", f"{seen.batch}"),
            *(
                _value(seen, seen.value),
                _value(seen, predicted),
                f"{100 * (predicted / seen.value - 1):+.1f} %",
            ),
            *([_value(seen, value) for value in left_out] or [""]),
            seen.role,
        ]


def summary(report: Report) -> Iterator[str]:
    """Rates, errors, and what the observations do not determine, a line each."""
    for key, rate in report.fit.rates.items():
        yield f"{key} = {rate:.{DIGITS}g}: {rate_source(report, key)}"
    for role in ("fit", "check"):
        errors = report.errors(role)
        if errors:
            yield f"latencies, {role}: {errors}"
    ratios = [row for row in report.fitted if row.observation.quantity == RATIO]
    if ratios:
        worst = max(abs(row.predict(report.fit.seconds) - row.observation.value) for row in ratios)
        yield f"ratios, fit: worst error {100 * worst:.1f} points"
    yield f"condition number {report.fit.condition:.0f}"


def rate_source(report: Report, key: str) -> str:
    """Where a rate comes from, and how far the observations determine it."""
    number, target = RATE_KEYS.index(key), report.target
    mode = target.modes[number]
    if mode == ASSUMED:
        return f"estimate: {_fraction(target, key)}"
    spread = _spread(report, key)
    if mode == TOGETHER:
        alike = [other for other, its in zip(RATE_KEYS, target.modes, strict=True) if its == mode]
        factor = target.assumed[number] / report.fit.seconds[number]
        names = " and ".join(other.split("_")[0] for other in alike)
        return f"fitted: one factor of {names}, {factor:.3f}, on {_fraction(target, key)}; {spread}"
    if not report.fit.bound[number]:
        return f"fitted; {spread}"
    if report.without and all(other.bound[number] for other in report.without):
        spread = "also when any one observation is left out"
    if key == "kernel_us":
        return f"fitted; zero, its bound ({spread})"
    free = report.without_peaks.rates[key]
    alone = "make this work free" if free > FREE else f"give {free:.4g}"
    return f"its bound, the peak ({spread}): not determined; without any peak the observations {alone}"


def _spread(report: Report, key: str) -> str:
    others = [other.rates[key] for other in report.without]
    if not others:
        return "by as many observations as unknowns"
    return f"{min(others):.4g} to {max(others):.4g} when any one observation is left out"


def _fraction(target: Target, key: str) -> str:
    """What is assumed of a rate, in words."""
    fraction = target.fractions[RATE_KEYS.index(key)]
    if key == "kernel_us":
        return f"as {target.like}, taken for the host's"
    full = ", where the fit does not determine it" if fraction > FULL else ""
    return f"{fraction:.3f} of the peak, as {target.like}{full}"


def device_text(report: Report) -> str:
    """Text of the device file."""
    target, sources = report.target, {key: rate_source(report, key) for key in RATE_KEYS}
    return rates.file_text(target.name, _source(report), target.memory_GiB, report.fit.rates, sources)


def _source(report: Report) -> str:
    target, errors = report.target, report.errors("fit")
    command = f"rates: python -m validate fit --device {target.name}"
    peaks = f"{target.remark}; memory and peaks: {target.source}"
    if not errors:
        how = f"fractions of the peaks that {target.like} reaches of its own, fitted to nothing"
        return f"{command}, {how}; {peaks}"
    where = "; ".join(dict.fromkeys(row.observation.source for row in report.fitted))
    numbers = f"{len(report.fitted)} published numbers" if len(report.fitted) > 1 else "one published number"
    worst = f"within {100 * errors.median:.1f} % (median) and {100 * errors.worst:.1f} % (worst)"
    how = f"non-negative least squares on relative errors of {numbers} ({where})"
    return f"{command}, {how}, reproducing the latencies {worst}; {peaks}"


def _value(observation: Observation, value: float) -> str:
    return f"{100 * value:.1f} %" if observation.quantity == RATIO else f"{value:.4g} s"
