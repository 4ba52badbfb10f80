"""Data parallelism: what ``ddp``, ``zero2``, ``zero3`` and ``fsdp`` share: whole backbones, each GPU on its samples.

Several backbones are trained one after the other by all GPUs, or side by side, each by its part of the GPUs and on
a batch of its own. Source: DiffusionPipe, section 6, DeepSpeed-S and DeepSpeed-P.

Of N GPUs that share what is trained each keeps one part of N (Rajbhandari et al., ZeRO, 2020, section 5). The frozen
components, and layers of a backbone that only pass gradients through, lie whole on every GPU: training scripts prepare
the trained model alone and leave the others out of the partitioning (diffusers, ``train_text_to_image.py`` and
``train_controlnet.py``). Groups of one GPU have nothing to share and communicate nothing.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Self

from profiles.checks import sum_in_order
from profiles.errors import InfeasibleError
from profiles.machines.collectives import CollectiveLaw, collective_law
from strategies import parameters as fields
from strategies.pipelining.builder import PipelineBuilder, Recipe
from strategies.pipelining.footprint import resident_buffers, saved_bytes, trained_parameters
from strategies.pipelining.layout import Layout
from strategies.pipelining.pipeline import Pipeline
from strategies.pipelining.reduction import buckets_of, reduce_and_step
from strategies.pipelining.stages import Cut, Shape, divisors
from strategies.plans.actions import BACKWARD, EXTRA_FORWARD, FORWARD, OPTIMIZER, StageAction
from strategies.plans.plan import Buffer, Plan, Stage
from strategies.scenario import Scenario
from strategies.strategy import Job, Strategy


class DataParallel(Strategy):
    """Whole backbones, one after the other or side by side; a strategy declares the fields."""

    __slots__ = ()

    @property
    @abstractmethod
    def micro_batches(self) -> int:
        """Accumulated micro-batches."""

    @property
    @abstractmethod
    def backbones(self) -> str:
        """``sequential``: several backbones one after the other; ``parallel``: side by side."""

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Yield both overlaps, and every accumulation that divides the local batch."""
        batch = scenario.workload.batch_size
        for overlap in ("buckets", "none"):
            for backbones, share in shares(scenario).items():
                for count in divisors(batch // share) if batch % share == 0 else [1]:
                    yield cls(overlap, count, backbones)  # type: ignore[call-arg]  # the fields of a strategy

    def jobs(self, scenario: Scenario) -> tuple[Job, ...]:
        """Return the strategy itself or, with backbones side by side, one job for each.

        Raises:
            InfeasibleError: there is only one backbone, or the GPUs cannot be divided evenly among them.
        """
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


def shares(scenario: Scenario) -> dict[str, int]:
    """GPUs that train a backbone, by whether several run one after the other or side by side."""
    gpus, count = scenario.workload.num_gpus, len(scenario.model.backbones)
    return {"sequential": gpus} | ({"parallel": max(1, gpus // count)} if count > 1 else {})


def overlap() -> Any:  # noqa: ANN401
    """The field for when the GPUs exchange what they share."""
    return fields.parameter("buckets", "when gradients are reduced", choices=("buckets", "none"))


def micro_batches() -> Any:  # noqa: ANN401
    """The field for the number of accumulated micro-batches."""
    return fields.parameter(1, "pieces of the local batch whose gradients are accumulated")


def backbones() -> Any:  # noqa: ANN401
    """The field for how several backbones are trained."""
    return fields.parameter(
        "sequential",
        "several backbones: one after the other, or side by side",
        choices=("sequential", "parallel"),
    )


def backbones_of(strategy: DataParallel, scenario: Scenario) -> tuple[int, ...]:
    """The backbones that one plan trains, one after the other.

    Raises:
        InfeasibleError: there is none.
        ValueError: they are trained side by side.
    """
    if len(strategy.jobs(scenario)) > 1:
        raise ValueError("backbones side by side have no plan in common: ask each of the jobs")
    return scenario.model.backbones or (scenario.backbone_index,)


def layout_of(strategy: DataParallel, scenario: Scenario, cuts: Sequence[Cut]) -> Layout:
    """Backbones on a pipeline of one position, which every GPU is."""
    return Layout(scenario, Shape(1, strategy.micro_batches, 1), tuple(cuts))


def whole_backbones(strategy: DataParallel, scenario: Scenario) -> Layout:
    """Every backbone as one stage."""
    components = scenario.model.components
    cuts = (Cut(i, (0, len(components[i].layers)), (0,)) for i in backbones_of(strategy, scenario))
    return layout_of(strategy, scenario, tuple(cuts))


def replicated_plan(
    layout: Layout, recipe: Recipe, synchronize: Callable[[PipelineBuilder], None] = reduce_and_step
) -> Plan:
    """The plan in which every GPU trains all backbones, each up to its optimizer steps before the next."""
    extra = layout.scenario.workload.extra_forward
    row = tuple(
        action
        for cut in range(len(layout.cuts))
        for action in _row(layout.chain(cut), layout.shape.micro_batches, extra=extra)
    )
    in_turn = replace(recipe, in_turn=True)
    return PipelineBuilder(layout, (row,), in_turn).build(synchronize)


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
    return sum_in_order(float(of.forward_s(layout.local_batch).sum()) for of in costs)


def passes_s(layout: Layout, stages: Sequence[Stage]) -> float:
    """The seconds of all passes of some stages, and of the frozen work that runs before each of the first backbone."""
    forwards = 2 if layout.scenario.workload.extra_forward else 1
    each_s = sum_in_order(of.forward_s * forwards + of.backward_s for of in stages)
    return layout.shape.micro_batches * (before_s(layout, stages) + each_s)


def collective_s(pipeline: Pipeline, operation: str, size_bytes: float, count: int = 1) -> float:
    """The least seconds of collectives of all GPUs, one after the other, that together have so many bytes."""

    def law() -> CollectiveLaw:
        return collective_law(pipeline.scenario.cluster, operation, pipeline.placement.group(0))

    key = ("collective", operation, pipeline.placement)
    return pipeline.scenario.remember(key, law).least_s(size_bytes, count)


ROUNDING: Final = 1e-6
"""Share that what collectives add stays below: ops that they slow down end up to a rounding early."""


def beside_share(scenario: Scenario) -> float:
    """Share of a collective's seconds by which it lengthens a run at least, wherever it runs.

    Compute beside it is slowed down; else compute waits for it to end, which takes longer yet.
    """
    return (1 - ROUNDING) * (1 - 1 / scenario.cluster.overlap_slowdown)


Buckets = Sequence[tuple[float, int]]
"""Seconds into a backward after which gradients are there, and how many, in order."""


def buckets(layout: Layout, stage: Stage, overlap: str) -> Buckets:
    """The pieces in which the GPUs sum the gradients of a stage; none where there is nothing to sum."""
    trained = trained_parameters(layout, stage)
    if not trained or layout.scenario.workload.num_gpus == 1:
        return []
    if overlap == "none":
        return [(stage.backward_s, trained)]
    return layout.remember(("buckets", stage.component), lambda: buckets_of(layout, stage))


def reduced_s(
    layout: Layout,
    stage: Stage,
    overlap: str,
    operation: str,
    every: int,
    *,
    copied_s: Callable[[int], float] = lambda parameters: 0.0,
) -> float:
    """The seconds below which a backbone's passes, frozen work before them and sums of gradients cannot take.

    Args:
        layout: every backbone as one stage.
        stage: one of them.
        overlap: when the GPUs sum.
        operation: the collective that sums.
        every: micro-batches whose gradients are added up before the GPUs sum them; the last ones may be fewer.
        copied_s: seconds of copying the gradients of so many parameters into the buffer that is summed.
    """
    work_s, pieces = passes_s(layout, [stage]), buckets(layout, stage, overlap)
    if not pieces:
        return work_s
    size, count = layout.scenario.workload.recipe.gradient_bytes, layout.shape.micro_batches
    trained, sums = sum(parameters for _, parameters in pieces), -(-count // every)
    all_s = sums * collective_s(layout, operation, trained * size, len(pieces))
    copies_s = sums * sum_in_order(copied_s(parameters) for _, parameters in pieces)
    work_s += copies_s
    if overlap == "none":
        return work_s + all_s
    (ready_s, first), (last_s, last) = pieces[0], pieces[-1]
    # Before the extra forwards, which come first, runs all frozen work.
    between_s = 0.0 if layout.scenario.workload.extra_forward else before_s(layout, [stage])
    later = count - min(every, count)
    after_s = later * (between_s + stage.forward_s + stage.backward_s) + stage.backward_s - ready_s
    after_s += copies_s - copied_s(first)
    alone_s, share = collective_s(layout, operation, last * size), beside_share(layout.scenario)
    # The backward goes on after the last bucket where the first layers are locked.
    ended_s = work_s - stage.backward_s + last_s + alone_s + share * (all_s - alone_s)
    return max(work_s + share * all_s, ended_s, work_s - after_s + all_s)


def replicated_least_bytes(layout: Layout) -> float:
    """Bytes that each device cannot do without where it holds whole backbones.

    Args:
        layout: every backbone as one stage.
    """
    state = sum_in_order(buffer.size_bytes for buffer in resident_buffers(layout, layout.stages))
    return state + max(saved_bytes(layout, stage) for stage in layout.stages)


def replicated_least_s(layout: Layout, overlap: str) -> float:
    """Seconds that no iteration can undercut which reduces all gradients of whole backbones, and then steps.

    Args:
        layout: every backbone as one stage.
        overlap: when the GPUs sum.
    """
    count, total_s = layout.shape.micro_batches, 0.0
    for stage in layout.stages:
        step_s = layout.scenario.step_s(trained_parameters(layout, stage))
        total_s += reduced_s(layout, stage, overlap, "all_reduce", count) + step_s
    return total_s


def sharded(scenario: Scenario) -> Scenario:
    """A scenario in which no pass casts weights, whatever the stack.

    What is sharded is cast before it is gathered, once (FSDP's ``MixedPrecision``), or kept in half precision beside
    its master (DeepSpeed); what is replicated autocast casts in every forward pass.
    """
    if not scenario.stack.cast_weights:
        return scenario
    return scenario.remember(
        ("sharded", scenario.workload), scenario.without_casts
    )  # what is kept serves other workloads too


def divided(buffers: Collection[Buffer], names: Collection[str], num_gpus: int) -> tuple[Buffer, ...]:
    """Buffers of which those named are one GPU's part."""
    return tuple(Buffer(of.name, of.size_bytes / num_gpus) if of.name in names else of for of in buffers)


def with_shards(plan: Plan, names: Collection[str]) -> Plan:
    """A plan of one position in which each GPU keeps its part of the buffers named."""
    (buffers,) = plan.resident
    return replace(plan, resident=(divided(buffers, names, plan.placement.copies),))


def shard_bytes(pipeline: Pipeline, stages: Collection[Stage], names: Collection[str]) -> float:
    """The bytes that stay on each GPU."""
    buffers = resident_buffers(pipeline, tuple(stages))
    return sum_in_order(of.size_bytes for of in divided(buffers, names, pipeline.scenario.workload.num_gpus))


def copied_s(pipeline: Pipeline, stage: Stage, moved_bytes: float) -> float:
    """Seconds of a copy beside a stage's layers that reads and writes so many bytes in all; of none no launch."""
    costs = pipeline.scenario.costs.components[stage.component]
    return costs.copied_s(moved_bytes, 1) if moved_bytes else 0.0


def packed_s(pipeline: Pipeline, stage: Stage, parameters: int) -> float:
    """Seconds of copying gradients of a stage into the contiguous buffer that is scattered.

    They are read as the backward leaves them, in the weights' precision, and written in that of the sum.
    """
    recipe = pipeline.scenario.workload.recipe
    return copied_s(pipeline, stage, parameters * (recipe.weight_bytes + recipe.gradient_bytes))
