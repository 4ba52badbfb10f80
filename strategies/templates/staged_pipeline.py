"""Staged pipelines: several stages on every position, in some order."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import ClassVar

from strategies import parameters as fields
from strategies.bounds.critical_path import order_bound
from strategies.orders.capacity import most_in_flight
from strategies.orders.excerpts import Excerpt, Repeats
from strategies.orders.whole import one_chain
from strategies.pipelining.layout import Layout
from strategies.pipelining.sharding import sharded
from strategies.pipelining.stages import Shape
from strategies.plans.actions import Rows
from strategies.plans.plan import Plan
from strategies.scenario import Scenario


@dataclass(frozen=True, slots=True)
class StagedPipeline(ABC):
    """The only backbone, several stages per position.

    A strategy adds its name, its summary, where its stages lie, its order and its candidates, and after the fields
    of its own ``partition``, ``p2p`` and ``skip_route``. ``split`` says that backwards come in two parts, ``I`` and
    ``W``.
    """

    name: ClassVar[str]
    task: ClassVar[str] = "train"
    summary: ClassVar[str]
    split: ClassVar[bool] = False

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()

    @property
    @abstractmethod
    def partition(self) -> str:
        """``blocks`` or ``optimal``."""

    @property
    @abstractmethod
    def p2p(self) -> str:
        """``overlapped`` or ``blocking``."""

    @property
    @abstractmethod
    def skip_route(self) -> str:
        """``relay`` or ``local``."""

    @abstractmethod
    def positions(self) -> tuple[int, ...]:
        """The position of each stage.

        Raises:
            InfeasibleError: this point does not exist.
        """

    @abstractmethod
    def order(self) -> Rows:
        """The forwards and backwards of each position."""

    def checked_order(self) -> Rows:
        """The order, checked.

        Raises:
            InputError: a position has no row, or a pass is none of its own, there twice or lacking.
        """
        degree, at = self.pipeline_degree, self.positions()
        return one_chain(self.name, self.order(), at, self.micro_batches, degree=degree, split=self.split)

    def layout(self, scenario: Scenario) -> Layout:
        """The stages and where they lie.

        Raises:
            InfeasibleError: the backbone cannot be cut so.
        """
        shape = Shape.of(self)
        there = sharded(scenario) if shape.sharded else scenario
        return Layout.folded(there, shape, self.positions(), self.partition, self.skip_route)

    def repeats(self, scenario: Scenario) -> Repeats | None:
        """What of the order repeats itself; None where nothing does."""
        key = ("repeats", self._own(), self.pipeline_degree, self.micro_batches)
        return scenario.remember(key, lambda: Repeats.of(self.checked_order()))

    def plan(self, scenario: Scenario, excerpt: Excerpt | None = None) -> Plan:
        """The plan of one iteration, or of an excerpt of it."""
        rows, left_out = (self.checked_order(), 0) if excerpt is None else excerpt[:2]
        return self.layout(scenario).plan(rows, blocking=self.p2p == "blocking", left_out=left_out)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        return order_bound(self.layout(scenario), self.checked_order, self._own(), split=self.split)

    def busiest_s(self, scenario: Scenario) -> float:
        """Seconds that the passes of the busiest position take."""
        return self.layout(scenario).busiest_s()

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        layout = self.layout(scenario)
        key = ("in flight", self._own(), self.pipeline_degree, self.micro_batches)
        return layout.least_memory_bytes(scenario.remember(key, self.in_flight), frozen_first=True)

    def in_flight(self) -> Sequence[int]:
        """For each stage the micro-batches whose activations it holds when its position is fullest."""
        return most_in_flight(self.checked_order())

    def _own(self) -> tuple[Hashable, ...]:
        """The name of the strategy and the fields of its own: with the layout, they say the order."""
        shared = (*StagedPipeline.__dataclass_fields__, "partition", "p2p", "skip_route", "optimizer")
        return self.name, *(
            getattr(self, item.name) for item in dataclass_fields(self) if item.name not in shared
        )
