"""Interleaved 1F1B: every position holds several chunks of the backbone, and micro-batches pass in rounds."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from profiles.errors import InfeasibleError
from strategies import parameters as fields
from strategies.bounds.critical_path import order_bound
from strategies.bounds.pipelines import staged_least_memory
from strategies.pipelining.candidates import shapes
from strategies.pipelining.layout import Layout, cut_chain, refuse_distant_skips, staged_plan
from strategies.pipelining.stages import Shape
from strategies.plans.actions import BACKWARD, FORWARD, Rows, StageAction
from strategies.plans.plan import Plan
from strategies.scenario import Scenario

OFFERED_CHUNKS: Final = (2, 3, 4, 6)
"""Chunks that a sweep looks at; more of them send more, and are no faster where it was tried (sd21 on p4de)."""


def interleaved_order(degree: int, micro_batches: int, chunks: int) -> Rows:
    """The interleaved 1F1B order: chunk by chunk, each by as many micro-batches as there are positions.

    Source: Narayanan et al., Megatron-LM, 2021, section 2.2; torch's ``ScheduleInterleaved1F1B``.

    Raises:
        InfeasibleError: the micro-batches do not come in whole rounds.
    """
    check_rounds(degree, micro_batches)
    rounds = range(0, micro_batches, degree)
    passes = [(c, m) for first in rounds for c in range(chunks) for m in range(first, first + degree)]
    rows = []
    for position in range(degree):
        forwards = [StageAction(c * degree + position, FORWARD, m) for c, m in passes]
        backwards = [StageAction((chunks - 1 - c) * degree + position, BACKWARD, m) for c, m in passes]
        ahead = forwards_ahead(degree, micro_batches, chunks, position)
        row = forwards[:ahead]
        for pair in zip(forwards[ahead:], backwards, strict=False):
            row += pair
        rows.append((*row, *backwards[len(passes) - ahead :]))
    return tuple(rows)


def forwards_ahead(degree: int, micro_batches: int, chunks: int, position: int) -> int:
    """Forwards of its chunks that a position runs before it alternates."""
    return min(micro_batches * chunks, 2 * (degree - 1 - position) + (chunks - 1) * degree)


def check_rounds(degree: int, micro_batches: int) -> None:
    """Refuse micro-batches that do not come in rounds of as many as there are positions.

    Raises:
        InfeasibleError: they do not.
    """
    if micro_batches % degree:
        raise InfeasibleError(
            f"micro_batches({micro_batches}) / pipeline_degree({degree}) = {micro_batches / degree:g}"
            " is not whole",
            "the micro-batches do not come in whole rounds",
        )


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Source: Narayanan et al., Efficient Large-Scale Language Model Training (Megatron-LM), 2021, section 2.2."""

    name: ClassVar[str] = "interleaved"
    task: ClassVar[str] = "train"
    summary: ClassVar[str] = "1F1B with several chunks of equal blocks on every position"

    pipeline_degree: int = fields.pipeline_degree()
    micro_batches: int = fields.micro_batches()
    group_size: int | None = fields.group_size()
    chunks: int = fields.parameter(2, "stages of each position; one would be 1f1b", minimum=2)
    partition: str = fields.partition("blocks")
    p2p: str = fields.p2p()
    skip_route: str = fields.skip_route()

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return interleaved_order(self.pipeline_degree, self.micro_batches, self.chunks)

    def plan(self, scenario: Scenario) -> Plan:
        """The plan of one iteration."""
        layout = self._layout(scenario)
        return staged_plan(scenario, layout, self.order(), blocking=self.p2p == "blocking")

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size, number of chunks and number of micro-batches that divides."""
        for chunks in OFFERED_CHUNKS:
            try:
                offered = list(shapes(scenario, chunks))
            except InfeasibleError:
                if chunks == OFFERED_CHUNKS[0]:
                    raise
                return
            whole = (shape for shape in offered if shape.micro_batches % shape.degree == 0)
            yield from (cls(s.degree, s.micro_batches, s.group_size, chunks) for s in whole)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut."""
        return order_bound(scenario, self._layout(scenario), self.order, self.name)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device cannot do without: what it holds when it starts to alternate."""
        degree, count, chunks = self.pipeline_degree, self.micro_batches, self.chunks
        in_flight = [0] * (degree * chunks)
        for position in range(degree):
            held = min(count * chunks, forwards_ahead(degree, count, chunks, position) + 1)
            for number in range(held):
                in_flight[number // degree % chunks * degree + position] += 1
        return staged_least_memory(scenario, self._layout(scenario), in_flight)

    def _layout(self, scenario: Scenario) -> Layout:
        check_rounds(self.pipeline_degree, self.micro_batches)
        shape = Shape(self.pipeline_degree, self.micro_batches, self.group_size or self.pipeline_degree)

        def lay_out() -> Layout:
            positions = tuple(range(shape.degree)) * self.chunks
            cut = cut_chain(scenario, shape, scenario.backbone, positions, self.partition)
            layout = Layout.of(scenario, shape, [cut], self.skip_route)
            if self.skip_route == "local":
                refuse_distant_skips(scenario, layout)
            return layout

        key = (self.name, "layout", shape, self.chunks, self.partition, self.skip_route)
        return scenario.remember(key, lay_out)
