"""Wave: stages laid out down the positions and up again, so that a wave turns round without a message."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, Self

from profiles.errors import InfeasibleError
from strategies import parameters as fields
from strategies.bounds.critical_path import most_in_flight, order_bound
from strategies.bounds.pipelines import staged_least_memory
from strategies.orders.capacity import peak_held_bytes
from strategies.orders.list_scheduling import evaluate, list_schedule
from strategies.orders.problem import wave_positions, wave_problem
from strategies.pipelining.candidates import shapes
from strategies.pipelining.layout import Layout, cut_chain, refuse_distant_skips, staged_plan
from strategies.pipelining.stages import Shape
from strategies.plans.actions import Rows
from strategies.plans.plan import Plan
from strategies.scenario import Scenario

OFFERED_WAVES: Final = (1, 2, 3)
"""Waves that a sweep looks at; more of them send more, and are no faster where it was tried (sd21 on p4de)."""

LATE_BACKWARD: Final = (("balanced", 2.0),)
EARLY_AND_LATE: Final = (("most-advanced", 1.0), ("longest-tail", 1.0), *LATE_BACKWARD)
"""What orders are made for: a priority of list scheduling, and how many forwards a backward takes.

Made for a backward of one forward, up to two rounds of micro-batches fill the pipeline best even where it takes two;
from more than two rounds on the last of them is as short as any. Found by trying all priorities, both ratios and up
to 4 waves, 8 positions and 4 rounds.
"""
STEADY: Final = 4
"""Rounds of micro-batches after which a wave holds as much as it ever will, or nearly."""


@lru_cache(maxsize=256)
def wave_order(degree: int, micro_batches: int, waves: int) -> Rows:
    """The order of list scheduling that is shortest on free links where a backward takes two forwards.

    Of equals the one that holds fewest activations counts, then the first.
    """
    problem = wave_problem(degree, micro_batches, waves)
    tried = EARLY_AND_LATE if micro_batches <= 2 * degree else LATE_BACKWARD
    orders = [
        list_schedule(wave_problem(degree, micro_batches, waves, backward_s=backward_s), priority).rows
        for priority, backward_s in tried
    ]
    if len(orders) == 1:
        return orders[0]

    def merit(rows: Rows) -> tuple[float, float]:
        return evaluate(problem, rows).makespan_s, max(peak_held_bytes(problem, rows))

    return min(orders, key=merit)


@lru_cache(maxsize=256)
def wave_in_flight(degree: int, micro_batches: int, waves: int) -> tuple[int, ...]:
    """For each stage the micro-batches it holds at least when its position holds most.

    A long order holds no less than the one of its first micro-batches: both begin alike.
    """
    return tuple(most_in_flight(wave_order(degree, min(micro_batches, STEADY * degree), waves)))


@dataclass(frozen=True, slots=True)
class Wave:
    """Source: Liu et al., Hanayo: Harnessing Wave-like Pipeline Parallelism, 2023."""

    name: ClassVar[str] = "wave"
    task: ClassVar[str] = "train"
    summary: ClassVar[str] = "stages of equal blocks laid out in waves (Hanayo)"

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()
    waves: int = fields.parameter(1, "times the stages go down the positions and up again")
    partition: str = fields.partition("blocks")
    p2p: str = fields.p2p()
    skip_route: str = fields.skip_route()

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return wave_order(self.pipeline_degree, self.micro_batches, self.waves)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration."""
        return staged_plan(scenario, self._layout(scenario), self.order(), blocking=self.p2p == "blocking")

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size, number of waves and number of micro-batches that divides."""
        for waves in OFFERED_WAVES:
            try:
                offered = list(shapes(scenario, 2 * waves))
            except InfeasibleError:
                if waves == OFFERED_WAVES[0]:
                    raise
                return
            yield from (cls(s.degree, s.micro_batches, s.group_size, waves) for s in offered)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        return order_bound(scenario, self._layout(scenario), self.order, self.name)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        in_flight = wave_in_flight(self.pipeline_degree, self.micro_batches, self.waves)
        return staged_least_memory(scenario, self._layout(scenario), in_flight)

    def _layout(self, scenario: Scenario) -> Layout:
        shape = Shape(self.pipeline_degree, self.micro_batches, self.group_size or self.pipeline_degree)

        def lay_out() -> Layout:
            positions = wave_positions(shape.degree, self.waves)
            cut = cut_chain(scenario, shape, scenario.backbone, positions, self.partition)
            layout = Layout.of(scenario, shape, [cut], self.skip_route)
            if self.skip_route == "local":
                refuse_distant_skips(scenario, layout)
            return layout

        key = (self.name, "layout", shape, self.waves, self.partition, self.skip_route)
        return scenario.remember(key, lay_out)
