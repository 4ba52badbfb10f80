"""Bands: how far estimates are from what is measured, and what a comparison of two of them can tell.

``bands.toml`` holds the 10 and 90 % quantiles of measured over estimated seconds, by family of devices, stack and kind
of method. All errors here are spreads: half of what lies between those quantiles, in natural logarithms.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import exp, hypot, log, sqrt
from pathlib import Path
from typing import Final

from profiles.checks import check_counts, check_numbers, check_positive
from profiles.errors import InputError
from profiles.files import Table

BANDS: Final = Path(__file__).with_name("bands.toml")
METHODS: Final = ("one GPU", "data parallel", "pipeline", "patches and sequence")
ONE_GPU, DATA_PARALLEL, PIPELINE, PATCHES = METHODS
FAMILIES: Final = ("measured", "derived")
"""Devices whose kernels were measured by shape, and those whose laws follow from others or from a data sheet."""
ANY: Final = "any"
"""The stack of a band that holds where no other does."""
QUANTILES: Final = (0.1, 0.9)
ROUNDING: Final = 1e-9
"""Relative difference of sums of the same times in another order."""


@dataclass(frozen=True, slots=True)
class Band:
    """Factors on an estimate between which eight of ten measured values lie; 1 is always among them."""

    low: float = 1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_positive("band", low=self.low, most=1.0)
        check_numbers("band", high=self.high)
        if self.high < 1:
            raise InputError(f"band: high is {self.high}, must be at least 1")

    @classmethod
    def within(cls, spread: float) -> "Band":
        """The band of a spread, as wide below as above."""
        return cls(exp(-spread), exp(spread))

    @classmethod
    def of_ratios(cls, ratios: Iterable[float]) -> "Band":
        """The band that measured over estimated values span, stretched to hold the estimate itself."""
        import numpy as np

        low, high = np.quantile(list(ratios), QUANTILES)
        return cls(min(1.0, float(low)), max(1.0, float(high)))

    @property
    def spread(self) -> float:
        """Half its width in logarithms."""
        return log(self.high / self.low) / 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the errors of one kind of method.

    Attributes:
        family: of devices, one of ``FAMILIES``.
        stack: its name, or ``any``.
        method: one of ``METHODS``.
        band: of measured over estimated seconds.
        waiting: mean share of the estimated time in which the GPUs of these runs wait.
        rows: published numbers that set it; 0 where it is a prior.
        source: what set it.
    """

    family: str
    stack: str
    method: str
    band: Band
    waiting: float
    rows: int
    source: str

    def __post_init__(self) -> None:
        check_numbers("band", waiting=self.waiting)
        check_counts("band", rows=self.rows)
        if self.waiting >= 1:
            raise InputError(f"band: waiting is {self.waiting}, must be below 1")

    def own_spread(self, alone: "Evidence") -> float:
        """Spread of the error of waits, relative to these: what one GPU's error leaves of the method's.

        Compute takes all of the time but the waits, and errs as it does on one GPU; both errors are independent.
        """
        if self.method == ONE_GPU or not self.waiting:
            return 0.0
        of_compute = (1 - self.waiting) * alone.band.spread
        return sqrt(max(0.0, self.band.spread**2 - of_compute**2)) / self.waiting


@dataclass(frozen=True, slots=True)
class Doubt:
    """What the error of an estimate is made of; spreads in logarithms.

    Attributes:
        band: of the estimate.
        shared: spread of the error of compute; all runs of a model on one device under one stack share it.
        own: spread of the error of waits, relative to these.
        waiting: share of the time in which the GPUs wait, for data or for one another.
        repeat: spread of repeated runs of the same.
        alike: method, cluster and reach of the links; waits of runs that are alike err alike.
    """

    band: Band = Band()
    shared: float = 0.0
    own: float = 0.0
    waiting: float = 0.0
    repeat: float = 0.0
    alike: tuple[str, ...] = ()

    def after(self, measured: "Doubt") -> "Doubt":
        """The doubt once compute was scaled to a measured run: only what the two do not share is left."""
        return replace(self, band=Band.within(spread_between(measured, self)))


def spread_between(one: Doubt, other: Doubt) -> float:
    """Spread of the error of the ratio of two estimates of one model on one device under one stack.

    With a share w of waits, an estimate errs by (1 - w) c + w e. The error c of compute is the same for both, as the
    same kernels run; so is the error e of waits where the same exchanges go over the same links in the same kind of
    method, else the two are independent. What is common cancels, so that only the parts count in which the two
    differ; and no two runs of the same take equally long.
    """
    differ = abs(one.waiting - other.waiting)
    if one.alike == other.alike:
        waits = (differ * max(one.own, other.own),)
    else:
        waits = (one.waiting * one.own, other.waiting * other.own)
    return hypot(differ * max(one.shared, other.shared), *waits, max(one.repeat, other.repeat))


def tied(one: Doubt, one_s: float, other: Doubt, other_s: float) -> bool:
    """Whether two estimates differ by less than their comparison can tell."""
    if not (one_s and other_s):
        return one_s == other_s
    return abs(log(one_s / other_s)) <= spread_between(one, other) + ROUNDING


@dataclass(frozen=True, slots=True)
class Bands:
    """All that is known of errors.

    Attributes:
        measured: devices whose kernels were measured by shape.
        exact: devices that are no hardware, whose times are formulas.
        repeat: spread of repeated runs of the same.
        repeat_source: where that is from.
        evidence: by family, stack and method; those of ``any`` stack are complete.
    """

    measured: tuple[str, ...]
    exact: tuple[str, ...]
    repeat: float
    repeat_source: str
    evidence: tuple[Evidence, ...]

    def of(self, family: str, stack: str, method: str) -> Evidence:
        """What is known of a method under a stack, else under any."""
        for name in (stack, ANY):
            for one in self.evidence:
                if (one.family, one.stack, one.method) == (family, name, method):
                    return one
        raise InputError(f"{BANDS.name}: no band of family {family}, stack {ANY}, method {method}")

    def family(self, device: str, *, timed: bool = False) -> str:
        """The family of a device; where the model's layers themselves were timed on it, the better one."""
        return FAMILIES[0] if timed or device in self.measured else FAMILIES[1]

    def doubt(
        self, device: str, stack: str, method: str, alike: tuple[str, ...], waiting: float, *, timed: bool
    ) -> Doubt:
        """The doubt of an estimate.

        Args:
            device: its name.
            stack: its name.
            method: one of ``METHODS``.
            alike: what else must be the same for waits to err alike.
            waiting: share of the time in which the GPUs wait.
            timed: whether the model's layers were timed on the device.
        """
        if device in self.exact:
            return Doubt(waiting=waiting, alike=(method, *alike))
        family = self.family(device, timed=timed)
        one, alone = (self.of(family, stack, of) for of in (method, ONE_GPU))
        own = one.own_spread(alone)
        return Doubt(one.band, alone.band.spread, own, waiting, self.repeat, (method, *alike))


@cache
def load_bands() -> Bands:
    """The bands that come with the package."""
    return read_bands(BANDS)


def read_bands(path: Path) -> Bands:
    """Read a file of bands.

    Raises:
        InputError: the file breaks a rule, or lacks the band of any stack for a family and method.
    """
    table = Table.read(path)
    devices, repeats = table.table("devices"), table.table("repeat")
    bands = Bands(
        measured=devices.texts("measured"),
        exact=devices.texts("exact"),
        repeat=repeats.number("spread", maximum=1.0),
        repeat_source=repeats.text("source"),
        evidence=tuple(map(_evidence, table.tables("band"))),
    )
    for part in (devices, repeats, table):
        part.finish()
    _check_complete(path, bands)
    return bands


def _evidence(table: Table) -> Evidence:
    one = Evidence(
        family=table.choice("family", FAMILIES),
        stack=table.text("stack"),
        method=table.choice("method", METHODS),
        band=Band(table.positive("low", maximum=1.0), table.number("high", minimum=1.0)),
        waiting=table.number("waiting", maximum=0.99),
        rows=table.integer("rows"),
        source=table.text("source"),
    )
    table.finish()
    return one


def _check_complete(path: Path, bands: Bands) -> None:
    there = [(one.family, one.stack, one.method) for one in bands.evidence]
    for key in there:
        if there.count(key) > 1:
            raise InputError(f"{path}: band {', '.join(key)} stands twice")
    for family in FAMILIES:
        for method in METHODS:
            if (family, ANY, method) not in there:
                raise InputError(f"{path}: band {family}, {ANY}, {method} is missing")
