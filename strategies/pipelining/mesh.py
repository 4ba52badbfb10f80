"""The mesh: how the GPUs of sharded training are divided among replicas, shards, context and tensor parallelism.

Tensor is innermost, then context, shards and replicas, as in torchtitan (``ParallelDims``: dp_replicate x dp_shard x cp
x tp). Parameters are divided over shards and context together, which it flattens into one mesh for FSDP; before that
tensor parallelism divides the matrices through which tokens pass, and adapters beside them. Norms, embeddings and
modulations, and biases, which nobody counted apart, are whole on each of its GPUs, which sum their gradients.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Final, NamedTuple

import numpy as np

from profiles.architectures.components import divided_parameters
from profiles.architectures.models import Component
from profiles.architectures.shares import ELEMENT_BYTES, Share
from profiles.costs.layers import TENSORS, WITH_PARAMETERS, FloatArray
from profiles.errors import InfeasibleError, would_divide
from profiles.software.recipes import FROZEN_WEIGHT_BYTES
from strategies.pipelining.footprint import gathered_bytes
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import divisors
from strategies.plans.network import placement_of
from strategies.plans.placement import Placement, Subgroup
from strategies.plans.plan import Collective, Stage
from strategies.scenario import Scenario

WAYS: Final = ("ulysses", "ring")
"""Ways of context parallelism."""
MOST_CONTEXT: Final = 16
"""The largest degree of context parallelism that a sweep looks at."""
SHARDS, REPLICAS, CONTEXT, TENSOR = range(4)
"""Streams of the collectives of each subgroup, which has a communicator of its own."""


class Collected(NamedTuple):
    """A kind of collective: what it does, on which stream, and among which GPUs."""

    operation: str
    stream: int
    subgroup: Subgroup

    def collective(self, size_bytes: float, reads: Iterable[int], writes: int, calls: int = 1) -> Collective:
        """One of this kind, in which every GPU takes part."""
        return Collective(
            self.operation, (0,), size_bytes, (0,), tuple(reads), (writes,), calls, self.subgroup, self.stream
        )


@dataclass(frozen=True, slots=True)
class Mesh:
    """Degrees that multiply to the GPUs.

    Attributes:
        replicas: groups with all parameters each.
        shards: GPUs of a group that have samples of their own, or teams that have.
        context: GPUs among which the tokens of a sample are divided.
        tensor: GPUs among which matrices and heads are.
        way: one of ``WAYS``.
    """

    replicas: int
    shards: int
    context: int = 1
    tensor: int = 1
    way: str = WAYS[0]

    @classmethod
    def of(cls, num_gpus: int, shard_size: int | None, context: int, tensor: int, way: str) -> "Mesh":
        """The mesh of some degrees; without a shard size all that context and tensor leave are shards.

        Raises:
            InfeasibleError: they do not divide the GPUs.
        """
        inner = {"shard_size": shard_size, "context_degree": context, "tensor_degree": tensor}
        product = (shard_size or 1) * context * tensor
        if num_gpus % product:
            factors = [f"`{name}({n})`" for name, n in inner.items() if n not in (1, None)]
            shown = " * ".join(factors) + (f" = {product}" if len(factors) > 1 else "")
            raise InfeasibleError(
                f"{shown} does not divide `gpus({num_gpus})`", "the degrees do not give the number of GPUs"
            )
        left = num_gpus // product
        return (
            cls(left, shard_size, context, tensor, way) if shard_size else cls(1, left, context, tensor, way)
        )

    @property
    def team(self) -> int:
        """GPUs that work on the same samples."""
        return self.context * self.tensor

    @property
    def parts(self) -> int:
        """GPUs among which FSDP divides the parameters that tensor parallelism leaves each."""
        return self.shards * self.context

    @property
    def sharding(self) -> Subgroup:
        """The GPUs that gather weights and scatter gradients together."""
        return Subgroup(self.parts, self.tensor)

    @property
    def replication(self) -> Subgroup:
        """The GPUs that hold the same part of the parameters."""
        return Subgroup(self.replicas, self.parts * self.tensor)

    @property
    def contexts(self) -> Subgroup:
        """The GPUs that hold different tokens of the same samples."""
        return Subgroup(self.context, self.tensor)

    @property
    def tensors(self) -> Subgroup:
        """The GPUs that hold different parts of the same matrices."""
        return Subgroup(self.tensor, 1)

    @property
    def subgroups(self) -> tuple[Subgroup, ...]:
        """All groups that exchange something."""
        found = self.sharding, self.replication, self.contexts, self.tensors
        return tuple(subgroup for subgroup in found if subgroup.size > 1)

    @property
    def share(self) -> Share:
        """The part of a sample's work that one GPU does."""
        ulysses = self.context if self.way == "ulysses" else 1
        return Share(
            ring=self.context // ulysses,
            ulysses=ulysses,
            tensor=self.tensor,
            sequence_parallel=self.tensor > 1,
        )


@dataclass(frozen=True, eq=False)
class MeshLayout(Layout):
    """Backbones whose units lie on every GPU of a mesh, in parts; a team of GPUs works on the same samples.

    Attributes:
        mesh: the GPUs.
    """

    mesh: Mesh = Mesh(1, 1)

    @cached_property
    def placement(self) -> Placement:
        """Teams of neighbouring GPUs.

        Raises:
            InfeasibleError: teams and nodes do not divide one another.
        """
        team, data_inner = self.mesh.team, self.scenario.workload.placement == "data-inner"
        return placement_of(self.scenario, team, 1, data_inner=data_inner and team == 1)

    @property
    def share(self) -> Share:
        """The part of a sample's work that one GPU does."""
        return self.mesh.share

    @cached_property
    def group_batch(self) -> int:
        """Samples of one team in one iteration.

        Raises:
            InfeasibleError: it is not whole.
        """
        return self._samples(1)

    @cached_property
    def local_batch(self) -> int:
        """Samples of one micro-batch of a team.

        Raises:
            InfeasibleError: it is not whole.
        """
        return self._samples(self.shape.micro_batches)

    def _samples(self, count: int) -> int:
        workload, team = self.scenario.workload, self.mesh.team
        batch, gpus = workload.batch_size, workload.num_gpus
        if batch * team % (gpus * count):
            of_team = f" * `context_degree({self.mesh.context})` * `tensor_degree({self.mesh.tensor})`"
            raise InfeasibleError(
                f"`batch_size({batch})`{of_team if team > 1 else ''} / (`gpus({gpus})` * `micro_batches({count})`) ="
                f" {batch * team / (gpus * count):g} is not whole",
                "the batch does not divide",
            )
        return batch * team // (gpus * count)

    @property
    def held_batch(self) -> float:
        """Samples of one micro-batch, times the share of their activations that one GPU of the team holds."""
        return self.local_batch * self.share.held

    def seconds(self, what: Collected, size_bytes: float, calls: int = 1) -> float:
        """Seconds of collectives, one after the other, on ports that only their likes use."""
        if what.subgroup.size == 1 or not size_bytes:
            return 0.0
        route = self.network.collective(what.collective(size_bytes, (), 0, calls))
        return route.wire_s + route.fixed_s

    def parameters(self, stage: int) -> float:
        """Trained parameters of a unit that tensor parallelism leaves each GPU."""
        return self._trained[stage]

    @cached_property
    def _trained(self) -> Sequence[float]:
        """The ``parameters`` of all units, which do not depend on the samples."""
        if self.mesh.tensor == 1:
            return self.trained_parameters
        return [self.kept(unit).trained for unit in range(len(self.stages))]

    def kept(self, stage: int) -> "Kept":
        """What tensor parallelism leaves each GPU of a unit."""
        of, tensor = self.stages[stage], self.mesh.tensor
        alike = ("kept", of.component, of.first_layer, of.last_layer, tensor)
        return self.scenario.remember(alike, lambda: _kept(self.component(of), of, tensor))

    def undivided_bytes(self, stage: Stage) -> FloatArray | float:
        """Of the inputs that tensor parallelism gathers for a pair of matrices each GPU keeps all tokens.

        Source: torch, ``ColwiseParallel``: autograd saves its input as it is multiplied, gathered.
        """
        if self.mesh.tensor == 1:
            return 0.0
        found = np.zeros(stage.last_layer + 1 - stage.first_layer)
        each = self.exchanged_bytes(stage)
        for exchange in self.component(stage).exchanges:
            if exchange.kind == "reduce" and stage.first_layer <= exchange.layer <= stage.last_layer:
                found[exchange.layer - stage.first_layer] += each * exchange.elements
        return (self.mesh.tensor - 1) * found

    def exchanged_bytes(self, stage: Stage) -> float:
        """Bytes of one sample for each element of ``exchanges.csv``, whose text comes on top."""
        extent = self.scenario.costs.extents[stage.component]
        return ELEMENT_BYTES[self.scenario.model.dtype] / (extent.image or 1.0)

    def copied_s(self, stage: int, moved_bytes: float) -> float:
        """Seconds of a copy beside a unit's layers that reads and writes so many bytes in all."""
        costs = self.scenario.costs.components[self.stages[stage].component]
        return costs.copied_s(moved_bytes, 1) if moved_bytes else 0.0

    def weight_bytes(self, stage: int) -> float:
        """Bytes of a unit's weights as its GPUs gather them, whole but for tensor parallelism."""
        return self._weights_bytes[stage]

    @cached_property
    def _weights_bytes(self) -> Sequence[float]:
        """The ``weight_bytes`` of all units, which do not depend on the samples."""
        alike = ("weights of units", self.cuts, self.mesh.tensor)
        units = range(len(self.stages))
        return self.scenario.remember(alike, lambda: [self._weight_bytes(unit) for unit in units])

    def _weight_bytes(self, stage: int) -> float:
        whole = gathered_bytes(self, self.stages[stage])
        if self.mesh.tensor == 1:
            return whole
        kept, workload = self.kept(stage), self.scenario.workload
        locked = kept.locked * FROZEN_WEIGHT_BYTES if workload.rank else 0.0
        return kept.trained * workload.recipe.weight_bytes + locked


class Kept(NamedTuple):
    """Parameters of a unit on each GPU of tensor parallelism.

    Attributes:
        trained: that have gradients.
        locked: that have none.
        whole: those of ``trained`` that all of its GPUs have.
        tensors: that hold them.
    """

    trained: float
    locked: float
    whole: int
    tensors: int


def _kept(component: Component, unit: Stage, tensor: int) -> Kept:
    """What some GPUs of tensor parallelism have of a unit each."""
    trained = locked = 0.0
    whole = tensors = 0
    for index in range(unit.first_layer, unit.last_layer + 1):
        layer = component.layers[index]
        own = layer.parameters - layer.adapters
        matrices = divided_parameters(component, index)
        left = own - matrices + matrices / tensor
        if layer.backward == "full":
            whole += own - matrices
            tensors += _whole_tensors(component, index)
        trained += (left if layer.backward == "full" else 0.0) + layer.adapters / tensor
        locked += 0.0 if layer.backward == "full" else left
    return Kept(trained, locked, whole, max(tensors, whole > 0))


def _whole_tensors(component: Component, layer: int) -> int:
    """Tensors of parameters of a layer that tensor parallelism leaves whole, as far as known."""
    kernels = component.kernels[layer] if component.kernels else ()
    with_weights = (k for k in kernels if k.weight_bytes and k.kind in WITH_PARAMETERS and not k.of_tokens)
    return TENSORS * sum(kernel.count for kernel in with_weights)


def mesh_layout(layout: Layout, mesh: Mesh) -> MeshLayout:
    """The same cuts on a mesh."""
    return MeshLayout(layout.scenario, layout.shape, layout.cuts, layout.skip_route, mesh)


def check_divisible(scenario: Scenario, mesh: Mesh) -> None:
    """Refuse degrees by which the backbones cannot be divided.

    Raises:
        InfeasibleError: there is one.
    """
    for index in scenario.model.backbones or (scenario.backbone_index,):
        component = scenario.model.components[index]
        if mesh.team > 1:
            _check_transformer(component, mesh)
        for heads in sorted({of.heads for of in component.exchanges if of.kind == "key_value"}):
            _check_heads(heads, mesh)


def _check_transformer(component: Component, mesh: Mesh) -> None:
    """Refuse a U-Net, which nobody trains so, and a backbone that does not say what its tokens need of one another."""
    degrees = {"context_degree": mesh.context, "tensor_degree": mesh.tensor}
    asked = " and ".join(f"{name}({degree})" for name, degree in degrees.items() if degree > 1)
    kinds = Counter(exchange.kind for exchange in component.exchanges)
    if kinds["halo"]:
        raise InfeasibleError(
            f"{asked} needs a transformer, {component.name} has {kinds['halo']} convolutions that see"
            " neighbouring rows",
            "needs a transformer",
        )
    for kind in ("key_value", "reduce"):
        if not kinds[kind]:
            raise InfeasibleError(
                f"{asked} needs rows of kind {kind} in exchanges.csv, {component.name} has none",
                "the model has no exchanges.csv",
            )


def _check_heads(heads: int, mesh: Mesh) -> None:
    """Refuse heads that GPUs which divide them cannot share evenly."""
    degrees = {f"context_degree {mesh.context} (ulysses)": mesh.context if mesh.way == "ulysses" else 1}
    degrees |= {f"tensor_degree {mesh.tensor}": mesh.tensor}
    among = prod(degrees.values())
    if heads % among:
        asked = " * ".join(name for name, degree in degrees.items() if degree > 1)
        asked += f" = {among}" if " * " in asked else ""
        raise InfeasibleError(
            f"{heads} heads, {asked}: {heads} % {among} = {heads % among}; {would_divide(heads)}",
            "the degree does not divide the heads",
        )


def shard_sizes(scenario: Scenario, num_gpus: int, team: int) -> Iterator[int | None]:
    """The shard sizes worth a look: all that teams leave, which is None, and as many as fill whole nodes.

    A size of 1 is what ``ddp`` does.
    """
    node, left = scenario.cluster.devices_per_node, num_gpus // team
    yield None
    yield from (size for size in divisors(left) if size < left and not size * team % node)


def teams(scenario: Scenario, num_gpus: int) -> Iterator[Mesh]:
    """The degrees of context and tensor worth a look, on meshes that shard over all GPUs.

    Tensor parallelism stays inside a node (Narayanan et al., Megatron-LM, 2021, section 3.2).
    """
    node = scenario.cluster.devices_per_node
    for context, tensor in product(_doublings(num_gpus, MOST_CONTEXT), _doublings(num_gpus, node)):
        if context * tensor > 1 and not num_gpus % (context * tensor):
            shards = num_gpus // (context * tensor)
            found = (Mesh(1, shards, context, tensor, way) for way in (WAYS if context > 1 else WAYS[:1]))
            yield from (mesh for mesh in found if _is_legal(scenario, mesh))


def _is_legal(scenario: Scenario, mesh: Mesh) -> bool:
    """Whether the backbones can be divided so."""
    try:
        check_divisible(scenario, mesh)
    except InfeasibleError:
        return False
    return True


def _doublings(num_gpus: int, most: int) -> list[int]:
    """Powers of two up to the GPUs, and up to a number."""
    return [2**k for k in range(min(num_gpus, most).bit_length())]
