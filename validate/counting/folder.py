"""Writes what was counted as a model folder: ``model.toml``, ``layers.csv`` and, for sampling, ``exchanges.csv``."""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from profiles.models import EXCHANGE_COLUMNS, LAYER_COLUMNS, TASKS
from validate.counting.component import ComponentCount, ModelCount
from validate.writing import csv_text, write_files


def write_folder(folder: Path, name: str, model: ModelCount) -> None:
    """Write a model's files, each number exact to the FLOP and the byte.

    Raises:
        InputError: the folder cannot be written.
    """
    write_files(folder, folder_texts(name, model))


def folder_texts(name: str, model: ModelCount) -> dict[Path, str]:
    """The files of a model folder, by their name."""
    texts = {Path("model.toml"): model_text(name, model), Path("layers.csv"): layers_text(model)}
    if any(component.exchanges for component in model.components):
        texts[Path("exchanges.csv")] = exchanges_text(model)
    return texts


def layers_text(model: ModelCount) -> str:
    """The contents of ``layers.csv``."""
    return csv_text(LAYER_COLUMNS, (row for component in model.components for row in _rows(component)))


def exchanges_text(model: ModelCount) -> str:
    """The contents of ``exchanges.csv``."""
    found = ((component.spec.name, e) for component in model.components for e in component.exchanges)
    return csv_text(EXCHANGE_COLUMNS, ([name, e.layer, e.kind, e.elements, e.heads] for name, e in found))


def model_text(name: str, model: ModelCount) -> str:
    """The contents of ``model.toml``."""
    architecture, components = model.architecture, model.components
    head = {"name": name, "title": architecture.title, "source": _source(model), "dtype": architecture.dtype}
    if architecture.guidance != "batch":
        head["guidance"] = architecture.guidance
    lines = [*_pairs(head), *_table("[reference]", {"height": model.height, "width": model.width})]
    for count in components:
        lines += _table("[[components]]", _component(count))
    for count in components:
        for source, target in count.skips:
            skip = {"component": count.spec.name, "source": source, "target": target}
            lines += _table("[[skips]]", skip)
    for count in components:
        for read, layer, size in count.reads:
            values = {"component": count.spec.name, "input": read, "layer": layer, "MB": _scaled(size, 6)}
            lines += _table("[[reads]]", values)
    return "\n".join(lines) + "\n"


def _rows(count: ComponentCount) -> Iterator[Sequence[object]]:
    for index, (layer, work) in enumerate(zip(count.layers, count.work, strict=True)):
        flop = (work.conv_flop, work.matmul_flop, work.attention_flop)
        yield [
            *(count.spec.name, index, layer.block, layer.name, work.parameters, work.backward),
            *(_scaled(number, 9) for number in flop),
            *(_scaled(work.moved_bytes, 6), work.kernels),
            *(_scaled(number, 6) for number in (work.output_bytes, work.saved_bytes)),
        ]


def _component(count: ComponentCount) -> dict[str, object]:
    spec = count.spec
    values: dict[str, object] = {"name": spec.name, "trainable": spec.trainable, "inputs": spec.inputs}
    if spec.tasks != TASKS:
        values["tasks"] = spec.tasks
    values |= {"image_tokens": count.image_tokens, "text_tokens": spec.text_tokens}
    if spec.frames > 1:
        values["frames"] = spec.frames
    if 0 < count.latent_bytes < count.work[-1].output_bytes:  # the prediction holds the variance too
        values["latent_MB"] = _scaled(count.latent_bytes, 6)
    if count.carried:
        values["carried_MB"] = Exact(f"{_scaled(count.carried_bytes, 6)}  # {', '.join(count.carried)}")
    if spec.self_conditioning:
        values["self_conditioning"] = spec.self_conditioning
    return values


def _table(header: str, values: Mapping[str, object]) -> list[str]:
    return ["", header, *_pairs(values)]


def _pairs(values: Mapping[str, object]) -> Iterator[str]:
    """Yield lines of TOML, which writes values as JSON does."""
    for key, value in values.items():
        yield f"{key} = {value if isinstance(value, Exact) else json.dumps(value)}"


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


class Exact(str):
    """A number as it is to be written."""


def _scaled(number: int, digits: int) -> Exact:
    """The number / 10**digits, exactly."""
    whole, rest = divmod(number, 10**digits)
    return Exact(f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip("."))
