"""Stages: how a backbone is cut, where the pieces lie and what one micro-batch of each takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InfeasibleError
from strategies.parameters import SKIP_ROUTES, check_choice
from strategies.plans.placement import Placement
from strategies.plans.plan import Stage
from strategies.scenario import Scenario

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Shape:
    """The integers of a pipeline.

    Attributes:
        degree: positions of one pipeline.
        micro_batches: pieces into which a group's batch is cut.
        group_size: GPUs of one pipeline group.
    """

    degree: int
    micro_batches: int
    group_size: int

    @property
    def replicas(self) -> int:
        """GPUs on which each position of a group is replicated."""
        return self.group_size // self.degree

    def placement(self, scenario: Scenario) -> Placement:
        """The placement of the positions.

        Raises:
            InfeasibleError: group, nodes and GPUs do not divide one another.
        """
        workload = scenario.workload
        data_inner = workload.placement == "data-inner"
        return scenario.remember(
            ("placement", self.group_size, self.degree),
            lambda: Placement(scenario.cluster, workload.num_gpus, self.group_size, self.degree, data_inner),
        )

    def group_batch(self, scenario: Scenario) -> int:
        """The samples of one group in one iteration.

        Raises:
            InfeasibleError: it is not whole.
        """
        batch, gpus = scenario.workload.batch_size, scenario.workload.num_gpus
        if batch * self.group_size % gpus:
            raise InfeasibleError(
                f"batch_size({batch}) * group_size({self.group_size}) / gpus({gpus})"
                f" = {batch * self.group_size / gpus:g} is not whole",
                "the batch does not divide",
            )
        return batch * self.group_size // gpus

    def local_batch(self, scenario: Scenario) -> int:
        """The samples of one micro-batch on one device.

        Raises:
            InfeasibleError: it is not whole.
        """
        batch, gpus = scenario.workload.batch_size, scenario.workload.num_gpus
        devices = gpus * self.micro_batches
        if batch * self.degree % devices:
            raise InfeasibleError(
                f"batch_size({batch}) * pipeline_degree({self.degree}) / (gpus({gpus}) *"
                f" micro_batches({self.micro_batches})) = {batch * self.degree / devices:g} is not whole",
                "the batch does not divide",
            )
        return batch * self.degree // devices


@dataclass(frozen=True, slots=True)
class Cut:
    """A backbone cut into stages, where they lie, and which micro-batches pass through them.

    Attributes:
        component: the backbone.
        boundaries: ``boundaries[s]`` is the first layer of stage s, the last entry the end.
        positions: the position of each stage; by default stage s lies on position s.
        micro_batches: first and end of a range; by default all pass.
    """

    component: int
    boundaries: tuple[int, ...]
    positions: tuple[int, ...] | None = None
    micro_batches: tuple[int, int] | None = None

    @property
    def num_stages(self) -> int:
        """Stages of the backbone."""
        return len(self.boundaries) - 1


def layer_times(scenario: Scenario, component: int, batch: int) -> tuple[FloatArray, FloatArray]:
    """Forward and backward seconds of each layer at a local batch, recomputation included in the latter."""
    costs = scenario.costs.components[component]
    forward_s, backward_s = costs.forward_s(batch), costs.backward_s(batch)
    if scenario.workload.checkpointing == "full":
        backward_s = backward_s + forward_s
    return forward_s, backward_s


def make_stages(scenario: Scenario, cut: Cut, batch: int) -> tuple[Stage, ...]:
    """The stages of a cut."""
    forward_s, backward_s = layer_times(scenario, cut.component, batch)
    layers = scenario.model.components[cut.component].layers
    positions = cut.positions or range(cut.num_stages)
    return tuple(
        Stage(
            cut.component, first, end - 1, position,
            float(forward_s[first:end].sum()), float(backward_s[first:end].sum()),
            sum(layer.parameters for layer in layers[first:end]),
        )
        for (first, end), position in zip(pairwise(cut.boundaries), positions, strict=True)
    )  # fmt: skip


def handover_bytes(scenario: Scenario, stage: Stage, batch: int, skip_route: str) -> float:
    """Bytes a stage hands over to the next, and gets the gradient of, for one micro-batch.

    Relayed, every live skip goes with the hidden state. What is carried, forwards alone, is not counted.
    """
    check_choice("skip_route", skip_route, SKIP_ROUTES)
    component = scenario.model.components[stage.component]
    if skip_route == "relay":
        return component.cut_bytes(stage.last_layer) * batch
    return component.layers[stage.last_layer].output_bytes * batch


def weight_part_s(scenario: Scenario, stage: Stage, batch: int) -> float:
    """The seconds of a stage's backward that can wait: the gradients of its weights.

    An estimate: half of the backward of every layer that is trained, none of the others'. Recomputation belongs to
    the other part. Source: Qi et al., Zero Bubble Pipeline Parallelism, 2023, section 2 (T_B close to T_W).
    """
    layers = scenario.model.components[stage.component].layers[stage.first_layer : stage.last_layer + 1]
    backward_s = scenario.costs.components[stage.component].backward_s(batch)[stage.first_layer :]
    return sum(float(s) / 2 for s, layer in zip(backward_s, layers, strict=False) if layer.backward == "full")


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a stage sits in its chain.

    Attributes:
        cut: number of its chain.
        first: first stage of the chain.
        last: last stage of the chain.
        before: the stage it gets its hidden state from; None at the start.
        after: the stage that gets its hidden state; None at the end.
    """

    cut: int
    first: int
    last: int
    before: int | None
    after: int | None


def seats_of(cuts: Sequence[Cut]) -> tuple[Seat, ...]:
    """The seat of each stage; stages are numbered one cut after the other."""
    seats: list[Seat] = []
    for number, cut in enumerate(cuts):
        first, last = len(seats), len(seats) + cut.num_stages - 1
        seats += [
            Seat(
                number, first, last, stage - 1 if stage > first else None, stage + 1 if stage < last else None
            )
            for stage in range(first, last + 1)
        ]
    return tuple(seats)
