"""Wave: stages laid out down the positions and up again, so that a wave turns round without a message."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from strategies import parameters as fields
from strategies.orders.problem import wave_positions
from strategies.orders.wave import wave_in_flight, wave_order
from strategies.pipelining.stages import folded_shapes
from strategies.plans.actions import Rows
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import OrderedPipeline

OFFERED_WAVES: Final = (1, 2, 3)
"""Waves that a sweep looks at; more of them send more, and are no faster where it was tried (sd21 on p4de)."""


@dataclass(frozen=True, slots=True)
class Wave(OrderedPipeline):
    """Source: Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism, 2023."""

    name = "wave"
    summary = "stages laid out in waves (Hanayo)"

    waves: int = fields.parameter(1, "times the stages go down the positions and up again")

    def positions(self) -> tuple[int, ...]:
        """The position of each stage."""
        return wave_positions(self.pipeline_degree, self.waves)

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return wave_order(self.pipeline_degree, self.micro_batches, self.waves)

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size, number of waves and number of micro-batches that divides."""
        offered = folded_shapes(scenario, {waves: 2 * waves for waves in OFFERED_WAVES})
        return (
            cls(shape.degree, shape.micro_batches, shape.group_size, waves=waves) for waves, shape in offered
        )

    def in_flight(self) -> Sequence[int]:
        """For each stage the micro-batches it holds at least when its position holds most."""
        return wave_in_flight(self.pipeline_degree, self.micro_batches, self.waves)
