"""Files and tables of a count.

A model folder has ``model.toml``, ``layers.csv``, ``kernels.csv`` (in float32 ``kernels_half.csv`` too) and, for
sampling, ``exchanges.csv``; the work of every observed (model, resolution) is a table of its own, so that a fit needs
no counting.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeVar

from profiles.architectures.component_files import (
    ADAPTED,
    ADAPTED_COLUMNS,
    EXCHANGE_COLUMNS,
    HALF_KERNELS,
    KERNEL_COLUMNS,
    KERNELS,
    LAYER_COLUMNS,
)
from profiles.architectures.kernels import IMAGE, SHAPE
from profiles.errors import InputError
from profiles.measuring.counting.component import ComponentCount, ModelCount, adapted_bytes, count_model
from profiles.measuring.counting.configured import architecture, count_configured, slug
from profiles.measuring.counting.kernels import ModelKernels, kernels_of
from profiles.measuring.counting.specs import (
    OWN,
    Architecture,
    ComponentSpec,
    asked_of,
    check_alone,
    read_config,
)
from profiles.measuring.counting.trace import blamed
from profiles.measuring.writing import Exact, csv_text, show, table, toml_text
from profiles.outputs import check_new, write_files

T = TypeVar("T")
COLUMNS: Final = (
    "component", "layers", "blocks", "skips", "M parameters", "GMAC", "conv", "matmul", "self-attention",
    "GB moved", "kernels", "GB saved",
)  # fmt: skip


def folder_texts(name: str, model: ModelCount) -> dict[Path, str]:
    """The files of a model folder, by their name."""
    layers = (row for component in model.components for row in _rows(component))
    texts = {
        Path("model.toml"): _model_text(name, model),
        Path("layers.csv"): csv_text(LAYER_COLUMNS, layers),
    }
    exchanges = [
        [component.spec.name, one.layer, one.kind, one.elements, one.heads]
        for component in model.components
        for one in component.exchanges
    ]
    if exchanges:
        texts[Path("exchanges.csv")] = csv_text(EXCHANGE_COLUMNS, exchanges)
    return texts


def kernel_texts(model: ModelCount) -> dict[Path, str]:
    """The files of a model folder about the kernels of its layers, and about what adapters keep, by their name."""
    dtype = model.architecture.dtype
    files = {KERNELS: dtype} | ({HALF_KERNELS: "float16"} if dtype == "float32" else {})
    texts = {Path(file): _kernels_text(model, kernels_of(model, dtype)) for file, dtype in files.items()}
    adapted = (
        [component.spec.name, index, _scaled(size, 6)]
        for component in model.components
        if component.spec.trainable
        for index, size in _alike(adapted_bytes(component))
    )
    return texts | {Path(ADAPTED): csv_text(ADAPTED_COLUMNS, adapted)}


def _kernels_text(model: ModelCount, kernels: ModelKernels) -> str:
    """The contents of ``kernels.csv`` or ``kernels_half.csv``."""
    rows: list[Sequence[object]] = []
    for component, layers in zip(model.components, kernels, strict=True):
        for index, kernel in ((index, kernel) for index, group in _alike(layers) for kernel in group):
            numbers = (getattr(kernel, key) for key in (*SHAPE, *IMAGE))
            sizes = (kernel.read_bytes, kernel.written_bytes, kernel.weight_bytes)
            scaled = (_scaled(int(size), 6) for size in sizes)
            rows.append([component.spec.name, index, kernel.kind, kernel.count, *numbers, *scaled])
    return csv_text(KERNEL_COLUMNS, rows)


def _alike(layers: Iterable[T]) -> Iterator[tuple[str, T]]:
    """Runs of equal entries of successive layers: the first and last layer as text, and the entry."""
    first = 0
    for entry, group in groupby(layers):
        end = first + len(list(group))
        yield str(first) if end == first + 1 else f"{first}-{end - 1}", entry
        first = end


def _model_text(name: str, model: ModelCount) -> str:
    """The contents of ``model.toml``."""
    architecture, components = model.architecture, model.components
    values: dict[str, object] = {"name": name, "title": architecture.title, "source": _source(model)}
    values |= {"dtype": architecture.dtype, **_unusual(architecture, "guidance", "predictions", "steps")}
    reference = {"height": model.height, "width": model.width, "multiple": architecture.granularity}
    reference |= _unusual(architecture, "largest", "frames", "frame_step", "sizes", "frame_chunk")
    values |= {"reference": reference, **_unusual(architecture, "training")}
    values["components"] = list(map(_component, components))
    named = [(count.spec.name, count) for count in components]
    values["skips"] = [
        {"component": name, "source": source, "target": target}
        for name, count in named
        for source, target in count.skips
    ]
    values["reads"] = [
        {"component": name, "input": read, "layer": layer, "MB": _scaled(size, 6)}
        for name, count in named
        for read, layer, size in count.reads
    ]
    return toml_text(values)


def _rows(count: ComponentCount) -> Iterator[Sequence[object]]:
    for index, (layer, work) in enumerate(zip(count.layers, count.work, strict=True)):
        flop = (work.conv_flop, work.matmul_flop, work.attention_flop)
        yield [
            count.spec.name, index, layer.block, layer.name, work.parameters, work.backward,
            *(_scaled(number, 9) for number in flop), _scaled(work.moved_bytes, 6), work.kernels,
            _scaled(work.output_bytes, 6), _scaled(work.saved_bytes, 6),
        ]  # fmt: skip


def _component(count: ComponentCount) -> dict[str, object]:
    spec = count.spec
    values: dict[str, object] = {"name": spec.name, "trainable": spec.trainable, "inputs": spec.inputs}
    values |= _unusual(spec, "tasks")
    values |= {"image_tokens": count.image_tokens, "text_tokens": count.text_tokens}
    values |= _unusual(spec, "frames")
    if spec.again:
        values["passes"] = 1 + len(spec.again)
    if 0 < count.latent_bytes < count.work[-1].output_bytes:  # the prediction holds the variance too
        values["latent_MB"] = _scaled(count.latent_bytes, 6)
    if count.carried:
        values["carried_MB"] = Exact(
            f"{_scaled(sum(count.carried.values()), 6)}  # {', '.join(count.carried)}"
        )
    return values | _unusual(spec, "experts", "cacheable", "gradients", "self_conditioning")


def _unusual(spec: Architecture | ComponentSpec, *names: str) -> dict[str, Any]:
    """The fields of these names whose values are not their defaults."""
    usual = {field.name: field.default for field in fields(spec)}
    values = ((name, getattr(spec, name)) for name in names)
    return {name: value for name, value in values if value not in (usual[name], {})}


def _source(model: ModelCount) -> str:
    tools = [f"{tool} {version(tool).split('+')[0]}" for tool in ("torch", "diffusers", "transformers")]
    architecture = model.architecture
    frames = f", {architecture.frames} frames" if architecture.frames > 1 else ""
    parts = [
        f"counted by sim measure count at {model.height}x{model.width}{frames}, batch 1, {architecture.dtype}",
        "one forward pass on the meta device, its operators tallied by layer (FLOP by the formulas of "
        f"torch's FlopCounterMode, saved bytes by saved_tensors_hooks), {', '.join(tools)}",
        f"configurations as published with {architecture.configs}" if architecture.configs else "",
        architecture.remark,
    ]
    return "; ".join(part for part in parts if part)


def _scaled(number: int, digits: int) -> Exact:
    """The number / 10**digits, exactly."""
    whole, rest = divmod(number, 10**digits)
    return Exact(f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip("."))


def run_count(options: argparse.Namespace) -> None:
    """Count a shipped architecture or the user's files, print the totals, and write the folder if one is named."""
    folder = options.output
    if folder is not None:
        check_new(folder / "model.toml")  # it may have been edited by hand
    if options.config is None:
        check_alone(options, OWN)
        name, counted = options.model, count_model(architecture(options.model), options.height, options.width)
    else:
        files = [read_config(path) for path in options.config]
        counted = count_configured(files, asked_of(options, options.dtype))
        title = options.name or counted.architecture.title
        name, counted = slug(title), replace(counted, architecture=replace(counted.architecture, title=title))
    if folder is not None:
        kernels: dict[Path, str] = {}
        try:
            with blamed(
                f"no {KERNELS}, for {counted.architecture.title} cannot be counted at another resolution"
            ):
                kernels = kernel_texts(counted)
        except InputError as error:
            if options.config is None:
                raise
            print(f"measure: {error}", file=sys.stderr)
        write_files(folder, folder_texts(name, counted) | kernels)
        print(f"measure: wrote {folder}", file=sys.stderr)
    title = f"{counted.architecture.title}, {counted.height}x{counted.width}, forward pass of one sample"
    show(160, table(title, COLUMNS, map(_totals, counted.components), left=("component",)))


def _totals(one: ComponentCount) -> list[str]:
    """Cells of one component; 1 MAC is 2 FLOP."""
    whole, blocks = one.total, {layer.block for layer in one.layers}
    flop = (whole.flop, whole.conv_flop, whole.matmul_flop, whole.attention_flop)
    counts = (len(one.work), len(blocks), len(one.skips))
    macs = (f"{number / 2e9:.1f}" for number in flop)
    moved = (f"{whole.moved_bytes / 1e9:.3f}", f"{whole.kernels}", f"{whole.saved_bytes / 1e9:.3f}")
    return [one.spec.name, *map(str, counts), f"{whole.parameters / 1e6:.1f}", *macs, *moved]
