"""Pipelines of one stage per position, which differ in their order: GPipe, FIFO-1F1B, SPP and zero bubble."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

from strategies import parameters as fields
from strategies.orders.named import gpipe_order, zero_bubble_order
from strategies.pipelining.footprint import least_memory_bytes
from strategies.pipelining.stages import shapes
from strategies.plans.actions import Rows
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import DepthFirstPipeline, LinearPipeline


@dataclass(frozen=True, slots=True)
class GPipe(LinearPipeline):
    """Source: Huang et al., GPipe, 2019."""

    name = "gpipe"
    summary = "all forwards, then all backwards"

    optimizer: str = fields.optimizer()

    def order(self) -> Rows:
        """The forwards and backwards of each position."""
        return gpipe_order(self.pipeline_degree, self.micro_batches)

    def in_flight(self) -> Sequence[int]:
        """For each position the micro-batches whose activations it holds when it is fullest: all."""
        return [self.micro_batches] * self.pipeline_degree


@dataclass(frozen=True, slots=True)
class OneForwardOneBackward(DepthFirstPipeline):
    """Source: Narayanan et al., PipeDream, 2019; DiffusionPipe, section 2.2."""

    name = "1f1b"
    summary = "FIFO-1F1B"

    optimizer: str = fields.optimizer()

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every degree, group size and number of micro-batches that divides.

        Where stages have replicas, these also share the optimizer's states, in groups of one pipeline alone.
        """
        for shape in shapes(scenario):
            point = cls(shape.degree, shape.micro_batches, shape.group_size)
            yield point
            if scenario.workload.num_gpus > shape.degree == shape.group_size:
                yield replace(point, optimizer="sharded")


@dataclass(frozen=True, slots=True)
class SPP(DepthFirstPipeline):
    """Source: Luo et al., SPP, 2022, with the objective of DiffusionPipe, Eq. 2."""

    name = "spp"
    summary = "FIFO-1F1B on the optimal partition"

    partitions = ("optimal",)


@dataclass(frozen=True, slots=True)
class ZeroBubble(LinearPipeline):
    """Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023, ZB-H1."""

    name = "zero-bubble"
    summary = "1F1B, gradients of weights put off (ZB-H1)"
    split = True

    optimizer: str = fields.optimizer()

    def order(self) -> Rows:
        """The forwards and both parts of the backwards of each position."""
        return zero_bubble_order(self.pipeline_degree, self.micro_batches)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Bytes that the fullest device needs: recomputed activations stay until weights have gradients."""
        degree, count = self.pipeline_degree, self.micro_batches
        in_flight, recomputed = [min(count, degree)] * degree, [min(count, p + 1) for p in range(degree)]
        return least_memory_bytes(self.layout(scenario), in_flight, recomputed=recomputed)
