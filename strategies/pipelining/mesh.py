"""The mesh: how the GPUs of data parallelism are divided among replicas, shards, context and tensor parallelism.

Tensor is innermost, then context, shards and replicas (torchtitan, ``ParallelDims``). Parameters are divided over
shards and context together; before that tensor parallelism divides the matrices through which tokens pass, and adapters
beside them. Norms, embeddings, modulations and biases are whole on each of its GPUs, which sum their gradients.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product
from math import prod
from typing import Final, NamedTuple

from profiles.architectures.components import Component, divided_parameters
from profiles.architectures.shares import Share
from profiles.costs.layers import TENSORS, WITH_PARAMETERS
from profiles.errors import InfeasibleError, would_divide
from strategies.pipelining.stages import divisors
from strategies.plans.placement import Subgroup
from strategies.plans.plan import Collective, Stage
from strategies.scenario import Scenario

WAYS: Final = ("ulysses", "ring")
"""Ways of context parallelism."""
MOST_CONTEXT: Final = 16
"""The largest degree of context parallelism that a sweep looks at."""
SHARDS, REPLICAS, CONTEXT, TENSOR = range(4)
"""Streams of the collectives of each subgroup, which has a communicator of its own."""
SCATTER: Final = "reduce_scatter"
GATHER: Final = "all_gather"
REDUCE: Final = "all_reduce"


class Collected(NamedTuple):
    """A kind of collective: its operation, its stream, and its GPUs (None: all)."""

    operation: str
    stream: int = 0
    subgroup: Subgroup | None = None

    def collective(self, size_bytes: float, reads: Iterable[int], writes: int, calls: int = 1) -> Collective:
        """Return one of this kind, in which every GPU takes part."""
        return Collective(
            self.operation, (0,), size_bytes, (0,), tuple(reads), (writes,), calls, self.subgroup, self.stream
        )


class Mesh(NamedTuple):
    """Degrees that multiply to the GPUs.

    ``context`` divides the tokens of a sample, in a ``way`` of ``WAYS``, and ``tensor`` its matrices and heads.
    """

    replicas: int
    shards: int
    context: int = 1
    tensor: int = 1
    way: str = WAYS[0]

    @classmethod
    def of(cls, num_gpus: int, shard_size: int | None, context: int, tensor: int, way: str) -> "Mesh":
        """Return the mesh of some degrees; without a shard size all that context and tensor leave are shards."""
        product = (shard_size or 1) * context * tensor
        if num_gpus % product:
            degrees = {"shard_size": shard_size or 1, "context_degree": context, "tensor_degree": tensor}
            factors = [f"`{name}({degree})`" for name, degree in degrees.items() if degree > 1]
            result = f" = {product}" if len(factors) > 1 else ""
            raise InfeasibleError(
                f"{' * '.join(factors)}{result} does not divide `gpus({num_gpus})`",
                "the degrees do not give the number of GPUs",
            )
        left = num_gpus // product
        sizes = (left, shard_size) if shard_size else (1, left)
        return cls(*sizes, context, tensor, way)

    @property
    def team(self) -> int:
        """GPUs that work on the same samples."""
        return self.context * self.tensor

    @property
    def parts(self) -> int:
        """GPUs among which the parameters that tensor parallelism leaves each are divided."""
        return self.shards * self.context

    @property
    def sharding(self) -> Subgroup:
        """The GPUs that gather weights and scatter gradients together."""
        return Subgroup(self.parts, self.tensor)

    @property
    def shared_among(self) -> Subgroup | None:
        """The GPUs that gather weights together; None: all, however they lie on nodes."""
        return self.sharding if self.replicas > 1 else None

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
    def share(self) -> Share:
        """The part of a sample's work that one GPU does."""
        ulysses = self.context if self.way == "ulysses" else 1
        ring, tensor = self.context // ulysses, self.tensor
        return Share(ring=ring, ulysses=ulysses, tensor=tensor, sequence_parallel=tensor > 1)


ALONE: Final = Mesh(1, 1)
"""A GPU that shares nothing with others."""


class Kept(NamedTuple):
    """Parameters on each GPU of tensor parallelism; ``whole`` trained ones, on all, lie in so many tensors."""

    trained: float
    locked: float
    whole: int
    tensors: int

    @classmethod
    def of(cls, component: Component, unit: Stage, tensor: int) -> "Kept":
        """Return the parameters of a unit on each of some GPUs of tensor parallelism."""
        trained = locked = 0.0
        whole = tensors = 0
        for index in range(unit.first_layer, unit.last_layer + 1):
            layer = component.layers[index]
            parameters = layer.parameters - layer.adapters
            matrices = divided_parameters(component, index)
            left = parameters - matrices + matrices / tensor
            if layer.backward == "full":
                whole += parameters - matrices
                kernels = component.kernels[index] if component.kernels else ()
                lie_whole = (k for k in kernels if k.kind in WITH_PARAMETERS and not k.of_tokens)
                tensors += TENSORS * sum(kernel.count for kernel in lie_whole if kernel.weight_bytes)
            trained += (left if layer.backward == "full" else 0.0) + layer.adapters / tensor
            locked += 0.0 if layer.backward == "full" else left
        return cls(trained, locked, whole, max(tensors, whole > 0))


def check_divisible(scenario: Scenario, mesh: Mesh) -> None:
    """Refuse degrees by which the backbones cannot be divided."""
    for index in scenario.model.backbones or (scenario.backbone_index,):
        component = scenario.model.components[index]
        if mesh.team > 1:
            _check_transformer(component, mesh)
        for heads in sorted({e.heads for e in component.exchanges if e.kind == "key_value"}):
            _check_heads(heads, mesh)


def _check_transformer(component: Component, mesh: Mesh) -> None:
    """Refuse a U-Net, which nobody trains so, and a backbone whose exchanges are unknown."""
    degrees = {"context_degree": mesh.context, "tensor_degree": mesh.tensor}
    named = " and ".join(f"`{name}({degree})`" for name, degree in degrees.items() if degree > 1)
    kinds = Counter(exchange.kind for exchange in component.exchanges)
    if kinds["halo"]:
        raise InfeasibleError(
            f"{named} needs a transformer, {component.name} has {kinds['halo']} convolutions that see"
            " neighbouring rows",
            "needs a transformer",
        )
    for kind in ("key_value", "reduce"):
        if not kinds[kind]:
            raise InfeasibleError(
                f"{named} needs rows of kind {kind} in exchanges.csv, {component.name} has none",
                "the model has no exchanges.csv",
            )


def _check_heads(heads: int, mesh: Mesh) -> None:
    """Refuse heads that GPUs which divide them cannot share evenly."""
    degrees = {f"context_degree {mesh.context} (ulysses)": mesh.context if mesh.way == "ulysses" else 1}
    degrees |= {f"tensor_degree {mesh.tensor}": mesh.tensor}
    among = prod(degrees.values())
    if heads % among:
        product = " * ".join(name for name, degree in degrees.items() if degree > 1)
        product += f" = {among}" if " * " in product else ""
        raise InfeasibleError(
            f"{heads} heads, {product}: {heads} % {among} = {heads % among}; {would_divide(heads)}",
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
    for context, tensor in product(doublings(num_gpus, MOST_CONTEXT), doublings(num_gpus, node)):
        if context * tensor > 1 and not num_gpus % (context * tensor):
            shards = num_gpus // (context * tensor)
            for way in WAYS if context > 1 else WAYS[:1]:
                mesh = Mesh(1, shards, context, tensor, way)
                with suppress(InfeasibleError):
                    check_divisible(scenario, mesh)
                    yield mesh


def doublings(num_gpus: int, most: int) -> list[int]:
    """Powers of two up to the GPUs, and up to a number."""
    return [2**k for k in range(min(num_gpus, most).bit_length())]
