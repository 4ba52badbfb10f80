"""Configured architectures: any class of diffusers or transformers, from its ``config.json`` into a model folder.

Layers are the blocks that the structure of the module shows, in the order in which one pass runs them; what travels
with the hidden state is what later blocks read. The count itself is that of every shipped model, so its totals are
torch's own, which it asserts.
"""

import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from torch import Tensor, nn

from profiles.errors import InputError
from validate.classes import AUTOENCODER, BACKBONE, IMAGE, TEXT, Found, find_class, first_line
from validate.config_files import Asked, ConfigFile
from validate.count import DTYPES, ComponentCount, ModelCount, _build, _cast, count_component
from validate.dataflow import Flow, RunTwiceError, flow_of
from validate.decoders import LatentDecoder
from validate.encoders import LatentEncoder
from validate.folder import write_folder
from validate.layering import LayerSpec, decoder_layers, vae_layers
from validate.report import table
from validate.samples import Request, frames_of, prompt_of, sample_of, size_of, text_of
from validate.specs import Architecture, ComponentSpec, image, prompt, tensor
from validate.units import sums_of, units_of

NAMES: Final = {BACKBONE: "transformer", AUTOENCODER: "vae", TEXT: "text_encoder", IMAGE: "image_encoder"}


@dataclass(frozen=True, slots=True)
class Size:
    """One sample of a model: pixels, latent frames, pixels per latent pixel."""

    height: int
    width: int
    frames: int = 1
    scale: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """One component before it is counted: its specification, and what one pass showed."""

    found: Found
    spec: ComponentSpec
    flow: Flow


def report_configured(
    files: Sequence[ConfigFile], asked: Asked, name: str | None, folder: Path | None
) -> None:
    """Count the architectures of files, print their totals and write them as a model folder if asked to.

    Args:
        files: their configurations.
        asked: what the command line asks for.
        name: of the model; by default that of the backbone's class.
        folder: where to write the model's files.

    Raises:
        InputError: a file, or what is asked for, breaks a rule.
    """
    name = _checked(name)
    counted = count_configured(files, asked)
    if folder is not None:
        write_folder(folder, name or slug(counted.architecture.title), counted)
        print(f"validate: wrote {folder}", file=sys.stderr)
    title = f"{counted.architecture.title}, {counted.height}x{counted.width}, forward pass of one sample"
    Console(width=160).print(table(title, counted.components))


def slug(title: str) -> str:
    """Return a title as a name: its letters and digits in lower case."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _checked(name: str | None) -> str | None:
    if name is not None and slug(name) != name:
        raise InputError(
            f"--name is '{name}', must be of small letters, digits and hyphens, such as '{slug(name)}'"
        )
    return name


def count_configured(files: Sequence[ConfigFile], asked: Asked) -> ModelCount:
    """Count the architectures of files: one backbone with its frozen encoders, or one encoder by itself.

    Raises:
        InputError: as above.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations in the libraries concern their callers' arguments
        found = [find_class(file) for file in files]
        main = _main(found)
        size = _size(main, asked)
        plain = [one for one in found if one is main or one.role != AUTOENCODER]
        parts = [_part(one, main, found, size, asked) for one in [*_others(plain, main), main]]
        counted = [_counted(part, size, asked.dtype) for part in parts]
        halves = [half for one in found if one not in plain for half in _halves(one, main, found, size)]
        first, last = ([_count(one, spec, size, asked.dtype) for one, spec in of] for of in _by_task(halves))
        components = (*first, *counted, *last)
    architecture = Architecture(
        title=main.kind.__name__,
        configs="",
        components=tuple(component.spec for component in components),
        height=size.height,
        width=size.width,
        granularity=size.scale,
        remark="; ".join(_remarks(parts, main, size)),
        dtype=asked.dtype,
        guidance="none" if main.config.get("guidance_embeds") else "batch",
    )
    return ModelCount(architecture, size.height, size.width, components)


def _main(found: Sequence[Found]) -> Found:
    """Return the backbone, or the only file."""
    backbones = [one for one in found if one.role == BACKBONE]
    if len(found) == 1:
        return found[0]
    if len(backbones) == 1:
        return backbones[0]
    names = ", ".join(one.kind.__name__ for one in found)
    raise InputError(f"--config names {names}: {len(backbones)} backbones of several files, must be 1")


def _others(found: Sequence[Found], main: Found) -> list[Found]:
    return [one for one in found if one is not main]


def _size(main: Found, asked: Asked) -> Size:
    if main.role == TEXT:
        return Size(asked.height or 1, asked.width or 1)
    if main.role == IMAGE:
        side = main.config.get("image_size")
        if not isinstance(side, int):
            raise main.file.fail("image_size", f"must be a positive integer for {main.kind.__name__}")
        return Size(side, side)
    height, width, scale = size_of(main.file, main.kind, main.config, asked)
    return Size(height, width, frames_of(main.file, main.kind, main.config, asked), scale)


def _part(found: Found, main: Found, every: Sequence[Found], size: Size, asked: Asked) -> Part:
    """Return one component: its sample, its layers and what they carry."""
    tokens = 0
    if found.role == TEXT:
        tokens = prompt_of(found.config, asked)
        if found is not main:
            tokens = min(prompt_of(found.config, Asked()), text_of(main.kind, main.config, asked))
        sample: dict[str, Any] = prompt(tokens, 0, 0)
        token_pixels, frames = 0, 1
    else:
        request = _request(found, main, size, asked)
        sample = sample_of(request)
        token_pixels = 0 if found.role == IMAGE else request.token_pixels
        frames = max(size.frames // request.patch[0], 1)
        tokens = request.text_tokens
    trained = found is main
    spec = ComponentSpec(
        _name(found, every),
        found.build,
        lambda height, width: sample,
        lambda module: [],
        token_pixels=token_pixels,
        trainable=trained,
        inputs=_inputs(found, main, every),
        frames=frames,
    )
    module = _built(found, asked.dtype)
    units = units_of(module, "layer" if found.role in (TEXT, IMAGE) else "block")
    flow = _flow(found, module, units, _cast(sample, DTYPES[asked.dtype]))
    image_tokens = frames * (size.height * size.width // token_pixels) if token_pixels else 0
    joint = found.role == TEXT or flow.attended == image_tokens + tokens
    spec = replace(
        spec,
        build=_touching(found, flow),
        layers=_layers(flow),
        text_tokens=tokens if joint else 0,
        sums=sums_of(module, flow.units) if found.role == BACKBONE else "",
    )
    return Part(found, spec, flow)


def _request(found: Found, main: Found, size: Size, asked: Asked) -> Request:
    """Return the size of a sample of a class; an encoder of images takes those of its own size."""
    tokens = text_of(found.kind, found.config, asked)
    own = size if found is main else _size(found, asked)
    return Request(found.file, found.kind, found.config, own.height, own.width, own.frames, tokens, own.scale)


def _name(found: Found, every: Sequence[Found]) -> str:
    alike = [one for one in every if _plain_name(one) == _plain_name(found)]
    number = next(number for number, one in enumerate(alike, start=1) if one is found)
    return _plain_name(found) if number == 1 else f"{_plain_name(found)}_{number}"


def _plain_name(found: Found) -> str:
    return "unet" if "UNet" in found.kind.__name__ else NAMES[found.role]


def _inputs(found: Found, main: Found, every: Sequence[Found]) -> tuple[str, ...]:
    names = ((one, _name(one, every)) for one in _others(every, main)) if found is main else ()
    return tuple(f"{name}_encoder" if one.role == AUTOENCODER else name for one, name in names)


def _halves(
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
    own, pixels = _name(found, every), size.scale**2
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
            decoder_layers, token_pixels=pixels, inputs=(_name(main, every),), tasks=("sample",),
        ),
    )  # fmt: skip


def _by_task(
    halves: Sequence[tuple[Found, ComponentSpec]],
) -> tuple[list[tuple[Found, ComponentSpec]], list[tuple[Found, ComponentSpec]]]:
    """Return what training needs, which comes before the backbone, and what sampling alone needs, behind it."""
    first = [half for half in halves if "train" in half[1].tasks]
    return first, [half for half in halves if half not in first]


def _built(found: Found, dtype: str) -> nn.Module:
    """Build a module on the meta device.

    Raises:
        InputError: the class refuses the configuration.
    """
    spec = ComponentSpec(found.kind.__name__, found.build, lambda h, w: {}, lambda module: [])
    try:
        return _build(spec, DTYPES[dtype])
    except Exception as error:  # whatever the class says to its values
        where = f"{found.file.path}: {found.kind.__name__}"
        raise InputError(f"{where} cannot be built from it: {first_line(error)}") from None


def _flow(found: Found, module: nn.Module, units: Sequence[Any], sample: dict[str, Any]) -> Flow:
    """Run one pass of a module.

    Raises:
        InputError: the class refuses the sample, has no list of blocks, or runs one twice.
    """
    where = f"{found.file.path}: {found.kind.__name__}"
    shapes = ", ".join(f"{name} {_shape(value)}" for name, value in sample.items())
    try:
        flow = flow_of(module, units, sample)
    except RunTwiceError as error:
        raise InputError(f"{where} runs {error} twice in one pass, must run each block once") from None
    except Exception as error:  # whatever the class says to its arguments
        raise InputError(f"{where} refuses the sample ({shapes}): {first_line(error)}") from None
    if not flow.units:
        raise InputError(f"{where} has no list of blocks (nn.ModuleList) that one pass runs, must have one")
    return flow


def _shape(value: object) -> str:
    return "x".join(map(str, value.shape)) if isinstance(value, Tensor) else type(value).__name__


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


def _counted(part: Part, size: Size, dtype: str) -> ComponentCount:
    """Count one component, with what its flow says that it carries."""
    counted = _count(part.found, part.spec, size, dtype)
    spec = replace(counted.spec, carried=part.flow.carried)
    return replace(counted, spec=spec, carried_bytes=part.flow.carried_bytes)


def _count(found: Found, spec: ComponentSpec, size: Size, dtype: str) -> ComponentCount:
    """Count one component; without its exchanges where its outputs do not tell image and text apart.

    Raises:
        InputError: an operator of the class cannot be counted.
    """
    try:
        return _with_exchanges(spec, size, dtype)
    except Exception as error:  # an operator with a shape that no formula knows
        where = f"{found.file.path}: {found.kind.__name__}"
        raise InputError(f"{where} cannot be counted: {first_line(error)}") from None


def _with_exchanges(spec: ComponentSpec, size: Size, dtype: str) -> ComponentCount:
    try:
        return count_component(spec, size.height, size.width, dtype)
    except ValueError:
        if not spec.sums:
            raise
        return count_component(replace(spec, sums=""), size.height, size.width, dtype)


def _remarks(parts: Sequence[Part], main: Found, size: Size) -> list[str]:
    files = ", ".join(f"{part.found.kind.__name__} of {part.found.file.path.name}" for part in parts)
    remarks = [f"configured by the user's own files: {files}"]
    if main.role not in (TEXT, IMAGE) and size.scale > 1:
        remarks.append(f"latents of 1/{size.scale} of the pixels")
    for part in parts:
        if part.spec.text_tokens or part.found.role == BACKBONE:
            tokens = text_length(part)
            remarks += [f"{part.spec.name}: prompts of {tokens} tokens"] if tokens else []
        if part.flow.unread:
            names = ", ".join(part.flow.unread[:3])
            remarks.append(
                f"{part.spec.name}: parameters that no pass reads count in its first layer ({names})"
            )
    if main.role != BACKBONE:
        remarks.append(f"{main.kind.__name__} stands alone, so it counts as trained")
    return remarks


def text_length(part: Part) -> int:
    """Return the tokens of a component's prompt; 0 where it takes none."""
    sample = part.spec.sample(0, 0)
    for name in ("encoder_hidden_states", "input_ids"):
        if name in sample:
            return int(sample[name].shape[1])
    return 0
