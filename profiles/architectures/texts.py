"""Texts: a model whose attention joins image and text, on another number of text tokens than its files hold for."""

from dataclasses import replace
from typing import Final

from profiles.architectures.components import Component
from profiles.architectures.kernels import DISPATCH, Kernel, LayerKernels
from profiles.architectures.models import Model
from profiles.errors import wrong

MAX_TEXT_TOKENS: Final = 4096
"""Most tokens of a text: far more than text encoders read."""


def with_text(model: Model, tokens: int) -> Model:
    """A model on texts of so many tokens; its text encoders, and what it was timed with, stay as they are."""
    joint = [i for i in model.backbones if model.components[i].text_tokens]
    if not joint:
        raise wrong("text_tokens", f"is {tokens}, but no text passes through the layers of {model.name}")
    components = tuple(
        _of_text(component, tokens) if i in joint else component
        for i, component in enumerate(model.components)
    )
    return replace(model, components=components, anchor_backbones=model.anchored)


def _of_text(component: Component, tokens: int) -> Component:
    before = component.text_tokens
    grown = (component.image_tokens + tokens) / (component.image_tokens + before)
    return replace(
        component,
        text_tokens=tokens,
        layers=tuple(layer.grown(grown) for layer in component.layers),
        kernels=_kernels(component.kernels, before, tokens),
        half_kernels=_kernels(component.half_kernels, before, tokens),
        times=(),
    )


def _kernels(layers: LayerKernels, before: int, after: int) -> LayerKernels:
    return tuple(tuple(_kernel(kernel, before, after) for kernel in of) for of in layers)


def _kernel(kernel: Kernel, before: int, after: int) -> Kernel:
    """A kernel on another text: its rows and keys beside the image's change where there are enough for a text."""
    if kernel.kind == DISPATCH:
        return kernel
    sizes = {}
    for key in ("m", "n") if kernel.image_n else ("m",):
        whole, image = getattr(kernel, key), getattr(kernel, f"image_{key}")
        text = whole - image
        sizes[key] = image + (round(text * after / before) if text >= before else text)
    grown = sizes["m"] / kernel.m
    moved = {key: grown * getattr(kernel, key) for key in ("read_bytes", "written_bytes")}
    return replace(kernel, **sizes, **moved)
