"""Data parallelism of ``ddp``, ``zero2``, ``zero3`` and ``fsdp``: whole backbones, each GPU on its samples.

Several backbones are trained one after the other by all GPUs, or side by side, each by its part of the GPUs and on
a batch of its own. Source: DiffusionPipe, section 6, DeepSpeed-S and DeepSpeed-P.

Of N GPUs that share trained parameters each keeps one part of N (Rajbhandari et al., ZeRO, 2020, section 5). Frozen
components, and layers that only pass gradients through, lie whole on every GPU, as in diffusers' training scripts.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Final, Self

from profiles.checks import BELOW_SUM
from profiles.errors import InfeasibleError
from strategies import parameters as fields
from strategies.pipelining.builder import PipelineBuilder
from strategies.pipelining.cutting import cut_units
from strategies.pipelining.layout import Layout, sharded
from strategies.pipelining.mesh import GATHER, SHARDS, Collected, Mesh
from strategies.pipelining.stages import Shape, divisors
from strategies.pipelining.teams import PassTimes, insides, pass_times
from strategies.pipelining.units import Exchange, exchange, least_bytes, step_s
from strategies.plans.actions import BACKWARD, EXTRA_FORWARD, FORWARD, OPTIMIZER, StageAction
from strategies.plans.plan import Plan, Stage
from strategies.plans.workloads import OWN_DRAWS
from strategies.scenario import Scenario
from strategies.strategy import EXCERPT, Job, Strategy


class DataParallel(Strategy):
    """Whole backbones, one after the other or side by side; a strategy declares the fields."""

    __slots__ = ()
    draws = OWN_DRAWS

    micro_batches: int
    backbones: str

    @property
    def group_size(self) -> int:
        """GPUs that work on the same samples."""
        return 1

    @abstractmethod
    def layout(self, scenario: Scenario) -> Layout:
        """The units of all backbones, on a mesh."""

    @abstractmethod
    def way(self, layout: Layout) -> Exchange:
        """The way in which units exchange weights and gradients."""

    def units(
        self, scenario: Scenario, mesh: Mesh, divided: tuple[str, ...] = (), least: float = inf
    ) -> Layout:
        """Return the units of all backbones, of some parameters at least, on the only position of a pipeline.

        Raises:
            ValueError: backbones are trained side by side.
        """
        if len(self.jobs(scenario)) > 1:
            raise ValueError("backbones side by side have no plan in common: ask each of the jobs")
        backbones = scenario.model.backbones or (scenario.backbone_index,)
        cuts = tuple(cut_units(scenario, i, least) for i in backbones)
        scenario = sharded(scenario) if divided else scenario
        shape = Shape(1, self.micro_batches, mesh.team)
        return Layout(scenario, shape, cuts, mesh=mesh, in_units=True, divided=divided)

    def jobs(self, scenario: Scenario) -> tuple[Job, ...]:
        """Return the strategy itself or, with backbones side by side, one job for each."""
        if self.backbones == "sequential":
            return (Job(self, scenario),)
        backbones, gpus = scenario.model.backbones, scenario.workload.num_gpus
        if len(backbones) < 2:
            raise InfeasibleError("backbones is parallel, but the model has only one", "one backbone")
        if gpus % len(backbones):
            raise InfeasibleError(
                f"`gpus({gpus})` is no multiple of the {len(backbones)} backbones to be trained side by side",
                "backbones do not divide the GPUs",
            )
        alone = replace(self, backbones="sequential")  # type: ignore[type-var]
        return tuple(Job(alone, scenario.only(backbone, gpus // len(backbones))) for backbone in backbones)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration: every GPU trains all backbones, each up to its optimizer steps before the next."""
        layout, extra = self.layout(scenario), scenario.workload.extra_forward
        chains = map(layout.chain, range(len(layout.cuts)))
        row = tuple(action for chain in chains for action in _row(chain, self.micro_batches, extra=extra))
        return PipelineBuilder(layout, (row,)).build(partial(exchange, way=self.way(layout)))

    def excerpt(self, scenario: Scenario) -> tuple[Self, Scenario, int]:
        """Return the first micro-batches of one backbone, unless what all of them read is there from the start."""
        workload, model, omitted = scenario.workload, scenario.model, self.micro_batches - EXCERPT
        given = workload.extra_forward or len(scenario.frozen) < len(model.frozen)
        if omitted <= 0 or given or len(model.backbones) > 1:
            return self, scenario, 0
        batch_size = EXCERPT * self.layout(scenario).local_batch * workload.num_gpus // self.group_size
        few = replace(self, micro_batches=EXCERPT)  # type: ignore[type-var]
        return few, scenario.with_options(batch_size=batch_size), omitted

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that each device cannot do without."""
        layout = self.layout(scenario)
        return least_bytes(layout, self.way(layout))

    def coarse_bounds(self, scenario: Scenario) -> tuple[float, float]:
        """Seconds that no iteration can undercut: all compute but the optimizer's; nothing of bytes."""
        layout = self.layout(scenario)
        passes_s = (layers_s for cut in layout.cuts for layers_s in layout.layer_times(cut.component))
        work_s = sum(float(layers_s.sum()) for layers_s in passes_s)
        return self.micro_batches * (before_s(layout, layout.stages[:1]) + work_s), 0.0

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut: for each backbone all compute, or all communication."""
        layout = self.layout(scenario)
        chains = map(layout.chain, range(len(layout.cuts)))
        return sum(_least_s(layout, units, self.way(layout)) for units in chains)


def shares(scenario: Scenario) -> dict[str, int]:
    """GPUs that train a backbone, by whether several run one after the other or side by side."""
    gpus, count = scenario.workload.num_gpus, len(scenario.model.backbones)
    return {"sequential": gpus} | ({"parallel": max(1, gpus // count)} if count > 1 else {})


micro_batches: Final = partial(
    fields.parameter, 1, "pieces of the local batch whose gradients are accumulated"
)
bucket_mb: Final = partial(
    fields.parameter,
    None,
    "MiB of gradients that are reduced at once (default, as the runtimes': ddp 25, zero2 5e8 elements)",
)
backbones: Final = partial(
    fields.parameter,
    "sequential",
    "several backbones: one after the other, or side by side",
    choices=("sequential", "parallel"),
)
"""Makers of fields."""


@dataclass(frozen=True, slots=True)
class BucketedDataParallel(DataParallel):
    """Data parallelism whose GPUs exchange gradients and weights beside compute, or wait for them."""

    overlap: str = fields.parameter("buckets", "when gradients are reduced", choices=("buckets", "none"))
    micro_batches: int = micro_batches()
    backbones: str = backbones()

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Yield both overlaps, and every accumulation that divides the local batch."""
        batch = scenario.workload.batch_size
        for overlap in ("buckets", "none"):
            for backbones, share in shares(scenario).items():
                for count in divisors(batch // share) if batch % share == 0 else [1]:
                    yield cls(overlap, count, backbones)


def _row(stages: range, micro_batches: int, *, extra: bool) -> Iterator[StageAction]:
    """The actions of one GPU for a backbone: extra forwards of all micro-batches, then one after the other."""
    for number in range(micro_batches if extra else 0):
        yield from (StageAction(stage, EXTRA_FORWARD, number) for stage in stages)
    for number in range(micro_batches):
        yield from (StageAction(stage, FORWARD, number) for stage in stages)
        yield from (StageAction(stage, BACKWARD, number) for stage in reversed(stages))
    yield from (StageAction(stage, OPTIMIZER) for stage in stages)


def before_s(layout: Layout, stages: Sequence[Stage]) -> float:
    """The seconds of the frozen work of one micro-batch, where it runs before stages: those of the first backbone."""
    if stages[0] != layout.stages[0]:
        return 0.0
    scenario = layout.scenario
    costs = (scenario.costs.components[i] for i in scenario.frozen)
    return sum(float(cost.forward_s(layout.local_batch).sum()) for cost in costs)


def _collectives_s(layout: Layout, what: Collected, sizes: Sequence[float]) -> float:
    """Seconds of collectives of one kind, one after the other, of so many bytes each."""
    if not any(sizes):
        return 0.0
    if what.subgroup:
        return sum(times * layout.seconds(what, size) for size, times in Counter(sizes).items())
    return layout.law(what.operation, (0,)).least_s(sum(sizes), len(sizes))


def _passes_s(layout: Layout, units: range, slowdown: float) -> PassTimes:
    """Seconds of all passes of a micro-batch; what they copy is left out."""
    all_inside, kinds = insides(layout), {FORWARD: 1 + layout.scenario.workload.extra_forward, BACKWARD: 1}
    rows = [
        [times * often * seconds for seconds in pass_times(layout, inside, kind, slowdown)]
        for inside, times in Counter(all_inside[unit] for unit in units).items()
        for kind, often in kinds.items()
    ]
    return PassTimes(*map(sum, zip(*rows, strict=True)))


def _least_s(layout: Layout, units: range, way: Exchange) -> float:
    """Seconds that no iteration can undercut in which the units of a backbone exchange so, and then step.

    All compute with what is waited for, or all exchanges of a stream. Or all compute, which exchanges slow down by a
    factor f while they run beside it: of E seconds of exchanges and W of waits at least E - W do, in which 1 - 1/f of
    compute is lost.
    """
    workload, count, mesh = layout.scenario.workload, layout.shape.micro_batches, layout.mesh
    recipe, slowdown = workload.recipe, layout.scenario.cluster.overlap_slowdown
    frozen_s, after_s = before_s(layout, [layout.stages[units[0]]]), step_s(layout, units)
    usual, slowed = (_passes_s(layout, units, factor) for factor in (1.0, slowdown))
    work_s = count * (frozen_s + usual.work_s)
    pieces = [piece for unit in reversed(units) for piece in way.pieces(layout, unit)]
    sizes = [size * recipe.gradient_bytes for _, size in pieces]
    if not any(sizes):
        return work_s + count * usual.wait_s + after_s
    streams_s = [
        -(-count // way.every) * _collectives_s(layout, what, [size / layout.parts**number for size in sizes])
        for number, what in enumerate(way.summing(mesh))
    ]
    if way.gathers:
        gather = Collected(GATHER, SHARDS, mesh.sharding)
        # of sweeps the last unit stays from its first forward, an extra one too, to its backward
        again = units if not way.sweeps else units[:-1] if way.reshard else units[:0]
        gathered = [*units] * (2 if workload.extra_forward and not way.sweeps else 1) + [*again]
        sizes = [layout.weights_bytes[unit] for unit in gathered]
        streams_s[0] += count * _collectives_s(layout, gather, sizes)
    elif layout.parts > 1:
        weights = [layout.parameters[unit] * recipe.weight_bytes for unit in units]
        after_s += _collectives_s(layout, Collected(GATHER, SHARDS, mesh.shared_among), weights)
    if not way.overlap:
        return work_s + count * usual.wait_s + sum(streams_s) + after_s
    beside_s = (1 - 1 / slowdown) * max(*streams_s, count * usual.beside_s)
    beside_s += count * slowed.wait_s / slowdown
    waits_s = max(count * usual.wait_s, (1 - BELOW_SUM) * beside_s)
    return max(work_s + waits_s, frozen_s + max(streams_s)) + after_s
