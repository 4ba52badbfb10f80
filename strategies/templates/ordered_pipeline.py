"""Ordered pipelines: templates of pipelines that define their order, and of those with one stage per position."""

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from functools import partial
from typing import ClassVar, Final, Self

from profiles.errors import InputError, counted
from strategies import parameters as fields
from strategies.bounds.pipelines import order_bound, staged_bound, uncut_bound
from strategies.orders.named import SPLIT, WHOLE, one_forward_one_backward_order, placed, whole
from strategies.orders.problem import most_in_flight
from strategies.pipelining.builder import PipelineBuilder
from strategies.pipelining.cutting import folded
from strategies.pipelining.footprint import least_memory_bytes, uncut_memory_bytes
from strategies.pipelining.layout import Layout, sharded
from strategies.pipelining.reduction import reduce_and_step
from strategies.pipelining.stages import Shape, shapes
from strategies.plans.actions import Rows
from strategies.plans.plan import Plan
from strategies.scenario import Scenario
from strategies.strategy import Strategy

OF_REPLICAS: Final = ("group_size", "optimizer")
"""Fields that say how stages are replicated; no order depends on them."""


@dataclass(frozen=True, slots=True)
class StagedPipeline(Strategy):
    """Stages on the positions of a pipeline; a strategy says where they lie, and what each position does in turn.

    ``split`` says that backwards come in two parts, ``I`` and ``W``. The order and the positions of the
    stages may depend on any field that is not one of ``OF_REPLICAS``.
    """

    split: ClassVar[bool] = False

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()
    partition: str = fields.parameter(
        "optimal", "how the backbone is cut: equal blocks, or optimal", choices=("blocks", "optimal")
    )
    p2p: str = fields.p2p()
    skip_route: str = fields.parameter(
        "relay", "how skips travel: with the hidden state, or not at all", choices=("relay", "local")
    )

    @property
    def shape(self) -> Shape:
        """The integers of its pipelines."""
        is_sharded = getattr(self, "optimizer", "replicated") == "sharded"
        group_size = self.group_size or self.pipeline_degree
        return Shape(self.pipeline_degree, self.micro_batches, group_size, is_sharded)

    @abstractmethod
    def layout(self, scenario: Scenario) -> Layout:
        """Return the stages and where they lie."""

    @abstractmethod
    def _rows(self, layout: Layout) -> Rows:
        """The passes of each position of a layout."""

    def positions(self) -> Sequence[int]:
        """The position of each stage."""
        return range(self.pipeline_degree)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration."""
        layout = self.layout(scenario)
        builder = PipelineBuilder(layout, self._rows(layout), blocking=self.p2p == "blocking")
        return builder.build(reduce_and_step)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut, for any order."""
        return staged_bound(self.layout(scenario), split=self.split)

    def coarse_bounds(self, scenario: Scenario) -> tuple[float, float]:
        """Seconds and bytes that no iteration can undercut, for any order and partition."""
        layout = Layout(sharded(scenario) if self.shape.sharded else scenario, self.shape)
        return self._uncut_s(layout), uncut_memory_bytes(layout)

    def _uncut_s(self, layout: Layout) -> float:
        """Those seconds, of a layout without cuts."""
        return uncut_bound(layout, len(self.positions()), split=self.split)

    def order_bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut in this order."""
        layout = self.layout(scenario)
        return order_bound(layout, lambda: self._rows(layout), self._order_key(), split=self.split)

    def _order_key(self) -> Hashable:
        """A key that points with the same order share."""
        names = (field.name for field in dataclass_fields(self) if field.name not in OF_REPLICAS)
        return type(self), *(getattr(self, name) for name in names)


@dataclass(frozen=True, slots=True)
class OrderedPipeline(StagedPipeline):
    """A pipeline whose order does not depend on the times of its stages."""

    partitions: ClassVar[tuple[str, ...]] = ("blocks", "optimal")
    """Those that a sweep tries."""

    @abstractmethod
    def order(self) -> Rows:
        """The forwards and backwards of each position."""

    def layout(self, scenario: Scenario) -> Layout:
        """Return the stages of the only backbone and where they lie."""
        scenario = sharded(scenario) if self.shape.sharded else scenario
        positions = self.checked_positions()
        in_flight = partial(self._checked_in_flight, scenario, len(positions))
        return folded(scenario, self.shape, positions, self.partition, self.skip_route, in_flight=in_flight)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        layout = self.layout(scenario)
        in_flight = self._checked_in_flight(scenario, len(layout.stages))
        return least_memory_bytes(layout, in_flight)

    def _checked_in_flight(self, scenario: Scenario, stages: int) -> Sequence[int]:
        """For each stage the micro-batches that it holds, checked."""
        in_flight = scenario.remember(("in flight", self._order_key()), self.in_flight)
        if (entries := len(in_flight)) != stages:
            rule = f"must have one for each of {stages} stages"
            raise InputError(
                f"{type(self).__name__}.in_flight() has {counted(entries, 'entry', 'entries')}, {rule}"
            )
        return in_flight

    def in_flight(self) -> Sequence[int]:
        """For each stage the micro-batches whose activations it holds when its position is fullest."""
        return most_in_flight(self.checked_order())

    def checked_positions(self) -> tuple[int, ...]:
        """The position of each stage, checked.

        Raises:
            InputError: an entry is no position of the pipeline, or a position has no stage.
            InfeasibleError: this point does not exist.
        """
        return placed(f"{type(self).__name__}.positions()", self.positions(), self.pipeline_degree)

    def checked_order(self) -> Rows:
        """The order, checked."""
        positions, kinds = self.checked_positions(), SPLIT if self.split else WHOLE
        return whole(f"the order of {self.name}", self.order(), positions, self.micro_batches, kinds)

    def _rows(self, layout: Layout) -> Rows:
        return self.checked_order()


@dataclass(frozen=True, slots=True)
class LinearPipeline(OrderedPipeline):
    """The only backbone, one stage per position; a strategy adds its name, its summary and its order."""

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides."""
        return (cls(shape.degree, shape.micro_batches, shape.group_size) for shape in shapes(scenario))


@dataclass(frozen=True, slots=True)
class DepthFirstPipeline(LinearPipeline):
    """A linear pipeline in FIFO-1F1B, whose position s runs at most P - s micro-batches ahead."""

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)

    def in_flight(self) -> Sequence[int]:
        """For each position the micro-batches whose activations it holds when it is fullest."""
        return [min(self.micro_batches, self.pipeline_degree - s) for s in range(self.pipeline_degree)]
