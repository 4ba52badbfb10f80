"""Interleaved 1F1B: every position holds several chunks of the backbone, and micro-batches pass in rounds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from strategies import parameters as fields
from strategies.orders.named import check_rounds, interleaved_order
from strategies.orders.problem import most_in_flight
from strategies.pipelining.stages import folded_shapes
from strategies.plans.actions import Rows
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import OrderedPipeline

OFFERED_CHUNKS: Final = (2, 3, 4, 6)
"""Chunks that a sweep looks at; more of them send more, and are no faster where it was tried (sd21 on p4de)."""


@dataclass(frozen=True, slots=True)
class Interleaved(OrderedPipeline):
    """Source: Narayanan et al., Efficient Large-Scale Language Model Training (Megatron-LM), 2021, section 2.2."""

    name = "interleaved"
    summary = "1F1B with several chunks on every position"

    chunks: int = fields.parameter(2, "stages of each position; one would be 1f1b", minimum=2)
    optimizer: str = fields.optimizer()

    def positions(self) -> tuple[int, ...]:
        """The position of each stage."""
        check_rounds(self.pipeline_degree, self.micro_batches)
        return tuple(range(self.pipeline_degree)) * self.chunks

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return interleaved_order(self.pipeline_degree, self.micro_batches, self.chunks)

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size, number of chunks and number of micro-batches that divides."""
        for chunks, shape in folded_shapes(scenario, {chunks: chunks for chunks in OFFERED_CHUNKS}):
            if shape.micro_batches % shape.degree == 0:
                yield cls(shape.degree, shape.micro_batches, shape.group_size, chunks=chunks)

    def in_flight(self) -> Sequence[int]:
        """For each stage the micro-batches it holds when its position is fullest: within the first two rounds."""
        first = min(self.micro_batches, 2 * self.pipeline_degree)
        return most_in_flight(interleaved_order(self.pipeline_degree, first, self.chunks))
