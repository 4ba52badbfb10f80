"""The layout of a sampler: which layers and which rows each device of a grid computes, and its bytes.

It is made once for each point on a scenario; plans, phases, memory and bounds follow from it.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

from profiles.errors import InfeasibleError
from strategies.patching.footprint import parameters, weights, working
from strategies.patching.grid import Grid
from strategies.plans.network import Network
from strategies.plans.placement import Placement
from strategies.plans.plan import Buffer, Plan, Stage
from strategies.plans.workloads import SHARDED
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import EXCERPT, Phase

LONG_EXCERPT: Final = 12
"""Displaced steps of an excerpt where patches outnumber stages: for some steps stages run ahead of the slowest."""


@dataclass(frozen=True, eq=False)
class GridLayout(ABC):
    """Stages of layers on the teams of a grid.

    Attributes:
        scenario: model, cluster and workload.
        grid: the devices.
        boundaries: first layers of all stages, and the number of layers.
        warmup_steps: synchronous steps that a run begins with; None where all steps are alike.

    Raises:
        InfeasibleError: the warm-up is longer than the run.
    """

    scenario: SamplingScenario
    grid: Grid
    boundaries: tuple[int, ...]
    warmup_steps: int | None = None

    def __post_init__(self) -> None:
        workload = self.scenario.workload
        steps = workload.computed_steps
        if (workload.swapped or workload.streamed) and self.grid.pipeline > 1:
            raise InfeasibleError(
                f"`offload` is {workload.offload}, which brings parts of a whole backbone, but `pipeline_degree` is"
                f" {self.grid.pipeline}",
                "offloaded parts are of whole backbones",
            )
        if workload.weights == SHARDED and self.grid.tensor * self.grid.pipeline > 1:
            raise InfeasibleError(
                f"`weights` is {SHARDED}, which gathers blocks of a whole backbone, but tensor or pipeline parallelism"
                " divides it already",
                "sharded weights are of whole backbones",
            )
        if self.warmup_steps is not None and steps < workload.steps:
            raise InfeasibleError(
                f"`cache_steps({workload.cache_steps:g})`: a step that is skipped leaves displaced patches"
                " no activations of the step before",
                "steps cannot be cached so",
            )
        if self.warmup_steps is not None and self.passes > 1:
            raise InfeasibleError(
                f"`guidance` is {workload.guidance}: displaced patches would read the step's other prediction",
                "guidance cannot be divided so",
            )
        if self.warmup_steps is not None and self.warmup_steps > steps:
            raise InfeasibleError(
                f"`warmup_steps({self.warmup_steps})` exceeds `steps({steps})`", "warm-up longer than the run"
            )

    @property
    def folded(self) -> "GridLayout":
        """The layout of some of its devices that stand for all, or itself where none do the same."""
        return self

    @abstractmethod
    def plan(self, steps: Sequence[int]) -> Plan:
        """The plan of some successive steps."""

    @property
    def steps_overlap(self) -> bool:
        """Whether a device may begin a step before all others have gathered the predictions of the last one."""
        return False

    @abstractmethod
    def stage_s(self, stage: int) -> float:
        """Seconds that each device of a stage computes in a step after the warm-up, or its host dispatches."""

    @abstractmethod
    def pass_samples(self, steps: Sequence[int]) -> float:
        """Samples of the largest pass of some steps, times the share of the tokens that one device holds."""

    @abstractmethod
    def passing_on(self, stage: int, steps: Sequence[int]) -> tuple[Buffer, ...]:
        """Keys and values that lie on each device of a stage throughout some steps, for the steps after them."""

    @cached_property
    def batch(self) -> int:
        """Samples of one pass."""
        return self.grid.batch(self.scenario)

    @cached_property
    def passes(self) -> int:
        """Forward passes of a step, one after the other."""
        return self.grid.passes(self.scenario)

    @property
    def solver_s(self) -> float:
        """Seconds of the host beside the backbone in each pass: an even part of the step's."""
        return self.scenario.solver_s / self.passes

    @cached_property
    def placement(self) -> Placement:
        """Places of the grid's positions on the cluster."""
        positions = self.grid.positions
        return Placement(self.scenario.streams, self.scenario.workload.num_gpus, positions, positions)

    @property
    def network(self) -> Network:
        """Routes between the positions; all layouts of a scenario with as many positions share one."""
        return self.scenario.remember(("network", self.grid.positions), lambda: Network(self.placement))

    @property
    def num_steps(self) -> int:
        """Denoising steps in which the backbone runs; of a sampler that evaluates several at once, its iterations."""
        return self.scenario.workload.computed_steps

    @property
    def count(self) -> int:
        """Patches of an image."""
        return 1

    @property
    def approximation(self) -> str:
        """Why an image is not the one that a single GPU draws, in words; empty where it is."""
        if self.warmup_steps is None or self.warmup_steps == self.num_steps or self.count == 1:
            return ""
        return f"{self.num_steps - self.warmup_steps} of {self.num_steps} steps read activations of the step before"

    def phases(self, *, excerpt: bool = False) -> tuple[Phase, ...]:
        """The run as a whole where steps overlap; else the warm-up and the other steps, which are alike.

        Args:
            excerpt: of a long run whose steps overlap only the first are planned.
        """
        steps, warmup, standing_in = self.num_steps, self.warmup_steps or 0, self.grid.standing_in
        if self.steps_overlap:
            few = warmup + (EXCERPT if self.count <= self.grid.pipeline else LONG_EXCERPT)
            planned = min(few, steps) if excerpt else steps
            return (Phase("run", self.plan(range(planned)), 1, steps, standing_in, steps - planned),)
        parts = (("warm-up", warmup, warmup), ("steady", steps, steps - warmup))
        return tuple(
            Phase(name, self.plan([end - 1]), times, 1, standing_in) for name, end, times in parts if times
        )

    def stages(self) -> list[Stage]:
        """The stages, each with the seconds of a step of patches."""
        return [
            Stage(
                component=self.scenario.backbone_index,
                first_layer=first,
                last_layer=end - 1,
                position=self.grid.team(0, stage)[0],
                forward_s=self.stage_s(stage),
                backward_s=0.0,
                parameters=int(parameters(self.scenario, first, end, self.grid.tensor)),
            )
            for stage, (first, end) in enumerate(pairwise(self.boundaries))
        ]

    def resident(self, steps: Sequence[int]) -> list[tuple[Buffer, ...]]:
        """Bytes that lie on each device throughout some steps."""
        scenario, grid, samples = self.scenario, self.grid, self.pass_samples(steps)
        together = grid.positions * grid.stands_for
        resident: list[tuple[Buffer, ...]] = []
        for _, stage, team in grid.teams():
            first, end = self.boundaries[stage], self.boundaries[stage + 1]
            buffers = (
                *weights(scenario, parameters(scenario, first, end, grid.tensor), together, grid.tensor),
                working(scenario, first, end, samples, grid.tensor),
                *self.passing_on(stage, steps),
            )
            resident += [buffers] * len(team)
        return resident


def unfolded(phase: Phase) -> Phase:
    """The phase with a plan of all devices: those for which another stands have the ops and buffers of that one.

    The plan shows what lies where and cannot be replayed: all these ops read and write the same tensors.
    """
    plan, standing_in = phase.plan, phase.standing_in
    if not standing_in:
        return phase
    size = len(standing_in)
    plan = replace(
        plan,
        ops=tuple(plan.ops[device] for device in standing_in),
        resident=tuple(plan.resident[device] for device in standing_in),
        placement=replace(plan.placement, group_size=size, num_positions=size),
        stages=tuple(replace(stage, position=standing_in.index(stage.position)) for stage in plan.stages),
    )
    return phase._replace(plan=plan, standing_in=())
