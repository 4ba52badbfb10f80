"""Load: requests with their arrivals, shapes and SLOs, drawn from a seed or read from a trace."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

import numpy as np

from profiles.errors import InputError, shown
from strategies.policy import Job, Shape

MOST_REQUESTS: Final = 2_000_000
"""Requests of one load; as many take a minute and 2 GB."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of requests: its share of all, what it asks for, its SLO, and where it stands.

    The SLO is in seconds after the arrival or, until that is known, in times of the seconds alone.
    """

    share: float
    shape: Shape
    slo_s: float = inf
    times_alone: bool = False
    where: str = ""


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
        count = int(mean + 8 * variation * mean**0.5 + 16)  # eight deviations more
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


class Process(NamedTuple):
    """A process of arrivals: the coefficient of variation of its gaps, or the clients of a closed loop."""

    variation: float = 0.0
    clients: int = 0


def process_of(text: str) -> Process:
    """Return the process of arrivals that a word names."""
    kind, _, number = text.partition(":")
    if text in ("poisson", "uniform"):
        return Process(float(text == "poisson"))
    with suppress(ValueError):
        if kind == "gamma" and 0.1 <= float(number) <= 10:
            return Process(float(number))
        if kind == "closed" and number.isdecimal() and 1 <= int(number) <= 10_000:
            return Process(clients=int(number))
    rule = "must be poisson, uniform, gamma:CV with a CV from 0.1 to 10, or closed:N with 1 to 10000 clients"
    raise InputError(f"`arrivals` is {shown(text)}, {rule}")
