"""Units: the exchanges of data parallelism for each part of a backbone, and their times.

Four ways are configurations of one writer. Under DistributedDataParallel and ZeRO-2 a unit is a whole backbone, whose
gradients are summed, or scattered, in buckets while they are computed. Under ZeRO-3 and FSDP2 it is a block or more,
gathered before it is used and freed after it; gradients are scattered after each backward.

FSDP2 sweeps: the last unit stays from its forward to its backward (torchtitan, ``apply_fsdp``). Forwards gather up to
two units ahead, backwards one, and a sweep begins with nothing gathered ahead. The next unit but one waits for a
scatter, and all is summed before anything else runs, in every micro-batch. Gathers and scatters share a communicator;
the sums over replicas have one of their own. DeepSpeed gathers one unit ahead, over the ends of passes too, and only
the optimizer's step waits for scatters. Under ZeRO-2 a backward begins when at most one bucket of the one before is
still to be scattered (``overlap_comm``). Without overlap each exchange is waited for.

Source: PyTorch 2.9, ``torch/distributed/fsdp/_fully_shard``: ``_fsdp_param_group.py`` and ``_fsdp_state.py``.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from strategies.pipelining.builder import PipelineBuilder
from strategies.pipelining.footprint import resident_bytes, saved_bytes
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import GATHER, REDUCE, REPLICAS, SCATTER, SHARDS, Collected, Mesh
from strategies.pipelining.reduction import gathered_weights, placed_step
from strategies.pipelining.teams import TeamWriter
from strategies.plans.actions import BACKWARD, OPTIMIZER, FrozenAction, StageAction
from strategies.plans.plan import Collective

DONE: Final = {SCATTER: "scattered", REDUCE: "reduced"}
AHEAD_FORWARD: Final = 2
"""Units that are gathered while another one is used, in a forward."""
AHEAD_BACKWARD: Final = 1
AHEAD_WITHOUT_SWEEPS: Final = 1
"""The same where nothing is swept. Source: PyTorch FSDP, ``limit_all_gathers``: at most two units are in flight."""
BUCKET_BYTES: Final = 25 * 2**20
"""Gradients are reduced in buckets of at least this size. Source: PyTorch DDP, default ``bucket_cap_mb``."""
BUCKET_ELEMENTS: Final = 5 * 10**8
"""Gradients that ZeRO-2 scatters at once. Source: DeepSpeed, default ``reduce_bucket_size``."""


class Exchange(NamedTuple):
    """The way in which units exchange weights and gradients.

    Attributes:
        overlap: exchanges run beside compute; else each is waited for.
        gathers: weights are gathered before each use.
        sweeps: a pass through all units begins with nothing gathered ahead, as FSDP2's do.
        reshard: units are freed after their forward.
        every: micro-batches whose gradients are added up before they are exchanged.
        bucket_bytes: gradients that are summed at once, where no unit is gathered.
    """

    overlap: bool = True
    gathers: bool = False
    sweeps: bool = False
    reshard: bool = True
    every: int = 1
    bucket_bytes: float = BUCKET_BYTES

    def pieces(self, layout: Layout, unit: int) -> list[tuple[float, float]]:
        """Return the pieces in which the gradients of a unit are summed: seconds into its backward, and parameters."""
        stage, parameters, mesh = layout.stages[unit], layout.summed_parameters[unit], layout.mesh
        scatters_nothing = self.gathers and not self.sweeps  # DeepSpeed does
        if mesh.parts * mesh.replicas == 1 or not (parameters or scatters_nothing):
            return []
        if self.gathers or not self.overlap:
            return [(stage.backward_s, parameters)]
        return buckets_of(layout, unit, self.bucket_bytes)

    def summing(self, mesh: Mesh) -> list[Collected]:
        """Return the collectives that sum a piece of gradients, one after the other: the second sums parts."""
        if not self.gathers and 1 in (mesh.parts, mesh.replicas):  # among all GPUs, however they lie on nodes
            return [Collected(SCATTER if mesh.parts > 1 else REDUCE)]
        steps = [Collected(SCATTER, SHARDS, mesh.sharding)] if mesh.parts > 1 else []
        return steps + ([Collected(REDUCE, REPLICAS, mesh.replication)] if mesh.replicas > 1 else [])


def buckets_of(layout: Layout, unit: int, bucket_bytes: float) -> list[tuple[float, float]]:
    """Seconds into a backward, and parameters, of each gradient bucket, in the order they are ready."""
    stage, gradient_bytes = layout.stages[unit], layout.scenario.workload.recipe.gradient_bytes
    component, left = layout.component(stage), layout.summed_parameters[unit]
    _, backward_s = layout.layer_times(stage.component)
    buckets, elapsed_s, held = list[tuple[float, float]](), 0.0, 0
    for index in range(stage.last_layer, stage.first_layer - 1, -1):
        elapsed_s += float(backward_s[index])
        held += layout.summed_of(component, index, index + 1)
        if held * gradient_bytes >= bucket_bytes:
            buckets.append((min(elapsed_s, stage.backward_s), held))
            left, held = left - held, 0
    return buckets + ([(stage.backward_s, left)] if left else [])


class UnitPass(NamedTuple):
    """A pass through a unit, and the first and last of its ops in the row."""

    action: StageAction
    first: int
    last: int


def _backbone_passes(builder: PipelineBuilder) -> list[list[UnitPass]]:
    """The passes of each backbone, in order."""
    (row,) = builder.rows
    passes: list[list[UnitPass]] = [[] for _ in builder.cuts]
    numbered = enumerate(op.action for op in row)
    for action, ops in groupby(numbered, key=lambda pair: pair[1]):
        indices = [index for index, _ in ops]
        if isinstance(action, StageAction) and action.kind != OPTIMIZER:
            passes[builder.seats[action.stage].cut].append(UnitPass(action, indices[0], indices[-1]))
    return passes


@dataclass(slots=True)
class UnitWriter:
    """Adds the exchanges of the GPUs to the passes of one backbone.

    Attributes:
        gathered: the weights that lie on the GPU, by unit.
        due: (op of the row after which they are issued, collective).
        swept: the op of the row with which the last sweep backwards ended, and the tensors written by its sums.
        summed: pieces of gradients of each unit so far.
    """

    builder: PipelineBuilder
    way: Exchange
    passes: Sequence[UnitPass]
    gathered: dict[int, int] = field(default_factory=dict)
    due: list[tuple[int, Collective]] = field(default_factory=list)
    swept: tuple[int, list[int]] = (-2, [])
    summed: Counter[int] = field(default_factory=Counter)

    @property
    def mesh(self) -> Mesh:
        """The GPUs."""
        return self.builder.layout.mesh

    def write(self) -> list[tuple[int, Collective]]:
        """Add all gathers, scatters and sums; they are issued in the order of the ops that they follow."""
        (row,), way = self.builder.rows, self.way
        scattered, summed = list[int](), list[int]()
        for number, unit_pass in enumerate(self.passes):
            if way.gathers:
                self._use(number)
            if unit_pass.action.kind != BACKWARD:
                continue
            if way.sweeps or not way.gathers:
                row[unit_pass.first].reads += scattered[-2:-1]
            if sums := self._sum(unit_pass):
                scattered += [done[0] for done in sums] if self.mesh.parts > 1 else []
                # of the last unit that has any: of one stream they end in order
                summed = [each for done in sums for each in done]
                if not way.overlap:
                    row[unit_pass.last + 1].reads += summed
            if unit_pass.action.stage == self.builder.seats[unit_pass.action.stage].first:
                if way.sweeps or unit_pass is self.passes[-1]:
                    row[unit_pass.last + 1].reads += summed
                if way.sweeps:
                    self.swept, scattered, summed = (unit_pass.last, summed), [], []
        return self.due

    def _use(self, number: int) -> None:
        """Let a pass wait for its weights, which are gathered unless they lie there."""
        (row,), ((unit, kind, _), first, last) = self.builder.rows, self.passes[number]
        if unit not in self.gathered:
            if self.mesh.parts == 1:
                return
            self.gathered[unit] = self._gather(number)
            row[first].duration_s += unpacked_s(self.builder.layout, unit)
        for index in sorted({first, last}):
            row[index].reads.append(self.gathered[unit])
        kept = self.way.sweeps and (not self.way.reshard or unit == self.builder.seats[unit].last)
        if kind == BACKWARD or not kept:
            del self.gathered[unit]

    def _gather(self, number: int) -> int:
        """Gather the weights of a pass as soon as there is room for them."""
        (row,), after = self.builder.rows, self._room_after(number)
        (unit, _, _), first, _ = self.passes[number]
        room: list[int] = []
        if after >= 0:
            room.append(self.builder.tensor("room", unit, first, 0.0))
            row[after].writes += room
        room += self.swept[1] if self.way.sweeps and after == self.swept[0] else []
        size = self.builder.layout.weights_bytes[unit]
        gathered = self.builder.tensor("gathered", unit, first, size)
        what = Collected(GATHER, SHARDS, self.mesh.sharding)
        self.due.append((after, what.collective(size, room, gathered)))
        return gathered

    def _room_after(self, number: int) -> int:
        """Return the op of the row after which the weights of a pass may be gathered; -1: none."""
        (row,), ((unit, kind, _), start, _) = self.builder.rows, self.passes[number]
        ahead, first = AHEAD_BACKWARD, 0
        if not self.way.sweeps:
            ahead = AHEAD_WITHOUT_SWEEPS if self.way.overlap else 0
            before = row[start - 1].action if number else None
            first = number if isinstance(before, FrozenAction) or (before and before[0] == unit) else 0
        elif kind != BACKWARD:
            ahead, first = AHEAD_FORWARD, number - (unit - self.builder.seats[unit].first)
        return self.passes[max(first, number - ahead)].first - 1

    def _sum(self, backward: UnitPass) -> list[list[int]]:
        """Sum the gradients of a backward, piece by piece; return the tensors written when each is done."""
        builder, mesh, (unit, _, number) = self.builder, self.mesh, backward.action
        layout = builder.layout
        if (number + 1) % self.way.every and number + 1 < layout.shape.micro_batches:
            return []
        draft, all_done, packed = builder.rows[0][backward.last], list[list[int]](), 0.0
        for offset_s, parameters in self.way.pieces(layout, unit):
            index = self.summed[unit]
            self.summed[unit] += 1
            if mesh.parts > 1 or self.way.gathers:
                packed += packed_s(layout, unit, parameters)
            size = parameters * builder.scenario.workload.recipe.gradient_bytes
            if self.way.sweeps:
                held = _left_bytes(layout, self.way, unit, builder.seats[unit].last)
                reads = [builder.tensor("computed", unit, index, 0.0)]
                draft.writes.append(builder.tensor("gradients", unit, index, held))  # nobody reads them
            else:
                kept = self.way.every > 1 or mesh.parts == 1  # whole gradients lie there throughout
                reads = [builder.tensor("gradients", unit, index, 0.0 if kept else size)]
            if self.way.overlap and not self.way.gathers:
                draft.early.append((offset_s + packed, reads[0]))
            else:
                draft.writes += reads
            done = list[int]()
            for step in self.way.summing(mesh):
                done.append(builder.tensor(DONE[step.operation], unit, index, 0.0))
                self.due.append((backward.last, step.collective(size, reads, done[-1])))
                size, reads = size / mesh.parts, done[-1:]
            all_done.append(done)
        draft.duration_s += packed
        return all_done


def exchange(builder: PipelineBuilder, way: Exchange) -> None:
    """Add the exchanges of a mesh, and the optimizer steps, each on one GPU's part of a unit.

    After the same op scatters come before gathers in sweeps. Weights that lie whole are gathered after the step.
    """
    layout = builder.layout
    due = TeamWriter(builder).write() if layout.mesh.team > 1 else []
    for passes in _backbone_passes(builder):
        if any(layout.trained_parameters[unit_pass.action.stage] for unit_pass in passes):
            due += UnitWriter(builder, way, passes).write()
    (row,) = builder.rows
    steps = {op.action[0]: index for index, op in enumerate(row) if op.action[1] == OPTIMIZER}
    for unit, trained in enumerate(layout.trained_parameters):
        if trained:
            step = placed_step(builder, unit)
            if not way.gathers and layout.mesh.parts > 1:
                collective = gathered_weights(builder, unit, step, layout.mesh.shared_among)
                due.append((steps[unit], collective))
                if steps[unit] + 1 < len(row):
                    row[steps[unit] + 1].reads += collective.writes
    due.sort(
        key=lambda pair: (pair[0], (pair[1].operation == GATHER and pair[1].stream == SHARDS) == way.sweeps)
    )
    builder.collectives += [collective for _, collective in due]


def copied_s(layout: Layout, unit: int, moved_bytes: float) -> float:
    """Seconds of a copy beside a unit's layers that reads and writes so many bytes in all; of none no launch."""
    costs = layout.scenario.costs.components[layout.stages[unit].component]
    return costs.copied_s(moved_bytes, 1) if moved_bytes else 0.0


def unpacked_s(layout: Layout, unit: int) -> float:
    """Seconds of copying gathered weights out of their buffer (``foreach_all_gather_copy_out``): read and written.

    Then products in fewer bits cast them.
    """
    cast_s = layout.scenario.costs.cast_s(layout.parameters[unit])
    return copied_s(layout, unit, 2 * layout.weights_bytes[unit]) + cast_s


def packed_s(layout: Layout, unit: int, parameters: float) -> float:
    """Seconds of copying gradients into the buffer that is scattered (``foreach_reduce_scatter_copy_in``).

    They are read as the backward leaves them, in the weights' precision, and written in that of the sum.
    """
    recipe = layout.scenario.workload.recipe
    return copied_s(layout, unit, parameters * (recipe.weight_bytes + recipe.gradient_bytes))


def _left_bytes(layout: Layout, way: Exchange, unit: int, last: int) -> float:
    """Bytes of gradients when the backward of a unit ends, beyond those that lie there throughout.

    In sweeps its own and the buffer of the unit after it; then its own buffer takes that place, and that of its weights
    (``post_backward``; ``reduce_scatter_max_input_buffers`` is 1). ``last`` is the first unit to run backwards.
    """
    mesh, recipe, trained = layout.mesh, layout.scenario.workload.recipe, layout.parameters[unit]
    if not way.sweeps:
        kept = way.every > 1 or mesh.parts == 1
        pieces = [] if kept else way.pieces(layout, unit)
        return max((parameters for _, parameters in pieces), default=0) * recipe.gradient_bytes
    if mesh.parts * mesh.replicas == 1 or not trained:
        return 0.0
    after = layout.parameters[unit + 1] * recipe.gradient_bytes if unit < last else 0.0
    freed = layout.weights_bytes[unit] if mesh.parts > 1 else 0.0
    return trained * recipe.weight_bytes + max(after, trained * recipe.gradient_bytes - freed)


def least_bytes(layout: Layout, way: Exchange) -> float:
    """Bytes that each GPU cannot do without.

    When a backward ends, its unit's activations, weights and gradients are there, and the activations of all before it.
    """
    held, gathers = 0.0, way.gathers and layout.mesh.parts > 1
    for units in map(layout.chain, range(len(layout.cuts))):
        saved = gathered = 0.0
        for unit in units:
            saved += saved_bytes(layout, layout.stages[unit])
            weights = layout.weights_bytes[unit] if gathers else 0.0
            gathered = weights if way.reshard else gathered + weights
            held = max(held, saved + gathered + _left_bytes(layout, way, unit, units[-1]))
    return resident_bytes(layout) + held


def step_s(layout: Layout, units: Sequence[int]) -> float:
    """Seconds of the optimizer steps on one GPU's parts of units."""
    return sum(layout.step_s(layout.parameters[unit]) for unit in units)
