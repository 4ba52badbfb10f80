"""Streams: the communication streams of devices, whose collectives slow down the compute beside them."""

from math import inf

from strategies.plans.plan import Plan


class Stream:
    """Busy spans of a device's communication streams, for the slowdown of compute beside them.

    Attributes:
        slowdown: factor on the seconds of compute beside a collective.
        until: for each running collective the earliest time at which it can end.
        last_s: when the last collective ended; infinite while one runs.
    """

    __slots__ = ("_spans", "last_s", "slowdown", "until")

    def __init__(self, slowdown: float) -> None:
        self.slowdown = slowdown
        self.until: dict[int, float] = {}
        self.last_s = -inf
        self._spans: list[list[float]] = []

    def begin(self, number: int, now: float, at_least_s: float) -> None:
        """Note that a collective begins, and takes at least ``at_least_s``."""
        if not self.until:
            self._spans.append([now, inf])
            self.last_s = inf
        self.until[number] = now + at_least_s

    def end(self, number: int, now: float) -> None:
        """Note that a collective ends."""
        del self.until[number]
        if not self.until:
            self._spans[-1][1] = self.last_s = now

    def done_s(self, start: float, now: float) -> float:
        """Return the seconds of work that compute has done from ``start`` to ``now``."""
        overlap = 0.0
        for begun, ended in reversed(self._spans):
            if ended <= start:
                break
            overlap += min(ended, now) - max(begun, start)
        return now - start - overlap * (1 - 1 / self.slowdown)

    def estimate_s(self, work_s: float, now: float) -> float:
        """Return the seconds until work is done if no other collective begins; never too long."""
        if not self.until:
            return work_s
        until = next(iter(self.until.values())) if len(self.until) == 1 else max(self.until.values())
        if until <= now:
            return work_s
        beside = min(work_s * self.slowdown, until - now)
        return beside + max(0.0, work_s - beside / self.slowdown)


def streams_of(plan: Plan) -> list[Stream | None]:
    """Return the communication streams of each device; None where it has none, or they do not slow down compute."""
    streams: list[Stream | None] = [None] * len(plan.ops)
    slowdown = plan.placement.cluster.overlap_slowdown
    if slowdown > 1:
        for device in {device for collective in plan.collectives for device in collective.devices}:
            streams[device] = Stream(slowdown)
    return streams
