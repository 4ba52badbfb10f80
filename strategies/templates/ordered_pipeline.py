"""Ordered pipelines: what pipelines have in common that run in an order of their own."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from typing import ClassVar, Final

from strategies import parameters as fields
from strategies.orders.excerpts import Excerpt, Repeats
from strategies.orders.whole import one_chain
from strategies.pipelining.layout import Layout
from strategies.plans.actions import Rows
from strategies.plans.plan import Plan
from strategies.scenario import Scenario

OF_LAYOUT: Final = (
    "pipeline_degree", "micro_batches", "group_size", "partition", "p2p", "skip_route", "optimizer"
)  # fmt: skip
"""Fields that every strategy reads alike: they say how stages lie and exchange, not in which order they run."""


@dataclass(frozen=True, slots=True)
class OrderedPipeline(ABC):
    """Stages on the positions of a pipeline, in an order that does not depend on their times.

    A template adds where the stages lie, and what bounds them. ``split`` says that backwards come in two parts, ``I``
    and ``W``.
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
    def order(self) -> Rows:
        """The forwards and backwards of each position."""

    @abstractmethod
    def layout(self, scenario: Scenario) -> Layout:
        """The stages and where they lie.

        Raises:
            InfeasibleError: the backbone cannot be cut so.
        """

    def positions(self) -> tuple[int, ...]:
        """The position of each stage, one on each unless a template says otherwise.

        Raises:
            InfeasibleError: this point does not exist.
        """
        return tuple(range(self.pipeline_degree))

    def checked_order(self) -> Rows:
        """The order, checked.

        Raises:
            InputError: a position has no row, or a pass is none of its own, there twice or lacking.
        """
        degree, at = self.pipeline_degree, self.positions()
        return one_chain(self.name, self.order(), at, self.micro_batches, degree=degree, split=self.split)

    def repeats(self, scenario: Scenario) -> Repeats | None:
        """What of the order repeats itself; None where nothing does."""
        key = ("repeats", self._own(), self.pipeline_degree, self.micro_batches)
        return scenario.remember(key, lambda: Repeats.of(self.checked_order()))

    def plan(self, scenario: Scenario, excerpt: Excerpt | None = None) -> Plan:
        """The plan of one iteration, or of an excerpt of it."""
        layout = self.layout(scenario)
        rows, left_out = self._passes(layout, excerpt)
        return layout.plan(rows, blocking=self.p2p == "blocking", left_out=left_out)

    def busiest_s(self, scenario: Scenario) -> float:
        """Seconds that the passes of the busiest position take."""
        return self.layout(scenario).busiest_s()

    def _rows(self, layout: Layout) -> Rows:
        """The passes of each position of a layout."""
        return self.checked_order()

    def _passes(self, layout: Layout, excerpt: Excerpt | None) -> tuple[Rows, int]:
        """The passes of each position, and how many micro-batches of each chain an excerpt leaves out."""
        return (self._rows(layout), 0) if excerpt is None else (excerpt.rows, excerpt.left_out)

    def _own(self) -> tuple[Hashable, ...]:
        """The name of the strategy and the fields of its own: with the layout, they say the order."""
        return self.name, *(
            getattr(self, item.name) for item in dataclass_fields(self) if item.name not in OF_LAYOUT
        )
