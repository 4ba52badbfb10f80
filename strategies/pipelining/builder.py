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

from profiles.mappings import FrozenMapping
from strategies.pipelining.filling import fill_bubbles
from strategies.pipelining.footprint import recomputed_bytes, resident_buffers, saved_bytes
from strategies.pipelining.frozen import FrozenWork, PlacedOp, frozen_chains
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
from strategies.plans.plan import Collective, Draft, FilledLayer, Filling, Plan, Tensor
from strategies.plans.wiring import wire
from strategies.plans.worklist import Outputs, Step, walk

_OfPass = tuple[str, int, float, bool]
"""A tensor of each pass of a kind through a stage: role, stage and bytes, and whether it is written, or read."""
Row = list[Draft]
"""The ops of one position while they are written."""


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
        self.tensors: list[Tensor] = []
        self.collectives: list[Collective] = []
        self.given: list[tuple[int, int]] = []
        self.kept: list[tuple[int, int]] = []
        self.rows = [Row() for _ in range(self.shape.degree)]
        self.stepping: set[int] = set()
        """Stages whose optimizer step is in its row."""
        self._known: dict[tuple[str, int, int], int] = {}
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
        name = role, stage, number
        if name not in self._known:
            self._known[name] = len(self.tensors)
            self.tensors.append(Tensor(*name, size_bytes))
        return self._known[name]

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
        kinds = dict.fromkeys((action.stage, action.kind) for action in actions)
        passes = {key: (self._pass_s(*key), [*self._of_pass(*key)]) for key in kinds}
        row = Row()
        for action in actions:
            stage, kind, number = action
            seconds, tensors = passes[stage, kind]
            forwards = kind in (FORWARD, EXTRA_FORWARD)
            draft = Draft(action, seconds, [*inputs.get((stage, number), ())] if forwards else [])
            for role, of_stage, size, written in tensors:
                side = draft.writes if written else draft.reads
                side.append(self.tensor(role, of_stage, number, size))
            row.append(draft)
        return row

    def _pass_s(self, unit: int, kind: str) -> float:
        """The seconds of a pass of a kind through a stage."""
        stage = self.stages[unit]
        if kind == OPTIMIZER:
            self.stepping.add(unit)
            return 0.0
        if kind in (FORWARD, EXTRA_FORWARD):
            return stage.forward_s
        weight_s = 0.0 if kind == BACKWARD else self.layout.weight_part_s(stage)
        return weight_s if kind == BACKWARD_WEIGHT else stage.backward_s - weight_s

    def _of_pass(self, stage: int, kind: str) -> Iterator[_OfPass]:
        """The tensors that each pass of a kind through a stage reads and writes."""
        if kind in (FORWARD, EXTRA_FORWARD):
            yield from self._of_forward(stage, kind)
        elif kind != OPTIMIZER:
            yield from self._of_backward(stage, kind)

    def _of_forward(self, stage: int, kind: str) -> Iterator[_OfPass]:
        """Tensors of a forward, or of the extra one, which saves nothing and whose output is fed back."""
        extra = kind == EXTRA_FORWARD
        prefix, seat = "extra " if extra else "", self.seats[stage]
        if seat.before is not None:
            yield f"{prefix}hidden", seat.before, self._hidden_bytes(seat.before), False
        elif not extra and self.scenario.workload.extra_forward:
            yield "feedback", seat.last, self._fed_back_bytes(seat), False
        if seat.after is not None:
            yield f"{prefix}hidden", stage, self._hidden_bytes(stage), True
        elif extra:
            yield "feedback", seat.last, self._fed_back_bytes(seat), True
        if not extra:
            yield "saved", stage, self._saved[stage], True
        for (source, target), size in self._skips.items():
            if stage in (source, target):
                yield f"{prefix}skip to {target}", source, size, stage == source

    def _of_backward(self, stage: int, kind: str) -> Iterator[_OfPass]:
        """Tensors of a backward, or of the part of it that gradients of inputs or of weights take."""
        yield "saved", stage, self._saved[stage], False
        if kind != BACKWARD and self._recomputed[stage]:  # gradients of weights need it too, and come later
            yield "recomputed", stage, self._recomputed[stage], kind == BACKWARD_INPUT
        if kind == BACKWARD_WEIGHT:
            yield "output gradients", stage, 0.0, False
            return
        seat = self.seats[stage]
        if seat.after is not None:
            yield "gradient", seat.after, self._handovers[stage], False
        if seat.before is not None:
            yield "gradient", stage, self._handovers[seat.before], True
        if kind == BACKWARD_INPUT:
            yield "output gradients", stage, 0.0, True
        for (source, target), size in self._skips.items():
            if stage in (source, target):
                yield f"skip gradient to {source}", target, size, stage == target

    def _hidden_bytes(self, stage: int) -> float:
        if self.layout.in_units:
            return 0.0
        carried = self.layout.component(self.stages[stage]).carried_bytes * self.layout.local_batch
        return self._handovers[stage] + carried

    def _fed_back_bytes(self, seat: Seat) -> float:
        last = self.stages[seat.last]
        return self.layout.component(last).layers[last.last_layer].output_bytes * self.layout.local_batch

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
                row += [placed.draft for placed in frozen.placed[number * each : (number + 1) * each]]
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
            ops=tuple(tuple(draft.finish() for draft in row) for row in self.rows),
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
        written = [tuple(chain.from_iterable(outputs.get(slot, ()) for slot in slots)) for slots in sends]
        rows.append([(slots, op.duration_s, out) for op, slots, out in zip(ops, waits, written, strict=True)])
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
