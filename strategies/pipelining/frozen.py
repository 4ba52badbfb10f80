"""Frozen work: which device runs which samples of which frozen layer, and the activations that move between them.

Frozen layers run data-parallel on whatever positions are idle, so a layer may meet its inputs on another device.
Every position first takes the samples whose inputs lie there; the rest is sent.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain, islice
from math import ceil
from typing import Final, NamedTuple

from profiles.costs.layers import ComponentCosts
from strategies.pipelining.filling import FrozenChain
from strategies.plans.actions import FrozenAction
from strategies.plans.bubbles import Bubble
from strategies.plans.plan import Draft, FilledLayer, Tensor
from strategies.scenario import Scenario

FROZEN: Final = "frozen"
"""Role of the tensors that frozen layers write."""


class _Segment(NamedTuple):
    """Samples [start, stop) of the group's batch whose activations lie on a position; None: anywhere."""

    start: int
    stop: int
    position: int | None
    writer: Draft | None


def _take(pending: list[_Segment], share: int, position: int | None = None) -> list[_Segment]:
    """Take up to so many samples out of the first segments that lie on a position; None: of all."""
    taken: list[_Segment] = []
    left: list[_Segment] = []
    for segment in pending:
        there = segment.stop - segment.start
        count = min(share, there) if position in (None, segment.position) else 0
        share -= count
        if count:
            taken.append(segment._replace(stop=segment.start + count))
        if count < there:
            left.append(segment._replace(start=segment.start + count) if count else segment)
    pending[:] = left
    return taken


class PlacedOp(NamedTuple):
    """A frozen op on a position, in the bubble it fills (None: after the pipeline), and its ranges of samples."""

    position: int
    bubble: Bubble | None
    draft: Draft
    samples: list[range]


def _layer_s(costs: ComponentCosts, wire_s_per_byte: float, layer: int, batch: int) -> float:
    received = costs.component.layers[layer - 1].output_bytes if layer else 0.0
    return float(costs.forward_s(batch)[layer]) + batch * received * wire_s_per_byte


def frozen_chains(scenario: Scenario, wire_s_per_byte: float = 0.0) -> list[FrozenChain]:
    """The frozen components in topological order, as the filler sees them.

    ``wire_s_per_byte`` is the price of a layer's inputs, where they must come over slow links.
    """
    frozen, costs = scenario.frozen, scenario.costs.components
    return [
        FrozenChain(
            component=index,
            num_layers=len(costs[index].component.layers),
            inputs=tuple(i for i in scenario.model.inputs_of(index) if i in frozen),
            forward_s=partial(_layer_s, costs[index], wire_s_per_byte),
        )
        for index in frozen
    ]


class FrozenWork:
    """Lays frozen layers out over positions, in execution order, and remembers where every activation lies."""

    def __init__(self, scenario: Scenario, batch_size: int, replicas: int, tensors: list[Tensor]) -> None:
        self._scenario, self._model, self._tensors = scenario, scenario.model, tensors
        self._batch_size, self._replicas = batch_size, replicas
        self._pending: defaultdict[tuple[int, int], list[_Segment]] = defaultdict(list)
        self._outputs: dict[int, list[_Segment]] = {}
        self._known: dict[int, int] = {}
        self.placed: list[PlacedOp] = []
        self.spans: list[range] = []  # samples of each tensor

    def place(self, filled: FilledLayer) -> None:
        """Lay out one frozen layer over its positions."""
        shares = filled.shares or _shares(filled.samples, len(filled.positions))
        pending = self._pending_of(filled.component, filled.layer)
        taken = [_take(pending, share, at) for at, share in zip(filled.positions, shares, strict=True)]
        for segments, share in zip(taken, shares, strict=True):
            if lacking := share - _count(segments):
                segments.extend(_take(pending, lacking))
        pairs = [pair for pair in zip(filled.positions, taken, strict=True) if pair[1]]
        drafts = [self._add_op(filled, position, segments) for position, segments in pairs]
        if filled.layer:
            output_bytes = self._model.components[filled.component].layers[filled.layer - 1].output_bytes
            read = chain.from_iterable(segments for _, segments in pairs)
            tensors = iter(self._new_tensors(read, filled.component, filled.layer - 1, output_bytes))
            for (_, segments), reader in zip(pairs, drafts, strict=True):
                reader.reads += islice(tensors, len(segments))

    def _pending_of(self, component: int, layer: int) -> list[_Segment]:
        """Segments that a layer has yet to see, in the order in which they came."""
        pending = self._pending[component, layer]
        if layer == 0:
            inputs = self._frozen_inputs(component)
            main = max(inputs, key=lambda i: self._model.components[i].layers[-1].output_bytes, default=None)
            there = [_Segment(0, self._batch_size, None, None)] if main is None else self._outputs[main]
            pending += there[self._known.get(component, 0) :]
            self._known[component] = len(there)
        return pending

    def _frozen_inputs(self, component: int) -> list[int]:
        return [i for i in self._model.inputs_of(component) if i in self._outputs]

    def _add_op(self, filled: FilledLayer, position: int, segments: list[_Segment]) -> Draft:
        component, layer = filled.component, filled.layer
        local = ceil(_count(segments) / self._replicas)
        duration_s = float(self._scenario.costs.components[component].forward_s(local)[layer])
        draft = Draft(FrozenAction(component, layer, local), duration_s)
        written = [_Segment(start, stop, position, draft) for start, stop, _, _ in segments]
        if layer == len(self._model.components[component].layers) - 1:
            self._outputs.setdefault(component, []).extend(written)
        else:
            self._pending[component, layer + 1] += written
        if not layer:
            for start, stop, _, _ in segments:
                for source in self._frozen_inputs(component):
                    output_bytes = self._model.components[source].layers[-1].output_bytes
                    draft.reads += self.output(source, start, stop, output_bytes)
        samples = [range(start, stop) for start, stop, _, _ in segments]
        self.placed.append(PlacedOp(position, filled.bubble, draft, samples))
        return draft

    def _new_tensors(
        self, segments: Iterable[_Segment], component: int, layer: int, bytes_per_sample: float
    ) -> list[int]:
        """New tensors of a layer's output, one of each segment."""
        first = len(self._tensors)
        for start, stop, _, writer in segments:
            if writer is not None:
                self.spans.append(range(start, stop))
                writer.writes.append(len(self._tensors))
                size = bytes_per_sample * (stop - start) / self._replicas
                self._tensors.append(Tensor(FROZEN, component, layer, size))
        return [*range(first, len(self._tensors))]

    def output(self, component: int, start: int, stop: int, bytes_per_sample: float) -> list[int]:
        """New tensors that together are so much of a component's output for samples [start, stop)."""
        last = len(self._model.components[component].layers) - 1
        pieces = [
            segment._replace(start=max(start, segment.start), stop=min(stop, segment.stop))
            for segment in self._outputs.get(component, ())
            if segment.start < stop and start < segment.stop
        ]
        return self._new_tensors(pieces, component, last, bytes_per_sample)


def _shares(samples: int, count: int) -> Sequence[int]:
    """Split samples evenly over positions, larger shares first."""
    return [samples // count + (number < samples % count) for number in range(count)]


def _count(segments: Iterable[_Segment]) -> int:
    return sum(segment.stop - segment.start for segment in segments)
