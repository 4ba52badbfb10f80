"""Records of the best plan's run: a row for each request, and a trace that Perfetto opens."""

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

from profiles.errors import InfeasibleError
from profiles.outputs import whole_file
from sim.serving.fleet import Log
from sim.serving.outcomes import Outcome


def log_of(outcome: Outcome) -> Log:
    """Return what a plan ran.

    Raises:
        InfeasibleError: it was not recorded, as of all plans but the best.
    """
    if outcome.log is None:
        raise InfeasibleError("what ran is recorded of the best plan alone, once it is known")
    return outcome.log


def request_rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Return the requests of a recorded run in the order of their arrival; seconds, an SLO after the arrival."""
    return [
        {
            "arrival_s": job.arrival_s,
            "start_s": job.start_s,
            "end_s": job.end_s,
            "shape": job.shape.words,
            "slo": None if job.deadline_s == inf else job.deadline_s - job.arrival_s,
            "held": not job.missed,
        }
        for job in sorted(log_of(outcome).jobs, key=lambda job: job.number)
    ]


def write_trace(outcome: Outcome, path: Path) -> None:
    """Write what each GPU ran as Chrome trace events, and a counter of the requests that wait."""
    with whole_file(path) as file, file.open("w", encoding="utf-8") as out:
        json.dump({"traceEvents": [*_events(log_of(outcome))], "displayTimeUnit": "ms"}, out)


def _events(log: Log) -> Iterator[dict[str, Any]]:
    for gpu in sorted({gpu for ran in log.ran for gpu in ran.gpus}):
        name = {"name": "thread_name", "args": {"name": f"GPU {gpu}"}}
        yield {"ph": "M", "pid": 1, "tid": gpu, "ts": 0, **name}
    for ran in log.ran:
        span = {"ts": ran.start_s * 1e6, "dur": (ran.end_s - ran.start_s) * 1e6}
        names = {"name": f"request {', '.join(map(str, ran.jobs))}", "cat": ran.part}
        yield from ({"ph": "X", "pid": 1, "tid": gpu, **span, **names} for gpu in ran.gpus)
    for time_s, waiting in waiting_over_time(log):
        count = {"name": "waiting", "args": {"requests": waiting}}
        yield {"ph": "C", "pid": 1, "tid": 0, "ts": time_s * 1e6, **count}


def waiting_over_time(log: Log) -> list[tuple[float, int]]:
    """Return the seconds at which a request arrives or first runs, and how many wait from then on."""
    waits = [(job.arrival_s, job.start_s) for job in log.jobs if job.start_s > job.arrival_s]
    changes = sorted((time_s, change) for wait in waits for time_s, change in zip(wait, (1, -1), strict=True))
    curve, waiting = [(0.0, 0)], 0
    for time_s, change in changes:
        waiting += change
        curve.append((time_s, waiting))
    return curve
