"""Errands: calls about a sweep that was run, each of which replays points; several processes share them.

What a call gives does not depend on the process that makes it.
"""

from collections.abc import Callable, Sequence
from multiprocessing import get_start_method
from typing import Any, NamedTuple

from sim.explore.sweep import Sweep
from sim.explore.working.workers import Workers

Call = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, with what is given to it."""


class Errand(NamedTuple):
    """The place of a call among those that are known where it is made; what comes back can travel."""

    number: int

    def answers(self, calls: Sequence[Call]) -> list[Any]:
        """What the call gives."""
        call, given = calls[self.number]
        return [call(*given)]


def errands_done(sweep: Sweep, *calls: Call, meanwhile: Callable[[], object] = lambda: None) -> list[Any]:
    """What calls about a sweep give, in their order; they take least time if the longest come first.

    As many processes as worked on the sweep make them, where processes start at once; else this one does.

    Args:
        sweep: what they are about.
        calls: functions, with what is given to them.
        meanwhile: what this process does itself before it waits for them.
    """
    count = min(sweep.workers, len(calls))
    if count == 1 or get_start_method() != "fork":
        meanwhile()
        return [call(*given) for call, given in calls]
    with Workers[Errand](calls, count) as staff:
        for number in range(len(calls)):
            staff.submit(Errand(number))
        meanwhile()
        told = {errand.number: answer for errand, (answer,) in staff.run(())}
    return [told[number] for number in range(len(calls))]
