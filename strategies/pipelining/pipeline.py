"""Pipelines: what a shape means for one scenario, before any backbone is cut.

Placement, network and batches are derived here, once; whatever depends on them takes a ``Pipeline``.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np

from profiles.architectures.models import Component
from profiles.architectures.shares import WHOLE, Share
from profiles.checks import sum_in_order
from profiles.costs.layers import FloatArray
from profiles.errors import InfeasibleError
from profiles.machines.collectives import CollectiveLaw, collective_law
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from strategies.parameters import SKIP_ROUTES, check_option
from strategies.pipelining.stages import Cut, Shape
from strategies.plans.network import Network, network_of, placement_of
from strategies.plans.placement import Placement
from strategies.plans.plan import Stage
from strategies.scenario import Scenario


class Hop(NamedTuple):
    """A message between two positions: seconds on the wire, and of latency and calls, which hold no port."""

    wire_s: float
    delay_s: float

    @property
    def duration_s(self) -> float:
        """Seconds from its start to its arrival."""
        return self.wire_s + self.delay_s


class Update(NamedTuple):
    """Seconds of what follows the last backward of a stage, on free ports.

    Attributes:
        fixed_s: before its gradients are on the wire.
        wire_s: that they are on it.
        node_port_s: that they hold the port of each node.
        reduce_s: until they are summed.
        step_s: of the optimizer's step.
        gathered_s: after it, until all replicas have the weights.
    """

    fixed_s: float
    wire_s: float
    node_port_s: float
    reduce_s: float
    step_s: float
    gathered_s: float


@dataclass(frozen=True, eq=False)
class Pipeline:
    """One group of a scenario's GPUs as a pipeline of some shape."""

    scenario: Scenario
    shape: Shape

    @cached_property
    def placement(self) -> Placement:
        """GPUs of each position.

        Raises:
            InfeasibleError: group, nodes and GPUs do not divide one another.
        """
        data_inner = self.scenario.workload.placement == "data-inner"
        return placement_of(self.scenario, self.shape.group_size, self.shape.degree, data_inner=data_inner)

    @cached_property
    def network(self) -> Network:
        """The network under the positions."""
        return network_of(self.scenario, self.placement)

    @cached_property
    def group_batch(self) -> int:
        """Samples of one group in one iteration.

        Raises:
            InfeasibleError: it is not whole.
        """
        workload, size = self.scenario.workload, self.shape.group_size
        batch, gpus = workload.batch_size, workload.num_gpus
        if batch * size % gpus:
            raise InfeasibleError(
                f"`batch_size({batch})` * `group_size({size})` / `gpus({gpus})` = {batch * size / gpus:g} is not whole",
                "the batch does not divide",
            )
        return batch * size // gpus

    @cached_property
    def local_batch(self) -> int:
        """Samples of one micro-batch on one device.

        Raises:
            InfeasibleError: it is not whole.
        """
        workload, degree, count = self.scenario.workload, self.shape.degree, self.shape.micro_batches
        batch, gpus = workload.batch_size, workload.num_gpus
        devices = gpus * count
        if batch * degree % devices:
            shared = f"`batch_size({batch})`" + (f" * `pipeline_degree({degree})`" if degree > 1 else "")
            raise InfeasibleError(
                f"{shared} / (`gpus({gpus})` * `micro_batches({count})`) = {batch * degree / devices:g} is not whole:"
                f" `batch_size` must be a multiple of {devices // gcd(degree, devices)}",
                "the batch does not divide",
            )
        return batch * degree // devices

    @property
    def share(self) -> Share:
        """The part of a sample's work that one GPU does."""
        return WHOLE

    @property
    def held_batch(self) -> float:
        """Samples of one micro-batch, times the share of their activations that one device holds."""
        return self.local_batch

    def undivided_bytes(self, stage: Stage) -> FloatArray | float:
        """Bytes that layers of a stage save beyond the device's share: per sample of ``held_batch``."""
        return 0.0

    @property
    def keeps_skips_local(self) -> bool:
        """Whether skips stay on their device, so that what stages save depends on where others lie."""
        return False

    def keeps_beside(self, stage: Stage, source: int) -> bool:
        """Whether an earlier stage on the same device keeps the output of a layer, as input of a block of its own."""
        return False

    @cached_property
    def extra_forward_probability(self) -> float:
        """The probability that some of the data-parallel groups runs the extra forward pass."""
        return self.scenario.extra_forward_probability(self.placement.num_groups)

    def component(self, stage: Stage) -> Component:
        """The backbone that a stage is a part of."""
        return self.scenario.model.components[stage.component]

    def layer_times(self, component: int) -> tuple[FloatArray, FloatArray]:
        """Forward and backward seconds of each layer, for one micro-batch; recomputation is among the latter.

        Where blocks come up from the host, a pass takes no less than they do, spread over its layers.
        """
        alike = ("layer times", component, self.local_batch, self.share)
        forward_s, backward_s = self.scenario.remember(alike, lambda: self._layer_times(component))
        if not self.scenario.workload.swapped:
            return forward_s, backward_s
        least_s = self.scenario.host_side.copied_s(sum_in_order(self.swapped_bytes(component)))
        forward_s, backward_s = (_at_least(times, least_s) for times in (forward_s, backward_s))
        return forward_s, backward_s

    def _layer_times(self, component: int) -> tuple[FloatArray, FloatArray]:
        """The same without what blocks take to come up from the host."""
        costs, of = self.scenario.costs.components[component], (self.local_batch, self.share)
        forward_s, backward_s = costs.forward_s(*of), costs.backward_s(*of)
        if (checkpointing := self.scenario.workload.checkpointing) != "none":
            backward_s = backward_s + costs.recomputed_s(*of, attention=checkpointing != "selective")
        return forward_s, backward_s

    def swapped_bytes(self, component: int) -> list[float]:
        """Bytes of each block of a backbone that comes up from the host for each pass.

        Raises:
            InfeasibleError: it has no more blocks, or is cut among GPUs.
        """
        of, count = self.scenario.model.components[component], self.scenario.workload.swapped
        sizes: dict[int, float] = {}
        for layer in of.layers:
            locked = (layer.parameters - layer.trained_parameters) * FROZEN_WEIGHT_BYTES
            sizes[layer.block] = sizes.get(layer.block, 0.0) + locked
        if count >= len(sizes):
            raise InfeasibleError(
                f"`offload` is layers:{count}, but {of.name} has {len(sizes)} blocks, of which one stays",
                "too few blocks to offload",
            )
        if self.shape.degree > 1:
            raise InfeasibleError(
                f"`offload` is layers:{count}, which swaps blocks of a whole backbone, but `pipeline_degree` is"
                f" {self.shape.degree}",
                "offloaded blocks are of whole backbones",
            )
        return list(sizes.values())[-count:]

    def stages_of(self, cut: Cut) -> tuple[Stage, ...]:
        """Return the stages of a cut."""
        alike = ("stages", cut, self.local_batch, self.share)
        return self.scenario.remember(alike, lambda: self._make_stages(cut))

    def _make_stages(self, cut: Cut) -> tuple[Stage, ...]:
        forward_s, backward_s = self.layer_times(cut.component)
        layers = self.scenario.model.components[cut.component].layers
        positions = cut.positions or range(cut.num_stages)
        return tuple(
            Stage(
                cut.component, first, end - 1, position,
                float(np.add.reduce(forward_s[first:end])), float(np.add.reduce(backward_s[first:end])),
                sum(layer.parameters for layer in layers[first:end]),
            )
            for (first, end), position in zip(pairwise(cut.boundaries), positions, strict=True)
        )  # fmt: skip

    def handover_bytes(self, stage: Stage, skip_route: str) -> float:
        """Bytes a stage hands over to the next, and gets the gradient of, for one micro-batch.

        Relayed, every live skip goes with the hidden state. What is carried, forwards alone, is not counted.
        """
        check_option("skip_route", skip_route, SKIP_ROUTES)
        component = self.component(stage)
        if skip_route == "relay":
            return component.cut_bytes(stage.last_layer) * self.local_batch
        return component.layers[stage.last_layer].output_bytes * self.local_batch

    def frozen_reads(self, stage: Stage) -> list[tuple[int, float]]:
        """Frozen components, and bytes per sample, of what the layers of a stage read."""
        model = self.scenario.model
        reads = []
        for source in (i for i in model.inputs_of(stage.component) if i in model.frozen):
            rows = model.reads_of(stage.component, source)
            own = [size for layer, size in rows if stage.first_layer <= layer <= stage.last_layer]
            if own:
                reads.append((source, sum_in_order(own)))
        return reads

    def weight_part_s(self, stage: Stage) -> float:
        """Seconds of a stage's backward that can wait: the gradients of its weights.

        Recomputation belongs to the other part.
        """
        weight_s = self.scenario.costs.components[stage.component].weight_s(self.local_batch)
        return float(weight_s[stage.first_layer : stage.last_layer + 1].sum())

    @cached_property
    def slowest_hop(self) -> tuple[float, float]:
        """Seconds per byte and seconds of delay of the slowest hop between neighbours."""
        routes = [self.network.route(p, p + 1) for p in range(self.shape.degree - 1)]
        return max((r.wire_s_per_byte for r in routes), default=0.0), max(
            (r.delay_s for r in routes), default=0.0
        )

    def update(self, trained: int, positions: tuple[int, ...]) -> Update:
        """What follows the last backward of stages with the same trained parameters, on these positions."""
        where = positions if len(positions) > 1 else (0,)  # one is like another
        key = ("update", trained, where, self.placement, self.shape.sharded)
        return self.scenario.remember(key, lambda: self._update(trained, where))

    def _update(self, trained: int, positions: tuple[int, ...]) -> Update:
        step_s, gathered_s = self.step_s(trained), self.gathered_s(trained)
        if not trained:
            return Update(0.0, 0.0, 0.0, 0.0, step_s, gathered_s)
        time = self.reduction(positions).time(trained * self.scenario.workload.recipe.gradient_bytes)
        return Update(time.fixed_s, time.wire_s, time.node_port_s, time.total_s, step_s, gathered_s)

    def reduction(self, positions: tuple[int, ...] = (0,)) -> CollectiveLaw:
        """What the sum of the gradients of some positions costs."""
        return self._law("reduce_scatter" if self.shape.sharded else "all_reduce", positions)

    def _law(self, operation: str, positions: tuple[int, ...]) -> CollectiveLaw:
        """What an operation costs all replicas of some positions."""

        def make() -> CollectiveLaw:
            return collective_law(self.scenario.cluster, operation, self.placement.group(*positions))

        key = ("reduction", operation, self.placement, positions)
        return self.scenario.remember(key, make)

    @property
    def shards(self) -> int:
        """Replicas of a position that share the optimizer's states of what it holds.

        Raises:
            InfeasibleError: they are to share it, but there is one.
        """
        if not self.shape.sharded:
            return 1
        if self.placement.copies == 1:
            raise InfeasibleError(
                f"`optimizer` is sharded, but `gpus({self.scenario.workload.num_gpus})` / `pipeline_degree("
                f"{self.shape.degree})` = 1 replica of each stage has nobody to share its states with",
                "no replicas to share the optimizer",
            )
        return self.placement.copies

    def step_s(self, trained: float) -> float:
        """Seconds of the optimizer's step on one replica of a stage with so many trained parameters."""
        return self.scenario.step_s(trained / self.shards)

    def gathered_s(self, trained: float) -> float:
        """Seconds from a stage's step until each of its replicas has the weights that the others stepped."""
        if not self.shape.sharded or not trained:
            return 0.0
        size = trained * self.scenario.workload.recipe.weight_bytes
        return float(self._law("all_gather", (0,)).time(size).total_s)

    def feedback_s(self, component: int, source: int, target: int) -> float:
        """Seconds of the message that feeds the extra forward's output back (T_F of Eq. 18)."""
        if source == target:
            return 0.0
        route = self.network.route(source, target)
        output_bytes = self.scenario.model.components[component].layers[-1].output_bytes
        return output_bytes * self.local_batch * route.wire_s_per_byte + route.delay_s


def _at_least(times: FloatArray, least_s: float) -> FloatArray:
    """The times of layers, which together take no less than some seconds."""
    total_s = float(times.sum())
    return times * max(1.0, least_s / total_s) if total_s else times
