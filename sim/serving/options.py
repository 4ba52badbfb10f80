"""Options of serving, each declared once, and the load: requests drawn from a seed or read from a trace."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, Final

import numpy as np

from profiles.checks import is_number
from profiles.errors import InputError, shown, wrong
from strategies.parameters import KINDS, check_options, option, options_of
from strategies.policy import Job, Shape

MOST_REQUESTS: Final = 2_000_000
"""Requests of one load; as many take a minute and 2 GB."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of requests: its share of all, what it asks for, its SLO, and where it stands.

    The SLO is in seconds after the arrival or, until that is known, in times of the seconds alone; ``steps_said`` is
    whether its steps are its own.
    """

    share: float
    shape: Shape
    slo_s: float = inf
    times_alone: bool = False
    where: str = ""
    steps_said: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests as they arrived, the first at 0: seconds, the index of each one's kind, and, if known, its seconds."""

    arrival_s: tuple[float, ...]
    kind: tuple[int, ...]
    latency_s: tuple[float, ...] = ()

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second."""
        return (len(self.arrival_s) - 1) / (self.arrival_s[-1] or 1.0)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of some kinds at a rate.

    Attributes:
        kinds: classes of requests, whose shares add up to 1.
        rate_per_s: mean arrivals a second; unused in a closed loop.
        arrivals: ``poisson``, ``gamma:CV`` with the coefficient of variation of gaps, ``uniform``, or ``closed:N``.
        duration_s: seconds in which requests arrive.
        seed: of arrivals and of kinds, which are drawn apart, so that plans are compared under the same requests.
        trace: requests as they arrived, in place of drawn ones; another rate stretches its gaps.
    """

    kinds: tuple[Kind, ...]
    rate_per_s: float
    duration_s: float
    arrivals: str = "poisson"
    seed: int = 0
    trace: Trace | None = None

    def jobs(self) -> Iterator[Job]:
        """Yield the requests in the order of their arrival; of a closed loop without end, all arriving at 0."""
        arrivals_s, kinds = self._drawn()
        shapes = [kind.shape for kind in self.kinds]
        slos_s = [kind.slo_s for kind in self.kinds]
        for number, (arrival_s, kind) in enumerate(zip(arrivals_s, kinds, strict=True)):
            yield Job(number, arrival_s, shapes[kind], arrival_s + slos_s[kind])

    def _drawn(self) -> tuple[Sequence[float], Sequence[int]]:
        """Return the seconds of arrivals, and the kind of each: some more are drawn than the duration needs."""
        if self.trace is not None:
            stretch = self.trace.rate_per_s / self.rate_per_s
            return [at * stretch for at in self.trace.arrival_s], self.trace.kind
        of_gaps, of_kinds = map(np.random.default_rng, np.random.SeedSequence(self.seed).spawn(2))
        mean, (variation, clients) = self.rate_per_s * self.duration_s, process_of(self.arrivals)
        count = int(mean + 8 * variation * mean**0.5 + 16) + clients  # eight deviations more
        if count > MOST_REQUESTS:
            words = f"`duration` and `rate` are {mean:,.0f} requests"
            raise InputError(f"{words}, must be at most {MOST_REQUESTS:,}")
        shares = np.array([kind.share for kind in self.kinds])
        kinds = of_kinds.choice(len(shares), size=count, p=shares / shares.sum())
        if clients:
            return [0.0] * count, kinds.tolist()
        gaps = np.ones(count)
        if variation:  # of a gamma distribution: a shape of 1 is the exponential of a Poisson process
            gaps = of_gaps.gamma(variation**-2, 1 / variation**-2, count)
        arrivals = np.cumsum(gaps) / self.rate_per_s
        there = int(np.searchsorted(arrivals, self.duration_s))
        return arrivals[:there].tolist(), kinds[:there].tolist()


def process_of(text: str) -> tuple[float, int]:
    """Return the coefficient of variation of gaps, and the clients of a closed loop, of arrivals by their name."""
    kind, _, number = text.partition(":")
    if text in ("poisson", "uniform"):
        return float(text == "poisson"), 0
    with suppress(ValueError):
        if kind == "gamma" and 0.1 <= float(number) <= 10:
            return float(number), 0
        if kind == "closed" and number.isdecimal() and 1 <= int(number) <= 10_000:
            return 0.0, int(number)
    rule = "must be poisson, uniform, gamma:CV with a CV from 0.1 to 10, or closed:N with 1 to 10000 clients"
    raise InputError(f"`arrivals` is {shown(text)}, {rule}")


DISPATCHES: Final = ("shared", "round-robin", "least-loaded")
MOST_BATCH: Final = 64
"""Requests of one batch; more are no longer faster a request, and each size is simulated."""
REQUESTS: Final = 2000
"""Requests that arrive where no duration is given: their p99 is the twentieth slowest."""
PER_S: Final = {"": 1, "s": 1, "min": 60, "h": 3600}
"""Seconds of what a rate is per, by its unit."""
SPANS: Final[Mapping[str, tuple[float, float]]] = {
    "slo_share": (1e-9, 1.0), "batch_wait": (0.0, 1e9), "loading": (0.0, 1e9), "duration": (1e-3, 1e9),
}  # fmt: skip
"""The least and the largest that numbers may be; durations are seconds."""
NUMBERS: Final = ("rate", "slo", "price")
"""Options that are numbers or words."""
POOLS: Final = ("encoder", "denoiser", "decoder")
"""Names of pools: those of the part that each runs, and an r."""


@dataclass(frozen=True)
class ServingOptions:
    """What is asked about serving, beside the model, the cluster and how it samples."""

    # fmt: off
    rate: float | str | None = option(
        None, "requests a second, or 20/h, 5/min; 0.5-4 for a curve of ten points", metavar="PER_S")
    slo: float | str | None = option(
        None, "seconds from arrival to image, or 3x those alone on the fewest GPUs (of the first cluster)",
        metavar="SECONDS")
    slo_share: float = option(0.99, "share of requests that are to hold it", kind=float, metavar="SHARE")
    capacity: bool = option(False, "find the highest rate under the SLO", kind=bool, action="store_true")
    arrivals: str = option(
        "poisson", "poisson, uniform, gamma:CV, or closed:N clients who each wait for their image", metavar="PROCESS")
    mix: str | None = option(
        None, "a name, or a TOML file of [[class]] tables: share; optional resolution, frames, steps, guidance, slo",
        metavar="FILE")
    requests: str | None = option(
        None, "a trace: CSV with arrival_s, height, width, frames, steps; optional guidance, deadline_s, latency_s",
        metavar="FILE")
    policy: str = option(
        "fcfs,batcher", "with commas: of `sim strategies`; one of your own by sim.serve(policy=...)", metavar="NAMES")
    dispatch: str = option("shared", "one queue, or one for each replica", choices=DISPATCHES)
    replicas: str | None = option(
        None, "replicas x GPUs of each, with commas: 8x1,4x2; 2x4+8x1 mixes (default: powers of two)", metavar="PLANS")
    pools: str | None = option(None, "GPUs of each stage: encoder=1,denoiser=6,decoder=1", metavar="GPUS")
    max_batch: int | None = option(
        None, "requests in one batch (default: 2, 4 and 8 are tried)", kind=int, most=MOST_BATCH, metavar="N")
    batch_wait: float = option(0.0, "seconds that the first of a batch waits for others", kind=float, metavar="SECONDS")
    duration: float | None = option(
        None, f"simulated seconds (default: those in which {REQUESTS} requests come)", kind=float, metavar="SECONDS")
    loading: float = option(
        0.0, "seconds in which replicas load the model, before they serve (default: 0)", kind=float, metavar="SECONDS")
    seed: int = option(0, "of arrivals and of the mix", kind=int, least=0, metavar="N")
    service: str | None = option(
        None, "measured service times: CSV with height, width, frames, steps, gpus, batch, seconds", metavar="FILE")
    price: float | str | None = option(
        None, "dollars a GPU-hour, or a TOML file with lines such as l20-pcie-8 = 0.9",
        metavar="DOLLARS")
    objective: str = option("latency", "what plans are ranked by", choices=("latency", "cost"))
    # fmt: on

    def __post_init__(self) -> None:
        check_options(self)
        for item in options_of(self):
            value, kind = getattr(self, item.name), item.metadata["kind"]
            number = item.name in NUMBERS and is_number(value)
            if kind in (str, bool) and not (isinstance(value, kind) or number or value is item.default):
                raise wrong(item.name, f"is {shown(value)}, must be {KINDS[kind]}")
        for name, (least, most) in SPANS.items():
            value = getattr(self, name)
            if value is not None and not (is_number(value) and least <= value <= most):
                raise wrong(name, f"is {shown(value)}, must be from {least:g} to {most:g}")
        loads = {"rate": self.rate, "capacity": self.capacity or None, "requests": self.requests}
        given = next((name for name, value in loads.items() if value is not None), "")
        if self.clients and given:
            whose = f"the clients of `arrivals` {self.arrivals}"
            raise wrong(given, f"is given, but {whose} set the rate themselves")
        if not (self.clients or given):
            raise InputError("no load is given: give `rate`, `requests`, `capacity` or `arrivals` closed:N")
        if self.capacity and self.rates and self.rates[0] < self.rates[1]:
            raise wrong("rate", f"is {shown(self.rate)}, but `capacity` looks for one rate: give one or none")
        said = {"arrivals": "when they arrive", "duration": "when they arrive", "mix": "their shapes"}
        for item in options_of(self) if self.requests is not None else ():
            if item.name in said and getattr(self, item.name) != item.default:
                raise wrong(item.name, f"is given, but `requests` says {said[item.name]}")
        _ = self.rates, self.divisions, self.stages

    @cached_property
    def rates(self) -> tuple[float, float] | None:
        """The lowest and the highest rate, one of a curve or both the same; None where none is given."""
        if self.rate is None:
            return None
        span, _, unit = self.rate.partition("/") if isinstance(self.rate, str) else (self.rate, "", "")
        if unit not in PER_S:
            raise wrong("rate", f"is {shown(self.rate)}, must be a second, or such as 20/h or 5/min")
        parts = re.split(r"(?<=[^eE])-(?=.)", span, maxsplit=1) if isinstance(span, str) else [span]
        first, last = (positive("rate", part) / PER_S[unit] for part in (parts[0], parts[-1]))
        if last < first:
            raise wrong("rate", f"is {shown(self.rate)}, must go from the lower to the higher")
        return first, last

    @cached_property
    def clients(self) -> int:
        """Clients of a closed loop; 0 where requests arrive by themselves."""
        return process_of(self.arrivals)[1]

    @cached_property
    def divisions(self) -> tuple[tuple[int, ...], ...]:
        """GPUs of each replica of the plans that are asked for; none where all are."""
        return tuple(map(_replicas_of, self.replicas.split(","))) if self.replicas is not None else ()

    @cached_property
    def stages(self) -> Mapping[str, int]:
        """GPUs of each stage; none where all stages share them."""
        if self.pools is None:
            return {}
        with suppress(ValueError):
            parts = [part.split("=") for part in self.pools.split(",")]
            pools = {name.strip(): int(number) for name, number in parts}
            if len(parts) == len(POOLS) and set(pools) == set(POOLS) and min(pools.values()) > 0:
                return {name: pools[name] for name in POOLS}
        rule = f"must give GPUs of each: {','.join(f'{name}=N' for name in POOLS)}"
        raise wrong("pools", f"is {shown(self.pools)}, {rule}")


def positive(name: str, value: Any, or_else: str = "") -> float:  # noqa: ANN401
    """Return a number above 0; a refusal also says what else may be given."""
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number <= 1e9:
        raise wrong(name, f"is {shown(value)}, must be a number above 0{or_else}")
    return number


def _replicas_of(text: str) -> tuple[int, ...]:
    """Return the GPUs of each replica of a plan such as 4x2, or 2x4+8x1, the largest first."""
    parts = [re.fullmatch(r"\s*([1-9]\d{0,4})x([1-9]\d{0,3})\s*", part, re.ASCII) for part in text.split("+")]
    sizes = [int(part[2]) for part in parts if part for _ in range(int(part[1]))]
    if None in parts:
        rule = "must be replicas x GPUs of each, such as 4x2 or 2x4+8x1"
        raise wrong("replicas", f"is {shown(text)}, {rule}")
    return tuple(sorted(sizes, reverse=True))
