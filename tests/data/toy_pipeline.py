"""Pairs: a strategy of one's own, two forwards and then their two backwards at a time."""

from dataclasses import dataclass

from strategies.plans.actions import BACKWARD, FORWARD, Rows, StageAction
from strategies.templates.ordered_pipeline import LinearPipeline


@dataclass(frozen=True, slots=True)
class Pairs(LinearPipeline):
    """GPipe on two micro-batches after two."""

    name = "pairs"
    summary = "two forwards, then their two backwards, again and again"

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        pairs = [range(self.micro_batches)[first : first + 2] for first in range(0, self.micro_batches, 2)]
        return tuple(
            tuple(StageAction(p, kind, m) for pair in pairs for kind in (FORWARD, BACKWARD) for m in pair)
            for p in range(self.pipeline_degree)
        )
