"""Adapters: two thin products beside each linear of a backbone, which alone are trained (LoRA).

Every linear through which tokens pass has one: of attention, of the MLP, and projections around them, as with PEFT's
``all-linear``. Linears with one or two rows per sample (embeddings of time and size, modulations) and convolutions have
none. The backbone is frozen in half precision. Gradients pass through it back to the first adapter; before that there
is no backward. Source: Hu et al., LoRA, 2021, section 4; PEFT, ``tuners/lora/layer.py``, ``Linear.forward``.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final

from profiles.architectures.components import GRADIENTS, Component, Layer
from profiles.architectures.kernels import DISPATCH, Kernel
from profiles.architectures.models import Model
from profiles.errors import InputError

OPERATORS: Final = 10
"""Operators that the host dispatches for an adapter: four for each product, views among them, a scaling and a sum."""


def with_adapters(model: Model, rank: int) -> Model:
    """A model whose backbones are frozen beside adapters of a rank; one that has them already stays as it is.

    Measured times are dropped, as they are of training all weights.
    """
    adapted = (component.adapters for component in model.components if component.adapters)
    there = {next(kernels[0].n for kernels in layers if kernels) for layers in adapted}
    if there - {rank}:
        raise InputError(
            f"`trainable` asks for {f'rank {rank}' if rank else 'all weights'}, but this {model.name} has adapters"
            f" of rank {max(there)} already, must be made from one without"
        )
    if there or not rank:
        return model
    return replace(
        model, components=tuple(_adapted(model, component, rank) for component in model.components)
    )


def _adapted(model: Model, component: Component, rank: int) -> Component:
    if not component.trainable:
        return component
    if not component.kernels:
        raise InputError(
            f"`trainable` needs the linears of {component.name}: {model.name} has no kernels.csv"
        )
    beside = cache(lambda kernels: tuple(_kernels_beside(kernels, rank)))  # most layers are alike
    adapters = tuple(
        beside(kernels) if layer.backward == "full" else ()
        for layer, kernels in zip(component.layers, component.kernels, strict=True)
    )
    first = next((index for index, adapter in enumerate(adapters) if adapter), None)
    if first is None:
        raise InputError(f"`trainable` needs linears: {component.name} of {model.name} has none")
    layers = (
        _beside(layer, adapter, passed=index >= first)
        for index, (layer, adapter) in enumerate(zip(component.layers, adapters, strict=True))
    )
    return replace(component, layers=tuple(layers), adapters=adapters, times=(), gradients=GRADIENTS[0])


def _kernels_beside(kernels: tuple[Kernel, ...], rank: int) -> Iterator[Kernel]:
    """The kernels of a layer's adapters: products down and up, scaling, and the sum with the linear's output."""
    for kernel in kernels:
        if not kernel.of_tokens:
            continue
        inner_bytes = kernel.written_bytes * rank / kernel.n
        element_bytes = kernel.written_bytes / (kernel.heads * kernel.m * kernel.n)
        rows = {key: getattr(kernel, key) for key in ("count", "heads", "m", "image_m", "image_heads")}
        down = rank, kernel.k, kernel.read_bytes, inner_bytes
        for n, k, read_bytes, written_bytes in (down, (kernel.n, rank, inner_bytes, kernel.written_bytes)):
            yield Kernel(
                "matmul", **rows, n=n, k=k, read_bytes=read_bytes, written_bytes=written_bytes,
                weight_bytes=element_bytes * n * k,
            )  # fmt: skip
        elements = rows | {"m": kernel.m * kernel.n, "image_m": kernel.image_m * kernel.n}
        for read in (1, 2):
            yield Kernel(
                "pointwise",
                **elements,
                read_bytes=read * kernel.written_bytes,
                written_bytes=kernel.written_bytes,
            )
        yield Kernel(DISPATCH, OPERATORS * kernel.count)


def _beside(layer: Layer, adapter: tuple[Kernel, ...], *, passed: bool) -> Layer:
    """A frozen layer with its adapters; the inputs of their second products are kept as well.

    Those of their first ones are among what the layer keeps (``profiles.measuring.counting.component``).
    """
    products = [kernel for kernel in adapter if kernel.kind == "matmul"]
    parameters = sum(kernel.count * kernel.n * kernel.k for kernel in products)
    kept = sum(kernel.count * kernel.written_bytes for kernel in products[::2])
    locked = "none" if layer.backward == "none" or not passed else "input"
    return replace(
        layer,
        parameters=layer.parameters + parameters,
        adapters=parameters,
        backward=locked,
        saved_bytes=layer.adapted_share * layer.saved_bytes + kept if passed else 0.0,
    )
