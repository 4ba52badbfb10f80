"""Progress of a sweep on the terminal: the stage, the time that is left and the best so far."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from time import monotonic
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from profiles.errors import counted
from sim.explore.sweep import Report, Sweep
from sim.report.numbers import milliseconds

REFRESH_S: Final = 0.1
"""Progress is drawn again at most this often."""


@contextmanager
def progress(sweep: Sweep, *, told: bool = False) -> Iterator[Report]:
    """Show the progress of a sweep on stderr while it runs; nothing where stderr is no terminal.

    Args:
        sweep: what runs.
        told: also say in a line when a stage is over.
    """
    columns = (
        TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("{task.fields[best]}"),
    )  # fmt: skip
    shown = sys.stderr is not None and sys.stderr.isatty()
    # no thread of its own: worker processes may be forked while it is shown
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not shown, auto_refresh=False
    ) as bar:
        tasks: dict[str, Any] = {}
        start = refreshed = monotonic()

        def report(stage: str, done: int, total: int) -> None:
            nonlocal refreshed, start
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total, best="")
            if told and done == total:
                print(
                    f"sim: {stage} {counted(total, 'point')} took {monotonic() - start:.2f} s",
                    file=sys.stderr,
                )
                start = monotonic()
            if shown and (done == total or monotonic() - refreshed > REFRESH_S):
                refreshed = monotonic()
                best = best_words(sweep)
                bar.update(tasks[stage], best=best, completed=done, total=total, refresh=True)

        yield report


def best_words(sweep: Sweep) -> str:
    """The best point so far and its time; empty where there is none."""
    simulated = (point for point in sweep.points if point.result is not None and point.recommended)
    best = min(simulated, key=lambda point: point.score(sweep.objective), default=None)
    if best is None or best.result is None or best.score(sweep.objective) == inf:
        return ""
    return f"best {best.name} {milliseconds(best.result.expected.duration_s)}"
