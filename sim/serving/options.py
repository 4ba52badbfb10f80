"""Options of serving: each is declared once; its flag, check and help follow."""

import re
from dataclasses import dataclass
from typing import Any, Final

from profiles.checks import is_number
from profiles.errors import InputError, shown, wrong
from sim.serving.load import check_arrivals
from strategies.parameters import check_options, option, options_of

DISPATCHES: Final = ("shared", "round-robin", "least-loaded")
MOST_BATCH: Final = 64
"""Requests of one batch; more are no longer faster a request, and each size is simulated."""
REQUESTS: Final = 2000
"""Requests that arrive where no duration is given: their p99 is the twentieth slowest."""
NUMBERS: Final = ("rate", "slo", "price")
"""Options that are numbers or words."""


@dataclass(frozen=True, slots=True)
class ServingOptions:
    """What is asked about serving, beside the model, the cluster and how it samples."""

    rate: float | str | None = option(
        None, "requests a second: a number, or 0.5-4 for a curve of ten points", kind=str, metavar="PER_S"
    )
    slo: float | str | None = option(
        None,
        "seconds from arrival to completion, or 3x: times the seconds alone on the fewest GPUs",
        metavar="SECONDS",
    )
    slo_share: float = option(
        0.99, "share of the requests that are to hold the SLO", kind=float, metavar="SHARE"
    )
    capacity: bool = option(False, "find the highest rate under the SLO", kind=bool, action="store_true")
    arrivals: str = option(
        "poisson",
        "poisson, gamma:CV, uniform, or closed:N clients, each of which waits for its image",
        metavar="PROCESS",
    )
    mix: str | None = option(
        None, "classes of requests with shares and SLOs: a name or a TOML file", metavar="FILE"
    )
    requests: str | None = option(
        None, "a trace: CSV with arrival_s, height, width, frames, steps; optional guidance, deadline_s, latency_s",
        metavar="FILE",
    )  # fmt: skip
    policy: str = option("fcfs,batcher", "with commas; `sim strategies` lists them", metavar="NAMES")
    dispatch: str = option("shared", "one queue, or one for each replica", choices=DISPATCHES)
    replicas: str | None = option(
        None,
        "replicas x GPUs of each, with commas: 8x1,4x2; 2x4+8x1 mixes (default: all powers of two)",
        metavar="PLANS",
    )
    pools: str | None = option(None, "GPUs of each stage: encoder=1,denoiser=6,decoder=1", metavar="GPUS")
    max_batch: int | None = option(
        None, "requests in one batch (default: 2, 4 and 8 are tried)", kind=int, most=MOST_BATCH, metavar="N"
    )
    batch_wait: float = option(
        0.0, "seconds that the first of a batch waits for others", kind=float, metavar="SECONDS"
    )
    duration: float | None = option(
        None,
        f"simulated seconds (default: as long as {REQUESTS} requests take to come)",
        kind=float,
        metavar="SECONDS",
    )
    seed: int = option(0, "of arrivals and of the mix", kind=int, least=0, metavar="N")
    service: str | None = option(
        None,
        "measured service times: CSV with height, width, frames, steps, gpus, batch, seconds",
        metavar="FILE",
    )
    price: float | str | None = option(
        None, "dollars a GPU-hour, or a TOML file by cluster", metavar="DOLLARS"
    )
    objective: str = option("latency", "what plans are ranked by", choices=("latency", "cost"))

    def __post_init__(self) -> None:
        check_options(self)
        self._check_kinds()
        check_arrivals(self.arrivals)
        if not (is_number(self.slo_share) and 0 < self.slo_share <= 1):
            raise wrong("slo_share", f"is {shown(self.slo_share)}, must be above 0 and at most 1")
        for name in ("batch_wait", "duration"):
            value = getattr(self, name)
            least = 0 if name == "batch_wait" else 1e-3
            if value is not None and not (is_number(value) and least <= value <= 1e9):
                raise wrong(name, f"is {shown(value)}, must be seconds: {least:g} to 1e9")
        closed = self.arrivals.startswith("closed")
        if closed and (self.rate is not None or self.capacity or self.requests is not None):
            other = "rate" if self.rate is not None else "capacity" if self.capacity else "requests"
            raise wrong(
                other, f"is given, but the clients of `arrivals` {self.arrivals} set the rate themselves"
            )
        if self.requests is not None and (self.arrivals != "poisson" or self.duration is not None):
            other = "duration" if self.arrivals == "poisson" else "arrivals"
            raise wrong(other, "is given, but `requests` says when they arrive")
        if not (closed or self.capacity or self.rate is not None or self.requests is not None):
            raise InputError("no load is given: give `rate`, `requests`, `capacity` or `arrivals` closed:N")

    def _check_kinds(self) -> None:
        """Refuse values that are no words, numbers or truths, where they must be."""
        for item in options_of(self):
            value, kind = getattr(self, item.name), item.metadata["kind"]
            number = item.name in NUMBERS and is_number(value)
            if kind in (str, bool) and not (isinstance(value, kind) or number or value is item.default):
                rule = "True or False" if kind is bool else f"a {'number or ' * (item.name in NUMBERS)}word"
                raise wrong(item.name, f"is {shown(value)}, must be {rule}")


def positive(name: str, value: Any, most: float = 1e9) -> float:  # noqa: ANN401
    """Return a number above 0.

    Raises:
        InputError: it is none.
    """
    try:
        number = float(value)
    except (OverflowError, TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number <= most:
        raise wrong(name, f"is {shown(value)}, must be a number above 0")
    return number


def span_of(name: str, value: Any) -> tuple[float, float]:  # noqa: ANN401
    """Return the ends of a span such as 0.5-4; of one number both are that.

    Raises:
        InputError: it is neither.
    """
    parts = re.fullmatch(r"([^-]+?)-(.+)", re.sub(r"[eE]-", "e~", value)) if isinstance(value, str) else None
    low, high = (part.replace("~", "-") for part in parts.groups()) if parts else (value, value)
    first, last = positive(name, low), positive(name, high)
    if last < first:
        raise wrong(name, f"is {shown(value)}, must go from the lower to the higher")
    return first, last
