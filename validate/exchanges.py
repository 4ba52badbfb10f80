"""Exchanges: the points of one forward pass where patches, or shards of the weights, need one another.

They are found as the real module runs: self-attention by its operator, convolutions and group norms by their
class, and what tensor parallelism sums up by the names that a specification gives.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from validate.tally import Tally, attends_to_itself


@dataclass(frozen=True, slots=True)
class ExchangeCount:
    """One exchange, counted; see ``profiles.components.Exchange``."""

    layer: int
    kind: str
    elements: int
    heads: int = 0


class Exchanges(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the exchanges of one forward pass of ``module``, in execution order.

    Keys and values, and sums, count the image alone: every device computes the text for itself. A halo is the
    rows that a patch sends from both of its edges; the first convolution has none, for the whole latent is
    everywhere.

    Args:
        module: the component.
        sums: regular expression of the submodules whose output tensor parallelism sums up; if it is empty,
            nothing is noted.
        image_tokens: of one sample.
        text_tokens: that attend together with them.
        tally: of the same pass; it knows the layer under way.
    """

    def __init__(
        self, module: nn.Module, sums: str, image_tokens: int, text_tokens: int, tally: Tally
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[ExchangeCount] = []
        self._image_tokens = image_tokens
        self._text_tokens = text_tokens
        self._tally = tally
        self._watched = bool(sums)
        self._convolutions = 0
        for name, part in module.named_modules():
            if isinstance(part, nn.Conv2d):
                part.register_forward_pre_hook(self._convolve)
            elif isinstance(part, nn.GroupNorm):
                part.register_forward_pre_hook(self._normalise)
            if sums and re.fullmatch(sums, name):
                part.register_forward_hook(self._sum, prepend=True)  # before the tally ends the layer

    def __torch_dispatch__(
        self,
        func: OpOverload[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run one operator and note it where it is self-attention."""
        if func.overloadpacket is torch.ops.diffusim.attention and attends_to_itself(*args[:2]):
            self._attend(*args[1:3])
        return func(*args, **(kwargs or {}))

    def _note(self, kind: str, elements: int, heads: int = 0) -> None:
        if self._watched:
            self.found.append(ExchangeCount(self._tally.index, kind, elements, heads))

    def _attend(self, key: Tensor, value: Tensor) -> None:
        tokens, heads = key.shape[-2] - self._text_tokens, key.shape[-3]
        if tokens > 0:  # text that attends to itself alone is no image
            self._note("key_value", tokens * heads * (key.shape[-1] + value.shape[-1]), heads)

    def _convolve(self, convolution: nn.Conv2d, args: tuple[Tensor, ...]) -> None:
        self._convolutions += 1
        rows = _padded_rows(convolution)
        if rows and self._convolutions > 1:
            self._note("halo", 2 * convolution.in_channels * rows * args[0].shape[-1])

    def _normalise(self, norm: nn.GroupNorm, args: tuple[Tensor, ...]) -> None:
        self._note("statistics", 2 * norm.num_groups)

    def _sum(self, module: nn.Module, args: object, output: object) -> None:
        elements = self._image_elements(output)
        if elements:
            self._note("reduce", elements)

    def _image_elements(self, output: object) -> int:
        """Return the elements of the image in the output of a submodule, whichever streams that holds; 0 of none."""
        streams = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        if not self._text_tokens:
            (image,) = streams
            return image.numel()
        lengths = (self._image_tokens, self._image_tokens + self._text_tokens)
        widths = {stream.shape[-1] for stream in streams if stream.dim() > 1 and stream.shape[-2] in lengths}
        (width,) = widths or {0}
        return self._image_tokens * width


def _padded_rows(convolution: nn.Conv2d) -> int:
    """Return the rows that a convolution reads beyond each edge."""
    padding = convolution.padding
    if isinstance(padding, str):
        return convolution.dilation[0] * (convolution.kernel_size[0] - 1) // 2 if padding == "same" else 0
    return int(padding[0])
