"""Service times: how long a batch of a shape takes on so many GPUs, by the simulator or as somebody measured."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from profiles.errors import InfeasibleError, InputError, counted
from profiles.files import read_rows
from profiles.mappings import FrozenMapping
from sim.explore.legality import within
from sim.explore.points import find_points
from sim.explore.search import run_sweep
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.outcomes.runs import run_point
from strategies.policy import Shape, Times
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Sampler

COLUMNS: Final = ("height", "width", "frames", "steps", "gpus", "batch", "seconds")
"""Columns of a table of service times."""


@dataclass(slots=True)
class Simulated:
    """Service times from the simulator; each is found once.

    Attributes:
        scenario: model, cluster and workload; requests change its shape, replicas its GPUs.
        samplers: the sampler of replicas of so many GPUs.
        scale: factor on all seconds: 1, or an end of the band.
    """

    scenario: SamplingScenario
    samplers: Mapping[int, Sampler]
    scale: float = 1.0
    known: dict[tuple[int, Shape, int], Times] = field(default_factory=dict)
    results: dict[tuple[int, Shape, int], Result] = field(default_factory=dict)

    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Seconds of a batch on so many GPUs.

        Raises:
            InfeasibleError: it does not fit, or the sampler cannot divide it.
        """
        times = self.known.get((gpus, shape, batch))
        if times is None:
            times = self.known[gpus, shape, batch] = self._times(gpus, shape, batch)
        return times

    def _times(self, gpus: int, shape: Shape, batch: int) -> Times:
        result = self.result(gpus, shape, batch)
        if result.missing_memory:
            where = f"batch {batch} of {shape.words} on {counted(gpus, 'GPU')}"
            raise InfeasibleError(f"{where} {result.missing_memory}")
        parts = result.phases or {"denoise_s": result.latency_s}
        encode_s, denoise_s, decode_s = (
            self.scale * parts.get(f"{part}_s", 0.0) for part in ("encode", "denoise", "decode")
        )
        return Times(encode_s, denoise_s / shape.steps, decode_s)

    def result(self, gpus: int, shape: Shape, batch: int = 1) -> Result:
        """The simulated run of a batch."""
        key = gpus, shape, batch
        if key not in self.results:
            self.results[key] = run_point(self.samplers[gpus], at_shape(self.scenario, shape, gpus, batch))
        return self.results[key]

    def handover_s(self, gpus: int, shape: Shape) -> float:
        """Seconds in which the latents of a request reach other GPUs of its node."""
        scene, link = at_shape(self.scenario, shape, 1, 1), self.scenario.cluster.intra_node
        return scene.latent_bytes / link.bandwidth_bytes_per_s + link.latency_s

    def has_batches(self, most: int) -> bool:
        """Whether batches up to a size are known."""
        return True

    def scaled(self, factor: float) -> "Simulated":
        """The same where everything takes so many times as long."""
        return Simulated(self.scenario, self.samplers, factor * self.scale, {}, self.results)


@dataclass(frozen=True, slots=True)
class Tabled:
    """Service times as they were measured: seconds of a batch by shape, GPUs and requests."""

    rows: Mapping[tuple[int, Shape, int], float]
    source: str
    scale: float = 1.0

    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Seconds of a batch on so many GPUs, spread over its steps.

        Raises:
            InputError: the table has no such row.
        """
        plain = shape._replace(guidance="")
        seconds = self.rows.get((gpus, plain, batch))
        if seconds is None:
            key = f"height {shape.height}, width {shape.width}, frames {shape.frames}, steps {shape.steps}"
            raise InputError(f"{self.source}: has no row of {key}, gpus {gpus}, batch {batch}")
        return Times(0.0, self.scale * seconds / shape.steps, 0.0)

    def handover_s(self, gpus: int, shape: Shape) -> float:
        """No seconds: the table holds none."""
        return 0.0

    def has_batches(self, most: int) -> bool:
        """Whether batches up to a size are known, of whatever shape and on whatever GPUs."""
        cases = {(gpus, shape) for gpus, shape, _ in self.rows}
        return all((*case, batch) in self.rows for case in cases for batch in range(1, most + 1))

    def scaled(self, factor: float) -> "Tabled":
        """The same where everything takes so many times as long."""
        return replace(self, scale=self.scale * factor)

    @property
    def degrees(self) -> list[int]:
        """Numbers of GPUs of its rows."""
        return sorted({gpus for gpus, _, _ in self.rows})


AnyService = Simulated | Tabled


def read_service(path: Path) -> Tabled:
    """Return the service times of a table.

    Raises:
        InputError: the file cannot be read, or a value breaks its rule.
    """
    rows: dict[tuple[int, Shape, int], float] = {}
    for row in read_rows(path, COLUMNS):
        height, width, frames, steps, gpus, batch = (row.integer(name, minimum=1) for name in COLUMNS[:-1])
        key = gpus, Shape(height, width, frames, steps), batch
        if key in rows:
            raise InputError(f"{row.where}: a row of the same shape, gpus and batch stands above")
        rows[key] = row.positive("seconds")
    if not rows:
        raise InputError(f"{path}: has no rows")
    return Tabled(rows, str(path))


def at_shape(scenario: SamplingScenario, shape: Shape, gpus: int, batch: int) -> SamplingScenario:
    """Return a scenario of a batch of a shape on so many GPUs."""
    workload = scenario.on(gpus).workload
    options: dict[str, Any] = {"height": shape.height, "width": shape.width, "steps": shape.steps}
    if shape.guidance:
        options["guidance"] = shape.guidance
    if shape.frames != frames_of(scenario):
        options["frames"] = shape.frames
    return scenario.under(replace(workload, batch_size=batch, **options))


def frames_of(scenario: SamplingScenario) -> int:
    """Return the frames of what a scenario draws."""
    return scenario.workload.frames or scenario.model.frames


@dataclass(frozen=True, slots=True)
class Asked:
    """A scenario of sampling, the samplers to look at, all without names, what is held fixed, and a runtime."""

    scenario: SamplingScenario
    names: tuple[str, ...] | None = None
    held: Mapping[str, Any] = field(default_factory=FrozenMapping)
    runtime: str | None = None


def best_sampler(asked: Asked, shape: Shape, gpus: int) -> Result | None:
    """Return the fastest point that runs one request of a shape on exactly so many GPUs; None where none does.

    The image is the one that a single GPU draws, unless samplers are named.
    """
    there = at_shape(asked.scenario, shape, gpus, 1)
    points = within(asked.runtime, find_points(there, asked.names, asked.held), there)
    sweep = Sweep(there, "latency", top=1, held=asked.held, runtime=asked.runtime)
    sweep.points = [
        point
        for point in points
        if isinstance(point.strategy, Sampler)
        and point.num_gpus == gpus
        and (asked.names is not None or not point.strategy.approximation(there))
    ]
    if sweep.points:
        run_sweep(sweep, workers=1)
    best = sweep.best_point()
    return None if best is None else sweep.result_of(best)
