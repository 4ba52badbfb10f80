"""Units: what FSDP2, or DeepSpeed's ZeRO-3, exchanges for each block, and when it may.

A unit, a block of a backbone, is gathered before it is used and freed after it; the last one stays from its forward to
its backward, for it would be gathered again at once (torchtitan, ``apply_fsdp``). Forwards may gather up to two units
ahead of the one at work, whose copy out of its buffer the gather after next waits for; backwards one. A sweep through
all units begins with nothing gathered ahead. Gradients are scattered after each backward, the next unit but one waits
for that, and all is summed before anything else runs. Gradients are synchronised in every micro-batch, and its weights
gathered anew: the defaults of ``set_requires_gradient_sync`` and ``set_reshard_after_backward``. Gathers and scatters
share a communicator; the sums over replicas have one of their own. Beside its layers a pass copies weights out of the
buffer that they were gathered into, and a backward gradients into that which is scattered.

DeepSpeed does not sweep: one unit is gathered ahead forwards and backwards, over the ends of passes too, unless frozen
work or the unit itself runs just before; the last unit is freed as any other, and only the optimizer's step waits for
scatters. Without overlap each exchange is waited for.

Source: PyTorch 2.9, ``torch/distributed/fsdp/_fully_shard``: ``_fsdp_param_group.py`` (``wait_for_unshard``,
``pre_backward``, ``post_backward``) and ``_fsdp_state.py`` (``_root_pre_forward``,
``_root_post_backward_final_callback``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from profiles.checks import sum_in_order
from strategies.pipelining.builder import PipelineBuilder
from strategies.pipelining.footprint import BACKBONE, resident_buffers, saved_bytes
from strategies.pipelining.mesh import REPLICAS, SHARDS, Collected, Mesh, MeshLayout
from strategies.pipelining.reduction import GATHER, REDUCE, SCATTER, placed_step
from strategies.pipelining.teams import TeamWriter
from strategies.plans.actions import BACKWARD, OPTIMIZER, FrozenAction, StageAction
from strategies.plans.plan import Buffer, Collective

DONE: Final = {SCATTER: "scattered", REDUCE: "reduced"}
AHEAD_FORWARD: Final = 2
"""Units that are gathered while another one is used, in a forward."""
AHEAD_BACKWARD: Final = 1
AHEAD_WITHOUT_SWEEPS: Final = 1
"""The same where nothing is swept. Source: PyTorch FSDP, ``limit_all_gathers``: at most two units are in flight."""


class UnitPass(NamedTuple):
    """A pass through a unit, and the first and last of its ops in the row."""

    action: StageAction
    first: int
    last: int


def keeps(last: int, unit: int, *, reshard: bool) -> bool:
    """Whether a unit stays gathered after its forward.

    Args:
        last: the last unit of its backbone.
        unit: the unit.
        reshard: whether others are freed then.
    """
    return not reshard or unit == last


def backbone_passes(builder: PipelineBuilder) -> list[list[UnitPass]]:
    """The passes of each backbone, in order."""
    (row,) = builder.rows
    found: list[list[UnitPass]] = [[] for _ in builder.cuts]
    numbered = enumerate(draft.action for draft in row)
    for action, ops in groupby(numbered, key=lambda pair: pair[1]):
        indices = [index for index, _ in ops]
        if isinstance(action, StageAction) and action.kind != OPTIMIZER:
            found[builder.seats[action.stage].cut].append(UnitPass(action, indices[0], indices[-1]))
    return found


@dataclass(slots=True)
class UnitWriter:
    """Adds to the passes of one backbone what their GPUs exchange.

    Attributes:
        builder: the plan under construction.
        layout: its units on their mesh.
        passes: those of the backbone.
        reshard: whether units are freed after their forward.
        sweeps: whether a pass through all units begins with nothing gathered ahead, as FSDP2's do.
        gathered: the weights that lie on the GPU, by unit.
        due: (op of the row after which they are issued, collective).
        swept: the op of the row with which the last sweep backwards ended, and what says that all is summed.
    """

    builder: PipelineBuilder
    layout: MeshLayout
    passes: Sequence[UnitPass]
    reshard: bool
    sweeps: bool = True
    gathered: dict[int, int] = field(default_factory=dict)
    due: list[tuple[int, Collective]] = field(default_factory=list)
    swept: tuple[int, list[int]] = (-2, [])

    @property
    def mesh(self) -> Mesh:
        """The GPUs."""
        return self.layout.mesh

    def write(self) -> list[tuple[int, Collective]]:
        """Add all gathers, scatters and sums; they are issued in the order of the ops that they follow."""
        (row,) = self.builder.rows
        scattered, summed = list[int](), list[int]()
        for number, own in enumerate(self.passes):
            self._use(number)
            if own.action.kind != BACKWARD:
                continue
            if self.sweeps:
                row[own.first].reads += scattered[-2:-1]
            if sums := self._sum(own):
                scattered += sums[:1] if self.mesh.parts > 1 else []
                summed = sums  # of the last unit that has any: of one stream they end in order
            if not self.builder.recipe.buckets:
                row[own.last + 1].reads += sums
            if own.action.stage == self.builder.seats[own.action.stage].first:
                if self.sweeps or own is self.passes[-1]:
                    row[own.last + 1].reads += summed
                self.swept, scattered, summed = (own.last, summed), [], []
        return self.due

    def _use(self, number: int) -> None:
        """Let a pass wait for its weights, which are gathered unless they lie there."""
        own = self.passes[number]
        unit, kind, _ = own.action
        if unit not in self.gathered:
            if self.mesh.parts == 1:
                return
            self.gathered[unit] = self._gather(number)
            self.builder.rows[0][own.first].duration_s += unpacked_s(self.layout, unit)
        (row,) = self.builder.rows
        for index in sorted({own.first, own.last}):
            row[index].reads.append(self.gathered[unit])
        kept = self.sweeps and keeps(self.builder.seats[unit].last, unit, reshard=self.reshard)
        if kind == BACKWARD or not kept:
            del self.gathered[unit]

    def _gather(self, number: int) -> int:
        """Gather the weights of a pass as soon as there is room for them."""
        (row,) = self.builder.rows
        own, after = self.passes[number], self._room_after(number)
        unit = own.action.stage
        room: list[int] = []
        if after >= 0:
            room.append(self.builder.tensor("room", unit, own.first, 0.0))
            row[after].writes += room
        room += self.swept[1] if self.sweeps and after == self.swept[0] else []
        size = self.layout.weight_bytes(unit)
        gathered = self.builder.tensor("gathered", unit, own.first, size)
        what = Collected(GATHER, SHARDS, self.mesh.sharding)
        self.due.append((after, what.collective(size, room, gathered)))
        return gathered

    def _room_after(self, number: int) -> int:
        """The op of the row after which the weights of a pass may be gathered; -1: none."""
        (row,) = self.builder.rows
        own = self.passes[number]
        unit, kind, _ = own.action
        ahead, first = AHEAD_BACKWARD, 0
        if not self.sweeps:
            ahead = AHEAD_WITHOUT_SWEEPS if self.builder.recipe.buckets else 0
            before = row[own.first - 1].action if number else None
            first = number if isinstance(before, FrozenAction) or (before and before[0] == unit) else 0
        elif kind != BACKWARD:
            ahead, first = AHEAD_FORWARD, number - (unit - self.builder.seats[unit].first)
        return self.passes[max(first, number - ahead)].first - 1

    def _sum(self, own: UnitPass) -> list[int]:
        """Sum the gradients of a backward over the GPUs that share their parts, then over replicas; what says so."""
        mesh, (unit, _, number) = self.mesh, own.action
        size = self.layout.parameters(unit) * self.builder.scenario.workload.recipe.gradient_bytes
        steps = [Collected(SCATTER, SHARDS, mesh.sharding)] if mesh.parts > 1 else []
        steps += [Collected(REDUCE, REPLICAS, mesh.replication)] if mesh.replicas > 1 else []
        if not steps or (self.sweeps and not size):
            return []
        (row,) = self.builder.rows
        done = list[int]()
        if self.sweeps:
            held = _left_bytes(self.layout, unit, self.builder.seats[unit].last)
            reads = [self.builder.tensor("computed", unit, number, 0.0)]
            left = [self.builder.tensor("gradients", unit, number, held)]  # nobody reads them
        else:
            reads, left = [self.builder.tensor("gradients", unit, number, size)], []
        row[own.last].writes += reads + left
        row[own.last].duration_s += packed_s(self.layout, unit)
        for step in steps:
            done.append(self.builder.tensor(DONE[step.operation], unit, number, 0.0))
            self.due.append((own.last, step.collective(size, reads, done[-1])))
            size, reads = size / mesh.parts, done[-1:]
        return done


def exchange(builder: PipelineBuilder, *, reshard: bool = True, sweeps: bool = True) -> None:
    """Add what the GPUs of a mesh exchange, and the optimizer steps, each on one GPU's part of a unit.

    Of what follows the same op scatters are issued before gathers in sweeps: ``post_backward`` runs before
    ``pre_backward``.
    """
    layout = builder.layout
    assert isinstance(layout, MeshLayout)
    due = TeamWriter(builder, layout).write() if layout.mesh.team > 1 else []
    for own in backbone_passes(builder):
        if any(layout.trained_parameters[of.action.stage] for of in own):
            due += UnitWriter(builder, layout, own, reshard, sweeps).write()
    due.sort(key=lambda pair: (pair[0], (pair[1].operation == GATHER and pair[1].stream == SHARDS) == sweeps))
    builder.collectives += [collective for _, collective in due]
    for unit, trained in enumerate(layout.trained_parameters):
        if trained:
            placed_step(builder, unit).duration_s = step_s(layout, unit)


def unpacked_s(layout: MeshLayout, unit: int) -> float:
    """Seconds of copying what was gathered out of its buffer (``foreach_all_gather_copy_out``): read and written."""
    return layout.copied_s(unit, 2 * layout.weight_bytes(unit))


def packed_s(layout: MeshLayout, unit: int) -> float:
    """Seconds of copying gradients into the buffer that is scattered (``foreach_reduce_scatter_copy_in``).

    They are read as the backward leaves them, in the weights' precision, and written in that of the sum.
    """
    recipe = layout.scenario.workload.recipe
    return layout.copied_s(unit, layout.parameters(unit) * (recipe.weight_bytes + recipe.gradient_bytes))


def _left_bytes(layout: MeshLayout, unit: int, last: int) -> float:
    """Bytes of gradients when the backward of a unit ends: its own, as it leaves them, and those that are scattered.

    The buffer of the unit after it stays until then, its exchange over or not; then the unit's own takes that place,
    and that of its weights (``post_backward``; ``reduce_scatter_max_input_buffers`` is 1).

    Args:
        layout: the units on their mesh.
        unit: the unit.
        last: the last unit of its backbone, the first to run backwards.
    """
    mesh, recipe = layout.mesh, layout.scenario.workload.recipe
    own = layout.parameters(unit)
    if mesh.parts * mesh.replicas == 1 or not own:
        return 0.0
    after = layout.parameters(unit + 1) * recipe.gradient_bytes if unit < last else 0.0
    freed = layout.weight_bytes(unit) if mesh.parts > 1 else 0.0
    return own * recipe.weight_bytes + max(after, own * recipe.gradient_bytes - freed)


def step_s(layout: MeshLayout, unit: int) -> float:
    """Seconds of the optimizer step on one GPU's part of a unit."""
    part, scenario = layout.parameters(unit) / layout.mesh.parts, layout.scenario
    return scenario.step_s(part)


def resident(layout: MeshLayout) -> tuple[Buffer, ...]:
    """The bytes that stay on each GPU: its part of what is trained, all that is frozen.

    Where the optimizer has master weights, those are what is divided: they are cast for a gather, and nothing else of
    the weights stays (FSDP's ``MixedPrecisionPolicy``). Where the optimizer lies in the host's memory, so do they, and
    the GPUs keep parts of the weights. What of a backbone is locked lies whole on each GPU; beside adapters it is
    divided like what is trained.
    """
    mesh, recipe = layout.mesh, layout.scenario.workload.recipe
    divided = _parts(layout)
    offloads = layout.scenario.workload.offload == "optimizer"
    masters = mesh.parts > 1 and recipe.master_bytes and not offloads
    return tuple(
        Buffer(of.name, of.size_bytes * divided[of.name]) if of.name in divided else of
        for of in resident_buffers(layout, layout.stages)
        if not (masters and of.name == "weights")
    )


def _parts(layout: MeshLayout) -> dict[str, float]:
    """Shares of what is divided that lie on each GPU, by the name of their buffer."""
    mesh, units = layout.mesh, range(len(layout.stages))
    trained, locked = dict.fromkeys(("gradients", "optimizer", "moving average", "weights"), 1.0), 1.0
    if mesh.tensor > 1:
        own, all_ = sum_in_order(map(layout.parameters, units)), sum_in_order(layout.trained_parameters)
        trained = dict.fromkeys(trained, own / max(1, all_))
        whole = sum(stage.parameters for stage in layout.stages) - all_
        locked = sum_in_order(layout.kept(unit).locked for unit in units) / max(1, whole)
    return {name: of / mesh.parts for name, of in (trained | {BACKBONE: locked}).items()}


def least_bytes(layout: MeshLayout, *, reshard: bool) -> float:
    """Bytes that each GPU cannot do without.

    When a backward ends, its unit's activations, weights and gradients are there, and the activations of all before it.
    """
    mesh, held = layout.mesh, 0.0
    for units in map(layout.chain, range(len(layout.cuts))):
        saved = gathered = 0.0
        for unit in units:
            saved += saved_bytes(layout, layout.stages[unit], in_place=True)
            weights = layout.weight_bytes(unit) * (mesh.parts > 1)
            gathered = weights if reshard else gathered + weights
            held = max(held, saved + gathered + _left_bytes(layout, unit, units[-1]))
    return sum_in_order(buffer.size_bytes for buffer in resident(layout)) + held
