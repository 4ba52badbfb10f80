"""Results of simulations."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from profiles.costs.bands import Uncertainty
from profiles.errors import InputError, counted
from profiles.mappings import FrozenMapping
from profiles.software.levers import HALF
from profiles.software.reserved import Reserved, reserved_bytes, room_bytes
from profiles.units import GIB
from sim.outcomes.measures import Measures
from sim.outcomes.parts import Part, main_part, named_traces, parts_by, replay_parts
from sim.outcomes.tasks import TASKS
from strategies.plans.traces import Trace
from strategies.plans.workloads import ALL, SHARDED
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario, AnyStrategy

QUESTION: Final = ("task", "model", "cluster", "stack", "num_gpus", "strategy")
ANSWER: Final = (
    "samples_per_s", "gpu_s_per_sample", "bubble_ratio", "exposed_communication_s", "collective_s", "p2p_bytes",
    "collective_bytes", "peak_memory_bytes", "reserved_bytes_low", "reserved_bytes", "reserved_bytes_high",
    "fits_memory", "provenance", "compute_factor",
)  # fmt: skip
"""Attributes of a result that are its public keys: those that say what it is of, and what was found."""
OUT_OF_MEMORY: Final = "out of memory"
"""The reason of points that do not fit, without its numbers."""


@dataclass(frozen=True)
class Source:
    """Origin of a result.

    Attributes:
        strategy: with its parameters.
        scenario: the model, cluster, stack and workload.
        remarks: remarks of the strategy about the point.
    """

    strategy: AnyStrategy
    scenario: AnyScenario
    remarks: tuple[str, ...] = ()

    @cached_property
    def parts(self) -> list[Part]:
        """The parts of the point, replayed once they are asked for."""
        return replay_parts(self.strategy, self.scenario)

    def __reduce__(self) -> tuple[type["Source"], tuple[Any, ...]]:
        return Source, (self.strategy, self.scenario, self.remarks)  # another process replays it anew


@dataclass(frozen=True, slots=True, repr=False)
class Result:
    """Result of a simulation; of training one iteration, of sampling one run.

    With self-conditioning all quantities are expectations over iterations with and without the extra forward
    pass, and ratios are ratios of expectations; the peak memory is the larger of the two. Of jobs side by side,
    an iteration is the time in which they together train each backbone on one batch.
    Seconds and bytes are properties under their public keys, such as ``iteration_s`` and ``peak_memory_bytes``.

    Attributes:
        task: ``train`` or ``sample``; model, cluster, stack and strategy are names.
        num_gpus: GPUs in all.
        parameters: of the strategy, by name.
        batch_size: samples of an iteration, or images of a run, on all GPUs together.
        num_backbones: backbones that an iteration trains.
        asked: what is trained or drawn: the resolution, of training ``frozen``, of sampling steps and guidance.
        times: the durations under their public keys: ``iteration_s`` and ``first_iteration_s`` of training,
            ``latency_s`` and ``step_s``, which is a steady denoising step, of sampling.
        expected: seconds and bytes, as expectations.
        device_memory_bytes: memory of a GPU; None where that is unlimited.
        stages: layers, GPUs, seconds and parameters of each stage.
        phases: of sampling with frozen components the seconds and the peak memory of each phase, under public keys.
        departures: departures from plain training, in words for its title.
        uncertainty: components of the error of its duration.
        compute_factor: factor on compute that a measured run gave; 1 where there is none.
        inputs: hashes of the model, cluster, device and stack that were read; empty where another process ran it.
        source: origin of its traces; None where it came from another process.
    """

    task: str
    model: str
    cluster: str
    stack: str
    num_gpus: int
    strategy: str
    parameters: Mapping[str, Any]
    batch_size: int
    num_backbones: int
    asked: Mapping[str, Any]
    options: Mapping[str, Any]
    times: Mapping[str, float]
    expected: Measures
    device_memory_bytes: float | None
    provenance: str
    stages: tuple[Mapping[str, Any], ...]
    phases: Mapping[str, float] = field(default_factory=FrozenMapping)
    seamless: bool = True
    departures: tuple[str, ...] = ()
    uncertainty: Uncertainty = field(default_factory=Uncertainty)
    compute_factor: float = 1.0
    inputs: Mapping[str, str] = field(default_factory=FrozenMapping, compare=False)
    source: Source | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("parameters", "asked", "options", "times", "phases", "inputs"):
            object.__setattr__(self, name, FrozenMapping(getattr(self, name)))
        object.__setattr__(self, "stages", tuple(map(FrozenMapping, self.stages)))

    def __repr__(self) -> str:
        short = f"; does not fit: {self.missing_memory}" if self.missing_memory else ""
        words = self.title, f"batch {self.batch_size}", f"{self.resolution} pixels"
        point = ", ".join(words[:2] if words[2] in self.departures else words)
        return f"<Result {point}: {self.expected.duration_s:.4g} s{short}>"

    @property
    def title(self) -> str:
        """Model, strategy, GPUs, stack and departures from plain training in words."""
        gpus = counted(self.num_gpus, "GPU")
        doing = activity(self.task, self.options)
        where = f"{self.model} by {self.strategy}, {doing} on {gpus} of {self.cluster}, stack {self.stack}"
        return ", ".join([where, *self.departures])

    @property
    def resolution(self) -> str:
        """Pixels of an image: 1024, or width x height."""
        return str(self.asked["resolution"])

    @property
    def frozen(self) -> str:
        """Whether frozen components run in a training iteration: ``online`` or ``cached``."""
        return str(self._of_task("frozen"))

    @property
    def steps(self) -> int:
        """Denoising steps of a run of the sampler."""
        return int(self._of_task("steps"))

    @property
    def guidance(self) -> str:
        """Kind of guidance of a run of the sampler, ``none`` where it has none."""
        return str(self._of_task("guidance"))

    def _of_task(self, key: str) -> Any:  # noqa: ANN401
        """Return a duration or a setting that results of one task alone have."""
        values = {**self.asked, **self.times}
        if key not in values:
            raise AttributeError(
                f"a result of {self.strategy} has no {key}; it has {', '.join(self.to_json())}"
            )
        return values[key]

    @property
    def exposed_communication_s(self) -> float:
        """Idle seconds, of the mean GPU, while something awaited is on the wire."""
        return self.expected.exposed_communication_s

    @property
    def collective_s(self) -> float:
        """Seconds in which a collective runs, exposed or not."""
        return self.expected.collective_s

    @property
    def p2p_bytes(self) -> float:
        """Bytes that all GPUs together send in messages, in an iteration or per image."""
        return self.expected.p2p_bytes / (self.batch_size if self.task == "sample" else 1)

    @property
    def collective_bytes(self) -> float:
        """Bytes that all GPUs together send in collectives, in an iteration or per image."""
        return self.expected.collective_bytes / (self.batch_size if self.task == "sample" else 1)

    @property
    def iteration_s(self) -> float:
        """Seconds of one training iteration."""
        return float(self._of_task("iteration_s"))

    @property
    def first_iteration_s(self) -> float:
        """Seconds of the first training iteration, which also runs its own frozen work."""
        return float(self._of_task("first_iteration_s"))

    @property
    def latency_s(self) -> float:
        """Seconds of one run of the sampler."""
        return float(self._of_task("latency_s"))

    @property
    def step_s(self) -> float:
        """Seconds of one steady denoising step."""
        return float(self._of_task("step_s"))

    @property
    def low_s(self) -> float:
        """Seconds that nine of ten measured iterations, or runs, exceed."""
        return self.expected.duration_s * self.uncertainty.band.low

    @property
    def high_s(self) -> float:
        """Seconds that one of ten measured iterations, or runs, exceeds."""
        return self.expected.duration_s * self.uncertainty.band.high

    @property
    def bands(self) -> dict[str, float]:
        """The band of the duration under its public keys."""
        key = next(iter(self.times))
        return {f"{key}_low": self.low_s, f"{key}_high": self.high_s}

    @property
    def samples_per_s(self) -> float:
        """Samples, images or videos a second; one counts once for each backbone that it trains (DiffusionPipe, 6)."""
        return self.num_backbones * self.batch_size / self.expected.duration_s

    @property
    def gpu_s_per_sample(self) -> float:
        """Cost of a sample in GPU-seconds."""
        return self.num_gpus / self.samples_per_s

    @property
    def bubble_ratio(self) -> float:
        """Share of the GPUs' time in which they are idle."""
        return self.expected.idle_s / self.expected.duration_s

    @property
    def peak_memory_bytes(self) -> float:
        """Bytes of the fullest GPU at its fullest."""
        return self.expected.peak_memory_bytes

    @property
    def fits_memory(self) -> bool:
        """Whether the GPUs have the memory."""
        room = room_bytes(self.device_memory_bytes, self.num_gpus)
        return room is None or self.peak_memory_bytes <= room

    @property
    def reserved(self) -> Reserved:
        """Bytes that the process of the fullest GPU reserves."""
        return reserved_bytes(self.peak_memory_bytes, self.num_gpus)

    @property
    def reserved_bytes(self) -> float:
        """The same by the middle estimate, by which a point fits or not."""
        return self.reserved.middle

    @property
    def reserved_bytes_low(self) -> float:
        """The same by the low estimate."""
        return self.reserved.low

    @property
    def reserved_bytes_high(self) -> float:
        """The same by the high estimate."""
        return self.reserved.high

    @property
    def nearly_full(self) -> bool:
        """Whether it fits, but by the high estimate of reserved memory would not."""
        there = self.device_memory_bytes
        return self.fits_memory and there is not None and self.reserved.high > there

    @property
    def missing_memory(self) -> str | None:
        """Memory that the GPUs lack, in words; None where the point fits."""
        if self.fits_memory or self.device_memory_bytes is None:
            return None
        return missing_memory(self.peak_memory_bytes, self.device_memory_bytes, self.num_gpus)

    @property
    def traces(self) -> dict[str, Trace]:
        """The traces by name: of iterations that differ, of jobs side by side, or of the phases of a run."""
        return named_traces(self.origin.parts)

    @property
    def trace(self) -> Trace:
        """The trace of the iteration without an extra forward pass, or of the steady steps of a run."""
        return main_part(parts_by(self.origin.parts, id)[0]).trace

    @property
    def origin(self) -> Source:
        """Its strategy, its scenario and its traces.

        Raises:
            InputError: it came from another process, without them.
        """
        if self.source is None:
            raise InputError(f"the result of {self.title} came without its traces; run it again")
        return self.source

    @property
    def flags(self) -> dict[str, Any]:
        """The flags of ``sim run`` that give the result again, by name."""
        where = {"model": self.model, "cluster": self.cluster, "stack": self.stack, "gpus": self.num_gpus}
        point = {"batch_size": self.batch_size, "strategy": self.strategy, **self.parameters}
        flags = {**where, **point, **self.asked, **self.options}
        left = () if self.source is None else unused_options(self.source.strategy, self.source.scenario)
        return {key: value for key, value in flags.items() if key not in left}

    def to_json(self) -> dict[str, Any]:
        """The result under its public keys; bytes and seconds, floats as they are; of sampling bytes per image."""
        row = {
            **{key: getattr(self, key) for key in QUESTION},
            "parameters": dict(self.parameters),
            "batch_size": self.batch_size,
            **self.asked,
            "options": dict(self.options),
            **self.times,
            **self.bands,
            **self.phases,
            **{key: getattr(self, key) for key in ANSWER},
            "stages": [{**stage, "devices": list(stage["devices"])} for stage in self.stages],
            "seamless": self.seamless,
            **({"inputs": dict(self.inputs)} if self.inputs else {}),
        }
        return {key: value for key, value in row.items() if key not in TASKS[self.task].absent}


def unused_options(strategy: AnyStrategy, scenario: AnyScenario) -> dict[str, str]:
    """Options of sampling that change nothing of a point, by name, each with the reason in words."""
    if isinstance(scenario, Scenario):
        return {}
    grid = getattr(getattr(strategy, "layout", lambda _: None)(scenario), "grid", None)
    if grid is None:
        return {}
    workload, gpus = scenario.workload, counted(scenario.workload.num_gpus, "GPU")
    unused: dict[str, str] = {}
    if workload.heads == "padded" and grid.ulysses * grid.tensor == 1:
        unused["heads"] = f"`heads` is padded, but {strategy.name} does not divide attention heads on {gpus}"
    if workload.all_to_all != HALF and grid.ulysses == 1:
        words = f"{workload.all_to_all}, but {strategy.name} has no all-to-all on {gpus}"
        unused["all_to_all"] = f"`all_to_all` is {words}"
    if workload.weights == SHARDED and workload.num_gpus == 1:
        unused["weights"] = f"`weights` is {SHARDED}, but {strategy.name} is on 1 GPU, which shares with none"
    return unused


def activity(task: str, options: Mapping[str, Any]) -> str:
    """Return the work that is simulated in words: training, or denoising and what is included beside it."""
    if "include" not in options:
        return TASKS[task].noun
    included = options["include"]
    if included == ALL:
        return "end to end"
    return f"denoising with {included.replace(',', ', ')}" if included else "denoising only"


def lacking_words(least_bytes: float, scenario: AnyScenario) -> str:
    """Return how much memory GPUs lack for tensors of at least so many bytes, in words."""
    there = scenario.cluster.device.memory_bytes or 0.0
    return missing_memory(least_bytes, there, scenario.workload.num_gpus, at_least=True)


def missing_memory(peak_bytes: float, there_bytes: float, num_gpus: int, *, at_least: bool = False) -> str:
    """Return memory reserved for tensors of so many bytes, memory there and the difference, in words."""
    needed, there = reserved_bytes(peak_bytes, num_gpus).middle / GIB, there_bytes / GIB
    words, digits = "needs at least" if at_least else "needs", 1 if needed - there >= 0.05 else 3
    needed_words, there_words, lacking = (f"{gib:.{digits}f} GiB" for gib in (needed, there, needed - there))
    words += f" {needed_words} reserved ({peak_bytes / GIB:.1f} allocated)"
    return f"{words}, the device has {there_words}: {lacking} too much"
