"""Staged pipelines: several stages on every position, in some order."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import InputError, counted
from strategies.bounds.critical_path import order_bound
from strategies.orders.capacity import most_in_flight
from strategies.pipelining.data_parallel import sharded
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Shape
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import OrderedPipeline


@dataclass(frozen=True, slots=True)
class StagedPipeline(OrderedPipeline):
    """The only backbone, several stages per position.

    A strategy adds its name, its summary, where its stages lie, its order and its candidates; after its own fields it
    declares ``partition``, ``p2p`` and ``skip_route``.
    """

    @abstractmethod
    def positions(self) -> tuple[int, ...]:
        """The position of each stage.

        Raises:
            InfeasibleError: this point does not exist.
        """

    def layout(self, scenario: Scenario) -> Layout:
        """The stages and where they lie.

        Raises:
            InfeasibleError: the backbone cannot be cut so.
        """
        shape = Shape.of(self)
        there = sharded(scenario) if shape.sharded else scenario
        return Layout.folded(there, shape, self.checked_positions(), self.partition, self.skip_route)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        return order_bound(self.layout(scenario), self.checked_order, self._order_key(), split=self.split)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without.

        Raises:
            InputError: ``in_flight`` does not say what each stage holds.
        """
        layout = self.layout(scenario)
        in_flight = scenario.remember(("in flight", self._order_key()), self.in_flight)
        if (found := len(in_flight)) != (stages := len(layout.stages)):
            rule = f"must have one for each of {stages} stages"
            raise InputError(
                f"{type(self).__name__}.in_flight() has {counted(found, 'entry', 'entries')}, {rule}"
            )
        return layout.least_memory_bytes(in_flight, frozen_first=True)

    def in_flight(self) -> Sequence[int]:
        """For each stage the micro-batches whose activations it holds when its position is fullest."""
        return most_in_flight(self.checked_order())
