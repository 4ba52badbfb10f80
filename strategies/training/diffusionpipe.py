"""DiffusionPipe: the optimal partition, frozen layers of the next iteration in the bubbles of this one.

Several backbones are pipelined against one another, as in ``bidirectional``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar, Self

from strategies import parameters as fields
from strategies.bounds.pipelines import least_memory, pipeline_bound
from strategies.bounds.two_way import two_way_bound, two_way_least_memory
from strategies.orders.named import one_forward_one_backward_order
from strategies.parameters import parameter
from strategies.pipelining.builder import PipelineBuilder, Recipe
from strategies.pipelining.candidates import shapes
from strategies.pipelining.filling import fill_bubbles
from strategies.pipelining.footprint import trained_parameters
from strategies.pipelining.frozen import frozen_chains
from strategies.pipelining.layout import cut_backbone, shape_of, stages_of
from strategies.pipelining.two_way import two_way_layout, two_way_rows
from strategies.plans.actions import Order
from strategies.plans.bubbles import find_bubbles
from strategies.plans.network import network_of
from strategies.plans.plan import Filling, Plan
from strategies.plans.traces import Trace
from strategies.scenario import Scenario

FILLS = ("none", "full", "partial")


@dataclass(frozen=True, slots=True)
class DiffusionPipe:
    """FIFO-1F1B, or two directions for several backbones, on the optimal partition with cross-iteration bubble filling.

    Source: Tian et al., DiffusionPipe, 2024, sections 3 to 5.
    """

    name: ClassVar[str] = "diffusionpipe"
    task: ClassVar[str] = "train"
    summary: ClassVar[str] = "optimal partition, frozen layers of the next iteration in the bubbles"

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()
    partition: str = fields.partition("optimal")
    p2p: str = fields.p2p()
    skip_route: str = fields.skip_route()
    fill: str = parameter(
        "partial", "what goes into the bubbles: layers, also on partial batches", choices=FILLS
    )

    def order(self) -> Order:
        """The forwards and backwards of each position for one backbone."""
        return one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)

    def _builder(self, scenario: Scenario) -> PipelineBuilder:
        recipe = Recipe(blocking=self.p2p == "blocking", cross_iteration=True, skip_route=self.skip_route)
        if _is_cascaded(scenario):
            layout = two_way_layout(self, scenario)
            rows = two_way_rows(scenario, layout)
            return PipelineBuilder(scenario, layout.shape, layout.cuts, rows, recipe)
        rows = one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)
        return PipelineBuilder(scenario, shape_of(self), [cut_backbone(self, scenario)], rows, recipe)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration; where bubbles are to be filled, without the frozen work."""
        return self._builder(scenario).build(None if self.fill == "none" else Filling(()))

    def refine(self, scenario: Scenario, trace: Trace) -> Plan:
        """The plan with frozen layers in its bubbles, then with what is left spread evenly in time."""
        filling = trace.plan.filling
        nothing = self.fill == "none" or not scenario.model.frozen
        if nothing or filling is None or filling.balanced:
            return trace.plan
        refined = _balance(filling, trace) if filling.starts else self._fill(scenario, trace)
        return trace.plan if refined is filling else self._builder(scenario).build(refined)

    def _fill(self, scenario: Scenario, trace: Trace) -> Filling:
        shape = shape_of(self)
        bubbles = find_bubbles([trace.busy(p) for p in range(shape.degree)], trace.end_s)
        chains = frozen_chains(scenario, self._wire_s_per_byte(scenario))
        layers = fill_bubbles(
            bubbles, chains, shape.group_batch(scenario), shape.degree, shape.replicas,
            partial=self.fill == "partial",
        )  # fmt: skip
        return Filling(layers, bubbles, trace.starts)

    def _wire_s_per_byte(self, scenario: Scenario) -> float:
        """Seconds a frozen layer pays per byte of its inputs: none inside a node, where the transfer is hidden.

        The published algorithm lets inputs travel for nothing; between nodes they take longer than the layers.
        """
        placement = shape_of(self).placement(scenario)
        last = placement.num_positions - 1
        if placement.node(placement.rank(0, 0, 0)) == placement.node(placement.rank(0, last, 0)):
            return 0.0
        return network_of(scenario, placement).route(0, last).wire_s_per_byte

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size, number of micro-batches and way of filling."""
        for shape in shapes(scenario, backbones=scenario.model.backbones):
            for fill in FILLS if scenario.model.frozen else FILLS[-1:]:
                yield cls(shape.degree, shape.micro_batches, shape.group_size, fill=fill)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut: the pipeline's, or all work spread evenly."""
        shape = shape_of(self)
        if self.fill == "none" and not _is_cascaded(scenario):
            return pipeline_bound(self, scenario, frozen_after=True)
        evenly_s = sum(self._backbones_s(scenario)) / shape.degree + self._least_frozen_s(scenario)
        if _is_cascaded(scenario):
            return max(two_way_bound(self, scenario, frozen_first=False), evenly_s)
        return max(pipeline_bound(self, scenario), evenly_s)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return (two_way_least_memory if _is_cascaded(scenario) else least_memory)(self, scenario)

    def _backbones_s(self, scenario: Scenario) -> list[float]:
        """The compute of each stage, in seconds."""
        components = scenario.model.components
        passes = 2 if scenario.workload.extra_forward else 1
        stages = (
            two_way_layout(self, scenario).stages if _is_cascaded(scenario) else stages_of(self, scenario)
        )
        return [
            self.micro_batches * (passes * stage.forward_s + stage.backward_s)
            + scenario.costs.optimizer_s(
                trained_parameters(components[stage.component], stage), scenario.workload.recipe
            )
            for stage in stages
        ]

    def _least_frozen_s(self, scenario: Scenario) -> float:
        """The frozen seconds per device if every layer ran at the local batch that suits it best."""
        shape = shape_of(self)
        samples = shape.group_batch(scenario)
        total = 0.0
        for index in scenario.model.frozen:
            costs = scenario.costs.components[index]
            total += sum(costs.least_forward_s_per_sample(samples))
        return total * samples / shape.group_size


def _is_cascaded(scenario: Scenario) -> bool:
    """Whether there are several backbones, which run against one another."""
    return len(scenario.model.backbones) > 1


def _balance(filling: Filling, trace: Trace) -> Filling:
    """The filling with the work after the pipeline moved from positions that end late to those that end early.

    The published algorithm shares it evenly; gradient reduction and optimizer steps of unequal stages, and compute
    slowed down beside them, then leave some positions idle at the end.
    """
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
