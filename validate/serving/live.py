"""The command ``serve``: requests to real worker processes behind a real queue, beside the replay of the same requests.

A client asks whether or not earlier answers are there; a dispatcher holds the queue, and a thread of it for each worker
takes the first request; workers sleep, or draw with a small transformer. The replay gets the arrivals as they were, the
client's own lateness included, and the seconds of each request from its dispatch to its answer, in which its worker
takes no other.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from profiles.measuring.launching import check_least
from sim.serving.fleet import Plan, Pool, Replay
from sim.serving.options import Kind, Load
from strategies.policy import Job, Shape
from strategies.serving.fcfs import FirstComeFirstServed
from validate.running.sampling.settings import Settings
from validate.serving.mlperf import Law
from validate.tables import Section, print_sections, signed

LOADS: Final = (0.5, 0.7, 0.9)
KINDS: Final = tuple(Kind(0.5, Shape(64, 64, 1, steps)) for steps in (1, 2))
STEP_S: Final = 0.2
"""Seconds of a step that sleeps."""
NEAR: Final = 0.05
"""Relative error of a percentile that is still right."""


Ask = Callable[[int], tuple[float, float]]  # has an idle worker serve a request of so many steps


class Request(NamedTuple):
    """A request as it was: when it was sent, its latency, and the seconds from its dispatch to its answer."""

    sent_s: float
    latency_s: float
    held_s: float


def serve(service: str, steps: int) -> None:
    """Sleep, or draw an image on one thread."""
    if service == "sleep":
        time.sleep(steps * STEP_S)
    else:
        import torch  # noqa: PLC0415  takes seconds, and sleeping needs none

        from validate.running.model import draw  # noqa: PLC0415  as above

        torch.set_num_threads(1)
        draw.__wrapped__(Settings("sync-patch", steps=steps), steps)


def answered(pool: ProcessPoolExecutor, service: str, steps: int) -> tuple[float, float]:
    """Let an idle worker serve a request; return its dispatch and its answer on the clock of the client."""
    began = time.perf_counter()
    pool.submit(serve, service, steps).result()
    return began, time.perf_counter()


def measure(dispatcher: ThreadPoolExecutor, ask: Ask, jobs: list[Job]) -> list[Request]:
    """Send requests at their arrivals to a dispatcher; return them in the order of sending."""
    began, sent = time.perf_counter(), []
    for job in jobs:
        time.sleep(max(0.0, job.arrival_s - (time.perf_counter() - began)))
        sent.append((time.perf_counter(), dispatcher.submit(ask, job.shape.steps)))
    return [Request(at - began, (span := future.result())[1] - at, span[1] - span[0]) for at, future in sent]


def replayed(requests: list[Request], workers: int) -> list[float]:
    """Latencies of the same requests in simulation."""
    jobs = [
        Job(number, request.sent_s, Shape(number + 1, 1, 1, 1)) for number, request in enumerate(requests)
    ]
    setup = Plan((Pool((1,) * workers),), FirstComeFirstServed())
    done = Replay(setup, jobs, Law(lambda shape, _: requests[shape.height - 1].held_s)).run().jobs
    return [job.end_s - job.arrival_s for job in done]


def compare(service: str, requests: int, workers: int, loads: tuple[float, ...] = LOADS) -> list[list[str]]:
    """Measure and replay some requests at each load; a row for each."""
    processes = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))
    with processes as pool, ThreadPoolExecutor(workers) as dispatcher:
        ask, first = partial(answered, pool, service), list[Request]()
        for _ in range(2):  # the first requests start the workers and load torch
            first = measure(dispatcher, ask, list(Load(KINDS, 1e9, 20e-9).jobs()))
        rates = [load * workers / float(np.mean([request.held_s for request in first])) for load in loads]
        jobs = [
            list(islice(Load(KINDS, rate, 2 * requests / rate, seed=1).jobs(), requests)) for rate in rates
        ]
        measured = [measure(dispatcher, ask, sent) for sent in jobs]
    runs = zip(loads, measured, jobs, strict=True)
    return [[service, f"{load:g}", *_row(workers, requests, sent)] for load, requests, sent in runs]


def _row(workers: int, requests: list[Request], jobs: list[Job]) -> list[str]:
    latencies, simulated, cells = [request.latency_s for request in requests], replayed(requests, workers), []
    for percent in (50, 99):
        was, now = (float(np.percentile(latencies_s, percent)) for latencies_s in (latencies, simulated))
        cells += [f"{was:.3f}", f"{now:.3f}", signed(now / was - 1)]
    late = np.percentile(
        [request.sent_s - job.arrival_s for request, job in zip(requests, jobs, strict=True)], 99
    )
    held = [request.held_s for request in requests]
    return [f"{np.mean(held):.3f} ({min(held):.3f} to {max(held):.3f})", *cells, f"{1e3 * late:.1f}"]


def run_serve(options: argparse.Namespace) -> None:
    """Print what workers measured beside what the replay says."""
    check_least(("--requests", options.requests, 1), ("--workers", options.workers, 1))
    rows = [
        row for service in ("sleep", "torch") for row in compare(service, options.requests, options.workers)
    ]
    header = (
        "service", "load", "seconds of a request", "p50, s", "replay", "error", "p99, s", "replay", "error",
        "client late by, p99, ms",
    )  # fmt: skip
    errors = [float(row[at].rstrip("%")) / 100 for row in rows for at in (5, 8)]
    inside = sum(abs(error) <= NEAR for error in errors)
    where = f"{options.requests} requests to {options.workers} workers at each load"
    remark = f"{where}; {inside} of {len(errors)} percentiles within {NEAR:.0%}."
    print_sections([Section("Real workers behind a real queue", header, rows, remark)])
