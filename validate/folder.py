"""Writes what was counted as a model folder: ``model.toml``, ``layers.csv`` and, for sampling, ``exchanges.csv``."""

import csv
import json
from collections.abc import Iterator
from importlib.metadata import version
from io import StringIO
from pathlib import Path

from profiles.models import EXCHANGE_COLUMNS, LAYER_COLUMNS, TASKS
from validate.count import ComponentCount, ModelCount
from validate.writing import write_files


def write_folder(folder: Path, name: str, model: ModelCount) -> None:
    """Write a model's files, each number exact to the FLOP and the byte.

    Raises:
        InputError: the folder cannot be written.
    """
    write_files(folder, folder_texts(name, model))


def folder_texts(name: str, model: ModelCount) -> dict[Path, str]:
    """Return the files of a model folder, by their name."""
    texts = {Path("model.toml"): model_text(name, model), Path("layers.csv"): layers_text(model)}
    if any(component.exchanges for component in model.components):
        texts[Path("exchanges.csv")] = exchanges_text(model)
    return texts


def layers_text(model: ModelCount) -> str:
    """Return the contents of ``layers.csv``."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LAYER_COLUMNS)
    for component in model.components:
        writer.writerows(_rows(component))
    return text.getvalue()


def exchanges_text(model: ModelCount) -> str:
    """Return the contents of ``exchanges.csv``."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(EXCHANGE_COLUMNS)
    for component in model.components:
        name = component.spec.name
        writer.writerows((name, e.layer, e.kind, e.elements, e.heads) for e in component.exchanges)
    return text.getvalue()


def model_text(name: str, model: ModelCount) -> str:
    """Return the contents of ``model.toml``."""
    lines = [
        f"name = {_quoted(name)}",
        f"title = {_quoted(model.architecture.title)}",
        f"source = {_quoted(_source(model))}",
        f"dtype = {_quoted(model.architecture.dtype)}",
        *_guidance(model),
        "",
        "[reference]",
        f"height = {model.height}",
        f"width = {model.width}",
    ]
    lines += [line for component in model.components for line in _component(component)]
    lines += [line for component in model.components for line in _skips(component)]
    lines += [line for component in model.components for line in _reads(component)]
    return "\n".join(lines) + "\n"


def _guidance(model: ModelCount) -> Iterator[str]:
    if model.architecture.guidance != "batch":
        yield f"guidance = {_quoted(model.architecture.guidance)}"


def _rows(count: ComponentCount) -> Iterator[list[str | int]]:
    for index, (layer, work) in enumerate(zip(count.layers, count.work, strict=True)):
        yield [
            count.spec.name,
            index,
            layer.block,
            layer.name,
            work.parameters,
            work.backward,
            _scaled(work.conv_flop, 9),
            _scaled(work.matmul_flop, 9),
            _scaled(work.attention_flop, 9),
            _scaled(work.moved_bytes, 6),
            work.kernels,
            _scaled(work.output_bytes, 6),
            _scaled(work.saved_bytes, 6),
        ]


def _component(count: ComponentCount) -> Iterator[str]:
    spec = count.spec
    yield ""
    yield "[[components]]"
    yield f"name = {_quoted(spec.name)}"
    yield f"trainable = {_quoted(spec.trainable)}"
    yield f"inputs = {_quoted(list(spec.inputs))}"
    if spec.tasks != TASKS:
        yield f"tasks = {_quoted(list(spec.tasks))}"
    yield f"image_tokens = {count.image_tokens}"
    yield f"text_tokens = {spec.text_tokens}"
    if spec.frames > 1:
        yield f"frames = {spec.frames}"
    if 0 < count.latent_bytes < count.work[-1].output_bytes:  # the prediction holds the variance too
        yield f"latent_MB = {_scaled(count.latent_bytes, 6)}"
    if spec.carried:
        yield f"carried_MB = {_scaled(count.carried_bytes, 6)}  # {', '.join(spec.carried)}"
    if spec.self_conditioning:
        yield f"self_conditioning = {spec.self_conditioning}"


def _skips(count: ComponentCount) -> Iterator[str]:
    for source, target in count.skips:
        yield from ("", "[[skips]]", f"component = {_quoted(count.spec.name)}")
        yield from (f"source = {source}", f"target = {target}")


def _reads(count: ComponentCount) -> Iterator[str]:
    for name, layer, size in count.reads:
        yield from ("", "[[reads]]", f"component = {_quoted(count.spec.name)}", f"input = {_quoted(name)}")
        yield from (f"layer = {layer}", f"MB = {_scaled(size, 6)}")


def _source(model: ModelCount) -> str:
    tools = [f"{tool} {version(tool).split('+')[0]}" for tool in ("torch", "diffusers", "transformers")]
    architecture = model.architecture
    parts = [
        f"counted by python -m validate count at {model.height}x{model.width}, batch 1, {architecture.dtype}",
        "one forward pass on the meta device, its operators tallied by layer (FLOP by the formulas of "
        f"torch's FlopCounterMode, saved bytes by saved_tensors_hooks), {', '.join(tools)}",
        f"configurations as published with {architecture.configs}" if architecture.configs else "",
        architecture.remark,
    ]
    return "; ".join(part for part in parts if part)


def _quoted(value: str | bool | list[str]) -> str:
    """Return a value as TOML, which writes these as JSON does."""
    return json.dumps(value)


def _scaled(number: int, digits: int) -> str:
    """Return number / 10**digits, exactly."""
    whole, rest = divmod(number, 10**digits)
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".")
