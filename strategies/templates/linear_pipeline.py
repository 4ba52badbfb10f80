"""Linear pipelines: one stage per position, in some order."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import ClassVar, Self

from strategies import parameters as fields
from strategies.bounds.critical_path import order_bound
from strategies.bounds.pipelines import pipeline_bound
from strategies.orders.capacity import most_in_flight
from strategies.orders.excerpts import Excerpt, Repeats
from strategies.orders.whole import one_chain
from strategies.pipelining.candidates import shapes
from strategies.pipelining.layout import Layout
from strategies.pipelining.sharding import sharded
from strategies.pipelining.stages import Shape
from strategies.plans.actions import Rows
from strategies.plans.plan import Plan
from strategies.scenario import Scenario


@dataclass(frozen=True, slots=True)
class LinearPipeline(ABC):
    """The only backbone, one stage per position; a strategy adds its name, its summary and its order.

    The order is followed for the bound, and for what a device holds. Where ``depth_first`` says what it is, closed
    forms take less time: True for FIFO-1F1B, whose position s runs at most P - s micro-batches ahead; False for all
    forwards, then all backwards. ``split`` says that backwards come in two parts, ``I`` and ``W``.
    """

    name: ClassVar[str]
    task: ClassVar[str] = "train"
    summary: ClassVar[str]
    depth_first: ClassVar[bool | None] = None
    split: ClassVar[bool] = False

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()
    partition: str = fields.partition("blocks")
    p2p: str = fields.p2p()
    skip_route: str = fields.skip_route()

    @abstractmethod
    def order(self) -> Rows:
        """The forwards and backwards of each position."""

    def checked_order(self) -> Rows:
        """The order, checked.

        Raises:
            InputError: a position has no row, or a pass is none of its own, there twice or lacking.
        """
        degree, at = self.pipeline_degree, range(self.pipeline_degree)
        return one_chain(self.name, self.order(), at, self.micro_batches, degree=degree, split=self.split)

    def layout(self, scenario: Scenario) -> Layout:
        """The stages and where they lie.

        Raises:
            InfeasibleError: the backbone cannot be cut so.
        """
        shape = Shape.of(self)
        there = sharded(scenario) if shape.sharded else scenario
        return Layout.linear(there, shape, self.partition, self.skip_route)

    def repeats(self, scenario: Scenario) -> Repeats | None:
        """What of the order repeats itself; None where nothing does."""
        key = ("repeats", self._own(), self.pipeline_degree, self.micro_batches)
        return scenario.remember(key, lambda: Repeats.of(self.checked_order()))

    def plan(self, scenario: Scenario, excerpt: Excerpt | None = None) -> Plan:
        """The plan of one iteration, or of an excerpt of it."""
        rows, left_out = (self.checked_order(), 0) if excerpt is None else excerpt[:2]
        return self.layout(scenario).plan(rows, blocking=self.p2p == "blocking", left_out=left_out)

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides."""
        return (cls(shape.degree, shape.micro_batches, shape.group_size) for shape in shapes(scenario))

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        layout = self.layout(scenario)
        if self.depth_first is not None:
            return pipeline_bound(layout, depth_first=self.depth_first)
        return order_bound(layout, self.checked_order, self._own(), split=self.split)

    def busiest_s(self, scenario: Scenario) -> float:
        """Seconds that the passes of the busiest position take."""
        return self.layout(scenario).busiest_s()

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        return self.layout(scenario).least_memory_bytes(self.in_flight(), frozen_first=True)

    def in_flight(self) -> Sequence[int]:
        """For each position the micro-batches whose activations it holds at once when it is fullest."""
        degree, count = self.pipeline_degree, self.micro_batches
        if self.depth_first is None:
            return most_in_flight(self.checked_order())
        return [min(count, degree - s) if self.depth_first else count for s in range(degree)]

    def _own(self) -> tuple[Hashable, ...]:
        """The name of the strategy and the fields of its own: with the layout, they say the order."""
        shared = (*LinearPipeline.__dataclass_fields__, "optimizer")
        return self.name, *(
            getattr(self, item.name) for item in dataclass_fields(self) if item.name not in shared
        )
