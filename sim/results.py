"""Results: what was simulated, and what came out of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from profiles.mappings import FrozenMapping
from profiles.units import GIB
from sim.replay.memory import peak_memory_bytes
from sim.replay.metrics import collective_s, exposed_communication_s, idle_s
from strategies.plans.actions import PatchAction
from strategies.plans.plan import Stage
from strategies.plans.traces import Trace
from strategies.scenario import Scenario
from strategies.strategy import Phase

OUT_OF_MEMORY: Final = "out of memory"
"""The reason of points that do not fit, without its numbers."""


@dataclass(frozen=True, slots=True)
class Iteration:
    """What one replayed iteration took; means over devices where a quantity has one value per device.

    Attributes:
        iteration_s: the period: makespan with the frozen work of one iteration.
        first_iteration_s: the first one, which also runs its own frozen work.
        idle_s: seconds without compute.
        exposed_communication_s: idle seconds while something awaited is on the wire.
        collective_s: seconds in which a collective runs.
        p2p_bytes: what all GPUs together send in messages.
        collective_bytes: what all GPUs together send in collectives.
        peak_memory_bytes: the largest over devices.
    """

    iteration_s: float
    first_iteration_s: float
    idle_s: float
    exposed_communication_s: float
    collective_s: float
    p2p_bytes: float
    collective_bytes: float
    peak_memory_bytes: float

    @property
    def busy_s(self) -> float:
        """Seconds in which compute runs."""
        return self.iteration_s - self.idle_s

    @classmethod
    def of(cls, trace: Trace) -> "Iteration":
        """The measures of a trace."""
        return cls(
            iteration_s=trace.end_s,
            first_iteration_s=trace.end_s + trace.plan.prologue_s,
            idle_s=idle_s(trace),
            exposed_communication_s=exposed_communication_s(trace),
            collective_s=collective_s(trace),
            p2p_bytes=trace.p2p_bytes,
            collective_bytes=trace.collective_bytes,
            peak_memory_bytes=float(peak_memory_bytes(trace).max()),
        )


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A result: what was simulated, and what came out of it.

    With self-conditioning all quantities are expectations over iterations with and without the extra forward
    pass, and ratios are ratios of expectations; the peak memory is the larger of the two. Of jobs side by side,
    an iteration is the time in which they together train each backbone on one batch.
    """

    model: str
    cluster: str
    num_gpus: int
    strategy: str
    parameters: Mapping[str, Any]
    batch_size: int
    num_backbones: int
    options: Mapping[str, Any]
    expected: Iteration
    fits_memory: bool
    memory_bytes: float | None
    provenance: str
    stages: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", FrozenMapping(self.parameters))
        object.__setattr__(self, "options", FrozenMapping(self.options))
        object.__setattr__(self, "stages", tuple(map(FrozenMapping, self.stages)))

    def __repr__(self) -> str:
        what = f"{self.model} by {self.strategy} on {self.num_gpus} GPUs of {self.cluster}"
        return f"<TrainingResult {what}: {self.expected.iteration_s:.4g} s>"

    @property
    def missing_memory(self) -> str | None:
        """How much memory the devices lack, in words; None where the point fits."""
        if self.fits_memory or self.memory_bytes is None:
            return None
        return missing_memory(self.expected.peak_memory_bytes, self.memory_bytes)

    @property
    def samples_per_s(self) -> float:
        """Throughput; a sample counts once for each backbone that it trains (DiffusionPipe, section 6)."""
        return self.num_backbones * self.batch_size / self.expected.iteration_s

    @property
    def bubble_ratio(self) -> float:
        """Share of the devices' time in which they are idle."""
        return self.expected.idle_s / self.expected.iteration_s

    def to_json(self) -> dict[str, Any]:
        """The result under its public keys; bytes and seconds, floats as they are."""
        expected = self.expected
        return {
            "task": "train",
            "model": self.model,
            "cluster": self.cluster,
            "num_gpus": self.num_gpus,
            "strategy": self.strategy,
            "parameters": dict(self.parameters),
            "batch_size": self.batch_size,
            "options": dict(self.options),
            "iteration_s": expected.iteration_s,
            "first_iteration_s": expected.first_iteration_s,
            "samples_per_s": self.samples_per_s,
            "bubble_ratio": self.bubble_ratio,
            "exposed_communication_s": expected.exposed_communication_s,
            "collective_s": expected.collective_s,
            "p2p_bytes": expected.p2p_bytes,
            "collective_bytes": expected.collective_bytes,
            "peak_memory_bytes": expected.peak_memory_bytes,
            "fits_memory": self.fits_memory,
            "provenance": self.provenance,
            "stages": [{**stage, "devices": list(stage["devices"])} for stage in self.stages],
        }


def missing_memory(needed_bytes: float, there_bytes: float, *, at_least: bool = False) -> str:
    """By how much memory does not suffice, in words."""
    needed, there = needed_bytes / GIB, there_bytes / GIB
    words, digits = "needs at least" if at_least else "needs", 1 if needed - there >= 0.05 else 3
    return (
        f"{words} {needed:.{digits}f} GiB, the device has {there:.{digits}f} GiB:"
        f" {needed - there:.{digits}f} GiB too much"
    )


def training_options(scenario: Scenario) -> dict[str, Any]:
    """The options of a training result: flags that reproduce it."""
    workload = scenario.workload
    return {
        "self_conditioning": scenario.self_conditioning,
        "self_conditioning_draw": workload.self_conditioning_draw,
        "checkpointing": workload.checkpointing,
        "memory_recipe": workload.memory_recipe,
        "placement": workload.placement,
    }


def describe_stage(stage: Stage, trace: Trace, first_gpu: int) -> dict[str, Any]:
    """The public keys of one stage; its GPUs count from ``first_gpu``."""
    return {
        "devices": tuple(first_gpu + gpu for gpu in trace.plan.placement.devices(stage.position)),
        "first_layer": stage.first_layer,
        "last_layer": stage.last_layer,
        "forward_s": stage.forward_s,
        "backward_s": stage.backward_s,
        "parameters": stage.parameters,
    }


ReplayedPhases = list[tuple[Phase, Trace]]


@dataclass(frozen=True, slots=True)
class Drawing:
    """What one run took; means over devices where a quantity has one value per device.

    Attributes:
        latency_s: from the first denoising step, or the text encoders where they are included, to the last.
        step_s: one steady denoising step.
        idle_s: seconds without compute.
        exposed_communication_s: idle seconds while something awaited is on the wire.
        collective_s: seconds in which a collective runs.
        p2p_bytes: what all GPUs together send in messages.
        collective_bytes: what all GPUs together send in collectives.
        peak_memory_bytes: the largest over devices.
    """

    latency_s: float
    step_s: float
    idle_s: float
    exposed_communication_s: float
    collective_s: float
    p2p_bytes: float
    collective_bytes: float
    peak_memory_bytes: float

    @classmethod
    def of(cls, replayed: ReplayedPhases) -> "Drawing":
        """The measures of the traces of all phases."""

        def total(measure: Any) -> float:  # noqa: ANN401
            return float(sum(phase.times * measure(trace) for phase, trace in replayed))

        return cls(
            latency_s=total(lambda trace: trace.end_s),
            step_s=step_s(replayed),
            idle_s=total(idle_s),
            exposed_communication_s=total(exposed_communication_s),
            collective_s=total(collective_s),
            p2p_bytes=total(lambda trace: trace.p2p_bytes),
            collective_bytes=total(lambda trace: trace.collective_bytes),
            peak_memory_bytes=max(float(peak_memory_bytes(trace).max()) for _, trace in replayed),
        )


def step_s(replayed: ReplayedPhases) -> float:
    """The seconds of a steady step: of the last phase, or from the end of its last step but one on."""
    phase, trace = [(phase, trace) for phase, trace in replayed if phase.steps][-1]
    if phase.steps == 1:
        return trace.end_s
    ends: dict[int, float] = {}
    for ops, times in zip(trace.plan.ops, trace.ends, strict=True):
        for op, end in zip(ops, times, strict=True):
            if isinstance(op.action, PatchAction):
                ends[op.action.step] = max(ends.get(op.action.step, 0.0), end)
    last, before = (ends[step] for step in sorted(ends)[-1:-3:-1])
    return last - before


@dataclass(frozen=True, slots=True)
class SamplingResult:
    """A result: what was drawn, and what came out of it."""

    model: str
    cluster: str
    num_gpus: int
    strategy: str
    parameters: Mapping[str, Any]
    batch_size: int
    resolution: str
    steps: int
    guidance: str
    options: Mapping[str, Any]
    expected: Drawing
    fits_memory: bool
    memory_bytes: float | None
    provenance: str
    stages: tuple[Mapping[str, Any], ...]
    seamless: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", FrozenMapping(self.parameters))
        object.__setattr__(self, "options", FrozenMapping(self.options))
        object.__setattr__(self, "stages", tuple(map(FrozenMapping, self.stages)))

    def __repr__(self) -> str:
        what = f"{self.model} by {self.strategy} on {self.num_gpus} GPUs of {self.cluster}"
        return f"<SamplingResult {what}: {self.expected.latency_s:.4g} s>"

    @property
    def missing_memory(self) -> str | None:
        """How much memory the devices lack, in words; None where the point fits."""
        if self.fits_memory or self.memory_bytes is None:
            return None
        return missing_memory(self.expected.peak_memory_bytes, self.memory_bytes)

    @property
    def samples_per_s(self) -> float:
        """Images per second."""
        return self.batch_size / self.expected.latency_s

    @property
    def gpu_s_per_sample(self) -> float:
        """GPU-seconds per image: what it costs."""
        return self.num_gpus / self.samples_per_s

    @property
    def bubble_ratio(self) -> float:
        """Share of the devices' time in which they are idle."""
        return self.expected.idle_s / self.expected.latency_s

    def to_json(self) -> dict[str, Any]:
        """The result under its public keys; seconds, bytes per image."""
        expected = self.expected
        return {
            "task": "sample",
            "model": self.model,
            "cluster": self.cluster,
            "num_gpus": self.num_gpus,
            "strategy": self.strategy,
            "parameters": dict(self.parameters),
            "batch_size": self.batch_size,
            "resolution": self.resolution,
            "steps": self.steps,
            "guidance": self.guidance,
            "options": dict(self.options),
            "latency_s": expected.latency_s,
            "step_s": expected.step_s,
            "samples_per_s": self.samples_per_s,
            "gpu_s_per_sample": self.gpu_s_per_sample,
            "bubble_ratio": self.bubble_ratio,
            "exposed_communication_s": expected.exposed_communication_s,
            "collective_s": expected.collective_s,
            "p2p_bytes": expected.p2p_bytes / self.batch_size,
            "collective_bytes": expected.collective_bytes / self.batch_size,
            "peak_memory_bytes": expected.peak_memory_bytes,
            "fits_memory": self.fits_memory,
            "provenance": self.provenance,
            "stages": [{**stage, "devices": list(stage["devices"])} for stage in self.stages],
            "seamless": self.seamless,
        }
