"""Resolutions: which ones a model can have, and models at another resolution, or of other frames or texts.

A model folder describes its reference. Elsewhere linear work, memory traffic and activations grow with the tokens,
self-attention with their square; the number of kernels and the work of the text stay. More frames are more tokens;
an autoencoder that takes frames in turn makes more passes of the same size.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import sqrt
from typing import Any, Final

import numpy as np

from profiles.architectures.components import WORK, Component
from profiles.architectures.extents import Extent
from profiles.architectures.kernels import DISPATCH, Kernel
from profiles.architectures.models import Model, latent_frames
from profiles.costs.layers import ComponentCosts
from profiles.errors import DiffusimNote, counted, shown, warn_caller, wrong
from profiles.machines.devices import Device
from profiles.units import FloatArray

SIDE: Final = re.compile(r"[1-9]\d{0,11}", re.ASCII)
MAX_TEXT_TOKENS: Final = 4096
"""Most tokens of a text: far more than text encoders read."""
LINES: Final = {"480p": ("832x480",), "720p": ("1280x720", "1280x704"), "1080p": ("1920x1088",)}
"""Sizes of wide videos by name: a model's reference of such a height, else the first of whole multiples."""


def sides_of(resolution: Any) -> tuple[int, int]:  # noqa: ANN401
    """Height and width of a resolution: 1024, (1280, 1920), or as words 1280x1920, which is width x height."""
    sides = resolution if isinstance(resolution, tuple) else str(resolution).split("x")
    if len(sides) not in (1, 2) or not all(SIDE.fullmatch(str(side)) for side in sides):
        rule = "must be pixels such as 1024, or width and height such as 1280x1920"
        raise wrong("resolution", f"is {shown(resolution)}, {rule}")
    return int(sides[-1]), int(sides[0])


def named_size(model: Model, resolution: Any) -> Any:  # noqa: ANN401
    """The resolution that a name such as 720p stands for on a model of videos; any other as it is."""
    own, resolution = dict(model.sizes), resolution.lower() if isinstance(resolution, str) else resolution
    names = own or LINES
    if model.draws_videos and (name := f"{resolution}p") in names:  # a square of as many lines
        wide = f"{name} is {named_size(model, name)}"
        warn_caller(f"resolution {resolution} is {resolution}x{resolution}; {wide}", DiffusimNote)
    if not isinstance(resolution, str) or resolution not in {*LINES, *own}:
        return resolution
    if resolution not in names:
        rule = f"must be {' or '.join(own)}, which {model.name} was trained for, or pixels such as 960x544"
        raise wrong("resolution", f"is {resolution}, {rule}")
    if own:
        return own[resolution]
    if not model.draws_videos:
        rule = "must be pixels such as 1024: sizes with such names are of videos"
        raise wrong("resolution", f"is {resolution}, but {model.name} draws images, {rule}")
    sizes = list(map(sides_of, LINES[resolution]))
    if model.height in (height for height, _ in sizes):
        return in_words(model.height, model.width)
    whole = (sides for sides in sizes if not any(side % model.multiple for side in sides))
    return in_words(*next(whole, sizes[0]))


def in_words(height: int, width: int) -> str:
    """Width and height, one number where they are the same."""
    return str(width) if width == height else f"{width}x{height}"


def check_resolution(model: Model, height: int, width: int) -> None:
    """Refuse a resolution that a model cannot have.

    Both sides are multiples of what its levels, patches and VAE divide them by (``multiple`` of its file), and made
    of whole tokens of each component; some models end at a ``largest`` side.
    """
    resolution = in_words(height, width)
    for name, pixels in (("width", width), ("height", height)):
        if pixels % model.multiple:
            rule = f"no multiple of {model.multiple}, as both sides of {model.name} are"
            raise wrong("resolution", f"is {resolution}, but {name}({pixels}) is {rule}")
        if model.largest is not None and pixels > model.largest:
            rule = f"above {model.largest}, the largest side of {model.name}"
            raise wrong("resolution", f"is {resolution}, but {name}({pixels}) is {rule}")
    for component in model.components:
        check_whole_tokens(model, component, height, width)


def check_whole_tokens(model: Model, component: Component, height: int, width: int) -> None:
    """Refuse sides that are not made of whole tokens of a component, and other sides of a backbone without tokens."""
    if not component.image_tokens:
        if component.trainable and (height, width) != (model.height, model.width):
            known = in_words(model.height, model.width)
            rule = f"tokens of an image are not known of {component.name}, only its work at {known}: count it anew"
            raise wrong("resolution", f"is {in_words(height, width)}, but {rule}")
        return
    side = sqrt(model.height * model.width * component.frames / component.image_tokens)
    squares = side.is_integer() and not (model.height % side or model.width % side)
    resolution = in_words(height, width)
    for name, pixels in (("width", width), ("height", height)):
        if squares and pixels % side:
            rule = f"no multiple of {side:g}, the pixels along a token of {component.name}"
            raise wrong("resolution", f"is {resolution}, but {name}({pixels}) is {rule}")
    tokens = component.image_tokens * height * width / (model.height * model.width)
    if not tokens.is_integer():
        raise wrong(
            "resolution", f"is {resolution}: {tokens:g} image tokens of {component.name}, must be whole"
        )


def resized(model: Model, height: int, width: int, device: Device) -> Model:
    """Return a model at a resolution in pixels, as training on a device needs it.

    Times measured on the device follow the work; those of other devices, whose rates nobody gives, are left out.
    """
    here, there = (model.height, model.width), (height, width)
    if here == there:
        return model
    check_resolution(model, height, width)
    extents = {
        c.name: Extent.of(model, c, height, width) for c in (*model.components, *model.anchor_backbones)
    }
    reference = model.resized_from or here
    return replace(
        model,
        height=height,
        width=width,
        components=tuple(_resized(c, extents, device) for c in model.components),
        anchor_backbones=tuple(_resized(c, extents, device) for c in model.anchor_backbones),
        resized_from=None if there == reference else reference,
    )


def _check_frames(model: Model, frames: int) -> None:
    """Refuse a number of frames that a model cannot have; what was rounded for other ones before is lost."""
    if model.frames_from is not None and frames != model.frames:
        made = (
            f"this {model.name} was made of {counted(model.frames, 'frame')} from one of {model.frames_from}"
        )
        raise wrong("frames", f"is {frames}, but {made}, must be made from that one")
    if model.frames == 1 and frames != 1:
        raise wrong("frames", f"is {frames}, but {model.name} draws images, which have one")
    if frames < 1 or (frames - model.frames) % (model.frame_chunk or model.frame_step):
        raise wrong("frames", f"is {frames}, must be {model.frame_rule}, for {model.name}")


def with_frames(model: Model, frames: int, device: Device) -> Model:
    """Return a model of videos of so many frames; the backbones that its anchors time stay as they are.

    Backbones grow with the latent frames, autoencoders with those of the pixels. Times measured on the device follow
    the work.
    """
    _check_frames(model, frames)
    if frames == model.frames:
        return model
    made, had = (
        latent_frames(count, model.frame_step, model.frame_chunk) for count in (frames, model.frames)
    )
    latent = made / had
    components = tuple(
        _of_frames(component, latent, latent if component.trainable else frames / model.frames, device)
        if component.image_tokens
        else component
        for component in model.components
    )
    reference = model.frames_from or model.frames
    return replace(
        model,
        frames=frames,
        components=components,
        anchor_backbones=model.anchored,
        frames_from=None if frames == reference else reference,
    )


def _of_frames(component: Component, latent: float, work: float, device: Device) -> Component:
    """A component of ``latent`` times the latent frames, and ``work`` times the work that is not the text's."""
    text, image = component.text_tokens, component.image_tokens
    tokens = (work * image + text) / (image + text)
    changed = replace(_grown(component, tokens, latent, work, work), frames=round(component.frames * latent))
    if component.passes > 1:  # it takes frames in turn

        def repeated(kernel: Kernel) -> Kernel:
            return replace(kernel, count=max(1, round(work * kernel.count)))

        layers = (
            replace(
                layer,
                kernels=round(tokens * layer.kernels),
                **{key: tokens * getattr(layer, key) for key in WORK},
            )
            for layer in component.layers
        )
        passes = max(1, round(component.passes * work))
        changed = replace(changed, passes=passes, layers=tuple(layers), **_kernels(component, repeated))
    return _with_times(changed, component, tokens, device)


def _kernels(component: Component, change: Callable[[Kernel], Kernel]) -> dict[str, Any]:
    """The kernels of a component in both precisions, each changed."""
    both = {"kernels": component.kernels, "half_kernels": component.half_kernels}
    return {key: tuple(tuple(map(change, layer)) for layer in layers) for key, layers in both.items()}


def _resized(component: Component, extents: Mapping[str, Extent], device: Device) -> Component:
    extent = extents[component.name]
    changed = _grown(component, extent.tokens, extent.pixels, extent.pixels, extent.width)
    reads = (
        replace(read, size_bytes=read.size_bytes * extents[read.source].tokens) for read in component.reads
    )
    return _with_times(replace(changed, reads=tuple(reads)), component, extent.tokens, device)


def _grown(component: Component, tokens: float, latent: float, work: float, width: float) -> Component:
    """A component of so many times the tokens, those of the latent image, work that is not the text's, and width."""
    growth = {"key_value": work, "reduce": work, "halo": width, "statistics": 1.0}
    return replace(
        component,
        image_tokens=round(component.image_tokens * latent),
        latent_bytes=component.latent_bytes * latent,
        layers=tuple(layer.grown(tokens) for layer in component.layers),
        **_kernels(component, lambda kernel: kernel.at(work)),
        exchanges=tuple(
            replace(one, elements=round(one.elements * growth[one.kind])) for one in component.exchanges
        ),
    )


def with_text(model: Model, tokens: int) -> Model:
    """Return a model on texts of so many tokens; its text encoders, and what it was timed with, stay as they are."""
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

    def on_text(kernel: Kernel) -> Kernel:
        """The kernel on the text: its rows and keys beside the image's change where there are enough for one."""
        if kernel.kind == DISPATCH:
            return kernel
        sizes = {}
        for key in ("m", "n") if kernel.image_n else ("m",):
            image = getattr(kernel, f"image_{key}")
            text = getattr(kernel, key) - image
            sizes[key] = image + (round(text * tokens / before) if text >= before else text)
        grown = sizes["m"] / kernel.m
        moved = {key: grown * getattr(kernel, key) for key in ("read_bytes", "written_bytes")}
        return replace(kernel, **sizes, **moved)

    grown = (component.image_tokens + tokens) / (component.image_tokens + before)
    layers = tuple(layer.grown(grown) for layer in component.layers)
    kernels = _kernels(component, on_text)
    return replace(component, text_tokens=tokens, layers=layers, **kernels, times=())


def _with_times(changed: Component, before: Component, tokens: float, device: Device) -> Component:
    """A changed component with the times measured on a device, in proportion to the estimated work."""
    measured = dict(before.times).get(device.name, ())
    growth = {
        batch: _growth(before, changed, tokens, device, batch) for batch in {t.batch_size for t in measured}
    }
    times = []
    for time in measured:
        forward, backward = growth[time.batch_size][:, time.layer].tolist()
        times.append(replace(time, forward_s=time.forward_s * forward, backward_s=time.backward_s * backward))
    return replace(changed, times=((device.name, tuple(times)),) if times else ())


def _growth(before: Component, after: Component, tokens: float, device: Device, batch: int) -> FloatArray:
    """Estimated seconds after over before, shape (2, layers), forwards and backwards; else of the tokens."""
    if device.laws is None:
        return np.full((2, len(before.layers)), tokens)
    costs = (ComponentCosts(replace(component, times=()), device) for component in (before, after))
    old, new = (np.array([cost.forward_s(batch), cost.backward_s(batch)]) for cost in costs)
    return np.asarray(np.divide(new, old, out=np.full(old.shape, tokens), where=old > 0))
