"""Extents: the size of an image over that of the reference."""

from dataclasses import dataclass
from typing import Self

from profiles.architectures.components import Component
from profiles.architectures.models import Model
from profiles.architectures.shares import ELEMENT_BYTES, HALF_BYTES


@dataclass(frozen=True, slots=True)
class Extent:
    """Size of a component at a resolution, over its reference.

    Attributes:
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
    def of(cls, model: Model, component: Component, height: int, width: int, *, half: bool = True) -> Self:
        """Size at a resolution, in half precision or in the model's own."""
        pixels = height * width / (model.height * model.width)
        size = HALF_BYTES / ELEMENT_BYTES[model.dtype] if half else 1.0
        return cls.reference(component, pixels, width / model.width, size)

    @classmethod
    def reference(
        cls, component: Component, pixels: float = 1.0, width: float = 1.0, size: float = 1.0
    ) -> Self:
        """Size at the reference, in the model's own precision; or at so many times its pixels, width and bytes."""
        image, text = component.image_tokens * pixels, component.text_tokens
        if not image:
            return cls(pixels, width, 1.0, 0.0, size)
        tokens = (image + text) / (component.image_tokens + text)
        return cls(pixels, width, tokens, image / (image + text), size)

    def tokens_share(self, rows: float) -> float:
        """Share of all tokens in some of the image's rows and all of the text."""
        return self.image * rows + 1 - self.image
