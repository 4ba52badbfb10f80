"""Teams: exchanges inside a unit among GPUs that work on the same samples, and the pieces of its passes.

Ulysses (Jacobs et al., DeepSpeed-Ulysses, 2023): tokens of queries, keys and values are exchanged for heads before
attention, and back after it. Ring (Liu et al., 2023): keys and values pass around while attention runs on those that
are there; backwards their gradients follow them, in float32 (ring-flash-attention). Tensor parallelism with sequence
parallelism (Korthikanti et al., 2022, section 4.2): tokens are gathered before a pair of matrices, kept for the
backward (torch, ``ColwiseParallel``), and scattered after it. After a backward the GPUs sum the gradients of
parameters that each of them has whole (FSDP2, ``_get_grad_inner_tensor``).

Between two exchanges work is spread evenly; those of several layers of a unit are one collective of as many calls.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from profiles.architectures.shares import ELEMENT_BYTES
from strategies.pipelining.builder import PipelineBuilder, Row
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import CONTEXT, GATHER, REDUCE, SCATTER, TENSOR, Collected
from strategies.plans.actions import BACKWARD, OPTIMIZER, StageAction
from strategies.plans.plan import Collective, Draft

SINGLE_BYTES: Final = 4.0
"""Bytes of an element of the gradients of keys and values on their way around a ring."""


class TeamExchange(NamedTuple):
    """A collective of some calls between two pieces of compute: the next waits for it, or else the one after."""

    what: Collected
    size_bytes: float
    calls: int
    wait: bool = True


Items = Sequence[float | TeamExchange]
"""Seconds of compute, and the exchanges between them."""


class Inside(NamedTuple):
    """What a unit computes on one micro-batch, and what its layers exchange; units that are alike have the same.

    Attributes:
        backward_s: with what runs again, ``alone_back_s`` without it.
        sums: pairs of matrices that are divided.
        hidden_bytes: queries on one GPU, and as much its keys, values and outputs.
        summed_bytes: inputs of the pairs, gathered.
        whole_bytes: gradients that each GPU has a part of, in so many tensors.
    """

    forward_s: float
    backward_s: float
    attention_s: float = 0.0
    attention_back_s: float = 0.0
    alone_back_s: float = 0.0
    attentions: int = 0
    sums: int = 0
    hidden_bytes: float = 0.0
    summed_bytes: float = 0.0
    whole_bytes: float = 0.0
    whole_tensors: int = 0

    @classmethod
    def of(cls, layout: Layout, unit: int) -> "Inside":
        """Return what is inside a unit; of one that shares no samples only its seconds."""
        stage, mesh, share = layout.stages[unit], layout.mesh, (layout.local_batch, layout.share)
        if mesh.team == 1:
            return cls(stage.forward_s, stage.backward_s)
        layers = slice(stage.first_layer, stage.last_layer + 1)
        costs = layout.scenario.costs.components[stage.component]
        exchanges = [e for e in layout.component(stage).exchanges if layers.start <= e.layer < layers.stop]
        keys, sums = ([e.elements for e in exchanges if e.kind == kind] for kind in ("key_value", "reduce"))
        of_all, kept = layout.local_batch * layout.exchanged_bytes(stage), layout.kept(unit)
        return cls(
            stage.forward_s, stage.backward_s,
            float(costs.attention_s(*share)[layers].sum()),
            float(costs.attention_s(*share, backward=True)[layers].sum()),
            float(costs.backward_s(*share)[layers].sum()),
            len(keys), len(sums), of_all * sum(keys) / 2 / mesh.team, of_all * sum(sums) / mesh.context,
            kept.whole * layout.scenario.workload.recipe.weight_bytes, kept.tensors,
        )  # fmt: skip


def insides(layout: Layout) -> Sequence[Inside]:
    """Return what is inside each unit; however many shards there are."""
    key, units = ("insides", layout.cuts, layout.local_batch, layout.share), range(len(layout.stages))
    return layout.scenario.remember(key, lambda: [Inside.of(layout, unit) for unit in units])


class _Pieces:
    """The compute of a unit's passes, and the exchanges between them."""

    def __init__(self, layout: Layout, inside: Inside) -> None:
        self.of, self.mesh, self.share = inside, layout.mesh, layout.share
        self.element_bytes = ELEMENT_BYTES[layout.scenario.model.dtype]
        self.checkpointing = layout.scenario.workload.checkpointing

    def items(self, kind: str) -> Iterator[float | TeamExchange]:
        """A pass, of which several pieces of compute may follow one another."""
        unit = self.of
        if kind != BACKWARD or self.mesh.team == 1:
            pass_s = unit.backward_s if kind == BACKWARD else unit.forward_s
            yield from self.layers(pass_s - unit.attention_s, unit.attention_s)
            return
        if self.checkpointing != "none":  # a forward runs again
            attends = self.checkpointing != "selective"
            again_s = unit.backward_s - unit.alone_back_s - (unit.attention_s if attends else 0.0)
            yield from self.layers(max(0.0, again_s), unit.attention_s if attends else 0.0, attends=attends)
        yield from self.layers(unit.alone_back_s - unit.attention_back_s, unit.attention_back_s, back=True)
        yield from self.whole_gradients()

    def layers(
        self, rest_s: float, attention_s: float, *, back: bool = False, attends: bool = True
    ) -> Iterator[float | TeamExchange]:
        """A forward, or a backward, which goes the other way round; half of all but attention comes after it.

        ``attends`` is false where attention's output was kept. Attention that is not exchanged is part of the rest.
        """
        first = min(self.of.attentions, self.of.sums)
        last_s = rest_s / 2 if self.of.attentions else rest_s + attention_s
        others: Items = [
            *self._tensor(GATHER, self.of.sums - first), last_s, *self._tensor(SCATTER, self.of.sums - first)
        ]  # fmt: skip
        if back:
            yield from others
        if self.of.attentions:
            before: Items = [rest_s / 2, *self._all_to_all(3)]
            after: Items = self._all_to_all(1)
            yield from self._tensor(GATHER, first)
            yield from after if back else before
            yield from self._around(attention_s, back=back) if attends else iter(())
            yield from before[::-1] if back else after
            yield from self._tensor(SCATTER, first)
        if not back:
            yield from others

    def whole_gradients(self) -> Iterator[float | TeamExchange]:
        """The sum of gradients that each GPU has a part of, before anything is scattered over the shards."""
        if self.mesh.tensor > 1 and self.of.whole_bytes:
            what = Collected(REDUCE, TENSOR, self.mesh.tensors)
            yield TeamExchange(what, self.of.whole_bytes, self.of.whole_tensors)
            yield 0.0

    def _tensor(self, operation: str, sums: int) -> list[TeamExchange]:
        if self.mesh.tensor == 1 or not sums:
            return []
        size = self.of.summed_bytes * sums / self.of.sums
        return [TeamExchange(Collected(operation, TENSOR, self.mesh.tensors), size, sums)]

    def _all_to_all(self, tensors: int) -> list[TeamExchange]:
        what = Collected("all_to_all", CONTEXT, self.mesh.contexts)
        exchange = TeamExchange(what, tensors * self.of.hidden_bytes, tensors * self.of.attentions)
        return [exchange] if self.share.ulysses > 1 else []

    def _around(self, attention_s: float, *, back: bool) -> Iterator[float | TeamExchange]:
        """Attention on the keys and values of one GPU of the ring after another; back, their gradients go home."""
        what, last = Collected("send_recv", CONTEXT, self.mesh.contexts), self.share.ring - 1
        size = 2 * self.of.hidden_bytes
        for number in range(self.share.ring):
            if number < last:
                yield TeamExchange(what, size, self.of.attentions, wait=False)
            yield attention_s / self.share.ring
            if back and last:
                gradients = size * SINGLE_BYTES / self.element_bytes
                yield TeamExchange(what, gradients, self.of.attentions, wait=number == last)


def _items_of(layout: Layout, inside: Inside, kind: str) -> Items:
    """The pieces of a pass through a unit, and the exchanges between them."""
    return _joined(_Pieces(layout, inside).items(kind))


def _joined(items: Iterator[float | TeamExchange]) -> Items:
    """Items in which no two pieces of compute follow one another, but where the second waits for what ran beside."""
    joined: list[float | TeamExchange] = []
    for item in items:
        last = joined[-1] if joined else None
        beside = len(joined) > 1 and isinstance(joined[-2], TeamExchange) and not joined[-2].wait
        if isinstance(item, float) and isinstance(last, float) and not beside:
            joined[-1] = last + item
        else:
            joined.append(item)
    return tuple(joined)


class PassTimes(NamedTuple):
    """Seconds of passes: of compute, of waits for exchanges of the team, and of exchanges beside compute."""

    work_s: float
    wait_s: float
    beside_s: float


def pass_times(layout: Layout, inside: Inside, kind: str, slowdown: float) -> PassTimes:
    """Return the times of a pass through a unit where of all ports only its team and those alike use theirs.

    ``slowdown`` is a factor on the seconds of compute; waits are shorter then.
    """
    streams = dict.fromkeys((CONTEXT, TENSOR), 0.0)
    there_s = later_s = work_s = beside_s = 0.0
    for item in _items_of(layout, inside, kind):
        if isinstance(item, float):
            work_s += slowdown * item
            there_s, later_s = max(there_s + slowdown * item, later_s), 0.0
            continue
        what, size, calls, wait = item
        seconds = layout.seconds(what, size, calls)
        streams[what.stream] = end_s = max(there_s, streams[what.stream]) + seconds
        there_s, later_s = (end_s, later_s) if wait else (there_s, max(later_s, end_s))
        beside_s += 0.0 if wait else seconds
    return PassTimes(work_s, there_s - work_s, beside_s)


class TeamWriter:
    """Cuts the passes of a plan into pieces, and adds a team's exchanges between them."""

    def __init__(self, builder: PipelineBuilder) -> None:
        self._builder = builder
        self._row = Row()
        self._awaited: list[int] = []
        self._later: list[int] = []
        self._due: list[tuple[int, Collective]] = []

    def write(self) -> list[tuple[int, Collective]]:
        """Cut all passes; the exchanges, each with the op of the row that it follows."""
        row = self._builder.rows[0]
        for draft in row:
            if isinstance(draft.action, StageAction) and draft.action.kind != OPTIMIZER:
                self._cut(draft, draft.action)
            else:
                self._add(draft)
        self._builder.rows[0] = self._row
        return self._due

    def _cut(self, draft: Draft, action: StageAction) -> None:
        first = len(self._row)
        layout = self._builder.layout
        for item in _items_of(layout, insides(layout)[action.stage], action.kind):
            if isinstance(item, float):
                self._add(Draft(action, item))
            else:
                self._exchange(item, action)
        start, end = self._row[first], self._row[-1]
        start.reads += draft.reads
        end.writes += draft.writes
        if start is not end:  # saved activations stay until all of them have been used
            tensors = self._builder.tensors
            end.reads += [t for t in draft.reads if tensors[t].role in ("saved", "recomputed")]

    def _add(self, draft: Draft) -> None:
        draft.reads += self._awaited
        self._awaited, self._later = self._later, []
        self._row.append(draft)

    def _exchange(self, item: TeamExchange, action: StageAction) -> None:
        builder, number, what = self._builder, len(self._due), item.what
        reads = list(self._awaited)
        if self._row:
            reads.append(builder.tensor("ready", action.stage, number, 0.0))
            self._row[-1].writes.append(reads[-1])
        result = builder.tensor(what.operation, action.stage, number, 0.0)
        (self._awaited if item.wait else self._later).append(result)
        collective = what.collective(item.size_bytes, reads, result, item.calls)
        self._due.append((len(self._row) - 1, collective))
