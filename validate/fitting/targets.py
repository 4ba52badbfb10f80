"""Targets: which device is to be fitted, its peaks, and what is assumed where the observations say too little.

A class of work is fitted alone, fitted together with others (one common factor), or assumed: the peak times the
fraction of its own peak that another, fitted device reaches.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from profiles.costs import FloatArray
from profiles.devices import RATE_KEYS, Rates, device_names, load_device
from profiles.files import Table
from profiles.units import GB, MICROSECOND, TFLOP

FITTED: Final = "fitted"
TOGETHER: Final = "together"
ASSUMED: Final = "assumed"
MODES: Final = (FITTED, TOGETHER, ASSUMED)


@dataclass(frozen=True, slots=True)
class Target:
    """The device to fit, its peaks in the device file's units, where they come from, and a caveat.

    Attributes:
        modes: for each rate whether it is fitted, alone or together with others, or assumed.
        like: the device whose fractions are assumed; empty where nothing is.
        fractions: for each rate what ``like`` reaches of its peak; of a launch, what it takes in us.
        assumed: the seconds per unit of work at these fractions of the own peaks.
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
    assumed: tuple[float, ...] = ()

    @property
    def least(self) -> FloatArray:
        """The least seconds per unit of work; a launch may cost nothing."""
        return np.array([1 / self.matrix_peak] * 3 + [1 / self.memory_peak, 0.0])

    @property
    def base(self) -> FloatArray:
        """The seconds per unit of work that are assumed; 0 where they are fitted."""
        kept = zip(self.modes, self.assumed or (0.0,) * len(self.modes), strict=True)
        return np.array([seconds if mode == ASSUMED else 0.0 for mode, seconds in kept])

    @property
    def basis(self) -> FloatArray:
        """What one of each unknown adds to the seconds per unit of work, shape (5, unknowns).

        An unknown of one class of work counts in its bound (a launch: 1 us), a common one in what is assumed.
        """
        units = np.where(self.least > 0, self.least, 1.0)
        columns = [
            unit * row
            for unit, row, mode in zip(units, np.eye(len(units)), self.modes, strict=True)
            if mode == FITTED
        ]
        if TOGETHER in self.modes:
            columns.append(np.array(self.assumed) * [mode == TOGETHER for mode in self.modes])
        return np.array(columns).reshape(-1, len(units)).T

    @property
    def lower(self) -> FloatArray:
        """The least that each unknown may be: no class of work passes its peak."""
        least = np.broadcast_to(self.least[:, None], self.basis.shape)
        ratios = np.divide(least, self.basis, out=np.zeros(self.basis.shape), where=self.basis > 0)
        return np.asarray(ratios.max(axis=0))

    def per_class(self, flags: NDArray[np.bool_]) -> tuple[bool, ...]:
        """For each class of work, whether one of its unknowns is flagged."""
        return tuple(bool(flag) for flag in (self.basis > 0) @ flags > 0)


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
        target = _like(target, like, _read_modes(table.table("classes")), path.parent)
    table.finish()
    return target


def _read_modes(table: Table) -> tuple[str, ...]:
    modes = tuple(table.choice(key, MODES) for key in RATE_KEYS)
    table.finish()
    return modes


def _like(target: Target, like: str, modes: tuple[str, ...], folder: Path) -> Target:
    """A target some of whose rates are a device's fractions of its peaks."""
    other, device = read_target(folder / f"{like}.toml"), load_device(like)
    assert device.rates is not None
    seconds = _seconds(device.rates)
    fractions = np.append(other.least[:4] / seconds[:4], seconds[4])
    assumed = np.append(target.least[:4] / fractions[:4], seconds[4])
    return replace(
        target, modes=modes, like=like, fractions=tuple(fractions.tolist()), assumed=tuple(assumed.tolist())
    )


def _seconds(rates: Rates) -> FloatArray:
    """Seconds per TFLOP of three classes, per GB, per million kernels."""
    flop_per_s = (rates.conv_flop_per_s, rates.matmul_flop_per_s, rates.attention_flop_per_s)
    seconds = [TFLOP / rate for rate in flop_per_s]
    return np.array([*seconds, GB / rates.memory_bytes_per_s, rates.kernel_s / MICROSECOND])
