"""The command ``serving``: MLPerf's Server runs, and published servers of other systems.

Latencies, mixes, batches and policies of the latter follow from simulated service times.

``systems.csv`` holds the published rows and, beside each, how it is asked, or why it is not: a ``latency`` is on all
GPUs, ``replicas`` draw on one GPU each, and a sampler's degrees stand beside it.
"""

import argparse
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from statistics import fmean, median
from typing import Final, NamedTuple

import numpy as np

from profiles.files import read_text
from profiles.measuring.launching import check_least
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
from validate.published.runs import samplers_of
from validate.serving import mlperf
from validate.tables import Section, percent, print_sections, read_cells

ROWS: Final = Path(__file__).with_name("systems.csv")
SHAPE: Final = ("height", "width", "run_frames", "run_steps")
"""Columns of the shape that is simulated."""
MIXES: Final = tomllib.loads(read_text(ROWS.with_name("mixes.toml")))
"""Height, width, frames, steps and share of the classes of requests, by model."""
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
    shapes, shares = zip(*((Shape(*shape), share) for *shape, share in MIXES[folder]), strict=True)
    return Random(seed).choices(shapes, shares, k=prompts)


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
    result = api.serve(*where, policy=place.sampler, mix=f"tetriserve-{name}", rate=0.2, duration=1500)
    return result.best.attainment or 0.0


class Served:
    """A published row and how it is asked."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self.what, *self.more = row["asked"].split() or [""]
        whole = {key: int(float(row[key] or 1)) for key in ("gpus", "batch", "decoders", *SHAPE)}
        height, width, frames, steps = (whole[key] for key in SHAPE)
        self.shape, self.batch = Shape(height, width, frames, steps), whole["batch"]
        self.replicas = whole["gpus"] if self.what == "replicas" else 1
        where = row["folder"], row["cluster"], whole["gpus"] // self.replicas, row["sampler"], row["guided"]
        text_tokens = int(row["text_tokens"]) if row["text_tokens"] else None
        how = row["engine"], whole["decoders"], row["precision"] or HALF, text_tokens
        self.place = Place(*where, *how, WEIGHTS["HSDP" in row["degrees"]])
        self.published = Published(
            TASKS[1], row["source"], f"{row['method']} {row['degrees']}".strip(), row["model"], row["gpu"],
            whole["gpus"], row["sampler"] or row["method"], self.batch, row["quantity"], float(row["value"]),
            row["note"], resolution_px=row["resolution"], steps=row["steps"],
            standing=Standing(row["standing"] or Standing.INDEPENDENT), why=row["why"],
        )  # fmt: skip

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
        row, sampler, why = self.published, self.place.sampler, self.published.why
        if not self.what:
            return Record(row, None, Standing.UNCOVERED, why)
        predicted = self.predicted()
        if self.what == "curve":
            row = replace(row, value=row.value / first[row.model])
        if self.what == "capacity":
            why = f"a bound, which {'holds' if predicted >= row.value else 'does not hold'}"
        where, conditions = f"policy {sampler}", None
        if self.what != "attainment":
            times = service(self.place)
            result = times.result(self.place.gpus, self.shape, self.batch)
            lacking = "" if result.fits_memory else "; memory does not suffice"
            kind = kind_of(sampler.split()[0], self.place.gpus)
            where = f"{sampler}, stack {result.stack}{lacking}"
            conditions = Conditions(times.scenario.cluster.device.name, result.stack, kind)
        return Record(row, predicted, row.standing, why, where, conditions=conditions)


@cache
def served() -> tuple[Served, ...]:
    """The published rows."""
    return tuple(map(Served, read_cells(ROWS)))


def served_records() -> list[Record]:
    """The record of each row."""
    first = {row.published.model: row.published.value for row in reversed(served()) if row.batch == 1}
    return [row.record(first) for row in served()]


def sections() -> Iterator[Section]:
    """The rows beside their predictions, and the draws of the mix."""
    yield coverage(served_records())
    (serial,) = (row.place for row in served() if row.what == "makespan")
    rows = [
        [name, f"{was:,.1f}", f"{values[SEED]:,.1f}", f"{values.min():,.1f} to {values.max():,.1f}"]
        for (name, was), values in zip(SERIAL.items(), drawn(serial).T, strict=True)
    ]
    draws = ("seconds", "published", "as drawn", f"{DRAWS} draws")
    yield Section("Qwen-Image, one A100, 100 prompts, 8 clients", draws, rows)


GROUPS: Final = ("MLPerf Server, Stable Diffusion XL", "Servers under load")
"""Sources of serving, in the words of ``sources.csv``."""


def run_serving(options: argparse.Namespace) -> None:
    """Print all rows beside what is simulated, or the errors around the constants of a batch."""
    check_least(("--draws", options.draws, 1))
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
    loads = [(float(one.setting.split()[1]), abs(one.error)) for one in runs if one.error is not None]
    rows = []
    for low, high in ((0.0, mlperf.HIGH), (mlperf.HIGH, 2.0)):
        errors = [error for load, error in loads if low <= load < high]
        where = f"load {low:g} to {high:g} of Offline"
        rows.append([where, f"{len(errors)}", percent(median(errors)) if errors else "-"])
    kinds = Section("MLPerf Server", ("p50, p90 and p99", "how many", "median error"), rows)
    header = ("where", "number", "published", "simulated", "error", "setting")
    rows = [line(one) for one in others if one.predicted is not None]
    return [kinds, Section("Servers", header, rows)]
