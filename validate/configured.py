"""Configured architectures: any class of diffusers or transformers, from its ``config.json`` into a model folder.

Layers are the blocks that the structure of the module shows, in the order in which one pass runs them; what travels
with the hidden state is what later blocks read. The count itself is that of every shipped model, so its totals are
torch's own, which it asserts.
"""

import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console

from profiles.errors import InputError
from validate.classes import AUTOENCODER, BACKBONE, IMAGE, TEXT, Found, find_class, first_line
from validate.config_files import Asked, ConfigFile
from validate.count import ComponentCount, ModelCount, count_component
from validate.folder import write_folder
from validate.parts import Part, Size, halves_of, others, own_size, part_of
from validate.report import table
from validate.specs import Architecture, ComponentSpec

TEXTS: Final = ("encoder_hidden_states", "cap_feats", "text_bth", "clip_text", "encoder_hidden_states_t5")
"""Arguments of a backbone that hold a prompt."""


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
        size = own_size(main, asked)
        plain = [one for one in found if one is main or one.role != AUTOENCODER]
        parts = [part_of(one, main, found, size, asked) for one in [*others(plain, main), main]]
        counted = [_counted(part, size, asked.dtype) for part in parts]
        halves = [half for one in found if one not in plain for half in halves_of(one, main, found, size)]
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


def _by_task(
    halves: Sequence[tuple[Found, ComponentSpec]],
) -> tuple[list[tuple[Found, ComponentSpec]], list[tuple[Found, ComponentSpec]]]:
    """Return what training needs, which comes before the backbone, and what sampling alone needs, behind it."""
    first = [half for half in halves if "train" in half[1].tasks]
    return first, [half for half in halves if half not in first]


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
        found = count_component(spec, size.height, size.width, dtype)
    except ValueError:  # an output of several streams that cannot be told apart
        found = None
    if found is not None and (not spec.sums or any(one.kind == "reduce" for one in found.exchanges)):
        return found
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
        if part.flow.spread:
            remarks.append(f"{part.spec.name}: tokens spread evenly over the experts")
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
    return part.tokens if part.found.role == TEXT or any(name in sample for name in TEXTS) else 0
