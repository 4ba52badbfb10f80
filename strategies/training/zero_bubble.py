"""Zero bubble: 1F1B whose gradients of weights wait until there is nothing else to do."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from strategies import parameters as fields
from strategies.bounds.critical_path import order_bound
from strategies.bounds.pipelines import staged_least_memory
from strategies.pipelining.candidates import shapes
from strategies.pipelining.layout import Layout, cut_backbone, shape_of, unfilled_plan
from strategies.plans.actions import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Rows, StageAction
from strategies.plans.plan import Plan
from strategies.scenario import Scenario


def zero_bubble_order(degree: int, micro_batches: int) -> Rows:
    """The ZB-H1 order: FIFO-1F1B, the weight part of position s behind by s micro-batches.

    So every position holds the activations of as many micro-batches as there are positions, and the later ones
    fill the end of the iteration with weight parts. With fewer micro-batches than positions, late positions run
    theirs all at the end.

    Source: Qi et al., 2023, section 2; torch's ``ScheduleInterleavedZeroBubble`` with one stage per rank.
    """
    rows = []
    for position in range(degree):
        ahead, behind = min(degree - 1 - position, micro_batches), min(position, micro_batches)
        row = [StageAction(position, FORWARD, m) for m in range(ahead)]
        for m in range(micro_batches):
            if m + ahead < micro_batches:
                row.append(StageAction(position, FORWARD, m + ahead))
            row.append(StageAction(position, BACKWARD_INPUT, m))
            if m >= behind:
                row.append(StageAction(position, BACKWARD_WEIGHT, m - behind))
        left = range(micro_batches - behind, micro_batches)
        rows.append((*row, *(StageAction(position, BACKWARD_WEIGHT, m) for m in left)))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class ZeroBubble:
    """Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023, ZB-H1."""

    name: ClassVar[str] = "zero-bubble"
    task: ClassVar[str] = "train"
    summary: ClassVar[str] = "1F1B on equal blocks, gradients of weights put off (ZB-H1)"

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()
    partition: str = fields.partition("blocks")
    p2p: str = fields.p2p()
    skip_route: str = fields.skip_route()

    def order(self) -> Rows:
        """The forwards and both parts of the backwards of each position."""
        return zero_bubble_order(self.pipeline_degree, self.micro_batches)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration."""
        return unfilled_plan(self, scenario, self.order())

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides."""
        return (cls(shape.degree, shape.micro_batches, shape.group_size) for shape in shapes(scenario))

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        return order_bound(scenario, self._layout(scenario), self.order, self.name, split=True)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without."""
        in_flight = [min(self.micro_batches, self.pipeline_degree)] * self.pipeline_degree
        return staged_least_memory(scenario, self._layout(scenario), in_flight)

    def _layout(self, scenario: Scenario) -> Layout:
        shape = shape_of(self)

        def lay_out() -> Layout:
            return Layout.of(scenario, shape, [cut_backbone(self, scenario)], self.skip_route)

        return scenario.remember((self.name, "layout", shape, self.partition, self.skip_route), lay_out)
