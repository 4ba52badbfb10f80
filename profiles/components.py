"""Components: chains of layers, their skips, what they read and exchange, and their measured times."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Layer:
    """The smallest unit a cut may separate; work and bytes are of one sample's forward pass."""

    block: int
    name: str
    parameters: int
    backward: str
    conv_flop: float
    matmul_flop: float
    attention_flop: float
    moved_bytes: float
    kernels: int
    output_bytes: float
    saved_bytes: float


@dataclass(frozen=True, slots=True)
class Skip:
    """A tensor from the output of layer ``source`` to layer ``target`` of the same component."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Read:
    """A layer that reads the output of the frozen component ``source``, or a part of it; bytes per sample."""

    source: str
    layer: int
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Exchange:
    """A point where the patches of one layer need one another; ``elements`` per sample, whole image."""

    layer: int
    kind: str
    elements: int
    heads: int


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """Measured times of one layer at one batch size."""

    layer: int
    batch_size: int
    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Component:
    """A part of a model that runs as one chain of layers.

    ``carried_bytes`` is the context that travels with the hidden state over every cut, per sample;
    ``self_conditioning`` the probability of the extra forward pass; ``times`` the measured times by device;
    ``reads`` which layers read what of an input, where that is not the first layer the whole output;
    ``exchanges`` are in execution order; ``tasks`` are those that it exists for. ``frames`` are those of a video's
    latents, among which its image tokens are divided evenly; ``latent_bytes`` what a backbone denoises, per sample, 0
    where that is as large as its prediction.
    """

    name: str
    trainable: bool
    inputs: tuple[str, ...]
    image_tokens: int
    text_tokens: int
    carried_bytes: float
    self_conditioning: float
    layers: tuple[Layer, ...]
    skips: tuple[Skip, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    times: tuple[tuple[str, tuple[MeasuredTime, ...]], ...] = ()
    reads: tuple[Read, ...] = ()
    tasks: tuple[str, ...] = ("train", "sample")
    frames: int = 1
    latent_bytes: float = 0.0

    def __repr__(self) -> str:
        return f"<Component {self.name}: {len(self.layers)} layers>"

    @cached_property
    def parameters(self) -> int:
        """Parameters of all layers."""
        return sum(layer.parameters for layer in self.layers)

    def live_skips(self, cut: int) -> Iterator[Skip]:
        """Yield the skips that are live over the cut after layer ``cut``."""
        return (skip for skip in self.skips if skip.source <= cut < skip.target)

    def cut_bytes(self, cut: int) -> float:
        """Return the bytes per sample over the cut after a layer, forwards without what is carried.

        The hidden state and every live skip are sent; right after a skip's source both are, although they are
        one tensor (as the published baselines do).
        """
        return self._cut_bytes[cut]

    @cached_property
    def _cut_bytes(self) -> tuple[float, ...]:
        sizes = [layer.output_bytes for layer in self.layers]
        return tuple(
            size + sum(sizes[skip.source] for skip in self.live_skips(cut)) for cut, size in enumerate(sizes)
        )

    def trained_parameters(self, first: int, end: int) -> int:
        """Return the parameters with gradients of the layers from ``first`` up to, without, ``end``."""
        return self._trained_before[end] - self._trained_before[first]

    @cached_property
    def _trained_before(self) -> tuple[int, ...]:
        trained = (layer.parameters if layer.backward == "full" else 0 for layer in self.layers)
        return tuple(accumulate(trained, initial=0))
