"""The command ``serve``: requests to real worker processes behind a real queue, beside the replay of the same requests.

A client asks over HTTP on the loopback whether or not earlier answers are there; a server holds the queue and hands
each request to the worker that is idle the longest; workers sleep, or draw with a small transformer. The replay gets
the arrivals as they were, the client's own lateness included, and the seconds for which each request held its worker.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

import numpy as np

from profiles.errors import InputError
from sim.serving.fleet import Plan, Pool, Replay, Service
from sim.serving.load import Kind, Load
from strategies.policy import Job, Shape, Times
from strategies.serving.fcfs import FirstComeFirstServed
from validate.running.sampling.settings import Settings
from validate.tables import Section, print_sections, signed

SERVICES: Final = ("sleep", "torch")
LOADS: Final = (0.5, 0.7, 0.9)
STEPS: Final = (1, 2)
"""Denoising steps of the two kinds of requests, each as frequent."""
STEP_S: Final = 0.2
"""Seconds of a step that sleeps."""
NEAR: Final = 0.05
"""Relative error of a percentile that is still right."""
Answer = Callable[[int], Awaitable[float]]
"""Serves one request of so many steps; gives the seconds that it took."""


def work(service: str, pipe: Connection) -> None:
    """Be a worker: send the port, then serve one request after the other."""
    serve(service, STEPS[0])  # torch's first run is slow

    async def answer(steps: int) -> float:
        began = time.perf_counter()
        serve(service, steps)
        return time.perf_counter() - began

    async def stay() -> None:
        server, port = await listen(answer)
        pipe.send(port)
        async with server:
            await server.serve_forever()

    with suppress(KeyboardInterrupt):
        asyncio.run(stay())


def serve(service: str, steps: int) -> None:
    """Sleep, or draw an image on one thread."""
    if service == "sleep":
        time.sleep(steps * STEP_S)
        return
    import torch  # noqa: PLC0415  takes seconds, and sleeping needs none

    from validate.running.sampling.transformer import draw  # noqa: PLC0415  as above

    torch.set_num_threads(1)
    draw.__wrapped__(Settings("sync-patch", steps=steps), steps)


async def listen(answer: Answer) -> tuple[asyncio.Server, int]:
    """Serve HTTP on a free port of the loopback; the body is a number of steps, that of the answer seconds."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = f"{await answer(int(await reader.readline()))!r}\n"
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def post(port: int, steps: int) -> float:
    """Ask a port, and return the seconds that it answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = f"{steps}\n"
    writer.write(f"POST / HTTP/1.1\r\nHost: loopback\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    await reader.readuntil(b"\r\n\r\n")
    seconds = float(await reader.readline())
    writer.close()
    return seconds


class Asked(NamedTuple):
    """A request as it was: when it was sent, its latency, and the seconds for which it held its worker."""

    sent_s: float
    latency_s: float
    held_s: float


async def measure(ports: list[int], jobs: list[Job]) -> list[Asked]:
    """Send requests at their arrivals to a server in front of some workers; return them in the order of sending."""
    idle: asyncio.Queue[int] = asyncio.Queue()
    for port in ports:
        idle.put_nowait(port)

    async def answer(steps: int) -> float:
        port = await idle.get()
        held = time.perf_counter()
        await post(port, steps)
        idle.put_nowait(port)
        return time.perf_counter() - held

    async def ask(steps: int) -> Asked:
        sent = time.perf_counter()
        held_s = await post(port, steps)
        return Asked(sent - began, time.perf_counter() - sent, held_s)

    server, port = await listen(answer)
    began, asking = time.perf_counter(), []
    async with server:
        for job in jobs:
            await asyncio.sleep(max(0.0, job.arrival_s - (time.perf_counter() - began)))
            asking.append(asyncio.create_task(ask(job.shape.steps)))
        return sorted(await asyncio.gather(*asking))


@dataclass(frozen=True, slots=True)
class Recorded(Service):
    """Service times as they were measured, by the number of the request, which its shape holds."""

    asked: list[Asked]

    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Seconds of a request."""
        return Times(0.0, self.asked[shape.height - 1].held_s, 0.0)


def replayed(asked: list[Asked], workers: int) -> list[float]:
    """Latencies of the same requests in simulation."""
    jobs = [Job(number, of.sent_s, Shape(number + 1, 1, 1, 1)) for number, of in enumerate(asked)]
    setup = Plan((Pool((1,) * workers),), FirstComeFirstServed())
    done = Replay(setup, jobs, Recorded(asked)).run().jobs
    return [job.end_s - job.arrival_s for job in done]


def compare(service: str, requests: int, workers: int, loads: tuple[float, ...] = LOADS) -> list[list[str]]:
    """Measure and replay some requests at each load; a row for each."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(workers)]
    processes = [context.Process(target=work, args=(service, theirs), daemon=True) for _, theirs in pipes]
    for process in processes:
        process.start()
    try:
        ports = [int(ours.recv()) for ours, _ in pipes]
        kinds = tuple(Kind(0.5, Shape(64, 64, 1, steps)) for steps in STEPS)
        first = asyncio.run(measure(ports, list(Load(kinds, 1e9, 20e-9).jobs())))
        rates = [load * workers / float(np.mean([of.held_s for of in first])) for load in loads]
        jobs = [list(islice(Load(kinds, of, 2 * requests / of, seed=1).jobs(), requests)) for of in rates]
        return [[service, f"{load:g}", *_row(ports, of)] for load, of in zip(loads, jobs, strict=True)]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _row(ports: list[int], jobs: list[Job]) -> list[str]:
    asked = asyncio.run(measure(ports, jobs))
    latencies, simulated = [of.latency_s for of in asked], replayed(asked, len(ports))
    cells = []
    for percent in (50, 99):
        was, now = (float(np.percentile(of, percent)) for of in (latencies, simulated))
        cells += [f"{was:.3f}", f"{now:.3f}", signed(now / was - 1)]
    late = np.percentile([of.sent_s - job.arrival_s for of, job in zip(asked, jobs, strict=True)], 99)
    held = [of.held_s for of in asked]
    return [f"{np.mean(held):.3f} ({min(held):.3f} to {max(held):.3f})", *cells, f"{1e3 * late:.1f}"]


def run_serve(options: argparse.Namespace) -> None:
    """Print what workers measured beside what the replay says."""
    for name in ("requests", "workers"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name} is {getattr(options, name)}, must be at least 1")
    rows = [row for of in SERVICES for row in compare(of, options.requests, options.workers)]
    header = (
        "service", "load", "seconds of a request", "p50, s", "replay", "error", "p99, s", "replay", "error",
        "client late by, p99, ms",
    )  # fmt: skip
    errors = [float(row[at].rstrip("%")) / 100 for row in rows for at in (5, 8)]
    inside = sum(abs(error) <= NEAR for error in errors)
    where = f"{options.requests} requests to {options.workers} workers at each load"
    remark = f"{where}; {inside} of {len(errors)} percentiles within {NEAR:.0%}."
    print_sections([Section("Real workers behind a real queue", header, rows, remark)])
