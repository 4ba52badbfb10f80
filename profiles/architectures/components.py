"""Components: chains of layers, their skips, what they read and exchange, and their measured times."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Annotated, Final

from profiles.architectures.kernel_tables import KernelTable
from profiles.architectures.kernels import Kernel
from profiles.checks import (
    AT_LEAST_1,
    FINITE,
    Count,
    Positive,
    Proportion,
    check_choice,
    check_counts,
    check_distinct,
    check_fields,
)
from profiles.errors import InputError, counted

BACKWARDS: Final = ("full", "input", "none")
GRADIENTS: Final = ("trained", "all")
EXCHANGES: Final = ("key_value", "halo", "statistics", "reduce")
TASKS: Final = ("train", "sample")
WORK: Final = ("conv_flop", "matmul_flop", "attention_flop", "moved_bytes")


@dataclass(frozen=True, slots=True)
class Layer:
    """The smallest unit a cut may separate; work and bytes are of one sample's forward pass.

    Attributes:
        name: what messages call it.
        parameters: all that it has, adapters included.
        backward: ``full``; ``input``, of a frozen layer through which gradients pass; or ``none``.
        conv_flop: work of convolutions; a multiply-add is two FLOP.
        matmul_flop: work of matrix products.
        moved_bytes: traffic through memory.
        output_bytes: what crosses a cut after it, and travels over its skips.
        saved_bytes: what is kept for its backward pass.
        adapters: parameters of adapters, which are trained whatever ``backward`` says of the others.
        adapted_share: share of ``saved_bytes`` that is kept where adapters alone are trained; 1 if nobody counted it.
    """

    block: int
    name: str
    parameters: int
    backward: Annotated[str, BACKWARDS]
    conv_flop: float = 0.0
    matmul_flop: float = 0.0
    attention_flop: float = 0.0
    moved_bytes: float = 0.0
    kernels: int = 0
    output_bytes: float = 0.0
    saved_bytes: float = 0.0
    adapters: int = 0
    adapted_share: float = 1.0

    def __post_init__(self) -> None:
        check_fields(f"layer '{self.name}'", self)

    def grown(self, tokens: float) -> "Layer":
        """The layer on so many times the tokens: self-attention grows with their square, all else with them."""
        linear = ("conv_flop", "matmul_flop", "moved_bytes", "output_bytes", "saved_bytes")
        sizes = {key: getattr(self, key) * tokens for key in linear}
        return replace(self, attention_flop=self.attention_flop * tokens**2, **sizes)

    @property
    def trained_parameters(self) -> int:
        """The parameters that have gradients."""
        return self.parameters if self.backward == "full" else self.adapters


@dataclass(frozen=True, slots=True)
class Skip:
    """A tensor from the output of layer ``source`` to layer ``target`` of the same component."""

    source: int
    target: int

    def __post_init__(self) -> None:
        check_fields("skip", self)
        if self.target <= self.source:
            raise InputError(f"skip: target is {self.target}, must come after its source {self.source}")


@dataclass(frozen=True, slots=True)
class Read:
    """A layer that reads the output of the frozen component ``source``, or a part of it; bytes per sample."""

    source: str
    layer: int
    size_bytes: float

    def __post_init__(self) -> None:
        check_fields(f"read of {self.source}", self)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A point where the patches of one layer need one another; ``elements`` per sample, whole image."""

    layer: int
    kind: Annotated[str, EXCHANGES]
    elements: int
    heads: int

    def __post_init__(self) -> None:
        check_fields("exchange", self, heads=AT_LEAST_1 if self.kind == "key_value" else FINITE)


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """Measured seconds of one layer's passes over a whole batch of one size."""

    layer: int
    batch_size: Count
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        check_fields("measured time", self)


@dataclass(frozen=True)
class Component:
    """A part of a model that runs as one chain of layers.

    Attributes:
        name: what inputs, skips and messages call it.
        trainable: whether it is a backbone; else it is frozen.
        inputs: components whose output it needs.
        image_tokens: tokens that grow with the pixels; 0 where its work does not depend on them.
        text_tokens: tokens that do not grow with them.
        carried_bytes: per sample, what travels over every cut beside the hidden state.
        self_conditioning: probability of the extra forward pass.
        layers: in the order in which they run.
        skips: from layer to later layer.
        exchanges: what patches of a layer need of one another, in the order in which they run.
        times: measured times by device.
        reads: layers that read an input; where none is named, the first layer reads all of it.
        tasks: in which it runs, of ``train`` and ``sample``.
        frames: latent frames of a video, among which its image tokens are divided evenly.
        passes: how often it runs where it takes frames in turn; its work is of all passes, its bytes are of one.
        latent_bytes: per sample, what a backbone denoises; 0 where that is as large as its prediction.
        kernels: of each layer in the precision of the model; empty where nobody counted them.
        half_kernels: the same in half precision.
        cacheable: whether the output of a frozen component can be computed before training; False where it depends on
            the noise or the time step.
        adapters: kernels of the adapters beside each frozen layer.
        gradients: of which parameters replicas sum gradients: of those ``trained``, or of ``all``, of which the
            optimizer steps those trained. Where gradients pass, those of frozen weights are computed then; elsewhere
            they are zeros.
        experts: backbones of this shape, of which a denoising step runs one, by its noise; all their weights are held
            in sampling, and training trains one at a time.
    """

    name: str
    trainable: bool
    inputs: tuple[str, ...]
    image_tokens: int
    text_tokens: int
    carried_bytes: float
    self_conditioning: Proportion
    layers: tuple[Layer, ...]
    skips: tuple[Skip, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    times: tuple[tuple[str, tuple[MeasuredTime, ...]], ...] = ()
    reads: tuple[Read, ...] = ()
    tasks: tuple[str, ...] = ("train", "sample")
    frames: Count = 1
    passes: Count = 1
    latent_bytes: float = 0.0
    kernels: tuple[tuple[Kernel, ...], ...] = ()
    half_kernels: tuple[tuple[Kernel, ...], ...] = ()
    cacheable: bool = True
    adapters: tuple[tuple[Kernel, ...], ...] = ()
    gradients: Annotated[str, GRADIENTS] = GRADIENTS[0]
    experts: Count = 1

    def __post_init__(self) -> None:
        owner = f"component {self.name}"
        check_fields(owner, self)
        if self.experts > 1 and not self.trainable:
            raise InputError(f"{owner}: experts is {self.experts}, must be 1 of a frozen component")
        check_distinct(owner, "tasks", self.tasks)
        for task in self.tasks:
            check_choice(owner, "tasks", task, TASKS)
        self._check_layers(owner)

    def _check_layers(self, owner: str) -> None:
        """Refuse an empty chain, blocks that fall, and whatever names a layer that is not there."""
        count = len(self.layers)
        check_counts(owner, num_layers=count)
        for index, (before, layer) in enumerate(pairwise(self.layers), 1):
            if layer.block < before.block:
                rule = f"must not fall below {before.block}"
                raise InputError(f"{owner}: block of layer {index} is {layer.block}, {rule}")
        if not self.trainable and any(layer.backward == "full" for layer in self.layers):
            raise InputError(f"{owner}: trainable is False, but a layer's backward is full")
        check_distinct(owner, "skips", self.skips)
        check_distinct(owner, "reads", [(read.source, read.layer) for read in self.reads])
        places = {
            "target of a skip": [skip.target for skip in self.skips],
            "layer of a read": [read.layer for read in self.reads],
            "layer of an exchange": [exchange.layer for exchange in self.exchanges],
        }
        for key, indices in places.items():
            for index in indices:
                if index >= count:
                    raise InputError(
                        f"{owner}: {key} is {index}, must be below {count}, the number of layers"
                    )
        for key in ("kernels", "half_kernels", "adapters"):
            kernels = getattr(self, key)
            if len(kernels) not in (0, count):
                raise InputError(f"{owner}: {key} are of {len(kernels)} layers, must be of its {count}")
        check_distinct(owner, "times", [device for device, _ in self.times])
        for device, times in self.times:
            if {time.layer for time in times} != set(range(count)):
                raise InputError(f"{owner}: times of {device} must be of each of its {count} layers")

    def __repr__(self) -> str:
        kind = "trained" if self.trainable else "frozen"
        return f"<Component {self.name}: {kind}, {counted(len(self.layers), 'layer')}, {self.parameters:,} parameters>"

    @cached_property
    def parameters(self) -> int:
        """Parameters of all layers, of one expert."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def held_parameters(self) -> int:
        """Parameters of all experts."""
        return self.experts * self.parameters

    @cached_property
    def table(self) -> KernelTable:
        """Its kernels as arrays."""
        return KernelTable(self.kernels, self.text_tokens)

    @cached_property
    def half_table(self) -> KernelTable:
        """Its kernels in half precision as arrays."""
        return KernelTable(self.half_kernels, self.text_tokens)

    def live_skips(self, cut: int) -> Iterator[Skip]:
        """The skips that are live over the cut after layer ``cut``."""
        return (skip for skip in self.skips if skip.source <= cut < skip.target)

    @cached_property
    def cut_bytes(self) -> tuple[float, ...]:
        """Bytes per sample that a forward sends over the cut after each layer, without ``carried_bytes``.

        The hidden state and every live skip are sent; right after a skip's source both are, although they are
        one tensor (as the published baselines do).
        """
        sizes = [layer.output_bytes for layer in self.layers]
        return tuple(
            size + sum(sizes[skip.source] for skip in self.live_skips(cut)) for cut, size in enumerate(sizes)
        )

    def trained_parameters(self, first: int, end: int) -> int:
        """The parameters that have gradients in the layers from ``first`` to before ``end``."""
        return self._trained_before[end] - self._trained_before[first]

    def summed_parameters(self, first: int, end: int) -> int:
        """The parameters whose gradients replicas sum in these layers."""
        if self.gradients == "all":
            return sum(layer.parameters for layer in self.layers[first:end])
        return self.trained_parameters(first, end)

    @cached_property
    def backwards(self) -> tuple[str, ...]:
        """What each layer's backward computes, one of ``BACKWARDS``; ``full`` also of frozen weights' gradients."""
        computed = {"input": "full"} if self.gradients == "all" else {}
        return tuple(computed.get(layer.backward, layer.backward) for layer in self.layers)

    @cached_property
    def _trained_before(self) -> tuple[int, ...]:
        return tuple(accumulate((layer.trained_parameters for layer in self.layers), initial=0))

    @cached_property
    def of_adapters(self) -> "Component":
        """The adapters alone, as layers of which all weights are trained."""
        layers = tuple(replace(layer, backward="full") for layer in self.layers)
        return replace(self, layers=layers, kernels=self.adapters, half_kernels=(), adapters=())

    def frozen_copy(self, name: str, inputs: tuple[str, ...], *, held: bool = True) -> "Component":
        """A forward pass of this network that is not trained; unless ``held``, of weights that another part holds."""
        layers = tuple(
            replace(layer, backward="none", saved_bytes=0.0, adapters=0, parameters=layer.parameters * held)
            for layer in self.layers
        )
        copied = replace(self, name=name, trainable=False, inputs=inputs, layers=layers, cacheable=False)
        return replace(copied, reads=(), adapters=(), experts=1)


def divided_parameters(component: Component, layer: int, *, convolutions: bool = False) -> int:
    """Parameters of a layer that tensor parallelism divides: of linears through which tokens pass.

    Where nobody counted its kernels: all parameters of a layer that has sums.
    """
    totals = component.layers[layer]
    whole = totals.parameters - totals.adapters
    if component.kernels:
        divided = (
            kernel
            for kernel in component.kernels[layer]
            if kernel.of_tokens or (convolutions and kernel.kind == "conv")
        )
        return min(whole, sum(kernel.count * kernel.heads * kernel.n * kernel.k for kernel in divided))
    return whole * any(e.kind == "reduce" and e.layer == layer for e in component.exchanges)


@dataclass(frozen=True, slots=True)
class Anchor:
    """Published latency of ``steps`` forward passes of the backbones on one device.

    Attributes:
        batch: samples in one pass; 2 per image with classifier-free guidance.
        latency_s: seconds of all passes, without text encoders and VAE.
    """

    device: str
    height: Count
    width: Count
    batch: Count
    steps: Count
    latency_s: Positive
    source: str

    def __post_init__(self) -> None:
        check_fields(f"anchor of {self.device}", self)
