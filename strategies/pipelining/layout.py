"""Layouts: where the stages of a training plan lie, and their times and bytes in any order.

Placement, network and batches are derived here, once. A layout without cuts is what stages are cut for.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd, prod

import numpy as np

from profiles.architectures.components import GRADIENTS, Component
from profiles.architectures.shares import ELEMENT_BYTES, Share
from profiles.errors import InfeasibleError
from profiles.machines.collectives import CollectiveLaw, collective_law
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from profiles.units import FloatArray
from strategies.orders.problem import Chain, Pass, Problem
from strategies.pipelining.mesh import ALONE, GATHER, REDUCE, SCATTER, Collected, Kept, Mesh
from strategies.pipelining.stages import Cut, Seat, Shape
from strategies.plans.actions import BACKWARD, BACKWARD_INPUT, EXTRA_FORWARD, FORWARD
from strategies.plans.network import Network, network_of
from strategies.plans.placement import Placement
from strategies.plans.plan import Stage
from strategies.scenario import Scenario


@dataclass(frozen=True, eq=False)
class Layout:
    """The stages on the positions of one group of GPUs; bounds, plans and memory start from it.

    Attributes:
        mesh: how the GPUs of a replica share parameters and samples.
        in_units: all stages are units of data parallelism, in parts on one position.
        divided: buffers of which each GPU that shares parameters has a part.
    """

    scenario: Scenario
    shape: Shape
    cuts: tuple[Cut, ...] = ()
    skip_route: str = "relay"
    mesh: Mesh = ALONE
    in_units: bool = False
    divided: tuple[str, ...] = ()

    @cached_property
    def share(self) -> Share:
        """The part of a sample's work that one GPU does."""
        return self.mesh.share

    @property
    def replicas(self) -> int:
        """GPUs of a group, each with samples of its own, on which a position is replicated."""
        return self.shape.group_size // self.shape.degree // self.mesh.team

    @cached_property
    def parts(self) -> int:
        """GPUs that share the divided buffers of a stage."""
        if not self.shape.sharded:
            return self.mesh.parts
        if self.placement.copies == 1:
            raise InfeasibleError(
                f"`optimizer` is sharded, but `gpus({self.scenario.workload.num_gpus})` / `pipeline_degree("
                f"{self.shape.degree})` = 1 replica of each stage has nobody to share its states with",
                "no replicas to share the optimizer",
            )
        return self.placement.copies

    @cached_property
    def placement(self) -> Placement:
        """GPUs of each position."""
        data_inner = self.scenario.workload.placement == "data-inner" and self.mesh.team == 1
        key = self.shape.group_size, self.shape.degree, data_inner
        cluster, gpus = self.scenario.cluster, self.scenario.workload.num_gpus
        return self.scenario.remember(("placement", key), lambda: Placement(cluster, gpus, *key))

    @cached_property
    def network(self) -> Network:
        """The network under the positions."""
        return network_of(self.scenario, self.placement)

    @cached_property
    def group_batch(self) -> int:
        """Samples of one group in one iteration."""
        return self._whole_batch({"group_size": self.shape.group_size}, 1)

    @cached_property
    def local_batch(self) -> int:
        """Samples of one micro-batch on one device, or of the team that shares them."""
        mesh = self.mesh
        degrees = {
            "pipeline_degree": self.shape.degree,
            "context_degree": mesh.context,
            "tensor_degree": mesh.tensor,
        }
        return self._whole_batch(degrees, self.shape.micro_batches)

    def _whole_batch(self, degrees: dict[str, int], count: int) -> int:
        batch, gpus = self.scenario.workload.batch_size, self.scenario.workload.num_gpus
        devices, share = gpus * count, prod(degrees.values())
        if batch * share % devices:
            factors = "".join(f" * `{name}({degree})`" for name, degree in degrees.items() if degree > 1)
            raise InfeasibleError(
                f"`batch_size({batch})`{factors} / (`gpus({gpus})` * `micro_batches({count})`) ="
                f" {batch * share / devices:g} is not whole: `batch_size` must be a multiple of"
                f" {devices // gcd(share, devices)}",
                "the batch does not divide",
            )
        return batch * share // devices

    @property
    def held_batch(self) -> float:
        """Samples of one micro-batch, times the share of their activations that one device holds."""
        return self.local_batch * self.share.held

    @cached_property
    def extra_forward_probability(self) -> float:
        """The probability that some of the data-parallel groups runs the extra forward pass."""
        return self.scenario.extra_forward_probability(self.placement.num_groups)

    def component(self, stage: Stage) -> Component:
        """Return the backbone that a stage is a part of."""
        return self.scenario.model.components[stage.component]

    def layer_times(self, component: int) -> tuple[FloatArray, FloatArray]:
        """Forward and backward seconds of each layer, for one micro-batch; recomputation is among the latter.

        Where blocks come up from the host, a pass takes no less than they do, spread over its layers.
        """
        alike = ("layer times", component, self.local_batch, self.share)
        forward_s, backward_s = self.scenario.remember(alike, lambda: self._layer_times(component))
        if not self.scenario.workload.swapped:
            return forward_s, backward_s
        least_s = self.scenario.host_side.copied_s(sum(self.swapped_bytes(component)))
        return _at_least(forward_s, least_s), _at_least(backward_s, least_s)

    def _layer_times(self, component: int) -> tuple[FloatArray, FloatArray]:
        """The same without offloading."""
        costs, share = self.scenario.costs.components[component], (self.local_batch, self.share)
        forward_s, backward_s = costs.forward_s(*share), costs.backward_s(*share)
        if (checkpointing := self.scenario.workload.checkpointing) != "none":
            backward_s = backward_s + costs.recomputed_s(*share, attention=checkpointing != "selective")
        return forward_s, backward_s

    def swapped_bytes(self, component: int) -> list[float]:
        """Bytes of each block of a backbone that comes up from the host for each pass."""
        backbone, count = self.scenario.model.components[component], self.scenario.workload.swapped
        sizes: dict[int, float] = {}
        for layer in backbone.layers:
            locked = (layer.parameters - layer.trained_parameters) * FROZEN_WEIGHT_BYTES
            sizes[layer.block] = sizes.get(layer.block, 0.0) + locked
        if count >= len(sizes):
            raise InfeasibleError(
                f"`offload` is layers:{count}, but {backbone.name} has {len(sizes)} blocks, of which one stays",
                "too few blocks to offload",
            )
        if self.shape.degree > 1:
            raise InfeasibleError(
                f"`offload` is layers:{count}, which swaps blocks of a whole backbone, but `pipeline_degree` is"
                f" {self.shape.degree}",
                "offloaded blocks are of whole backbones",
            )
        return list(sizes.values())[-count:]

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, numbered one chain after the other."""
        stages = list[Stage]()
        for cut in self.cuts:
            times_s, layers = (
                self.layer_times(cut.component),
                self.scenario.model.components[cut.component].layers,
            )
            positions = cut.positions or range(cut.num_stages)
            for (first, end), position in zip(pairwise(cut.boundaries), positions, strict=True):
                forward_s, backward_s = (float(np.add.reduce(layers_s[first:end])) for layers_s in times_s)
                parameters = sum(layer.parameters for layer in layers[first:end])
                stages.append(
                    Stage(cut.component, first, end - 1, position, forward_s, backward_s, parameters)
                )
        return tuple(stages)

    @cached_property
    def seats(self) -> tuple[Seat, ...]:
        """The seat of each stage."""
        chains = [self.chain(number) for number in range(len(self.cuts))]
        return tuple(
            Seat(
                number, chain[0], chain[-1],
                stage - 1 if stage > chain[0] else None, stage + 1 if stage < chain[-1] else None,
            )
            for number, chain in enumerate(chains)
            for stage in chain
        )  # fmt: skip

    def chain(self, cut: int) -> range:
        """Return the stages of a chain, in the order in which a micro-batch passes them."""
        first = sum(before.num_stages for before in self.cuts[:cut])
        return range(first, first + self.cuts[cut].num_stages)

    def micro_batches(self, cut: int) -> range:
        """Return the micro-batches that pass through a chain."""
        return range(*(self.cuts[cut].micro_batches or (0, self.shape.micro_batches)))

    @cached_property
    def hosted(self) -> tuple[tuple[int, ...], ...]:
        """For each position the stages that lie on it."""
        hosted: list[list[int]] = [[] for _ in range(self.shape.degree)]
        for number, stage in enumerate(self.stages):
            hosted[stage.position].append(number)
        return tuple(map(tuple, hosted))

    @cached_property
    def twins(self) -> list[list[int]]:
        """The stages that hold the same layers, as the two directions of a bidirectional pipeline do."""
        twins: dict[tuple[int, int, int], list[int]] = {}
        for number, stage in enumerate(self.stages):
            twins.setdefault(stage.layers, []).append(number)
        return list(twins.values())

    @cached_property
    def handovers_bytes(self) -> tuple[float, ...]:
        """Bytes that each stage hands over to the next for one micro-batch, and gets the gradient of.

        Relayed, every live skip goes with the hidden state. What is carried, forwards alone, is not counted.
        """
        sizes = (
            component.cut_bytes[stage.last_layer]
            if self.skip_route == "relay"
            else component.layers[stage.last_layer].output_bytes
            for stage, component in zip(self.stages, map(self.component, self.stages), strict=True)
        )
        return tuple(size * self.local_batch for size in sizes)

    @cached_property
    def skips_bytes(self) -> dict[tuple[int, int], float]:
        """The bytes of one micro-batch's skips between each two stages of a chain."""
        sizes: dict[tuple[int, int], float] = {}
        for number, cut in enumerate(self.cuts):
            component, first = self.scenario.model.components[cut.component], self.chain(number).start
            for skip in component.skips:
                source, target = (
                    first + bisect_right(cut.boundaries, layer) - 1 for layer in (skip.source, skip.target)
                )
                if source != target:
                    size = component.layers[skip.source].output_bytes * self.local_batch
                    sizes[source, target] = sizes.get((source, target), 0.0) + size
        return sizes

    @cached_property
    def hops_s(self) -> list[tuple[float, float]]:
        """For each stage the seconds of one micro-batch's message to the next stage, and of its gradient back."""
        hops_s = []
        for stage, seat, size in zip(self.stages, self.seats, self.handovers_bytes, strict=True):
            here, there = stage.position, self.stages[seat.after or seat.last].position
            carried = self.component(stage).carried_bytes * self.local_batch
            hops_s.append((self._message_s(here, there, size + carried), self._message_s(there, here, size)))
        return hops_s

    def _message_s(self, source: int, target: int, size_bytes: float) -> float:
        """Seconds of a message between two positions on ports that nobody shares; on one device nothing moves."""
        if source == target:
            return 0.0
        route = self.network.route(source, target)
        return size_bytes * route.wire_s_per_byte + route.delay_s

    def problem(self, *, in_flight: tuple[int, ...] | None = None) -> Problem:
        """Return the problem that list scheduling solves: the stages' times, and messages on ports nobody shares."""
        chains = (Chain(self.passes(cut), self.micro_batches(cut)) for cut in range(len(self.cuts)))
        return Problem(tuple(chains), tuple(stage.position for stage in self.stages), in_flight)

    def passes(self, cut: int, *, extra: bool = False, split: bool = False) -> list[Pass]:
        """Return the passes of a micro-batch through a chain; split, without gradients of weights.

        Messages are on ports nobody shares.
        """
        numbers, stages, hops_s = self.chain(cut), self.stages, self.hops_s
        forwards = [Pass(s, FORWARD, stages[s].forward_s, hops_s[s][0]) for s in numbers]
        passes = list[Pass]()
        if extra:
            last = stages[numbers[-1]]
            fed_back = self.component(last).layers[-1].output_bytes * self.local_batch
            passes += [forward._replace(kind=EXTRA_FORWARD) for forward in forwards]
            lag_s = self._message_s(last.position, stages[numbers[0]].position, fed_back)  # T_F of Eq. 18
            passes[-1] = passes[-1]._replace(lag_s=lag_s)
        passes += forwards
        for s in reversed(numbers):
            waiting_s = self.weight_part_s(stages[s]) if split else 0.0
            lag_s = 0.0 if s == numbers.start else hops_s[s - 1][1]
            kind = BACKWARD_INPUT if split else BACKWARD
            passes.append(Pass(s, kind, stages[s].backward_s - waiting_s, lag_s))
        return passes

    def frozen_reads(self, stage: Stage) -> list[tuple[int, float]]:
        """Return the frozen components that the layers of a stage read, and bytes per sample of each."""
        model = self.scenario.model
        reads = []
        for source in (i for i in model.inputs_of(stage.component) if i in model.frozen):
            rows = model.reads_of(stage.component, source)
            sizes = [size for layer, size in rows if stage.first_layer <= layer <= stage.last_layer]
            if sizes:
                reads.append((source, sum(sizes)))
        return reads

    def weight_part_s(self, stage: Stage) -> float:
        """Seconds of a stage's backward that can wait: the gradients of its weights, without recomputation."""
        weight_s = self.scenario.costs.components[stage.component].weight_s(self.local_batch)
        return float(weight_s[stage.first_layer : stage.last_layer + 1].sum())

    @cached_property
    def slowest_hop(self) -> tuple[float, float]:
        """Seconds per byte and seconds of delay of the slowest hop between neighbours."""
        routes = [self.network.route(p, p + 1) for p in range(self.shape.degree - 1)]
        per_byte = max((route.wire_s_per_byte for route in routes), default=0.0)
        return per_byte, max((route.delay_s for route in routes), default=0.0)

    @cached_property
    def trained_parameters(self) -> tuple[int, ...]:
        """The parameters of each stage that have gradients."""
        return tuple(
            self.component(stage).trained_parameters(stage.first_layer, stage.last_layer + 1)
            for stage in self.stages
        )

    @cached_property
    def parameters(self) -> Sequence[float]:
        """Of each stage the trained parameters that tensor parallelism leaves each GPU."""
        if self.mesh.tensor == 1:
            return self.trained_parameters
        return [self.kept(unit).trained for unit in range(len(self.stages))]

    @cached_property
    def summed_parameters(self) -> Sequence[float]:
        """Of each stage the parameters whose gradients replicas sum; tensor parallelism divides the trained ones.

        A module of whole backbones holds the frozen components that have gradients, too: zeros, which come last.
        """
        of_stages = list[float](self.parameters)
        for unit, stage in enumerate(self.stages):
            component, layers = self.component(stage), (stage.first_layer, stage.last_layer + 1)
            of_stages[unit] += self.summed_of(component, *layers) - self.trained_parameters[unit]
            if self.in_units and unit == self.seats[unit].first and not self.scatters:
                sources = self.scenario.model.inputs_of(stage.component)
                inputs = [self.scenario.model.components[source] for source in sources]
                frozen = (item for item in inputs if not item.trainable and item.gradients != GRADIENTS[0])
                of_stages[unit] += sum(item.parameters for item in frozen)
        return of_stages

    def summed_of(self, component: Component, first: int, end: int) -> int:
        """Return the parameters of some layers whose gradients are summed.

        Scatters carry those that the optimizer holds. Source: DeepSpeed, zero/stage_1_and_2.py; Megatron Core.
        """
        return (component.trained_parameters if self.scatters else component.summed_parameters)(first, end)

    @property
    def gathers(self) -> bool:
        """Whether weights lie in parts on the GPUs and are gathered before each use."""
        return "weights" in self.divided and self.mesh.parts > 1

    @property
    def scatters(self) -> bool:
        """Whether replicas get parts of the sums of gradients."""
        return self.shape.sharded or self.mesh.parts > 1

    def kept(self, unit: int) -> Kept:
        """Return the parameters that tensor parallelism leaves each GPU of a unit."""
        stage, tensor = self.stages[unit], self.mesh.tensor
        alike = ("kept", *stage.layers, tensor)
        return self.scenario.remember(alike, lambda: Kept.of(self.component(stage), stage, tensor))

    @cached_property
    def weights_bytes(self) -> Sequence[float]:
        """Bytes of each unit's weights as its GPUs gather them: frozen ones too that have adapters."""
        workload = self.scenario.workload
        if workload.swapped:
            raise InfeasibleError(
                f"`offload` is {workload.offload}, but the backbone's weights are shared among GPUs",
                "offloaded blocks are of whole backbones",
            )
        sizes = []
        for unit, trained in enumerate(self.parameters):
            locked = 0.0
            if workload.rank:
                locked = self.stages[unit].parameters - self.trained_parameters[unit]
                locked = self.kept(unit).locked if self.mesh.tensor > 1 else locked
            sizes.append(trained * workload.recipe.weight_bytes + locked * FROZEN_WEIGHT_BYTES)
        return sizes

    def exchanged_bytes(self, stage: Stage) -> float:
        """Bytes of one sample for each element of ``exchanges.csv``, whose text comes on top."""
        extent = self.scenario.costs.extents[stage.component]
        return ELEMENT_BYTES[self.scenario.model.dtype] / (extent.image or 1.0)

    def seconds(self, what: Collected, size_bytes: float, calls: int = 1) -> float:
        """Seconds of collectives, one after the other, on ports that only their likes use."""
        if (what.subgroup and what.subgroup.size == 1) or not size_bytes:
            return 0.0
        route = self.network.collective(what.collective(size_bytes, (), 0, calls))
        return route.wire_s + route.fixed_s

    def update_s(self, stage: int, positions: tuple[int, ...]) -> tuple[float, float]:
        """Return the seconds from the last backward of a stage to its weights on all replicas, and of the step in them.

        Ports are free; ``positions`` are those of all stages with the same layers.
        """
        where = positions if len(positions) > 1 else (0,)  # one is like another
        trained, summed = self.trained_parameters[stage], self.summed_parameters[stage]
        key = ("update", trained, summed, where, self.placement, self.shape.sharded)
        return self.scenario.remember(key, lambda: self._update_s(trained, summed, where))

    def _update_s(self, trained: int, summed: float, positions: tuple[int, ...]) -> tuple[float, float]:
        recipe, step_s, gathered_s = self.scenario.workload.recipe, self.step_s(trained), 0.0
        if not summed:
            return step_s, step_s
        summed_s = self.reduction(positions).time(summed * recipe.gradient_bytes).total_s
        if self.shape.sharded:
            gathered_s = self.law(GATHER, (0,)).time(trained * recipe.weight_bytes).total_s
        return float(summed_s + step_s + gathered_s), step_s

    def reduction(self, positions: tuple[int, ...] = (0,)) -> CollectiveLaw:
        """Return the law of summing the gradients of some positions."""
        return self.law(SCATTER if self.shape.sharded else REDUCE, positions)

    def law(self, operation: str, positions: tuple[int, ...]) -> CollectiveLaw:
        """Return the law of an operation of all replicas of some positions."""
        cluster, key = self.scenario.cluster, ("reduction", operation, self.placement, positions)
        group = self.placement.group
        return self.scenario.remember(key, lambda: collective_law(cluster, operation, group(*positions)))

    def step_s(self, trained: float) -> float:
        """Seconds of the optimizer's step and of the host, on a replica of a stage with so many trained parameters.

        Weights that lie whole are cast to fewer bits once.
        """
        host_s = self.scenario.host_s(trained) if trained else 0.0
        cast_s = 0.0 if self.gathers else self.scenario.costs.cast_s(trained)
        return self.scenario.step_s(trained / self.parts) + host_s + cast_s


def sharded(scenario: Scenario) -> Scenario:
    """Return a scenario in which no pass casts weights, whatever the stack.

    Sharded weights are cast before they are gathered, once (FSDP's ``MixedPrecision``), or kept in half precision
    beside their masters (DeepSpeed); replicated ones autocast casts in every forward pass.
    """
    if not scenario.stack.cast_weights:
        return scenario
    # the cache serves other workloads too
    return scenario.remember(("sharded", scenario.workload), scenario.without_casts)


def _at_least(times: FloatArray, least_s: float) -> FloatArray:
    """Return the times of layers, which together take no less than some seconds."""
    total_s = float(times.sum())
    return times * max(1.0, least_s / total_s) if total_s else times
