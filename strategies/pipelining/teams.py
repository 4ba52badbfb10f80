"""Teams: what GPUs that work on the same samples exchange inside a unit, and the pieces that this makes of its passes.

Ulysses (Jacobs et al., DeepSpeed-Ulysses, 2023): tokens of queries, keys and values are exchanged for heads before
attention, and back after it; of the gradients the same the other way round. Ring (Liu et al., 2023): keys and values
pass around while attention runs on those that are there; backwards their gradients follow them, in float32, until they
are home (ring-flash-attention; torch ``_templated_ring_attention_backward``). Tensor parallelism with sequence
parallelism (Korthikanti et al., Reducing Activation Recomputation, 2022, section 4.2): tokens are gathered before a
pair of matrices and scattered after it, of the gradients likewise. What was gathered is kept for the backward, as torch
does (``ColwiseParallel``); Megatron keeps each GPU's tokens of it and gathers once more. After a backward the GPUs sum
the gradients of parameters that each of them has whole, of which each saw its own tokens alone (FSDP2,
``_get_grad_inner_tensor``). Text that passes through the layers is divided as the image is.

Between two exchanges work is spread evenly; those of several layers of a unit are one collective of as many calls.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from profiles.architectures.models import Component
from profiles.architectures.shares import ELEMENT_BYTES
from strategies.pipelining.builder import PipelineBuilder
from strategies.pipelining.frozen import Draft, Drafts
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import CONTEXT, GATHER, REDUCE, SCATTER, TENSOR, Collected, Mesh
from strategies.plans.actions import BACKWARD, OPTIMIZER, StageAction
from strategies.plans.plan import Collective, Stage

SINGLE_BYTES: Final = 4.0
"""Bytes of an element of the gradients of keys and values on their way around a ring."""


class Work(NamedTuple):
    """Seconds of compute."""

    seconds: float


class TeamExchange(NamedTuple):
    """A collective between two pieces of compute: the next waits for it or, where it runs beside that, the one after.

    Attributes:
        what: the collective.
        size_bytes: of all its calls.
        calls: that it stands for.
        wait: whether the next piece waits.
    """

    what: Collected
    size_bytes: float
    calls: int
    wait: bool = True


Items = Sequence[Work | TeamExchange]


class PassSpan(NamedTuple):
    """Seconds of a pass: exchanges before its first piece of compute, all up to the end of the last, and after it."""

    lead_s: float
    inner_s: float
    trail_s: float


@dataclass(frozen=True, slots=True)
class Inside:
    """What the layers of a unit exchange on one micro-batch.

    Attributes:
        mesh: its GPUs.
        attentions: self-attentions.
        hidden_bytes: queries of all self-attentions on one GPU, and as much their keys, values and outputs.
        sums: pairs of matrices that tensor parallelism divides.
        summed_bytes: inputs of all of them, gathered.
        element_bytes: of an activation.
        whole_bytes: gradients of parameters that tensor parallelism leaves whole.
        whole_tensors: that they are of.
    """

    mesh: Mesh
    attentions: int
    hidden_bytes: float
    sums: int
    summed_bytes: float
    element_bytes: float
    whole_bytes: float
    whole_tensors: int

    @classmethod
    def of(cls, layout: Layout, unit: int) -> "Inside":
        """What a unit exchanges."""
        stage, mesh, kept = layout.stages[unit], layout.mesh, layout.kept(unit)
        assert mesh
        own = ("exchanged", stage.component, stage.first_layer, stage.last_layer)
        keys, sums = layout.scenario.remember(own, lambda: _elements(layout.component(stage), stage))
        of_all = layout.local_batch * layout.exchanged_bytes(stage)
        return cls(
            mesh,
            len(keys),
            of_all * sum(keys) / 2 / mesh.team,
            len(sums),
            of_all * sum(sums) / mesh.context,
            ELEMENT_BYTES[layout.scenario.model.dtype],
            kept.whole * layout.scenario.workload.recipe.weight_bytes,
            kept.tensors,
        )

    def forward(
        self, rest_s: float, attention_s: float, *, attends: bool = True
    ) -> Iterator[Work | TeamExchange]:
        """A forward; where attention's output was kept, all but attention itself."""
        first, last_s = min(self.attentions, self.sums), self._last_s(rest_s, attention_s)
        others = self.sums - first
        if self.attentions:
            yield from self._tensor(GATHER, first)
            yield Work(rest_s / 2)
            yield from self._all_to_all(3)
            yield from self._around(attention_s) if attends else ()
            yield from self._all_to_all(1)
            yield from self._tensor(SCATTER, first)
        yield from self._tensor(GATHER, others)
        yield Work(last_s)
        yield from self._tensor(SCATTER, others)

    def backward(self, rest_s: float, attention_s: float) -> Iterator[Work | TeamExchange]:
        """A backward, the other way round, and the sum of gradients that each GPU has a part of."""
        first = min(self.attentions, self.sums)
        others = self.sums - first
        yield from self._tensor(GATHER, others)
        yield Work(self._last_s(rest_s, attention_s))
        yield from self._tensor(SCATTER, others)
        if self.attentions:
            yield from self._tensor(GATHER, first)
            yield from self._all_to_all(1)
            yield from self._back_around(attention_s)
            yield from self._all_to_all(3)
            yield Work(rest_s / 2)
            yield from self._tensor(SCATTER, first)
        if self.mesh.tensor > 1 and self.whole_bytes:
            what = Collected(REDUCE, TENSOR, self.mesh.tensors)
            yield TeamExchange(what, self.whole_bytes, self.whole_tensors)
            yield Work(0.0)  # which waits for it before anything is scattered over the shards

    def _last_s(self, rest_s: float, attention_s: float) -> float:
        """Seconds after attention, half of the rest; of a unit whose attention exchanges nothing, of all."""
        return rest_s / 2 if self.attentions else rest_s + attention_s

    def _tensor(self, operation: str, sums: int) -> Iterator[TeamExchange]:
        mesh = self.mesh
        if mesh.tensor > 1 and sums > 0:
            size = self.summed_bytes * sums / self.sums
            yield TeamExchange(Collected(operation, TENSOR, mesh.tensors), size, sums)

    def _all_to_all(self, tensors: int) -> Iterator[TeamExchange]:
        mesh = self.mesh
        if mesh.share.ulysses > 1:
            what = Collected("all_to_all", CONTEXT, mesh.contexts)
            yield TeamExchange(what, tensors * self.hidden_bytes, tensors * self.attentions)

    def _pass_on(self, size_bytes: float, *, wait: bool = False) -> TeamExchange:
        what = Collected("send_recv", CONTEXT, self.mesh.contexts)
        return TeamExchange(what, size_bytes, self.attentions, wait)

    def _around(self, attention_s: float) -> Iterator[Work | TeamExchange]:
        """Attention on the keys and values of one GPU of the ring after another."""
        rounds = self.mesh.share.ring
        for number in range(rounds):
            if number < rounds - 1:
                yield self._pass_on(2 * self.hidden_bytes)
            yield Work(attention_s / rounds)

    def _back_around(self, attention_s: float) -> Iterator[Work | TeamExchange]:
        """The backward of that: keys and values go around once more, and their gradients until they are home."""
        rounds = self.mesh.share.ring
        for number in range(rounds):
            if number < rounds - 1:
                yield self._pass_on(2 * self.hidden_bytes)
            yield Work(attention_s / rounds)
            if rounds > 1:
                size = 2 * self.hidden_bytes * SINGLE_BYTES / self.element_bytes
                yield self._pass_on(size, wait=number == rounds - 1)


def _elements(component: Component, stage: Stage) -> tuple[list[int], list[int]]:
    """Elements of the keys and values of each self-attention of a unit, and of each pair of matrices."""
    own = [e for e in component.exchanges if stage.first_layer <= e.layer <= stage.last_layer]
    keys, sums = ([e.elements for e in own if e.kind == kind] for kind in ("key_value", "reduce"))
    return keys, sums


class Computed(NamedTuple):
    """Seconds that a unit computes in a pass: attention, all else, and both in the forward that runs again for it.

    Attributes:
        rest_s: all but attention.
        attention_s: attention.
        again_s: of the forward that runs again, all but attention; None: none does.
        attended_s: its attention; None: what it gave was kept.
    """

    rest_s: float
    attention_s: float
    again_s: float | None = None
    attended_s: float | None = None

    @classmethod
    def of(cls, layout: Layout, unit: int, kind: str) -> "Computed":
        """What a pass through a unit computes."""
        stage, of = layout.stages[unit], (layout.local_batch, layout.share)
        costs, layers = (
            layout.scenario.costs.components[stage.component],
            slice(stage.first_layer, stage.last_layer + 1),
        )
        attention_s = float(costs.attention_s(*of)[layers].sum())
        if kind != BACKWARD:
            return cls(stage.forward_s - attention_s, attention_s)
        backward_s, back_s = (
            float(s[layers].sum()) for s in (costs.backward_s(*of), costs.attention_backward_s(*of))
        )
        rest_s, checkpointing = backward_s - back_s, layout.scenario.workload.checkpointing
        if checkpointing == "none":
            return cls(rest_s, back_s)
        attends = checkpointing != "selective"
        again_s = stage.backward_s - backward_s - (attention_s if attends else 0.0)
        return cls(rest_s, back_s, max(0.0, again_s), attention_s if attends else None)


class Pass(NamedTuple):
    """A pass through a unit by what it exchanges and computes; units alike have it in common."""

    inside: Inside
    kind: str
    computed: Computed

    @classmethod
    def of(cls, layout: Layout, unit: int, kind: str) -> "Pass":
        """The pass of a unit."""
        return cls(Inside.of(layout, unit), kind, Computed.of(layout, unit, kind))

    def items(self) -> Iterator[Work | TeamExchange]:
        """The pieces of the pass, and the exchanges between them."""
        rest_s, attention_s, again_s, attended_s = self.computed
        if self.kind != BACKWARD:
            yield from self.inside.forward(rest_s, attention_s)
            return
        if again_s is not None:
            yield from self.inside.forward(again_s, attended_s or 0.0, attends=attended_s is not None)
        yield from self.inside.backward(rest_s, attention_s)


def _items_of(layout: Layout, unit: int, kind: str) -> Items:
    """The pieces of a pass through a unit, and the exchanges between them."""
    own = Pass.of(layout, unit, kind)
    return layout.scenario.remember(("items", own), lambda: _joined(own.items()))


def _joined(items: Iterator[Work | TeamExchange]) -> Items:
    """Items in which no two pieces of compute follow one another, but where the second waits for what ran beside."""
    found: list[Work | TeamExchange] = []
    for item in items:
        last = found[-1] if found else None
        beside = len(found) > 1 and isinstance(found[-2], TeamExchange) and not found[-2].wait
        if isinstance(item, Work) and isinstance(last, Work) and not beside:
            found[-1] = Work(last.seconds + item.seconds)
        else:
            found.append(item)
    return tuple(found)


def span_of(layout: Layout, unit: int, kind: str) -> PassSpan:
    """The seconds of a pass through a unit on ports that only alike teams use."""
    own = Pass.of(layout, unit, kind)
    return layout.scenario.remember(("span", own), lambda: _span(layout, _joined(own.items())))


def _span(layout: Layout, items: Items) -> PassSpan:
    streams = dict.fromkeys((CONTEXT, TENSOR), 0.0)
    first_s, ended_s, there_s, later_s = None, 0.0, 0.0, 0.0
    for item in items:
        if isinstance(item, Work):
            first_s = there_s if first_s is None else first_s
            ended_s = there_s + item.seconds
            there_s, later_s = max(ended_s, later_s), 0.0
            continue
        what, size, calls, wait = item
        end_s = max(there_s, streams[what.stream]) + layout.seconds(what, size, calls)
        streams[what.stream] = end_s
        there_s, later_s = (end_s, later_s) if wait else (there_s, max(later_s, end_s))
    return PassSpan(first_s or 0.0, ended_s - (first_s or 0.0), there_s - ended_s)


class TeamWriter:
    """Cuts the passes of a plan into pieces, and adds what a team exchanges between them."""

    def __init__(self, builder: PipelineBuilder) -> None:
        self._builder = builder
        self._row: list[Draft] = []
        self._awaited: list[int] = []
        self._later: list[int] = []
        self._due: list[tuple[int, Collective]] = []

    def write(self) -> list[tuple[int, Collective]]:
        """Cut all passes; the exchanges, each with the op of the row that it follows."""
        for draft in self._builder.rows[0]:
            if isinstance(draft.action, StageAction) and draft.action.kind != OPTIMIZER:
                self._cut(draft, draft.action)
            else:
                self._add(draft)
        self._builder.rows[0] = Drafts(self._row)
        return self._due

    def _cut(self, draft: Draft, action: StageAction) -> None:
        first = len(self._row)
        for item in _items_of(self._builder.layout, action.stage, action.kind):
            if isinstance(item, Work):
                self._add(Draft(action, item.seconds))
            else:
                self._exchange(item, action)
        pieces = self._row[first:]
        pieces[0].reads += draft.reads
        pieces[-1].writes += draft.writes
        if len(pieces) > 1:  # what was saved stays until all of it has been used
            saved = [t for t in draft.reads if self._builder.tensors[t].role in ("saved", "recomputed")]
            pieces[-1].reads += saved

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
