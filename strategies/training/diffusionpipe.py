"""DiffusionPipe: the optimal partition, frozen layers of the next iteration in the bubbles of this one.

Two backbones are pipelined against one another, as in ``bidirectional``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Self

from strategies.bounds.pipelines import (
    least_frozen_s,
    order_bound,
    staged_bound,
    two_way_least_memory,
    uncut_bound,
)
from strategies.parameters import parameter
from strategies.pipelining.builder import PipelineBuilder
from strategies.pipelining.filling import fill_bubbles
from strategies.pipelining.frozen import frozen_chains
from strategies.pipelining.layout import Layout
from strategies.pipelining.reduction import reduce_and_step
from strategies.pipelining.stages import shapes
from strategies.pipelining.two_way import two_way_layout, two_way_rows
from strategies.plans.actions import Rows
from strategies.plans.bubbles import find_bubbles
from strategies.plans.plan import Filling, Plan
from strategies.plans.traces import Trace
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import DepthFirstPipeline

FILLS = ("none", "full", "partial")


@dataclass(frozen=True, slots=True)
class DiffusionPipe(DepthFirstPipeline):
    """FIFO-1F1B, or two directions for two backbones, on the optimal partition with cross-iteration bubble filling.

    Source: Tian et al., DiffusionPipe, 2024, sections 3 to 5.
    """

    name = "diffusionpipe"
    summary = "optimal partition, frozen layers of the next iteration in the bubbles"

    partitions = ("optimal",)

    fill: str = parameter(
        "partial", "what goes into the bubbles: layers, also on partial batches", choices=FILLS
    )

    def layout(self, scenario: Scenario) -> Layout:
        """The stages, of two backbones in two directions."""
        if _is_cascaded(scenario):
            return two_way_layout(scenario, self.shape, self.partition, self.skip_route)
        return DepthFirstPipeline.layout(self, scenario)

    def _rows(self, layout: Layout) -> Rows:
        if _is_cascaded(layout.scenario):
            return two_way_rows(layout)
        return DepthFirstPipeline._rows(self, layout)

    def _builder(self, scenario: Scenario) -> PipelineBuilder:
        layout = self.layout(scenario)
        blocking = self.p2p == "blocking"
        return PipelineBuilder(layout, self._rows(layout), blocking=blocking, cross_iteration=True)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration; where bubbles are to be filled, without the frozen work."""
        return self._builder(scenario).build(reduce_and_step, None if self.fill == "none" else Filling(()))

    def refine(self, scenario: Scenario, trace: Trace) -> Plan:
        """The plan with frozen layers in its bubbles, then with the rest of them spread evenly in time."""
        filling = trace.plan.filling
        if filling is None or filling.balanced:
            return trace.plan
        refined = _balance(filling, trace) if filling.starts else self.filling(scenario, trace)
        if refined is None or refined is filling:
            return trace.plan
        return self._builder(scenario).build(reduce_and_step, refined)

    def filling(self, scenario: Scenario, trace: Trace) -> Filling | None:
        """The filling of a trace's bubbles; None where nothing is filled."""
        if self.fill == "none" or not scenario.frozen:
            return None
        layout, partial = self.layout(scenario), self.fill == "partial"
        busy = [trace.busy(position) for position in range(trace.plan.num_devices)]
        bubbles = find_bubbles(busy, trace.end_s)
        chains = frozen_chains(scenario, _input_wire_s_per_byte(layout))
        degree, replicas = layout.shape.degree, layout.replicas
        layers = fill_bubbles(bubbles, chains, layout.group_batch, degree, replicas, partial=partial)
        return Filling(layers, trace.starts)

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size, number of micro-batches and way of filling."""
        for shape in shapes(scenario, backbones=scenario.model.backbones):
            for fill in FILLS if scenario.frozen else FILLS[-1:]:
                yield cls(shape.degree, shape.micro_batches, shape.group_size, fill=fill)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut: the pipeline's, or all work spread evenly."""
        layout = self.layout(scenario)
        evenly_s = sum(_stages_s(layout)) / layout.shape.degree + least_frozen_s(layout)
        return max(staged_bound(layout, frozen_first=False), evenly_s)

    def _uncut_s(self, layout: Layout) -> float:
        return uncut_bound(layout, self.pipeline_degree, frozen_first=False)

    def order_bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut in this order."""
        layout, after = self.layout(scenario), self.fill == "none"
        in_order_s = order_bound(
            layout, lambda: self._rows(layout), DiffusionPipe, frozen_first=False, frozen_after=after
        )
        return max(self.bound(scenario), in_order_s)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        if _is_cascaded(scenario):
            return two_way_least_memory(self.layout(scenario))
        return DepthFirstPipeline.least_memory_bytes(self, scenario)


def _stages_s(layout: Layout) -> list[float]:
    """The compute of each stage, in seconds."""
    scenario, count = layout.scenario, layout.shape.micro_batches
    passes = 2 if scenario.workload.extra_forward else 1
    return [
        count * (passes * stage.forward_s + stage.backward_s) + scenario.step_s(trained)
        for stage, trained in zip(layout.stages, layout.trained_parameters, strict=True)
    ]


def _input_wire_s_per_byte(layout: Layout) -> float:
    """Seconds a frozen layer pays per byte of its inputs: none inside a node, where the transfer is hidden."""
    placement, last = layout.placement, layout.shape.degree - 1
    if placement.node(placement.rank(0, 0, 0)) == placement.node(placement.rank(0, last, 0)):
        return 0.0
    return layout.network.route(0, last).wire_s_per_byte


def _is_cascaded(scenario: Scenario) -> bool:
    """True where there are several backbones: two run against one another, more are refused."""
    return len(scenario.model.backbones) > 1


def _balance(filling: Filling, trace: Trace) -> Filling:
    """The filling with the work after the pipeline, shared evenly as published, moved from positions that end late."""
    rest = [layer for layer in filling.layers if layer.bubble is None]
    if not rest:
        return filling
    work_s = sum(layer.duration_s for layer in rest)
    ends_s = [ends[-1] for ends in trace.ends]
    weights = [max(0.0, work_s + sum(ends_s) / len(ends_s) - end_s) for end_s in ends_s]
    if not any(weights):  # nothing takes time, and all end together
        return filling
    layers = [
        layer if layer.bubble is not None else replace(layer, shares=_split(layer.samples, weights))
        for layer in filling.layers
    ]
    return replace(filling, layers=layers, balanced=True)


def _split(samples: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Split samples in proportion to weights; rounding never loses or doubles one."""
    marks = [round(samples * mark / sum(weights)) for mark in accumulate(weights, initial=0.0)]
    return tuple(end - start for start, end in pairwise(marks))
