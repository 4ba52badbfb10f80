"""Staged pipelines: several stages on every position, in some order."""

from abc import abstractmethod
from dataclasses import dataclass

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
