"""The command ``serving``: MLPerf's Server runs, and published servers of other systems.

Latencies, mixes, batches and policies of the latter follow from simulated service times.

``systems.csv`` holds the published rows and, beside each, how it is asked, or why it is not: a ``latency`` is on all
GPUs, ``replicas`` draw on one GPU each, and a sampler's degrees stand beside it.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Final, NamedTuple

import numpy as np

from profiles.errors import InputError
from profiles.files import Row, read_rows
from profiles.software.levers import HALF
from sim import api
from sim.serving.fleet import Plan, Pool, Replay
from sim.serving.service import Simulated
from strategies.plans.workloads import WEIGHTS
from strategies.policy import Job, Shape
from strategies.serving.fcfs import FirstComeFirstServed
from validate.points import sampling
from validate.published.ledger import Ledger, coverage, line
from validate.published.records import TASKS, Conditions, Published, Record, Standing, kind_of, stack_of
from validate.published.rows import samplers_of
from validate.serving import mlperf
from validate.tables import Section, percent, print_sections

ROWS: Final = Path(__file__).with_name("systems.csv")
COLUMNS: Final = (
    "source", "url_or_repo_path", "kind", "model", "gpu", "gpus", "interconnect", "method", "degrees", "batch",
    "resolution", "frames", "steps", "guidance", "precision", "metric", "value", "unit", "note",
)  # fmt: skip
ASKED: Final = ("asked", "folder", "cluster", "sampler", "guided", "engine", "text_tokens", "standing", "why")
SHAPE: Final = ("height", "width", "run_frames", "run_steps")
"""Columns that say how a row is asked: what, where, by which sampler or policy, or why it is not; and its shape."""
MIXES: Final = {
    "qwen-image": {
        Shape(512, 512, 1, 20): 0.15, Shape(768, 768, 1, 20): 0.25, Shape(1024, 1024, 1, 25): 0.45,
        Shape(1536, 1536, 1, 35): 0.15,
    },
    "wan2.2-t2v-a14b": {
        Shape(480, 854, 81, 3): 0.15, Shape(480, 854, 121, 4): 0.25, Shape(720, 1280, 81, 6): 0.6,
    },
}  # fmt: skip
"""Shape and share of each class of mix C of vLLM-Omni's dashboards (performance_dashboard, section 5.1)."""
CLIENTS: Final = 8
PROMPTS: Final = 100
UNSAID: Final = 10
SEED: Final = 42
"""Prompts by default, and the seed of their classes (vLLM-Omni 0.20.0, diffusion_benchmark_serving.py). Ten Wan videos
so drawn leave 47 s for the class of which no latency is printed, beside 25 and 125 s of the others."""
SERIAL: Final = {"makespan": 2143.4, "mean latency": 157.6, "p95 of latency": 253.87}
"""Published seconds of those prompts."""
DRAWS: Final = 100
"""Seeds around SEED, from 0, for the range beside it."""


class Place(NamedTuple):
    """Where a row ran: one replica of so many GPUs, of which some share the decoder."""

    folder: str
    cluster: str
    gpus: int
    sampler: str
    guidance: str
    engine: str
    decoders: int
    precision: str = HALF
    text_tokens: int | None = None
    weights: str = WEIGHTS[0]


@cache
def service(place: Place) -> Simulated:
    """Service times of a replica, encoders and decoder included."""
    scenario = sampling(
        place.folder, place.cluster, place.gpus, (1024, 1024), 20, stack=stack_of(place.engine),
        guidance=place.guidance, include=("all",), vae_parallel=place.decoders, precision=place.precision,
        text_tokens=place.text_tokens, weights=place.weights,
    )  # fmt: skip
    (sampler,) = samplers_of(place.sampler, scenario)
    return Simulated(scenario, {place.gpus: sampler})


def mix(folder: str, prompts: int, seed: int = SEED) -> list[Shape]:
    """Shapes of so many prompts of a model's mix, as vLLM-Omni's benchmark draws them."""
    shares = MIXES[folder]
    return Random(seed).choices(list(shares), list(shares.values()), k=prompts)


@cache
def drawn(place: Place) -> np.ndarray:
    """Makespan, mean and p95 in seconds of a hundred prompts of the mix from eight clients, a row for each seed."""
    setup, rows = Plan((Pool((1,)),), FirstComeFirstServed()), []
    for seed in range(DRAWS):
        jobs = [Job(number, 0.0, shape) for number, shape in enumerate(mix(place.folder, PROMPTS, seed))]
        log = Replay(setup, iter(jobs), service(place), clients=CLIENTS).run()
        latencies = [job.end_s - job.arrival_s for job in log.jobs]
        rows.append((log.end_s, float(np.mean(latencies)), float(np.percentile(latencies, 95))))
    return np.array(rows)


@cache
def attainment(place: Place, name: str) -> float:
    """Share of TetriServe's 300 requests, 12 a minute, that hold their SLO under a policy."""
    where = place.folder, place.cluster, place.gpus
    found = api.serve(*where, policy=place.sampler, mix=f"tetriserve-{name}", rate=0.2, duration=1500)
    return found.best.attainment or 0.0


class Served:
    """A published row and how it is asked."""

    def __init__(self, row: Row) -> None:
        asked, folder, cluster, self.sampler, guided, engine, text, self.standing, self.why = row.cells(ASKED)
        degrees, size, steps, precision, note = row.cells(
            ("degrees", "resolution", "steps", "precision", "note")
        )
        self.what, *self.more = asked.split() or [""]
        gpus, self.batch = int(row.number("gpus")), row.integer("batch", 1)
        self.replicas = gpus if self.what == "replicas" else 1
        each, decoders = gpus // self.replicas, row.integer("decoders", 1)
        where = folder, cluster, each, self.sampler, guided, engine, decoders, precision or HALF
        self.place = Place(*where, int(text) if text else None, WEIGHTS["HSDP" in degrees])
        self.published = Published(
            TASKS[1], row.text("source"), f"{row.text('method')} {degrees}".strip(), row.text("model"), row.text("gpu"),
            gpus, self.sampler or row.text("method"), self.batch, row.text("quantity"), row.number("value"), note,
            resolution_px=size, steps=steps,
        )  # fmt: skip
        height, width, frames, steps_run = (row.integer(name, 1) for name in SHAPE)
        self.shape = Shape(height, width, frames, steps_run)

    def run_s(self, shape: Shape, batch: int = 1) -> float:
        """Seconds of a batch; they count where memory does not suffice by the prediction, too."""
        return service(self.place).result(self.place.gpus, shape, batch).latency_s

    def predicted(self) -> float:  # noqa: PLR0911  a case each
        """The number."""
        match self.what:
            case "latency":
                return self.run_s(self.shape)
            case "replicas":
                return self.replicas / self.run_s(self.shape)
            case "mix":
                return fmean(map(self.run_s, mix(self.place.folder, UNSAID)))
            case "makespan" | "mean":
                return float(drawn(self.place)[SEED, int(self.what == "mean")])
            case "step":
                return service(self.place).times(self.place.gpus, self.shape, self.batch).step_s
            case "capacity":
                return self.batch / self.run_s(self.shape, self.batch)
            case "curve":
                return self.run_s(self.shape, self.batch) / self.run_s(self.shape)
            case _:
                return attainment(self.place, self.more[0])

    def record(self, first: Mapping[str, float]) -> Record:
        """Its record; ``first`` has the latencies of one image by model."""
        if not self.what:
            return Record(self.published, None, Standing.UNCOVERED, self.why)
        row, predicted, why = self.published, self.predicted(), self.why
        if self.what == "curve":
            row = replace(row, value=row.value / first[row.model])
        if self.what == "capacity":
            why = f"a bound, which {'holds' if predicted >= row.value else 'does not hold'}"
        where, conditions = f"policy {self.sampler}", None
        if self.what != "attainment":
            times = service(self.place)
            result = times.result(self.place.gpus, self.shape, self.batch)
            lacking = "" if result.fits_memory else "; memory does not suffice"
            kind = kind_of(self.sampler.split()[0], self.place.gpus)
            where = f"{self.sampler}, stack {result.stack}{lacking}"
            conditions = Conditions(times.scenario.cluster.device.name, result.stack, kind)
        standing = Standing(self.standing or Standing.INDEPENDENT)
        return Record(row, predicted, standing, why, where, conditions=conditions)


@cache
def served() -> tuple[Served, ...]:
    """The published rows."""
    return tuple(map(Served, read_rows(ROWS, (*COLUMNS, "quantity", "decoders", *ASKED, *SHAPE))))


def served_records() -> list[Record]:
    """The record of each row."""
    first = {of.published.model: of.published.value for of in reversed(served()) if of.batch == 1}
    return [of.record(first) for of in served()]


def records() -> Iterator[Record]:
    """The record of every published number of serving."""
    return chain(mlperf.records(), served_records())


def sections() -> Iterator[Section]:
    """The rows beside their predictions, and the draws of the mix."""
    yield coverage(served_records())
    (serial,) = (of.place for of in served() if of.what == "makespan")
    rows = [
        [name, f"{was:,.1f}", f"{of[SEED]:,.1f}", f"{of.min():,.1f} to {of.max():,.1f}"]
        for (name, was), of in zip(SERIAL.items(), drawn(serial).T, strict=True)
    ]
    draws = ("seconds", "published", "as drawn", f"{DRAWS} draws")
    yield Section("Qwen-Image, one A100, 100 prompts, 8 clients", draws, rows)


GROUPS: Final = ("MLPerf Server, Stable Diffusion XL", "Servers under load")
"""Sources of serving, in the words of ``sources.csv``."""


def run_serving(options: argparse.Namespace) -> None:
    """Print all rows beside what is simulated, or the errors around the constants of a batch."""
    if options.draws < 1:
        raise InputError(f"--draws is {options.draws}, must be at least 1")
    runs = list(mlperf.read_runs(options.data or mlperf.RUNS))
    if options.fit:
        print_sections([mlperf.fits(runs)])
        return
    print_sections(mlperf.sections([run for run in runs if not run.gpu.startswith("TPU")], options.draws))
    if options.data is None:
        print_sections(sections())


def tables(ledger: Ledger) -> list[Section]:
    """Errors of MLPerf's percentiles by load, and the other servers of a ledger."""
    runs, others = ([one for one in ledger.records if one.row.group == group] for group in GROUPS)
    rows = []
    for low, high in ((0.0, mlperf.HIGH), (mlperf.HIGH, 2.0)):
        errors = [
            abs(one.error)
            for one in runs
            if one.error is not None and low <= float(one.setting.split()[1]) < high
        ]
        where = f"load {low:g} to {high:g} of Offline"
        rows.append([where, f"{len(errors)}", percent(median(errors)) if errors else "-"])
    kinds = Section("MLPerf Server", ("p50, p90 and p99", "how many", "median error"), rows)
    header = ("where", "number", "published", "simulated", "error", "setting")
    rows = [line(one) for one in others if one.predicted is not None]
    return [kinds, Section("Servers", header, rows)]
