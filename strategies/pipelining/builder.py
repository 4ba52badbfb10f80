"""Pipelines: from stages and an order of forwards and backwards to a whole training plan.

Every training strategy gives cuts of its backbones and an order; the rest is the same for all.
``strategies.pipelining.reduction`` adds the sums of gradients and the optimizer steps.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from operator import itemgetter

from profiles.mappings import FrozenMapping
from strategies.pipelining.filling import fill_bubbles
from strategies.pipelining.footprint import recomputed_bytes, resident_buffers, saved_bytes
from strategies.pipelining.frozen import FrozenWork, PlacedOp, Row, frozen_chains
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Seat
from strategies.plans.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    EXTRA_FORWARD,
    FORWARD,
    OPTIMIZER,
    Rows,
    StageAction,
)
from strategies.plans.network import Network
from strategies.plans.plan import Collective, FilledLayer, Filling, Op, Plan, Tensor, Tensors
from strategies.plans.wiring import wire
from strategies.plans.worklist import Outputs, Step, walk

_Column = tuple[list[int], bool]
"""The tensors of one role and stage, one of each micro-batch, and whether a pass writes them, or reads them."""


_Passes = tuple[int, float, list[tuple[int, ...]], list[tuple[int, ...]]]
"""The passes of a kind through a stage: the first micro-batch, seconds, and the tensors that each reads and writes."""


def with_extra_forwards(layout: Layout, rows: Rows) -> Rows:
    """Rows with their extra forwards first, as a wave front through the stages of each chain at once."""
    cuts, seats = layout.cuts, layout.seats

    def place_in_front(action: StageAction) -> tuple[int, int, int]:
        seat = seats[action.stage]
        depth = action.stage - seat.first
        first, _ = cuts[seat.cut].micro_batches or (0, 0)
        return depth + action.micro_batch - first, -depth, action.stage

    fronts = [sorted((a for a in row if a.kind == FORWARD), key=place_in_front) for row in rows]
    return tuple(
        (*(StageAction(a.stage, EXTRA_FORWARD, a.micro_batch) for a in front), *row)
        for front, row in zip(fronts, rows, strict=True)
    )


class PipelineBuilder:
    """Writes the plan of one iteration from a layout and rows.

    ``rows[p]`` is the order of position p. What a row does not place itself goes where it is usual: extra forwards
    come first, optimizer steps last. Of local skips each stays where it was made until its reader takes it. With
    ``cross_iteration`` the frozen work of the next iteration is done, instead of that of this one before it.
    """

    def __init__(
        self, layout: Layout, rows: Rows, *, blocking: bool = False, cross_iteration: bool = False
    ) -> None:
        self.layout, self.blocking, self.cross_iteration = layout, blocking, cross_iteration
        self.scenario, self.shape, self.cuts = layout.scenario, layout.shape, layout.cuts
        self.placement, self.group_batch = layout.placement, layout.group_batch
        self.stages, self.seats = layout.stages, layout.seats
        self.tensors = Tensors()
        self.collectives: list[Collective] = []
        self.given: list[tuple[int, int]] = []
        self.kept: list[tuple[int, int]] = []
        self.rows = [Row() for _ in range(self.shape.degree)]
        self.stepping: set[int] = set()
        """Stages whose optimizer step is in its row."""
        self._known: dict[tuple[str, int], dict[int, int]] = {}
        self._columns: dict[tuple[str, int], list[int]] = {}
        # units of a mesh all lie on one device: their outputs are among their saved activations
        self._handovers = (0.0,) * len(self.stages) if layout.in_units else layout.handovers_bytes
        self._saved = [saved_bytes(layout, stage) for stage in self.stages]
        self._recomputed = [recomputed_bytes(layout, stage) for stage in self.stages]
        self._skips = layout.skips_bytes if layout.skip_route == "local" else {}
        extra = any(action.kind == EXTRA_FORWARD for row in rows for action in row)
        lacks_extra = self.scenario.workload.extra_forward and not extra
        self._order = with_extra_forwards(layout, rows) if lacks_extra else rows

    def build(self, synchronize: "Callable[[PipelineBuilder], None]", filling: Filling | None = None) -> Plan:
        """Return the plan, to whose rows ``synchronize`` adds the exchanges of replicas and the optimizer steps.

        Without a filling all frozen work goes before the pipeline or, cross-iteration, after it.
        """
        if filling is None:
            filling = Filling(self._unfilled(self.shape.micro_batches if self.layout.in_units else 1))
        frozen = FrozenWork(self.scenario, self.group_batch, self.layout.replicas, self.tensors)
        for layer in filling.layers:
            frozen.place(layer)
        inputs = self._inputs(frozen)
        for position, row in enumerate(self._order):
            self.rows[position] = self._row(row, inputs)
        if not self.cross_iteration:
            self._put_first(frozen)
        synchronize(self)
        if self.cross_iteration:
            self._insert(frozen, filling)
        return self._finish(filling)

    def _unfilled(self, pieces: int = 1) -> list[FilledLayer]:
        """All frozen work, data-parallel over all positions, one of equal pieces of the batch after the other."""
        chains, samples = frozen_chains(self.scenario), self.group_batch // pieces
        degree, replicas = self.shape.degree, self.layout.replicas
        return fill_bubbles((), chains, samples, degree, replicas, partial=False) * pieces

    def tensor(self, role: str, stage: int, number: int, size_bytes: float) -> int:
        """The number of the tensor of this name; the first to ask says its bytes."""
        known = self._known.setdefault((role, stage), {})
        if number not in known:
            known[number] = len(self.tensors)
            self.tensors.append(Tensor(role, stage, number, size_bytes))
        return known[number]

    def _inputs(self, frozen: FrozenWork) -> dict[tuple[int, int], list[int]]:
        """For each (stage, micro-batch) the tensors of frozen outputs that its forward reads.

        Across iterations, or where they come from the data loader, they lie where the stage reads them.
        """
        inputs: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        samples = self.group_batch // self.shape.micro_batches
        for stage, seat in enumerate(self.seats):
            numbers, position = self.layout.micro_batches(seat.cut), self.stages[stage].position
            for source, size in self.layout.frozen_reads(self.stages[stage]):
                runs = source in self.scenario.frozen
                for number in numbers:
                    if runs and not self.cross_iteration:
                        first = number * samples
                        inputs[stage, number] += frozen.output(source, first, first + samples, size)
                        continue
                    tensor = self.tensor(f"input {source}", stage, number, size * self.layout.local_batch)
                    inputs[stage, number].append(tensor)
                    self.given.append((tensor, position))
                if runs and self.cross_iteration:
                    span = numbers.start * samples, numbers.stop * samples
                    self.kept += [(tensor, position) for tensor in frozen.output(source, *span, size)]
        return inputs

    def _row(self, actions: Sequence[StageAction], inputs: dict[tuple[int, int], list[int]]) -> Row:
        alike = dict.fromkeys(map(itemgetter(0, 1), actions))
        passes = {(stage, kind): self._passes(stage, kind, inputs) for stage, kind in alike}
        row = Row()
        for action in actions:
            first, duration_s, reads, writes = passes[action[0], action[1]]
            at = action[2] - first
            # as _make, without a Python call for each of the many that a plan has
            row.append(tuple.__new__(Op, (action, duration_s, reads[at], writes[at], (), 0.0)))
        return row

    def _passes(self, stage: int, kind: str, inputs: dict[tuple[int, int], list[int]]) -> _Passes:
        """The passes of a kind through a stage."""
        if kind == OPTIMIZER:
            self.stepping.add(stage)
            return -1, 0.0, [()], [()]
        numbers = self.layout.micro_batches(self.seats[stage].cut)
        if kind in (FORWARD, EXTRA_FORWARD):
            duration_s, columns = self.stages[stage].forward_s, [*self._of_forward(stage, kind)]
        else:
            weight_s = 0.0 if kind == BACKWARD else self.layout.weight_part_s(self.stages[stage])
            duration_s = weight_s if kind == BACKWARD_WEIGHT else self.stages[stage].backward_s - weight_s
            columns = [*self._of_backward(stage, kind)]
        reads, writes = (
            [*zip(*[tensors for tensors, written in columns if written == out], strict=True)]
            or [()] * len(numbers)
            for out in (False, True)
        )
        if inputs and kind in (FORWARD, EXTRA_FORWARD):
            reads = [(*inputs.get((stage, n), ()), *read) for n, read in zip(numbers, reads, strict=True)]
        return numbers.start, duration_s, reads, writes

    def _of_forward(self, stage: int, kind: str) -> Iterator[_Column]:
        """Tensors of a forward, or of the extra one, which saves nothing and whose output is fed back."""
        extra = kind == EXTRA_FORWARD
        prefix = "extra " if extra else ""
        seat = self.seats[stage]
        if seat.before is not None:
            yield self._hidden(prefix, seat.before, written=False)
        elif not extra and self.scenario.workload.extra_forward:
            yield self._feedback(seat, written=False)
        if seat.after is not None:
            yield self._hidden(prefix, stage, written=True)
        elif extra:
            yield self._feedback(seat, written=True)
        if not extra:
            yield self._column("saved", stage, self._saved[stage], written=True)
        for (source, target), size in self._skips.items():
            if stage in (source, target):
                yield self._column(f"{prefix}skip to {target}", source, size, written=stage == source)

    def _of_backward(self, stage: int, kind: str) -> Iterator[_Column]:
        """Tensors of a backward, or of the part of it that gradients of inputs or of weights take."""
        yield self._column("saved", stage, self._saved[stage], written=False)
        if kind != BACKWARD and self._recomputed[stage]:  # gradients of weights need it too, and come later
            yield self._column("recomputed", stage, self._recomputed[stage], written=kind == BACKWARD_INPUT)
        if kind == BACKWARD_WEIGHT:
            yield self._column("output gradients", stage, 0.0, written=False)
            return
        seat = self.seats[stage]
        if seat.after is not None:
            yield self._gradient(seat.after, written=False)
        if seat.before is not None:
            yield self._gradient(stage, written=True)
        if kind == BACKWARD_INPUT:
            yield self._column("output gradients", stage, 0.0, written=True)
        for (source, target), size in self._skips.items():
            if stage in (source, target):
                yield self._column(f"skip gradient to {source}", target, size, written=stage == target)

    def _column(self, role: str, stage: int, size_bytes: float, *, written: bool) -> _Column:
        tensors = self._columns.get((role, stage))
        if tensors is None:
            numbers = self.layout.micro_batches(self.seats[stage].cut)
            tensors = self._columns[role, stage] = self.tensors.add(role, stage, numbers, size_bytes)
        return tensors, written

    def _hidden(self, prefix: str, stage: int, *, written: bool) -> _Column:
        carried = self.layout.component(self.stages[stage]).carried_bytes * self.layout.local_batch
        size = 0.0 if self.layout.in_units else self._handovers[stage] + carried
        return self._column(prefix + "hidden", stage, size, written=written)

    def _gradient(self, stage: int, *, written: bool) -> _Column:
        return self._column("gradient", stage, self._handovers[stage - 1], written=written)

    def _feedback(self, seat: Seat, *, written: bool) -> _Column:
        last = self.stages[seat.last]
        output_bytes = self.layout.component(last).layers[last.last_layer].output_bytes
        return self._column("feedback", seat.last, output_bytes * self.layout.local_batch, written=written)

    def _put_first(self, frozen: FrozenWork) -> None:
        """Put frozen ops before the pipeline; on a mesh those of a micro-batch right before its first pass."""
        if not self.layout.in_units:
            for position, row in enumerate(self.rows):
                row[:0] = [placed.draft for placed in frozen.placed if placed.position == position]
            return
        row, first = Row(), EXTRA_FORWARD if self.scenario.workload.extra_forward else FORWARD
        each = len(frozen.placed) // self.shape.micro_batches
        for op in self.rows[0]:
            if op.action[:2] == (0, first):
                number = op.action[2]
                row += [of.draft for of in frozen.placed[number * each : (number + 1) * each]]
            row.append(op)
        self.rows[0] = row

    def _insert(self, frozen: FrozenWork, filling: Filling) -> None:
        """Put frozen ops into bubbles, or after the last backward of the pipeline."""
        for position, row in enumerate(self.rows):
            ops = [placed for placed in frozen.placed if placed.position == position]
            indices = self._indices(position, ops, filling)
            for inserted, (placed, index) in enumerate(zip(ops, indices, strict=True)):
                row.insert(index + inserted, placed.draft)

    def _indices(self, position: int, ops: Sequence[PlacedOp], filling: Filling) -> list[int]:
        """For each frozen op of a position the index in its row before which it goes.

        What no bubble took uses the time in which gradients are reduced; the optimizer step does not wait for the rest.
        """
        row = self.rows[position]
        step = next((i for i, op in enumerate(row) if op.action[1] == OPTIMIZER), len(row))
        starts = filling.starts[position] if filling.starts else ()
        free_s = starts[step - 1] + row[step - 1].duration_s if starts else 0.0
        indices: list[int] = []
        reach = 0
        for placed in ops:
            if placed.bubble is not None:
                at = bisect_left(starts, placed.bubble.start_s - 1e-12)
                free_s = max(free_s, placed.bubble.start_s) if at == step else free_s
            else:
                waiting = not starts or (step < len(row) and free_s < starts[step])
                at = step if waiting else len(row)
            reach = max(reach, at)
            free_s += placed.draft.duration_s if reach == step else 0.0
            indices.append(reach)
        return indices

    def _finish(self, filling: Filling) -> Plan:
        prologue = self._unfilled() if self.cross_iteration else []
        plan = Plan(
            ops=tuple(row.finish() for row in self.rows),
            tensors=self.tensors,
            placement=self.placement,
            stages=self.stages,
            collectives=tuple(self.collectives),
            resident=tuple(resident_buffers(self.layout, p) for p in range(self.shape.degree)),
            given=tuple(self.given),
            kept=tuple(self.kept),
            cross_iteration=self.cross_iteration,
            prologue_s=sum(layer.duration_s for layer in prologue),
            filling=filling,
        )
        if not self.blocking:
            return plan
        posted = posted_in_time(plan) if any(len(stages) > 1 for stages in self.layout.hosted) else {}
        return replace(plan, blocking=True, posted_after=FrozenMapping(posted | posted_at_once(plan)))


def posted_in_time(plan: Plan) -> dict[tuple[int, int], int]:
    """For each (tensor, device) that is sent the op of the receiver after which it is posted.

    It is the last that starts before the tensor is written, if nobody waits for messages; passes alone count, as all
    sums of gradients follow them.
    """
    wiring, network = wire(plan), Network(plan.placement)
    num_slots, outputs = len(wiring.sources), dict[int, Outputs]()
    for slot, message in enumerate(wiring.transfers):
        if message is not None:
            route = network.route(message.source, message.target)
            message_s = message.size_bytes * route.wire_s_per_byte + route.delay_s
            outputs[slot] = (slot, message_s), (num_slots + slot, 0.0)  # its arrival, and when it is written
    rows: list[list[Step]] = []
    for ops, waits, sends in zip(plan.ops, wiring.waits, wiring.sends, strict=True):
        written = [tuple(chain.from_iterable(outputs.get(slot, ()) for slot in of)) for of in sends]
        rows.append([(of, op.duration_s, out) for op, of, out in zip(ops, waits, written, strict=True)])
    filled_s = [inf] * (2 * num_slots)
    starts = walk(rows, filled_s, [0.0] * len(rows))
    return {
        (tensor, device): bisect_left(starts[device], filled_s[num_slots + slot]) - 1
        for (tensor, device), slot in wiring.slots.items()
        if slot in outputs
    }


def posted_at_once(plan: Plan) -> dict[tuple[int, int], int]:
    """Receives of frozen work and feedback, which do not wait for their turn: each side would wait for the other."""
    roles = plan.roles
    return {
        (tensor, position): -1
        for position, ops in enumerate(plan.ops)
        for op in ops
        for tensor in op.reads
        if roles[tensor] in ("frozen", "feedback")
    }
