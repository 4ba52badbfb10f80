"""Exchanges: the points of one forward pass where patches, or shards of the weights, need one another.

Self-attention, convolutions and group norms are found by their operators, what tensor parallelism sums up by the
names of submodules.
"""

import re
from collections.abc import Iterator

from torch import Tensor

from profiles.architectures.components import Exchange
from validate.counting.trace import Ran, Returned, Trace, aten


def exchanges_of(
    trace: Trace, ends: list[str], sums: str, image_tokens: int, text_tokens: int
) -> Iterator[Exchange]:
    """Exchanges of one pass, in execution order.

    Keys and values, and sums, count the image alone: every device computes the text for itself. A halo is the
    rows that a patch sends from both of its edges; the first convolution has none, for the whole latent is
    everywhere. Layers end at the return of ``ends``; ``sums`` is the regular expression of the submodules whose output
    tensor parallelism sums up; tokens are of one sample.
    """
    convolutions = 0
    for event, layer in trace.by_layer(ends):
        if isinstance(event, Returned) and re.fullmatch(sums, event.path):
            elements = _image_elements(event.outputs, image_tokens, text_tokens)
            if elements:
                yield Exchange(layer, "reduce", elements, 0)
        if isinstance(event, Ran):
            convolutions += _is_flat(event)
            if not _is_flat(event) or convolutions > 1:
                yield from _exchange(event, layer, image_tokens, text_tokens)


def _exchange(ran: Ran, layer: int, image_tokens: int, text_tokens: int) -> Iterator[Exchange]:
    """The exchange that an operator needs, if it is one of those that do."""
    operator, args = ran.func.overloadpacket, ran.args
    if ran.attends_to_itself:
        key, value = args[1:3]
        alone = key.shape[-2] == image_tokens
        tokens, heads = key.shape[-2] - (0 if alone else text_tokens), key.shape[-3]
        if tokens > 0:  # text that attends to itself alone is no image
            elements = tokens * heads * (key.shape[-1] + value.shape[-1])
            yield Exchange(layer, "key_value", elements, heads)
    elif _is_flat(ran) and args[4][0]:
        image, rows = args[0], args[4][0]
        yield Exchange(layer, "halo", 2 * image.shape[1] * rows * image.shape[-1], 0)
    elif operator is aten.native_group_norm:
        yield Exchange(layer, "statistics", 2 * args[6], 0)


def _is_flat(ran: Ran) -> bool:
    """Whether an operator is a convolution of images that does not enlarge them."""
    return ran.func.overloadpacket is aten.convolution and ran.args[1].dim() == 4 and not ran.args[6]


def _image_elements(streams: tuple[Tensor, ...], image_tokens: int, text_tokens: int) -> int:
    """Elements of the image in the output of a submodule, whichever streams that holds; 0 of none."""
    if not text_tokens:
        (image,) = streams
        return image.numel()
    lengths = (image_tokens, image_tokens + text_tokens)
    widths = {stream.shape[-1] for stream in streams if stream.dim() > 1 and stream.shape[-2] in lengths}
    (width,) = widths or {0}
    return image_tokens * width
