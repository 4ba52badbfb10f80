"""Data parallelism: every GPU trains the whole backbone on its share of the batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from profiles.errors import InfeasibleError
from strategies.actions import Order
from strategies.footprint import least_memory_bytes, trained_parameters
from strategies.linear import divisors, frozen_s, one_forward_one_backward_order, step_s
from strategies.parameters import parameter
from strategies.pipeline import PipelineBuilder, Recipe
from strategies.plan import Plan, Stage
from strategies.scenario import Scenario
from strategies.stages import Cut, Shape, make_stages


@dataclass(frozen=True, slots=True)
class DDP:
    """Gradients are all-reduced in buckets during the last backward (Li et al., PyTorch Distributed, 2020).

    With ``overlap = none`` they are reduced after it, as DeepSpeed's baseline does (DiffusionPipe, section 6).
    """

    name: ClassVar[str] = "ddp"
    task: ClassVar[str] = "train"
    summary: ClassVar[str] = "data parallelism: each GPU trains the whole backbone"

    overlap: str = parameter("buckets", "when gradients are reduced", choices=("buckets", "none"))
    micro_batches: int = parameter(1, "pieces of the local batch whose gradients are accumulated")
    backbones: str = parameter(
        "sequential",
        "several backbones: one after the other, or side by side",
        choices=("sequential", "parallel"),
    )

    def _shape(self) -> Shape:
        return Shape(1, self.micro_batches, 1)

    def _check(self, scenario: Scenario) -> None:
        if self.backbones == "parallel" and len(scenario.model.backbones) < 2:
            raise InfeasibleError("backbones is parallel, but the model has only one", "one backbone")

    def order(self) -> Order:
        """Return the forwards and backwards of the accumulated micro-batches."""
        return one_forward_one_backward_order(1, self.micro_batches)

    def plan(self, scenario: Scenario) -> Plan:
        """Return the plan of one iteration."""
        self._check(scenario)
        layers = scenario.model.components[scenario.backbone].layers
        cut = Cut(scenario.backbone, (0, len(layers)))
        rows = one_forward_one_backward_order(1, self.micro_batches)
        recipe = Recipe(buckets=self.overlap == "buckets")
        return PipelineBuilder(scenario, self._shape(), [cut], rows, recipe).build()

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Yield both overlaps, and every accumulation that divides the local batch."""
        batch, gpus = scenario.workload.batch_size, scenario.workload.num_gpus
        counts = divisors(batch // gpus) if batch % gpus == 0 else [1]
        return (cls(overlap, count) for overlap in ("buckets", "none") for count in counts)

    def least_memory_bytes(self, scenario: Scenario) -> float:
        """Return bytes that each device cannot do without."""
        stages = (self._stage(scenario),)
        return least_memory_bytes(scenario, stages, (1,), self._shape().local_batch(scenario))

    def _stage(self, scenario: Scenario) -> Stage:
        layers = scenario.model.components[scenario.backbone].layers
        cut = Cut(scenario.backbone, (0, len(layers)))
        (stage,) = make_stages(scenario, cut, self._shape().local_batch(scenario))
        return stage

    def bound(self, scenario: Scenario) -> float:
        """Return seconds that no iteration can undercut: all compute, and a reduction that overlaps none of it."""
        self._check(scenario)
        shape, stage = self._shape(), self._stage(scenario)
        shape.placement(scenario)
        passes = stage.forward_s * (2 if scenario.workload.extra_forward else 1) + stage.backward_s
        work_s = frozen_s(scenario, shape) + self.micro_batches * passes
        if self.overlap == "none":
            return work_s + step_s(scenario, shape, stage)
        trained = trained_parameters(scenario.model.components[stage.component], stage)
        return work_s + scenario.costs.optimizer_s(trained, scenario.workload.recipe)
