"""Rates: the seconds per unit of work of a device that is to be fitted, within the bounds that its peaks set.

A class of work is fitted alone, fitted together with others (one common factor), or assumed: the peak times the
fraction of its own peak that another, fitted device reaches.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from profiles.costs import FloatArray
from profiles.devices import RATE_KEYS, Rates, device_names, load_device
from profiles.errors import InputError
from profiles.files import Table
from profiles.units import GB, MICROSECOND, TFLOP
from validate.fitting.equations import LATENCY, Equation
from validate.fitting.least_squares import least_squares

FITTED: Final = "fitted"
TOGETHER: Final = "together"
ASSUMED: Final = "assumed"
DIGITS: Final = 5
FREE: Final = 1e6
"""A rate beyond this, in the units of a device file, is no rate: the work costs nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """The device to fit, its peaks in the device file's units, where they come from, and a caveat.

    ``modes`` says of each rate whether it is fitted, alone or together with others, or assumed; then ``fractions`` is
    what the device ``like`` reaches of its peaks (of a launch, what it takes in us), and ``assumed`` the seconds per
    unit of work at these fractions of the own peaks.
    """

    name: str
    source: str
    remark: str
    memory_GiB: float  # noqa: N815  the unit's own spelling
    matrix_peak: float
    memory_peak: float
    modes: tuple[str, ...] = (FITTED,) * len(RATE_KEYS)
    like: str = ""
    fractions: tuple[float, ...] = ()
    assumed: tuple[float, ...] = (0.0,) * len(RATE_KEYS)

    @property
    def least(self) -> FloatArray:
        """The least seconds per unit of work; a launch may cost nothing."""
        return np.array([1 / self.matrix_peak] * 3 + [1 / self.memory_peak, 0.0])

    @property
    def base(self) -> FloatArray:
        """The seconds per unit of work that are assumed; 0 where they are fitted."""
        return np.where(np.array(self.modes) == ASSUMED, self.assumed, 0.0)

    @property
    def basis(self) -> FloatArray:
        """What one of each unknown adds to the seconds per unit of work, shape (5, unknowns).

        An unknown of one class of work counts in its bound (a launch: 1 us), a common one in what is assumed.
        """
        modes = np.array(self.modes)
        columns = np.diag(np.where(self.least > 0, self.least, 1.0))[:, modes == FITTED]
        if TOGETHER not in self.modes:
            return columns
        return np.column_stack([columns, np.array(self.assumed) * (modes == TOGETHER)])

    @property
    def lower(self) -> FloatArray:
        """The least that each unknown may be: no class of work passes its peak."""
        least = np.broadcast_to(self.least[:, None], self.basis.shape)
        ratios = np.divide(least, self.basis, out=np.zeros(self.basis.shape), where=self.basis > 0)
        return np.asarray(ratios.max(axis=0))


def read_target(path: Path) -> Target:
    """Read which device is to be fitted; another that it is like stands beside it."""
    table = Table.read(path)
    peaks = table.table("peaks")
    target = Target(
        name=table.text("name"),
        source=table.text("source"),
        remark=table.text("remark"),
        memory_GiB=table.positive("memory_GiB"),
        matrix_peak=peaks.positive("matrix_TFLOP_per_s"),
        memory_peak=peaks.positive("memory_GB_per_s"),
    )
    peaks.finish()
    if "like" in table:
        like = table.choice("like", [name for name in device_names() if name != target.name])
        classes = table.table("classes")
        modes = tuple(classes.choice(key, (FITTED, TOGETHER, ASSUMED)) for key in RATE_KEYS)
        classes.finish()
        target = _like(replace(target, modes=modes, like=like), path.parent)
    table.finish()
    return target


def _like(target: Target, folder: Path) -> Target:
    """A target some of whose rates are a device's fractions of its peaks."""
    other, device = read_target(folder / f"{target.like}.toml"), load_device(target.like)
    assert device.rates is not None
    seconds = _seconds(device.rates)
    fractions = np.append(other.least[:4] / seconds[:4], seconds[4])
    assumed = np.append(target.least[:4] / fractions[:4], seconds[4])
    return replace(target, fractions=tuple(fractions.tolist()), assumed=tuple(assumed.tolist()))


def _seconds(rates: Rates) -> FloatArray:
    """Seconds per TFLOP of three classes, per GB, per million kernels."""
    flop_per_s = (rates.conv_flop_per_s, rates.matmul_flop_per_s, rates.attention_flop_per_s)
    seconds = [TFLOP / rate for rate in flop_per_s]
    return np.array([*seconds, GB / rates.memory_bytes_per_s, rates.kernel_s / MICROSECOND])


class Fit(NamedTuple):
    """A solution: seconds per unit of work, whether each rests on its bound, and how well-posed it was.

    A class of work that costs nothing has an infinite rate. ``condition`` is the condition number of the
    equations in units of the bounds (a launch: 1 us); 0 where nothing was fitted.
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


def fit(rows: Sequence[Equation], target: Target) -> Fit:
    """Least-squares solution within the bounds; ratios, whose weights depend on it, enter from the second round on.

    Raises:
        InputError: no latency is to be fitted; ratios alone leave the scale open.
    """
    if not target.basis.size:
        return Fit(target.base, (False,) * len(target.modes), 0.0)
    if all(row.denominator is not None for row in rows):
        raise InputError(f"{target.name}: no row has quantity {LATENCY} and role fit, must have one")

    def seconds(unknowns: FloatArray) -> FloatArray:
        return target.base + target.basis @ unknowns

    def weigh(unknowns: FloatArray | None) -> FloatArray:
        near = None if unknowns is None else seconds(unknowns)
        return np.array([row.weight(near) for row in rows])

    work = np.array([row.coefficients for row in rows])
    aim = np.array([row.aim for row in rows]) - work @ target.base
    found = least_squares(work @ target.basis, aim, weigh, lower=target.lower)
    bound = (target.basis > 0) @ found.bound > 0  # of a class of work where one of its unknowns is
    return Fit(seconds(found.values), tuple(bound.tolist()), found.condition)


def fit_without_peaks(rows: Sequence[Equation], target: Target) -> Fit:
    """Fit under the one rule that no work takes negative time."""
    return fit(rows, replace(target, matrix_peak=np.inf, memory_peak=np.inf))


def leave_one_out(rows: Sequence[Equation], target: Target) -> list[Fit]:
    """For each row the fit to all others; nothing where they would not determine the unknowns."""
    if len(rows) <= target.basis.shape[1]:
        return []
    return [fit([*rows[:number], *rows[number + 1 :]], target) for number in range(len(rows))]


def file_text(
    name: str, source: str, memory_gib: float | None, rates: Mapping[str, float], sources: Mapping[str, str]
) -> str:
    """Text of a device file, whose memory may not be known; each rate, in the units of the file, has a source."""
    lines = [f"name = {json.dumps(name)}", f"source = {json.dumps(source)}"]
    lines += [] if memory_gib is None else [f"memory_GiB = {memory_gib:g}"]
    lines += ["", "[rates]", *(f"{key} = {rate:.{DIGITS}g}" for key, rate in rates.items())]
    lines += ["", "[rates.sources]", *(f"{key} = {json.dumps(said)}" for key, said in sources.items())]
    return "\n".join(lines) + "\n"
