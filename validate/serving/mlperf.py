"""MLPerf Inference, Stable Diffusion XL: Server runs predicted from the same system's Offline rate.

One batcher and one queue for all GPUs of a system. A batch starts when it holds 8 images or its first has waited for
the limit, and goes to the GPU that is idle the longest; L40S run batches of 1. Constants are those that fit all
systems at once (``python -m validate serving --fit`` prints the errors around them); a queue and a batcher for each
GPU would err by 15 % where these err by 2 %.

Arrivals are LoadGen's own: a Poisson process whose seed is the same for all submitters of a round, so that a run can be
predicted with the arrivals it had. The seed reproduces the printed rate of arrivals of every run.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from profiles.errors import InputError
from profiles.files import Row, read_rows
from sim.serving.fleet import Plan, Pool, Replay, Service
from sim.serving.options import Kind, Load, Trace
from strategies.policy import Shape, Times
from strategies.serving.batcher import Batcher
from validate.published.records import TASKS, Published, Record, Standing
from validate.tables import Section, percent, signed

RUNS: Final = Path(__file__).with_name("mlperf.csv")
COLUMNS: Final = (
    "version", "source", "system", "gpu", "gpus", "host_interconnect", "software", "scenario", "samples_per_s",
    "completed_per_s", "scheduled_per_s", "target_per_s", "mean_s", "min_s", "p50_s", "p90_s", "p99_s", "valid",
    "min_duration_s",
)  # fmt: skip
PERCENTS: Final = (50, 90, 99)
SEEDS: Final = {"v4.1": 14962580496156340209}
"""LoadGen's ``schedule_rng_seed`` by round (mlperf.conf, as compiled into mlcommons-loadgen 4.1.25)."""
LEAST_QUERIES: Final = 5000
"""Queries of systems that ask for one pass over the data set at least, which the printed rate of arrivals shows."""
MOST: Final = 8
"""Images of a full batch."""
FIXED: Final = 0.033
"""Share of the seconds of a full batch that a batch of any size takes; each image takes an eighth of the rest.

The shortest request of HPE's H100-NVL, a run that is not judged, took 0.154 of a full batch: a batch of one image.
The others, whose batches are full, do not tell 0 from 0.066.
"""
SLOWER: Final = 1.016
"""Seconds of a batch under Server over those under Offline, by which the median error at high load is near zero.

By system 0.99 to 1.03 with its own arrivals: 1.02 of most H100 and H200 SXM, 1.00 of H100 PCIe, NVL and L40S.
"""
NODE: Final = 8
LIMITS_S: Final = (3.0, 5.0)
"""Seconds that the first of a batch waits, on fewer than 8 GPUs and on 8 (the submitters' configurations)."""
HIGH: Final = 0.9
"""Load over the Offline rate from which on chance decides."""
SPREAD: Final = 0.02
"""Share by which the service rate of a draw may differ either way."""
KINDS: Final = (Kind(1.0, Shape(1024, 1024, 1, 1)),)


@dataclass(frozen=True, slots=True)
class Law(Service):
    """Seconds of a batch of a shape by a law, whatever the GPUs."""

    seconds: Callable[[Shape, int], float]

    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Return the seconds of a batch."""
        return Times(0.0, self.seconds(shape, batch), 0.0)


class ServerRun(NamedTuple):
    """A Server run, with the samples a second of the same system's Offline run before it."""

    version: str
    system: str
    gpu: str
    gpus: int
    offline_per_s: float
    target_per_s: float
    scheduled_per_s: float
    least_s: float
    measured_s: tuple[float, ...]

    @property
    def load(self) -> float:
        """Rate of arrivals over the Offline rate."""
        return self.target_per_s / self.offline_per_s

    @property
    def apart(self) -> str:
        """Why it is not judged; empty where it is."""
        if self.gpu.startswith("TPU"):
            return "another program, whose batcher is not known"
        return "deliberately below capacity" if self.system.startswith("HPE_ProLiant_DL380a_H100_NVL") else ""

    def arrived(self) -> Load | None:
        """The requests as LoadGen scheduled them; None of a round whose seed is not known.

        Gaps are those that C++'s ``exponential_distribution`` draws from ``mt19937``.
        """
        if self.version not in SEEDS:
            return None
        words = np.random.RandomState(SEEDS[self.version] % 2**32).randint(0, 2**32, 60_000, np.uint32)
        gaps = -np.log1p(-(words[::2] + words[1::2] * 2.0**32) / 2.0**64)
        arrivals = np.cumsum(gaps) / self.target_per_s
        counts = int(np.searchsorted(arrivals, self.least_s)) + 1, LEAST_QUERIES
        count = min(counts, key=lambda count: abs(count / arrivals[count - 1] - self.scheduled_per_s))
        trace = Trace(tuple(arrivals[:count].tolist()), (0,) * count)
        return Load(KINDS, trace.rate_per_s, trace.arrival_s[-1], trace=trace)

    def percentiles_s(
        self, load: Load, slower: float = SLOWER, fixed: float = FIXED, dispatch: str = "shared"
    ) -> np.ndarray:
        """Predicted p50, p90 and p99 under some requests."""
        most = 1 if "L40S" in self.gpu else MOST
        full_s = slower * self.gpus * most / self.offline_per_s
        engine = Law(lambda _, batch: full_s * (fixed + (1 - fixed) * batch / most))
        limit_s = LIMITS_S[self.gpus >= NODE] if most > 1 else 0.0
        setup = Plan((Pool((1,) * self.gpus),), Batcher(), dispatch, most, limit_s)
        done = Replay(setup, load.jobs(), engine).run().jobs
        return np.percentile([job.end_s - job.arrival_s for job in done], PERCENTS)

    def predicted(self, draws: int) -> tuple[np.ndarray, np.ndarray]:
        """Percentiles under the arrivals that it had, else the median draw; and those of each draw."""
        arrived = self.arrived()
        lasted_s = max(self.least_s, arrived.duration_s if arrived else 0.0)
        factors = np.random.default_rng(0).uniform(1 - SPREAD, 1 + SPREAD, draws)
        loads = (Load(KINDS, self.target_per_s, lasted_s, seed=1 + draw) for draw in range(draws))
        pairs = zip(loads, factors, strict=True)
        drawn = np.array([self.percentiles_s(load, SLOWER / factor) for load, factor in pairs])
        return self.percentiles_s(arrived) if arrived else np.median(drawn, axis=0), drawn


def read_runs(path: Path = RUNS) -> Iterator[ServerRun]:
    """The Server runs of a file, each after its Offline run."""
    offline: Row | None = None
    for row in read_rows(path, COLUMNS):
        if row.text("scenario") == "Offline":
            offline = row
        elif row.text("scenario") == "Server":
            if offline is None or offline.text("system") != row.text("system"):
                raise InputError(f"{row.where}: the Offline row of its system must stand before it")
            names = (
                "target_per_s",
                "scheduled_per_s",
                "min_duration_s",
                *(f"p{percent}_s" for percent in PERCENTS),
            )
            target, scheduled, least_s, *measured = map(row.number, names)
            version, system, gpu = map(row.text, ("version", "system", "gpu"))
            rates = offline.number("samples_per_s"), target, scheduled
            yield ServerRun(version, system, gpu, row.integer("gpus", 1), *rates, least_s, tuple(measured))


def records() -> Iterator[Record]:
    """The record of each percentile, under the arrivals that the run had."""
    for run in read_runs():
        load, how = run.arrived(), "one at a time" if "L40S" in run.gpu else "batches of 8"
        assert load is not None
        predicted = None if run.gpu.startswith("TPU") else run.percentiles_s(load)
        standing = Standing.APART if run.apart else Standing.IN_VIEW
        why = run.apart or "the batcher and the curve of a batch were found from these runs"
        for number, percentage in enumerate(PERCENTS):
            row = Published(
                TASKS[1], f"MLPerf Inference {run.version}", run.system, "Stable Diffusion XL", run.gpu, run.gpus, how,
                None, f"p{percentage}_s", run.measured_s[number], f"Server, {run.target_per_s:g}/s",
                resolution_px="1024", steps="20",
            )  # fmt: skip
            if predicted is None:
                yield Record(row, None, Standing.UNCOVERED, why)
            else:
                yield Record(row, float(predicted[number]), standing, why, f"load {run.load:.2f} of Offline")


def sections(runs: Sequence[ServerRun], draws: int, workers: int = 2) -> Iterator[Section]:
    """The runs, and what they say together."""
    header = (
        "system",
        "load",
        *(f"p{percent}, s: measured, predicted, 80 % of draws" for percent in PERCENTS),
    )
    rows, judged = [], list[tuple[bool, float, bool]]()
    with ProcessPoolExecutor(workers) as executor:
        for run, (predicted, drawn) in zip(
            runs, executor.map(partial(ServerRun.predicted, draws=draws), runs), strict=True
        ):
            ends = np.percentile(drawn, (10, 90), axis=0)
            cells = list(zip(run.measured_s, predicted, *ends, strict=True))
            row = [f"{was:.2f} {now:.2f} ({low:.1f} to {high:.1f})" for was, now, low, high in cells]
            rows.append([f"{run.system}, {run.gpus} {run.gpu}", f"{run.load:.2f}", *row])
            for was, now, low, high in cells if not run.apart else ():
                judged.append((run.load >= HIGH, abs(now / was - 1), low <= was <= high))
    remark = (
        "Predicted under the arrivals that the run had, where its seed is known, else by the median draw."
    )
    yield Section("MLPerf Server, Stable Diffusion XL, from Offline rates", header, rows, remark)
    rows = []
    for name, high in ((f"load below {HIGH}", False), (f"load from {HIGH}", True)):
        if not (pairs := [(error, inside) for name, error, inside in judged if name == high]):
            continue
        errors, inside = zip(*pairs, strict=True)
        numbers = f"{sum(inside)} of {len(inside)}, {percent(sum(inside) / len(inside))}"
        rows.append([name, percent(median(errors)), numbers])
    header = ("", "median error of p50, p90 and p99", "inside the 80 % interval")
    yield Section("MLPerf Server: errors", header, rows)


def fits(runs: Sequence[ServerRun]) -> Section:
    """Median errors of the percentiles, by the constants around the shipped ones."""
    rows = []
    curves = [(slowdown, FIXED, "shared") for slowdown in (1.0, 1.01, SLOWER, 1.02)]
    curves += [(SLOWER, fixed_s, "shared") for fixed_s in (0.0, 2 * FIXED)] + [(SLOWER, FIXED, "round-robin")]
    for slower, fixed, dispatch in curves:
        errors: dict[bool, list[float]] = {False: [], True: []}
        for run in runs:
            if not run.apart and (load := run.arrived()) is not None:
                relative = run.percentiles_s(load, slower, fixed, dispatch) / np.array(run.measured_s) - 1
                errors[run.load >= HIGH] += relative.tolist()
        cells = [percent(median(map(abs, misses))) for misses in errors.values()]
        rows.append([f"{fixed:g}", f"{slower:g}", dispatch, *cells, signed(median(errors[True]))])
    loads = f"load below {HIGH}", f"load from {HIGH}"
    header = ("fixed share", "slower by", "queues and batchers", *loads, "signed")
    return Section("MLPerf Server: median errors by the curve of a batch", header, rows)
