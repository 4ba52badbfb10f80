"""Service times: how long a batch of a shape takes on so many GPUs, by the simulator or as somebody measured."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, Final, Self, cast

from profiles.costs.bands import Band
from profiles.errors import InfeasibleError, InputError, counted
from profiles.files import read_rows
from profiles.mappings import FrozenMapping
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from profiles.software.reserved import room_bytes
from sim.explore.legality import swept_points
from sim.explore.search import run_sweep
from sim.explore.sweep import Sweep, is_exact
from sim.outcomes.results import Result, missing_memory
from sim.outcomes.runs import run_point
from sim.serving.fleet import Service
from sim.serving.options import MOST_BATCH
from strategies.policy import PARTS, Shape, Times
from strategies.registry import make
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import AnyStrategy

COLUMNS: Final = ("height", "width", "frames", "steps", "gpus", "batch", "seconds")
"""Columns of a table of service times."""
Batch = tuple[int, Shape, int]
"""GPUs of a replica, and the shape and number of the requests that it runs together."""


@dataclass(eq=False)
class Site(Service):
    """Service times of replicas of which plans can be made.

    Attributes:
        name: of the cluster; empty of a table.
        samplers: of a replica, by its GPUs, ascending; None of a table.
        fastest: a request alone on each replica, simulated; none of a table.
        price: dollars a GPU-hour.
        runtime: the one that must run its replicas, where one is named.
        impossible: what cannot be, in words, as it was found.
        results: of batches that were simulated.
        scale: factor on all seconds of a batch.
        most_batch: requests up to which all batches are known.
    """

    name: str
    per_node: int
    samplers: dict[int, AnyStrategy | None]
    fastest: dict[int, Result] = field(default_factory=dict)
    price: float | None = None
    runtime: str | None = None
    impossible: dict[str, None] = field(default_factory=dict)
    results: dict[Batch, Result] = field(default_factory=dict)
    scale: float = 1.0
    known: dict[Batch, Times] = field(default_factory=dict)
    most_batch: int = MOST_BATCH

    @abstractmethod
    def unscaled(self, gpus: int, shape: Shape, batch: int) -> Times:
        """Return the seconds of a batch on so many GPUs, whatever the scale."""

    def times(self, gpus: int, shape: Shape, batch: int = 1) -> Times:
        """Return the seconds of a batch on so many GPUs.

        Raises:
            InfeasibleError: it does not fit, or the sampler cannot divide it.
        """
        times = self.known.get((gpus, shape, batch))
        if times is None:
            times = self.unscaled(gpus, shape, batch).only(PARTS, self.scale)
            self.known[gpus, shape, batch] = times
        return times

    def scaled(self, factor: float) -> Self:
        """Return the site where every batch takes so many times as long."""
        one = copy(self)
        one.scale, one.known = self.scale * factor, {}
        return one

    def band(self, gpus: int) -> Band:
        """Return the factors on the seconds of a replica between which eight of ten measured ones lie."""
        return self.fastest[gpus].uncertainty.band if gpus in self.fastest else Band()

    def run_s(self, gpus: int, shape: Shape) -> float:
        """Return the seconds of a request alone on so many GPUs; infinite where it does not fit."""
        try:
            return self.times(gpus, shape).run_s(shape)
        except InfeasibleError:
            return inf

    def alone_s(self, shape: Shape) -> float:
        """Return the seconds of a request alone on the fewest GPUs on which it fits; infinite where there are none."""
        return next((seconds for gpus in self.samplers if (seconds := self.run_s(gpus, shape)) < inf), inf)


class Simulated(Site):
    """Service times from the simulator; each is found once.

    Args:
        scenario: model, cluster and workload; requests change its shape, replicas its GPUs.
        samplers: of replicas by their GPUs, where they are known.
        names: of the samplers to choose from; all without them.
        held: parameters that samplers keep to.
        runtime: the one that must run them, where one is named.
    """

    def __init__(
        self,
        scenario: SamplingScenario,
        samplers: Mapping[int, AnyStrategy | None] = FrozenMapping(),
        names: Sequence[str] | None = None,
        held: Mapping[str, Any] = FrozenMapping(),
        runtime: str | None = None,
    ) -> None:
        cluster = scenario.cluster
        super().__init__(cluster.name, cluster.devices_per_node, {**samplers}, runtime=runtime)
        self.scenario, self.names, self.held = scenario, names, held
        self.parts: tuple[str, ...] = PARTS

    def choose_samplers(self, shape: Shape, largest: Shape, degrees: Sequence[int], *, staged: bool) -> None:
        """Let the fastest sampler of a shape run the replicas of each number of GPUs, ascending.

        It is the fastest of those with room for the largest shape of all, if any has. Where stages are on GPUs of their
        own, a GPU alone need not hold the whole model.

        Raises:
            InfeasibleError: none fits on any.
        """
        refused: list[InputError] = []
        for gpus in degrees:
            best = None
            try:
                best = self._best_sampler(shape, largest, gpus)
            except InputError as error:  # as of guidance on two groups of GPUs, which one GPU is not
                refused.append(error)
            if best is not None:
                self.fastest[gpus] = best
                self.samplers[gpus] = best.origin.strategy
            elif staged and gpus == 1:
                self.samplers[1] = make("single", {})
                self.fastest[1] = self.result(1, shape)
            else:
                self.impossible[f"a replica of {counted(gpus, 'GPU')}: no sampler fits"] = None
        if not self.fastest and len(refused) == len(degrees):
            raise refused[0]
        if not self.fastest:
            model, sizes = self.scenario.model.name, " or ".join(counted(gpus, "GPU") for gpus in degrees)
            raise InfeasibleError(f"no sampler of {model} fits on {sizes} of {self.name}, one replica")

    def _best_sampler(self, shape: Shape, largest: Shape, gpus: int) -> Result | None:
        """Return what a sweep recommends for one request of a shape on exactly so many GPUs; None where nothing fits.

        The image is the one that a single GPU draws, unless samplers are named. What lacks room for the largest shape
        is passed over, unless all do.
        """
        there, first = at_shape(self.scenario, shape, gpus, 1), None
        points = tuple(
            point
            for point in swept_points(there, self.names, self.held, self.runtime)
            if point.num_gpus == gpus and (self.names is not None or is_exact(point, there))
        )
        while points:
            sweep = Sweep(there, "latency", points, top=1, held=self.held, runtime=self.runtime)
            sweep = run_sweep(sweep, workers=1)
            if (best := sweep.best_point()) is None:
                break
            result = sweep.result_of(best)
            first = first or result
            if largest == shape or Simulated(self.scenario, {gpus: best.strategy}).run_s(gpus, largest) < inf:
                return result
            points = tuple(point for point in points if point.strategy != best.strategy)
        return first

    def unscaled(self, gpus: int, shape: Shape, batch: int) -> Times:
        """Return the seconds of a batch on so many GPUs, which hold the weights of their parts."""
        if gpus not in self.samplers:
            raise InfeasibleError(f"a replica of {counted(gpus, 'GPU')}: no sampler fits")
        result = self.result(gpus, shape, batch)
        peak_bytes, room = self._peak_bytes(result), room_bytes(result.device_memory_bytes, gpus)
        if room is not None and peak_bytes > room:
            lacks = missing_memory(peak_bytes, result.device_memory_bytes or 0.0, gpus)
            raise InfeasibleError(f"batch {batch} of {shape.words} on {counted(gpus, 'GPU')} {lacks}")
        parts = result.phases or {"denoise_s": result.latency_s}
        encode_s, denoise_s, decode_s = (parts.get(f"{part}_s", 0.0) for part in PARTS)
        return Times(encode_s, denoise_s / shape.steps, decode_s)

    def of(self, parts: tuple[str, ...]) -> "Simulated":
        """Return the service of GPUs that run some parts of requests alone, and hold the weights of these."""
        if parts == self.parts:
            return self
        one = self.scaled(1.0)
        one.parts = parts
        return one

    def _peak_bytes(self, result: Result) -> float:
        """Return the peak memory of a GPU; in a pool that of its parts, without the weights of the others."""
        phases, scene, components = result.phases, self.scenario, self.scenario.model.components
        peak_bytes = max(
            phases.get(f"{part}_peak_memory_bytes", result.peak_memory_bytes) for part in self.parts
        )
        if self.parts == PARTS or scene.workload.moved:
            return peak_bytes
        resident = () if scene.workload.encoders_moved else scene.encoders
        backbone = () if scene.workload.swapped else (scene.backbone_index,)  # part of it is away already
        held = {"encode": resident, "denoise": backbone, "decode": scene.decoders}
        kind = {"denoise": scene.weight_bytes}
        return peak_bytes - sum(
            components[i].held_parameters * kind.get(part, FROZEN_WEIGHT_BYTES)
            for part in PARTS
            for i in held[part]
            if part not in self.parts
        )

    def result(self, gpus: int, shape: Shape, batch: int = 1) -> Result:
        """Return the simulated run of a batch."""
        key = gpus, shape, batch
        if key not in self.results:
            scenario = at_shape(self.scenario, shape, gpus, batch)
            self.results[key] = run_point(cast("AnyStrategy", self.samplers[gpus]), scenario)
        return self.results[key]

    def handover_s(self, shape: Shape) -> float:
        """Return the seconds in which the latents of a request reach other GPUs of its node."""
        scene, link = self.scenario, self.scenario.cluster.intra_node
        size = scene.remember(("latents", shape), lambda: at_shape(scene, shape, 1, 1).latent_bytes)
        return size / link.bandwidth_bytes_per_s + link.latency_s


class Tabled(Site):
    """Service times as they were measured: seconds of a batch by shape, GPUs and requests; nothing moves."""

    def __init__(self, rows: Mapping[Batch, float], source: str) -> None:
        sizes = sorted({gpus for gpus, *_ in rows})
        super().__init__("", max(sizes, default=1), dict.fromkeys(sizes))
        self.rows, self.source = rows, source
        cases = {(gpus, shape) for gpus, shape, _ in rows}
        self.most_batch = 1
        while cases and all((*case, self.most_batch + 1) in rows for case in cases):
            self.most_batch += 1
        if self.most_batch == 1:
            self.impossible["batches: the table of service times has none of all shapes and GPUs"] = None

    def unscaled(self, gpus: int, shape: Shape, batch: int) -> Times:
        """Return the seconds of a batch on so many GPUs, spread over its steps."""
        seconds = self.rows.get((gpus, shape._replace(guidance=""), batch))
        if seconds is None:
            key = f"height {shape.height}, width {shape.width}, frames {shape.frames}, steps {shape.steps}"
            raise InputError(f"{self.source}: has no row of {key}, gpus {gpus}, batch {batch}")
        return Times(0.0, seconds / shape.steps, 0.0)


def read_service(path: Path) -> Tabled:
    """Return the service times of a table."""
    rows: dict[Batch, float] = {}
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
