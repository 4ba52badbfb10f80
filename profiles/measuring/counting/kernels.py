"""Kernels of one forward pass by layer, read off the operators of its trace.

Some classes cast to float32 and back only in half precision, so a pass of each precision is read. What grows with the
pixels shows in a second pass at another resolution, whose operators are matched in order.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from fractions import Fraction
from math import prod
from typing import Any, Final, NamedTuple

import torch

from profiles.architectures.kernels import DISPATCH, PRODUCTS, Kernel
from profiles.measuring.counting.component import ComponentCount, ModelCount, build, latents_of, trace_of
from profiles.measuring.counting.specs import DTYPES, LayerSpec
from profiles.measuring.counting.tally import launched
from profiles.measuring.counting.trace import Ran, Trace, storage


class Launch(NamedTuple):
    """A kernel, and the name of the operator that launches it."""

    operator: str
    kernel: Kernel


Layers = list[list[Launch]]
"""Launches of each layer, in order."""


ModelKernels = tuple[tuple[tuple[Kernel, ...], ...], ...]
"""Kernels of each layer of each component."""


def kernels_of(model: ModelCount, dtype: str) -> ModelKernels:
    """Kernels of each layer of each component of a model, its weights and activations of one precision."""
    size, other = (model.height, model.width), _other_size(model)
    return tuple(component_kernels(count, size, other, dtype) for count in model.components)


def _other_size(model: ModelCount) -> tuple[int, int]:
    """Height and width of another pass: smaller and of the same aspect ratio where that can be.

    Some classes take only squares, and some cut large convolutions into pieces.
    """
    height, width = model.height, model.width
    step, largest = model.architecture.granularity, model.architecture.largest or 2 * max(height, width)
    sizes = [(height // 2, width // 2), (height // 2, width), (height, width // 2), (2 * height, 2 * width)]
    whole = (size for size in sizes if not any(side % step for side in size) and max(size) <= largest)
    return next(whole, sizes[0])


def component_kernels(
    count: ComponentCount, size: tuple[int, int], other_size: tuple[int, int], dtype: str = "float16"
) -> tuple[tuple[Kernel, ...], ...]:
    """Kernels of each layer of a component in all its passes; ``other_size``, in pixels, shows what grows."""
    spec, totals = count.spec, [Counter[Kernel]() for _ in count.layers]
    counted = next(count.traces[0].module.parameters()).dtype is DTYPES[dtype]  # in this precision already
    module = count.traces[0].module if counted else build(spec, DTYPES[dtype])
    growth = Fraction(prod(other_size), prod(size))
    samples = (spec.sample, *spec.again)
    times = Counter(samples)
    for sample, known in dict(zip(samples, count.traces, strict=True)).items():
        trace = known if counted else trace_of(spec, module, sample(*size))
        layers, operators = _launches_of(trace, count), dispatched(trace, count.layers)
        others = layers
        if spec.token_pixels and spec.resizes:
            others = _launches_of(trace_of(spec, module, sample(*other_size)), count)
        for kernels, launches, other, number in zip(totals, layers, others, operators, strict=True):
            for kernel in (
                grown(launches, other, growth) if spec.resizes else (launch.kernel for launch in launches)
            ):
                kernels[kernel] += times[sample]
            kernels[DISPATCHED] += number * times[sample]
    return tuple(tuple(_counted(kernels)) for kernels in totals)


DISPATCHED: Final = Kernel(DISPATCH, 1)


def _counted(kernels: Counter[Kernel]) -> Iterator[Kernel]:
    """Yield each kernel with its count, then the operators that the host dispatches, if there are any."""
    number = kernels.pop(DISPATCHED)
    yield from (replace(kernel, count=times) for kernel, times in kernels.items())
    if number:
        yield replace(DISPATCHED, count=number)


ATTENTION_OPERATORS: Final = 16
"""Operators that one attention counts for: those into which torch decomposes it where there is no fused kernel, 7 that
launch and 9 views. A fused kernel is one operator, with about as much dispatching around it: choosing it, transposing
its operands, allocating, and the module that calls it. All operators count with the same seconds of the host, which
were fitted to rows counted in this way."""


def dispatched(trace: Trace, parts: Sequence[LayerSpec]) -> list[int]:
    """Number of operators of each layer, views among them; an attention counts as ``ATTENTION_OPERATORS``."""
    numbers = [0] * len(parts)
    for event, layer in trace.by_layer(parts):
        if isinstance(event, Ran):
            attends = event.func.overloadpacket is torch.ops.diffusim.attention
            numbers[layer] += ATTENTION_OPERATORS if attends else 1
    return numbers


def _launches_of(trace: Trace, count: ComponentCount) -> Layers:
    """Launches of each layer, each with count 1; parts that grow with the pixels only where there is no other size."""
    launches: Layers = [[] for _ in count.layers]
    held = trace.held()
    grows = count.image_tokens and not count.spec.resizes
    drawn = set(map(storage, latents_of(trace) if grows else ()))
    image, text, both = count.image_tokens, count.text_tokens, count.image_tokens + count.text_tokens
    for event, layer in trace.by_layer(count.layers):
        if isinstance(event, Ran) and event.launches:
            drawn.update(map(storage, event.writes) if drawn.intersection(map(storage, event.reads)) else ())
            for kernel in launched(event, held):
                sides, images = event.args[:2] if kernel.kind == "attention" else event.writes[:1], {}
                for axis, side in zip("mn", sides, strict=False):
                    if storage(side) in drawn:
                        rows = side.shape[:-1]
                        share = Fraction(image, both) if both in rows else int(not text or text not in rows)
                        images[f"image_{axis}"] = round(getattr(kernel, axis) * share)
                launches[layer].append(Launch(str(event.func), replace(kernel, **images)))
    return launches


def grown(launches: Sequence[Launch], other: Sequence[Launch], growth: Fraction) -> Iterator[Kernel]:
    """Yield kernels with the parts of their shapes that grow with the pixels.

    Args:
        launches: of a layer.
        other: of the same layer with ``growth`` times the pixels. Some classes compute there tables of positions that
            they hold for their own resolution, or cut a large product into several; a launch without counterpart
            counts as growing by its rows.
        growth: pixels of the other pass over those of the first.
    """
    names, others = ([launch.operator for launch in side] for side in (launches, other))
    products = {launch.operator for launch in launches if launch.kernel.kind in PRODUCTS}
    cut = {name for name in products if names.count(name) != others.count(name)}
    matcher = SequenceMatcher(None, names, others, autojunk=False)
    pairs = {a + i: b + i for a, b, size in matcher.get_matching_blocks() for i in range(size)}
    for index, launch in enumerate(launches):
        kernel = launch.kernel
        twin = other[pairs[index]].kernel if index in pairs and launch.operator not in cut else None
        images: dict[str, Any] = {"image_heads": 0, "image_m": kernel.m, "image_n": 0}
        for key in ("heads", "m", "n") if twin else ():  # from 0 to all of it: sides may be rounded
            whole = int(getattr(kernel, key))
            more: Fraction = (int(getattr(twin, key)) - whole) / (growth - 1)
            images[f"image_{key}"] = min(max(round(more), 0), whole)
        yield replace(kernel, **images)
