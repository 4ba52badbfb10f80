"""Bands: how far estimates are from what is measured, and which differences between two of them mean anything.

A spread is the logarithm of the factor within which eight of ten measured values lie, above or below the estimate.
``bands.toml`` holds one for each part of the error: of compute in sampling, by family of devices and size of images,
and in training; of scaling to several GPUs, by kind of method and of link or device; of the time in which data are
awaited; of repeated runs. Few rows pull a spread only part of the way from that of all rows.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import exp, hypot, inf, log, log2
from pathlib import Path
from typing import Annotated, Final

from profiles.checks import AT_LEAST_1, PositiveShare, check_fields
from profiles.files import load_toml

BANDS: Final = Path(__file__).parents[1] / "bands.toml"
COMPUTE, ANCHORED, TRAINING, EXPOSED, REPEAT = "compute", "anchored", "training", "exposed", "repeat"
STATED: Final = "stated"
DATA_PARALLEL, PIPELINE, SAMPLING = "data parallel", "pipeline", "sampling"
METHODS: Final = (DATA_PARALLEL, PIPELINE, SAMPLING)
"""Kinds of methods on several GPUs, each a part of the error: what scaling to them adds."""
PARTS: Final = (COMPUTE, ANCHORED, TRAINING, STATED, *METHODS, EXPOSED, REPEAT)
FAMILIES: Final = ("measured", "derived", "data sheet")
"""Devices whose kernels were measured by shape; those whose laws follow from the like of them; those of which little
but a data sheet is known, of another maker or with far less power."""
ANY: Final = "any"
"""Where a part holds that is not told apart, or of which nothing else is known."""
SMALL: Final = " small"
"""Ending of a family where a pass has at most ``SMALL_PIXELS``."""
SMALL_PIXELS: Final = 1024 * 1024
"""Pixels of all samples and frames up to which attention, whose law is known best, is little of a pass, and kernels
leave part of a GPU idle: errors on one GPU are twice those of more pixels."""
FEWEST: Final = 4
"""Fewest published numbers that say anything about an error."""
ROUNDING: Final = 1e-9
"""Relative difference of sums of the same times in another order."""


@dataclass(frozen=True, slots=True)
class Band:
    """Factors on an estimate between which eight of ten measured values lie; 1 is always among them."""

    low: PositiveShare = 1.0
    high: Annotated[float, AT_LEAST_1] = 1.0

    def __post_init__(self) -> None:
        check_fields("band", self)

    @classmethod
    def within(cls, spread: float) -> "Band":
        """The band of a spread, as wide below as above."""
        return cls(exp(-spread), exp(spread))

    def __and__(self, other: "Band") -> "Band":
        """The band of two independent errors together."""
        return Band(exp(-hypot(log(self.low), log(other.low))), exp(hypot(log(self.high), log(other.high))))

    @property
    def spread(self) -> float:
        """Half its width in logarithms."""
        return log(self.high / self.low) / 2


@dataclass(frozen=True, slots=True)
class Spread:
    """A spread of one part of the error.

    Attributes:
        part: one of ``PARTS``.
        where: it holds: a family of devices, a kind of link, or ``any``.
        spread: in logarithms; of scaling, at one doubling of the GPUs.
        rows: published numbers that set it; 0 where it is a prior.
        sources: how many sources they are of, counting the same authors once.
    """

    part: str
    where: str
    spread: float
    rows: int
    sources: int
    source: str


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Parts of the error of an estimate; spreads in logarithms.

    Attributes:
        shared: spread of the error of compute; all runs of a model on one device under one stack share it.
        own: spread of the error of scaling to several GPUs.
        repeat: spread of repeated runs of the same.
        exposed: share of the time in which the GPUs wait for data on the wire.
        alike: strategy, cluster and reach of the links; runs with the same of these share the error of scaling as far
            as both scale.
        ranges: band of the constants that are known by a range only.
    """

    band: Band = Band()
    shared: float = 0.0
    own: float = 0.0
    repeat: float = 0.0
    exposed: float = 0.0
    alike: tuple[str, ...] = ()
    ranges: Band = Band()

    def after(self, measured: "Uncertainty") -> "Uncertainty":
        """The uncertainty once compute is scaled to a measured run: what scaling adds to it is left.

        Of a run like the measured one only the doublings count that are between them.
        """
        spread = spread_between(measured, self)
        if self.alike != measured.alike:
            return replace(self, band=Band.within(spread) & self.ranges)
        between = abs(self.own**2 - measured.own**2) ** 0.5 if self.repeat else 0.0
        return replace(self, band=Band.within(hypot(spread, between)))


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


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Properties of a run on which its uncertainty depends.

    Attributes:
        alike: strategy, cluster and reach of the links.
        exposed: share of the time in which the GPUs wait for data on the wire.
        timed: whether the model's layers were timed on the device.
        anchored: whether compute starts from published latencies of one GPU.
        link: the kind of the slowest link between them.
        step_s: seconds of a denoising step; infinite in training.
        pixels: of all samples and frames of a pass; infinite in training.
        ranges: for each constant that is known by a range only, the factors on the time at its ends.
    """

    device: str
    alike: tuple[str, ...]
    exposed: float
    timed: bool = False
    anchored: bool = False
    gpus: int = 1
    link: str = ANY
    step_s: float = inf
    pixels: float = inf
    ranges: tuple[Band, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """How the error of scaling grows: with doublings of the GPUs, and the shorter a step is.

    Attributes:
        gpus: exponent of the number of doublings: 0.5 if each errs on its own, 1 if all err alike.
        fixed_s: error in seconds of a step, whatever its work.
    """

    gpus: float
    fixed_s: float

    def doublings(self, gpus: int) -> float:
        """The spread of what grows with doublings, in units of that at one."""
        return float(log2(gpus) ** self.gpus)

    def of(self, spread: float, gpus: int, step_s: float = inf) -> float:
        """The spread at some GPUs, from that at one doubling; none on one GPU."""
        return hypot(spread * self.doublings(gpus), self.fixed_s / step_s) if gpus > 1 and step_s else 0.0


@dataclass(frozen=True)
class Bands:
    """Spreads of all parts of the error.

    Attributes:
        measured: devices whose kernels were measured by shape.
        exact: devices that are no hardware, whose times are formulas.
        stated: devices of which little but a data sheet is known.
        shape: of the error of scaling.
        spreads: by part and where it holds.
    """

    measured: tuple[str, ...]
    exact: tuple[str, ...]
    stated: tuple[str, ...]
    shape: Shape
    spreads: tuple[Spread, ...]

    def of(self, part: str, where: str = ANY) -> float:
        """The spread of a part, there or anywhere."""
        found = self._by_key.get((part, where)) or self._by_key[part, ANY]
        return found.spread

    @cached_property
    def _by_key(self) -> dict[tuple[str, str], Spread]:
        return {(one.part, one.where): one for one in self.spreads}

    def family(self, device: str, *, timed: bool = False) -> str:
        """The family of a device; where the model's layers themselves were timed on it, the better one."""
        return FAMILIES[0 if timed or device in self.measured else 1 + (device in self.stated)]

    def compute(self, method: str, run: Circumstances) -> float:
        """The spread of compute on one GPU; published latencies of the model leave no more than laws alone."""
        part, small = (
            (COMPUTE, SMALL * (run.pixels <= SMALL_PIXELS)) if method == SAMPLING else (TRAINING, "")
        )
        measured, derived, _ = FAMILIES
        alone, family = self.of(part, measured + small), self.family(run.device, timed=run.timed)
        if family != measured:  # laws that follow from the measured ones err no less, however few rows say so
            alone = max(alone, self.of(part, derived + small))
        if family == FAMILIES[2]:  # by what the data sheet leaves open, too
            alone = hypot(alone, self.of(STATED))
        if method != SAMPLING:
            return alone
        return min(alone, self.of(ANCHORED)) if run.anchored else alone

    def uncertainty(self, method: str, run: Circumstances) -> Uncertainty:
        """The uncertainty of an estimate by one kind of method.

        Training errs by compute and, on its own, by scaling. Sampling on several GPUs errs by the larger of the two:
        both are of the same laws, and where both are known one often makes up for the other.
        """
        if run.device in self.exact:
            return Uncertainty(exposed=run.exposed, alike=run.alike)
        compute, repeat, own = self.compute(method, run), self.of(REPEAT), 0.0
        if run.gpus > 1:
            where = run.link if method == SAMPLING else self.family(run.device, timed=run.timed)
            own = self.shape.of(self.of(method, where), run.gpus, run.step_s)
            if method != SAMPLING:
                own = hypot(own, run.exposed * self.of(EXPOSED))
        both = max(compute, own) if method == SAMPLING else hypot(compute, own)
        ranges = Band()
        for one in run.ranges:
            ranges &= one
        band = Band.within(hypot(both, repeat)) & ranges
        return Uncertainty(band, compute, own, repeat, run.exposed, run.alike, ranges)


@cache
def load_bands() -> Bands:
    """The bands that come with the package."""
    return read_bands(BANDS)


def read_bands(path: Path) -> Bands:
    """Read a file of bands."""
    rows = load_toml(path)
    measured, exact, stated = (tuple(rows["devices"][key]) for key in ("measured", "exact", "stated"))
    spreads = tuple(Spread(**row) for row in rows["spread"])
    return Bands(measured, exact, stated, Shape(**rows["shape"]), spreads)
