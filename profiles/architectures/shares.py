"""Shares: the part of a layer's work that one device does, and the size of an image over that of the reference."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from profiles.architectures.components import Component
    from profiles.architectures.models import Model

REPLICATED_SHARE: Final = 1 / 3
"""Share of a block's hidden states that tensor parallelism leaves whole: input, norm and sum, 4 of 12. The other 8 are
inside attention and feed-forward, whose inner width is four times the outer (Megatron-LM, section 3)."""
HALF_BYTES: Final = 2.0
"""Sampling runs in half precision, whatever precision a model is trained in."""
ELEMENT_BYTES: Final = {"float16": 2.0, "bfloat16": 2.0, "float32": 4.0}


class Share(NamedTuple):
    """The part of a layer's work at the whole image that one device does.

    Attributes:
        rows: share of the image's rows that it computes; all tokens of the text come with them.
        keys: share of the image's rows that those attend to.
        ring: devices among which tokens are divided and around which keys and values pass, one attention after another.
        ulysses: devices among which tokens are divided, and in self-attention the heads.
        tensor: devices among which matrices and heads are divided.
        whole_text: whether each device of a sequence computes all tokens of the text; of attention, on its heads.
        sequence_parallel: whether what tensor parallelism leaves whole has its tokens divided among its devices
            (Korthikanti et al., Reducing Activation Recomputation, 2022, section 4.2.2).
        device_rows: rows of devices, among which self-attention divides its queries.
        device_columns: their columns, among which it divides its keys; tokens are divided by both.
    """

    rows: float = 1.0
    keys: float = 1.0
    ring: int = 1
    ulysses: int = 1
    tensor: int = 1
    whole_text: bool = False
    sequence_parallel: bool = False
    device_rows: int = 1
    device_columns: int = 1

    def times(self, other: "Share") -> "Share":
        """The share of a share."""
        rows, keys = self.rows * other.rows, self.keys * other.keys
        ring, ulysses = self.ring * other.ring, self.ulysses * other.ulysses
        whole_text = self.whole_text or other.whole_text
        in_sequence = self.sequence_parallel or other.sequence_parallel
        both = self.device_rows * other.device_rows, self.device_columns * other.device_columns
        tensor = self.tensor * other.tensor
        return Share(rows, keys, ring, ulysses, tensor, whole_text, in_sequence, *both)

    @property
    def sequence(self) -> int:
        """Devices among which the tokens are divided."""
        return self.ring * self.ulysses * self.device_rows * self.device_columns

    @property
    def held(self) -> float:
        """Share of a sample's activations that one device holds under sequence parallelism."""
        return 1 / (self.sequence * self.tensor)

    @property
    def text(self) -> int:
        """Devices among which the tokens of the text are divided."""
        return 1 if self.whole_text else self.sequence

    @property
    def replicated(self) -> float:
        """Share of the memory traffic: each device of ``tensor`` runs norms and sums on whole hidden states."""
        if self.sequence_parallel:
            return 1 / self.tensor
        return REPLICATED_SHARE + (1 - REPLICATED_SHARE) / self.tensor


WHOLE: Final = Share()


@dataclass(frozen=True, slots=True)
class Extent:
    """Size of a component at a resolution, over its reference.

    Attributes:
        pixels: of the image.
        width: of the image.
        tokens: of the image and the text; 1 where there are none of an image.
        image: share of the image in the tokens.
        bytes: of an element, over those of the model's files.
    """

    pixels: float
    width: float
    tokens: float
    image: float
    bytes: float

    @classmethod
    def of(
        cls, model: "Model", component: "Component", height: int, width: int, *, half: bool = True
    ) -> Self:
        """Size at a resolution, in half precision or in the model's own."""
        pixels = height * width / (model.height * model.width)
        size = HALF_BYTES / ELEMENT_BYTES[model.dtype] if half else 1.0
        return cls._made(component, pixels, width / model.width, size)

    @classmethod
    def reference(cls, component: "Component") -> Self:
        """Size at the reference, in the model's own precision."""
        return cls._made(component, 1.0, 1.0, 1.0)

    @classmethod
    def _made(cls, component: "Component", pixels: float, width: float, size: float) -> Self:
        image, text = component.image_tokens * pixels, component.text_tokens
        if not image:
            return cls(pixels, width, 1.0, 0.0, size)
        tokens = (image + text) / (component.image_tokens + text)
        return cls(pixels, width, tokens, image / (image + text), size)

    def tokens_share(self, rows: float) -> float:
        """Share of all tokens in some of the image's rows and all of the text."""
        return self.image * rows + 1 - self.image


def divided_parameters(component: "Component", layer: int, *, convolutions: bool = False) -> int:
    """Parameters of a layer that tensor parallelism divides: of linears through which tokens pass.

    Where nobody counted its kernels: all parameters of a layer that has sums.

    Args:
        component: the backbone.
        layer: one of its layers.
        convolutions: whether it divides those, too.
    """
    of = component.layers[layer]
    own = of.parameters - of.adapters
    if component.kernels:
        divided = (
            kernel
            for kernel in component.kernels[layer]
            if kernel.of_tokens or (convolutions and kernel.kind == "conv")
        )
        return min(own, sum(kernel.count * kernel.heads * kernel.n * kernel.k for kernel in divided))
    return own * any(e.kind == "reduce" and e.layer == layer for e in component.exchanges)
