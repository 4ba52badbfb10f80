"""Parts: components of a configured model before they are counted, by their samples and what one pass showed."""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn

from profiles.errors import InputError
from validate.classes import AUTOENCODER, BACKBONE, IMAGE, TEXT, Found, first_line
from validate.config_files import Asked
from validate.count import DTYPES, build, cast
from validate.dataflow import Flow, RunTwiceError, flow_of
from validate.decoders import LatentDecoder
from validate.encoders import LatentEncoder
from validate.layering import LayerSpec, decoder_layers, vae_layers
from validate.samples import prompts_of, samples_of, shapes, without_rule
from validate.sizes import Request, convolves_frames, framed, frames_of, prompt_of, size_of, text_of
from validate.specs import ComponentSpec, image, tensor
from validate.units import Unit, coarser, sums_of, units_of

NAMES: Final = {BACKBONE: "transformer", AUTOENCODER: "vae", TEXT: "text_encoder", IMAGE: "image_encoder"}


@dataclass(frozen=True, slots=True)
class Size:
    """One sample of a model: pixels, latent frames, pixels per latent pixel, and whether it is a video."""

    height: int
    width: int
    frames: int = 1
    scale: int = 1
    videos: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One component before it is counted: its specification, what one pass showed, and tokens of its prompt."""

    found: Found
    spec: ComponentSpec
    flow: Flow
    tokens: int


def others(found: Sequence[Found], main: Found) -> list[Found]:
    """Return all but the main one."""
    return [one for one in found if one is not main]


def own_size(main: Found, asked: Asked) -> Size:
    """Return the size of a sample of a class, as its configuration says or as asked.

    Raises:
        InputError: nobody says it.
    """
    if main.role == TEXT:
        return Size(asked.height or 1, asked.width or 1)
    if main.role == IMAGE:
        side = main.config.get("image_size")
        if not isinstance(side, int):
            raise main.file.fail("image_size", f"must be a positive integer for {main.kind.__name__}")
        return Size(side, side)
    height, width, scale = size_of(main.file, main.kind, main.config, asked)
    videos = _takes_videos(main)
    return Size(height, width, frames_of(main.file, main.kind, main.config, asked, videos), scale, videos)


def _takes_videos(found: Found) -> bool:
    """Return whether a class takes videos: an autoencoder by its layers, since its name need not tell."""
    return framed(found.kind) or (
        found.role == AUTOENCODER and convolves_frames(_built(found, next(iter(DTYPES))))
    )


def part_of(found: Found, main: Found, every: Sequence[Found], size: Size, asked: Asked) -> Part:
    """Return one component: its sample, its layers and what they carry.

    Raises:
        InputError: the class refuses its configuration or every sample, or has no layers.
    """
    module = _built(found, asked.dtype)
    tokens, patch, token_pixels, samples = _samples(found, main, size, asked)
    units = units_of(module, "layer" if found.role in (TEXT, IMAGE) else "block")
    sample, flow = _first_flow(found, module, units, samples, asked.dtype)
    frames = max(size.frames // patch, 1) if found.role in (BACKBONE, AUTOENCODER) else 1
    image_tokens = frames * (size.height * size.width // token_pixels) if token_pixels else 0
    joint = max(flow.attended - image_tokens, 0) if found.role == BACKBONE else 0
    spec = ComponentSpec(
        name_of(found, every),
        _touching(found, flow),
        lambda height, width: sample,
        _layers(flow),
        token_pixels=token_pixels,
        text_tokens=tokens if found.role == TEXT else joint,
        trainable=found is main,
        inputs=_inputs(found, main, every),
        sums=sums_of(module, units) if found.role == BACKBONE else "",
        frames=frames,
    )
    return Part(found, spec, flow, tokens)


def _samples(
    found: Found, main: Found, size: Size, asked: Asked
) -> tuple[int, int, int, Iterable[dict[str, Any]]]:
    """Return tokens of text, frames of a token, pixels of a token, and what to call a class with."""
    if found.role == TEXT:
        tokens = prompt_of(found.config, asked)
        if found is not main:
            tokens = min(prompt_of(found.config, Asked()), text_of(main.kind, main.config, asked))
        return tokens, 1, 0, prompts_of(tokens)
    request = _request(found, main, size, asked)
    token_pixels = 0 if found.role == IMAGE else request.token_pixels
    return request.text_tokens, request.patch[0], token_pixels, samples_of(request)


def _request(found: Found, main: Found, size: Size, asked: Asked) -> Request:
    """Return the size of a sample of a class; an encoder of images takes those of its own size."""
    kind, config = found.kind, found.config
    tokens = text_of(kind, config, asked)
    own = size if found is main else own_size(found, asked)
    return Request(
        found.file, found.kind, found.config, own.height, own.width, own.frames, tokens, own.scale, own.videos
    )


def name_of(found: Found, every: Sequence[Found]) -> str:
    """Return the name of a component: of its kind, numbered where there are several."""
    alike = [one for one in every if _plain_name(one) == _plain_name(found)]
    number = next(number for number, one in enumerate(alike, start=1) if one is found)
    return _plain_name(found) if number == 1 else f"{_plain_name(found)}_{number}"


def _plain_name(found: Found) -> str:
    return "unet" if "UNet" in found.kind.__name__ else NAMES[found.role]


def _inputs(found: Found, main: Found, every: Sequence[Found]) -> tuple[str, ...]:
    names = ((one, name_of(one, every)) for one in others(every, main)) if found is main else ()
    return tuple(f"{name}_encoder" if one.role == AUTOENCODER else name for one, name in names)


def halves_of(
    found: Found, main: Found, every: Sequence[Found], size: Size
) -> Iterator[tuple[Found, ComponentSpec]]:
    """Yield the encoder, for training, and the decoder, for sampling, of an autoencoder beside a backbone.

    Raises:
        InputError: it is no AutoencoderKL, or not of the backbone's latents.
    """
    name, levels = found.kind.__name__, len(found.config.get("block_out_channels", ()))
    if name != "AutoencoderKL":
        raise InputError(f"{found.file.path}: {name} beside {main.kind.__name__} must be an AutoencoderKL")
    if 2 ** (levels - 1) != size.scale:
        rule = f"makes latents of 1/{2 ** (levels - 1)}, must be 1/{size.scale} as {main.kind.__name__} takes"
        raise found.file.fail("block_out_channels", rule)
    own, pixels = name_of(found, every), size.scale**2
    yield (
        found,
        ComponentSpec(
            f"{own}_encoder", lambda: LatentEncoder(found.build()), image, vae_layers,
            token_pixels=pixels, tasks=("train",),
        ),
    )  # fmt: skip
    channels = found.config["latent_channels"]
    yield (
        found,
        ComponentSpec(
            f"{own}_decoder", lambda: LatentDecoder(found.build()),
            lambda height, width: {"latent": tensor(1, channels, height // size.scale, width // size.scale)},
            decoder_layers, token_pixels=pixels, inputs=(name_of(main, every),), tasks=("sample",),
        ),
    )  # fmt: skip


def _built(found: Found, dtype: str) -> nn.Module:
    """Build a module on the meta device.

    Raises:
        InputError: the class refuses the configuration.
    """
    spec = ComponentSpec(found.kind.__name__, found.build, lambda h, w: {}, lambda module: [])
    try:
        return build(spec, DTYPES[dtype])
    except Exception as error:  # whatever the class says to its values
        where = f"{found.file.path}: {found.kind.__name__}"
        raise InputError(f"{where} cannot be built from it: {first_line(error)}") from None


def _first_flow(
    found: Found, module: nn.Module, units: Sequence[Unit], samples: Iterable[dict[str, Any]], dtype: str
) -> tuple[dict[str, Any], Flow]:
    """Return the first sample that a module takes, and what its pass shows.

    Raises:
        InputError: the class refuses all of them, or has no list of blocks.
    """
    where = f"{found.file.path}: {found.kind.__name__}"
    refused = ""
    for sample in samples:
        try:
            flow = _flow(module, units, cast(sample, DTYPES[dtype]))
        except Exception as error:  # whatever the class says to its arguments
            refused = refused or f"{where} refuses the sample ({shapes(sample)}): {_complaint(error)}"
            continue
        if not flow.units:
            raise InputError(
                f"{where} has no list of blocks (nn.ModuleList) that one pass runs, must have one"
            )
        return sample, flow
    raise InputError(refused + _lacking(found))


def _lacking(found: Found) -> str:
    """Return what a class may want that nobody gives it."""
    if found.role in (TEXT, IMAGE):
        images = "pixel_values" in inspect.signature(found.kind.forward).parameters
        return "; it takes images too, name its text model alone" if images and found.role == TEXT else ""
    names = without_rule(found.kind) if found.role == BACKBONE else []
    return f"; no rule makes its {', '.join(names)}" if names else ""


def _complaint(error: Exception) -> str:
    """Return what a class says to its arguments."""
    if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
        return f"it needs a library that is not installed, for {error.name}"
    return first_line(error)


def _flow(module: nn.Module, units: Sequence[Unit], sample: dict[str, Any]) -> Flow:
    """Run one pass, and again until its units can be cut apart.

    A unit that runs several times is one with what holds it, and with the next where no cut can be after it.
    """
    while True:
        try:
            flow = flow_of(module, units, sample)
        except RunTwiceError as error:
            units = coarser(module, units, error.unit)
            continue
        if not flow.uncut:
            return flow
        units = [unit for unit in flow.units if unit not in flow.uncut]


def _touching(found: Found, flow: Flow) -> Any:  # noqa: ANN401  a function to a module
    """Return how to build a module whose unread parameters count in its first layer: a view of each reads it."""

    def build() -> nn.Module:
        module = found.build()
        unread = [module.get_parameter(name) for name in flow.unread]

        def touch(*_: object) -> None:
            for parameter in unread:
                parameter.view(parameter.shape)

        module.register_forward_pre_hook(touch)
        return module

    return build


def _layers(flow: Flow) -> Any:  # noqa: ANN401  a function from a module to its layers
    """Return how to list the layers of a module as one pass showed them."""

    def layers(module: nn.Module) -> list[LayerSpec]:
        found, block = [], -1
        paths = [unit.path for unit in flow.units[:-1]] + [flow.last]
        for unit, path, streams in zip(flow.units, paths, flow.streams, strict=True):
            block += unit.opens or block < 0
            found.append(LayerSpec(unit.name, block, module.get_submodule(path), streams))
        return found

    return layers
