"""A run of a sampler: one strategy on one sampling scenario, replayed phase by phase and measured."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from profiles.mappings import FrozenMapping
from sim.engine import no_collection, simulate
from sim.experiment import missing_memory
from sim.memory import peak_memory_bytes
from sim.metrics import collective_s, exposed_communication_s, idle_s
from strategies.actions import PatchAction
from strategies.frozen_phases import with_frozen
from strategies.network import Network
from strategies.plan import Op
from strategies.sampler import Phase, Sampler, guidance_groups, is_seamless
from strategies.sampling import SamplingScenario
from strategies.traces import Trace

Replayed = list[tuple[Phase, Trace]]


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
    def of(cls, replayed: Replayed) -> "Drawing":
        """Return what the traces of all phases say."""

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


def step_s(replayed: Replayed) -> float:
    """Return the seconds of a steady step: of the last phase, or from the end of its last step but one on."""
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
        """Return the result under its public keys; seconds, bytes per image."""
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


@no_collection()
def run_sampling(sampler: Sampler, scenario: SamplingScenario) -> SamplingResult:
    """Return the result of one sampler on one scenario.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return summarize(sampler, scenario, replay_phases(sampler, scenario))


@no_collection()
def run_sampling_within(
    sampler: Sampler, scenario: SamplingScenario, limit_s: float
) -> SamplingResult | float:
    """Return the result, or, as soon as that is clear, seconds from ``limit_s`` on that the point cannot undercut.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    least_s = sampler.bound(scenario)
    if least_s >= limit_s:
        return least_s
    replayed: Replayed = []
    for item in _replay_phases(sampler, scenario):
        replayed.append(item)
        least_s = float(sum(phase.times * trace.end_s for phase, trace in replayed))
        if least_s >= limit_s:
            return least_s
    return summarize(sampler, scenario, replayed)


def replay_phases(sampler: Sampler, scenario: SamplingScenario) -> Replayed:
    """Return the phases of a run and their traces.

    Raises:
        InfeasibleError: the point does not exist for the scenario.
    """
    return list(_replay_phases(sampler, scenario))


def _replay_phases(sampler: Sampler, scenario: SamplingScenario) -> Iterator[tuple[Phase, Trace]]:
    """Yield the phases of a run, each as soon as it is replayed."""
    networks: dict[int, Network] = {}
    for phase in with_frozen(scenario, sampler.phases(scenario), guidance_groups(sampler, scenario)):
        placement = phase.plan.placement
        network = networks.setdefault(placement.num_positions, Network(placement))
        yield phase, simulate(phase.plan, network)


def summarize(sampler: Sampler, scenario: SamplingScenario, replayed: Replayed) -> SamplingResult:
    """Return the result that the phases amount to."""
    expected, workload = Drawing.of(replayed), scenario.workload
    there = scenario.cluster.device.memory_bytes
    return SamplingResult(
        model=scenario.model_name,
        cluster=scenario.cluster_name,
        num_gpus=workload.num_gpus,
        strategy=sampler.name,
        parameters=asdict(sampler),  # type: ignore[call-overload]
        batch_size=workload.batch_size,
        resolution=workload.resolution,
        steps=workload.steps,
        guidance=workload.guidance,
        options={"include": ",".join(workload.include), "decode_chunks": workload.decode_chunks},
        expected=expected,
        fits_memory=there is None or expected.peak_memory_bytes <= there,
        memory_bytes=there,
        provenance=scenario.costs.provenance,
        stages=tuple(_stages(replayed)),
        seamless=is_seamless(sampler),
    )


def _stages(replayed: Replayed) -> list[dict[str, Any]]:
    """Return the stages of the backbone, and the devices of each, with seconds for the whole image."""
    plan = next(phase.plan for phase, _ in replayed if phase.steps)
    return [
        {
            "devices": tuple(d for d, ops in enumerate(plan.ops) if _stage_of(ops[0]) == number),
            "first_layer": stage.first_layer,
            "last_layer": stage.last_layer,
            "forward_s": stage.forward_s,
            "backward_s": stage.backward_s,
            "parameters": stage.parameters,
        }
        for number, stage in enumerate(plan.stages)
    ]


def _stage_of(op: Op) -> int:
    """Return the stage of an op of a denoising step; each device has one."""
    assert isinstance(op.action, PatchAction)
    return op.action.stage
