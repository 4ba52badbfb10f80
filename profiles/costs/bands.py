"""Bands: how far estimates are from what is measured, and which differences between two of them mean anything.

``bands.toml`` holds 10 and 90 % quantiles of measured over estimated seconds, by family of devices, stack and kind of
method. A spread is half the distance between those quantiles, in natural logarithms.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import exp, hypot, log
from pathlib import Path
from typing import Final

import numpy as np

from profiles.checks import AT_LEAST_1, POSITIVE_SHARE, check_fields
from profiles.parsing import parse_toml

BANDS: Final = Path(__file__).parents[1] / "bands.toml"
METHODS: Final = ("one GPU", "anchored", "data parallel", "pipeline", "patches and sequence")
ONE_GPU, ANCHORED, DATA_PARALLEL, PIPELINE, PATCHES = METHODS
FAMILIES: Final = ("measured", "derived")
"""Devices whose kernels were measured by shape, and those whose laws follow from others or from a data sheet."""
ANY: Final = "any"
"""The stack of a band that holds where a stack has none of its own."""
QUANTILES: Final = (0.1, 0.9)
FEWEST: Final = 4
"""Fewest published numbers that say anything about an error."""
ROUNDING: Final = 1e-9
"""Relative difference of sums of the same times in another order."""


@dataclass(frozen=True, slots=True)
class Band:
    """Factors on an estimate between which eight of ten measured values lie; 1 is always among them."""

    low: float = 1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_fields("band", self, low=POSITIVE_SHARE, high=AT_LEAST_1)

    @classmethod
    def within(cls, spread: float) -> "Band":
        """The band of a spread, as wide below as above."""
        return cls(exp(-spread), exp(spread))

    @classmethod
    def of_ratios(cls, ratios: Iterable[float]) -> "Band":
        """The band of measured over estimated values, stretched to hold the estimate itself.

        Quantiles are those of Weibull, i / (n + 1), which do not make few values look alike; with fewer than nine
        values they are the extremes.
        """
        low, high = np.quantile(list(ratios), QUANTILES, method="weibull")
        return cls(min(1.0, float(low)), max(1.0, float(high)))

    def __and__(self, other: "Band") -> "Band":
        """The band of two independent errors together."""
        return Band(exp(-hypot(log(self.low), log(other.low))), exp(hypot(log(self.high), log(other.high))))

    @property
    def spread(self) -> float:
        """Half its width in logarithms."""
        return log(self.high / self.low) / 2


@dataclass(frozen=True, slots=True)
class Spread:
    """A spread in logarithms, the number of published values that set it, and where they are from."""

    spread: float
    rows: int
    source: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence of one kind of error.

    Attributes:
        family: of devices, one of ``FAMILIES``.
        stack: its name, or ``any``.
        method: ``one GPU`` is the error of compute, ``anchored`` what is left of it where compute is scaled to
            published one-GPU latencies; any other is what the method adds, compute taken as right.
        band: of measured over estimated seconds.
        rows: published numbers that set it; 0 where it is a prior.
        source: what set it.
    """

    family: str
    stack: str
    method: str
    band: Band
    rows: int
    source: str


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Parts of the error of an estimate; spreads in logarithms.

    Attributes:
        band: of the estimate.
        shared: spread of the error of compute; all runs of a model on one device under one stack share it.
        own: spread of the error that the method and its exposed communication add.
        repeat: spread of repeated runs of the same.
        exposed: share of the time in which the GPUs wait for data on the wire.
        alike: strategy, cluster and reach of the links; runs with the same of these share ``own`` too.
    """

    band: Band = Band()
    shared: float = 0.0
    own: float = 0.0
    repeat: float = 0.0
    exposed: float = 0.0
    alike: tuple[str, ...] = ()

    def after(self, measured: "Uncertainty") -> "Uncertainty":
        """The uncertainty once compute is scaled to a measured run: only what the two do not share is left."""
        return replace(self, band=Band.within(spread_between(measured, self)))


def spread_between(one: Uncertainty, other: Uncertainty) -> float:
    """Spread of the error of the ratio of two estimates of one model on one device under one stack.

    What both share cancels. Compute runs the same kernels: its error counts only in the part of the time in which one
    run computes and the other awaits data. What one strategy adds is independent of what another adds, and both count.
    Runs of one strategy over the same links share that too: there the difference in exposed communication counts whole,
    as if it were not known at all. Even repeated runs differ.
    """
    differ = abs(one.exposed - other.exposed)
    repeat = max(one.repeat, other.repeat)
    if one.alike == other.alike:
        return hypot(repeat, differ) if repeat else 0.0
    return hypot(repeat, one.own, other.own, differ * max(one.shared, other.shared))


def tied(one: Uncertainty, one_s: float, other: Uncertainty, other_s: float) -> bool:
    """Return whether two estimates differ by less than their comparison can tell."""
    if not (one_s and other_s):
        return one_s == other_s
    return abs(log(one_s / other_s)) <= spread_between(one, other) + ROUNDING


@dataclass(frozen=True)
class Bands:
    """Evidence of all errors.

    Attributes:
        measured: devices whose kernels were measured by shape.
        exact: devices that are no hardware, whose times are formulas.
        repeat: of repeated runs of the same.
        exposed: of the seconds of exposed communication.
        evidence: by family, stack and method; those of ``any`` stack are complete.
    """

    measured: tuple[str, ...]
    exact: tuple[str, ...]
    repeat: Spread
    exposed: Spread
    evidence: tuple[Evidence, ...]

    def of(self, family: str, stack: str, method: str) -> Evidence:
        """Return the evidence of a kind of error under a stack, else under any."""
        return self._by_key.get((family, stack, method)) or self._by_key[family, ANY, method]

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], Evidence]:
        return {(one.family, one.stack, one.method): one for one in self.evidence}

    def family(self, device: str, *, timed: bool = False) -> str:
        """The family of a device; where the model's layers themselves were timed on it, the better one."""
        return FAMILIES[0] if timed or device in self.measured else FAMILIES[1]

    def uncertainty(self, method: str, run: "Circumstances") -> Uncertainty:
        """The uncertainty of an estimate by one kind of method."""
        if run.device in self.exact:
            return Uncertainty(exposed=run.exposed, alike=run.alike)
        family = self.family(run.device, timed=run.timed)
        alone = ANCHORED if run.anchored else ONE_GPU
        compute, added = (self.of(family, run.stack, kind).band for kind in (alone, method))
        if method == ONE_GPU:
            added = Band()
        added &= Band.within(run.exposed * self.exposed.spread)
        band = compute & added & Band.within(self.repeat.spread)
        return Uncertainty(band, compute.spread, added.spread, self.repeat.spread, run.exposed, run.alike)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Properties of a run on which its uncertainty depends.

    Attributes:
        device: its name.
        stack: its name.
        alike: strategy, cluster and reach of the links.
        exposed: share of the time in which the GPUs wait for data on the wire.
        timed: whether the model's layers were timed on the device.
        anchored: whether compute starts from published latencies of one GPU.
    """

    device: str
    stack: str
    alike: tuple[str, ...]
    exposed: float
    timed: bool = False
    anchored: bool = False


@cache
def load_bands() -> Bands:
    """The bands that come with the package."""
    return read_bands(BANDS)


def read_bands(path: Path) -> Bands:
    """Read a file of bands."""
    rows = parse_toml(path.read_text(encoding="utf-8"))
    measured, exact = (tuple(rows["devices"][key]) for key in ("measured", "exact"))
    evidence = (Evidence(band=Band(row.pop("low"), row.pop("high")), **row) for row in rows["band"])
    return Bands(measured, exact, Spread(**rows["repeat"]), Spread(**rows["exposed"]), tuple(evidence))
