"""Files of a model folder: rows of its tables by component, and from these its components; skips, reads, anchors."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isclose
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from profiles.architectures.components import (
    TASKS,
    Anchor,
    Component,
    Exchange,
    Layer,
    MeasuredTime,
    Read,
    Skip,
)
from profiles.architectures.kernels import IMAGE, SHAPE, Kernel, class_flop
from profiles.errors import InputError
from profiles.files import Row, Table, path_kind, read_rows
from profiles.units import GFLOP, MB

T = TypeVar("T")
LAYER_COLUMNS: Final = (
    *("component", "index", "block", "name", "parameters", "backward", "conv_gflop", "matmul_gflop"),
    *("attention_gflop", "moved_MB", "kernels", "output_MB", "saved_MB"),
)
EXCHANGE_COLUMNS: Final = ("component", "index", "kind", "elements", "heads")
KERNELS: Final = "kernels.csv"
HALF_KERNELS: Final = "kernels_half.csv"
"""Files of kernels, in the model's own precision and in half precision, in which a float32 model samples."""
KERNEL_SIZES: Final = ("read_MB", "written_MB", "weight_MB")
KERNEL_COLUMNS: Final = ("component", "index", "kernel", "count", *SHAPE, *IMAGE, *KERNEL_SIZES)
ADAPTED: Final = "adapted.csv"
"""File of the bytes that layers keep for their backward where only adapters are trained."""
ADAPTED_COLUMNS: Final = ("component", "index", "saved_MB")
TIME_COLUMNS: Final = ("component", "index", "batch_size", "forward_ms", "backward_ms")
LAYERS_NAMED: Final = re.compile(r"(\d{1,6})(?:-(\d{1,6}))?", re.ASCII)
FLOP_TOLERANCE: Final = 1e-6
"""Largest relative difference between the FLOP of a layer, which a file may round, and of its kernels."""


ByComponent = dict[str, list[Row]]


class Tables(NamedTuple):
    """Rows by component: of three files; of kernels, by file; of times, by device."""

    layers: ByComponent
    exchanges: ByComponent
    adapted: ByComponent
    kernels: dict[str, ByComponent]
    times: dict[str, ByComponent]


def read_component(head: Table, tables: Tables, skips: list[Skip], reads: list[Read]) -> Component:
    """A component from its table of ``model.toml`` and its rows of the other files."""
    name = head.text("name")
    rows = tables.layers[name]
    if not rows:
        raise head.fail("name", "has no row in layers.csv")
    trainable, tasks = head.flag("trainable"), head.texts("tasks", TASKS)
    if not tasks or (trainable and set(tasks) != set(TASKS)):
        raise head.fail("tasks", "must name some; a trainable component exists for every task")
    layers = _with_adapted(_read_layers(rows, trainable), tables.adapted[name])
    launched = {
        file: _read_kernels(head.path.parent / file, name, rows[name], layers)
        for file, rows in tables.kernels.items()
    }
    component = head.made(
        Component,
        inputs=head.texts("inputs", ()),
        image_tokens=1,
        text_tokens=0,
        carried_bytes=0.0,
        self_conditioning=0.0,
        layers=layers,
        skips=tuple(sorted(skips, key=lambda skip: (skip.source, skip.target))),
        exchanges=_read_exchanges(tables.exchanges[name], len(rows)),
        times=tuple(
            (device, read_layer_times(layers, times[name])) for device, times in sorted(tables.times.items())
        ),
        reads=tuple(sorted(reads, key=lambda read: (read.source, read.layer))),
        tasks=tuple(sorted(tasks, key=(*TASKS, *tasks).index)),
        kernels=launched.get(KERNELS, ()),
        half_kernels=launched.get(HALF_KERNELS, launched.get(KERNELS, ())),
    )
    head.finish()
    return component


def _read_layers(rows: list[Row], trainable: bool) -> tuple[Layer, ...]:
    for index, row in enumerate(rows):
        if row.integer("index") != index:
            raise row.fail("index", f"must be {index}: each component counts its layers from 0 in order")
    layers = tuple(row.made(Layer) for row in rows)
    if trainable and all(layer.backward != "full" for layer in layers):
        raise rows[0].fail("backward", "must be full in at least one layer of a trainable component")
    return layers


def _with_adapted(layers: tuple[Layer, ...], rows: Sequence[Row]) -> tuple[Layer, ...]:
    """The layers, with their ``adapted_share`` from the rows of ``adapted.csv``."""
    adapted, seen = list(layers), set[int]()
    for row in rows:
        for index in _layer_indices(row, len(layers)):
            if index in seen:
                raise row.fail("index", f"stands twice: layer {index} of {row.text('component')}")
            seen.add(index)
            saved, kept = layers[index].saved_bytes, row.number("saved_MB") * MB
            adapted[index] = replace(layers[index], adapted_share=kept / saved if saved else 1.0)
    return tuple(adapted)


def _read_exchanges(rows: list[Row], num_layers: int) -> tuple[Exchange, ...]:
    exchanges = (row.made(Exchange, layer=_layer_index(row, num_layers)) for row in rows)
    return tuple(sorted(exchanges, key=lambda exchange: exchange.layer))


def _read_kernels(
    path: Path, component: str, rows: Sequence[Row], layers: Sequence[Layer]
) -> tuple[tuple[Kernel, ...], ...]:
    """Kernels of each layer of a component, which must do the layer's work."""
    by_layer: list[list[Kernel]] = [[] for _ in layers]
    indices: dict[str, range] = {}
    known: dict[tuple[str, ...], Kernel] = {}  # most layers of a model are alike
    for row in rows:
        index, *shape = row.cells(KERNEL_COLUMNS[1:])
        if index not in indices:
            indices[index] = _layer_indices(row, len(layers))
        if (same := tuple(shape)) not in known:
            known[same] = row.made(Kernel, kind=row.text("kernel"))
        for number in indices[index]:
            by_layer[number].append(known[same])
    for number, (layer, kernels) in enumerate(zip(layers, by_layer, strict=True)):
        for key, flop in class_flop(kernels).items():
            whole = getattr(layer, key)
            if not isclose(flop, whole, rel_tol=FLOP_TOLERANCE):
                name, rule = key.replace("flop", "gflop"), f"must be the {whole / GFLOP:g} of layers.csv"
                place = f"layer {number} of {component}"
                raise InputError(f"{path}: {name} of {place} is {flop / GFLOP:g}, {rule}")
    return tuple(map(tuple, by_layer))


def read_layer_times(layers: Sequence[Layer], rows: Sequence[Row]) -> tuple[MeasuredTime, ...]:
    """Return the measured times of a component's layers."""
    times: dict[tuple[int, int], MeasuredTime] = {}
    for row in rows:
        time = row.made(MeasuredTime, layer=_layer_index(row, len(layers)))
        key = (time.layer, time.batch_size)
        if key in times:
            raise row.fail("batch_size", f"stands twice for layer {time.layer} of {row.text('component')}")
        times[key] = time
    return tuple(times[key] for key in sorted(times))


def _layer_indices(row: Row, num_layers: int) -> range:
    """The layers that a row names: one, or several alike, such as 1-39."""
    match = LAYERS_NAMED.fullmatch(row.text("index"))
    named = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    last = named[-1] if named else row.integer("index")
    if last >= num_layers:
        raise row.fail("index", f"must be below {num_layers}, the layers of {row.text('component')}")
    return named or range(last, last + 1)


def _layer_index(row: Row, num_layers: int) -> int:
    row.integer("index")
    return _layer_indices(row, num_layers)[0]


ANCHOR_COLUMNS: Final = ("device", "height", "width", "batch", "steps", "latency_s", "source")
DTYPES: Final = ("float16", "bfloat16", "float32")


def read_tables(table: Table, names: list[str]) -> Tables:
    """The tables beside a model file whose components have these names."""
    folder = table.path.parent

    def of(file: str, columns: Sequence[str], *, optional: bool = False) -> ByComponent:
        """Rows of a file by the component they are of."""
        grouped: ByComponent = {name: [] for name in names}
        absent = optional and path_kind(folder / file) == "nothing"
        for row in () if absent else read_rows(folder / file, columns):
            grouped[row.choice("component", names)].append(row)
        return grouped

    if path_kind(times := folder / "times") == "file":
        raise InputError(f"{times}: is not a folder; it holds one <device>.csv per device")
    return Tables(
        layers=of("layers.csv", LAYER_COLUMNS),
        exchanges=of("exchanges.csv", EXCHANGE_COLUMNS, optional=True),
        adapted=of(ADAPTED, ADAPTED_COLUMNS, optional=True),
        kernels={file: of(file, KERNEL_COLUMNS) for file in _kernel_files(table)},
        times={path.stem: of(f"times/{path.name}", TIME_COLUMNS) for path in sorted(times.glob("*.csv"))},
    )


def _kernel_files(table: Table) -> list[str]:
    """The files of kernels in a folder: none, or those of every precision that the model runs in."""
    folder, dtype = table.path.parent, table.choice("dtype", DTYPES)
    there = [file for file in (KERNELS, HALF_KERNELS) if path_kind(folder / file) != "nothing"]
    if HALF_KERNELS in there and dtype != "float32":
        raise InputError(f"{folder / HALF_KERNELS}: must be left out: of {dtype}, {KERNELS} says the same")
    if len(there) == 1 and dtype == "float32":
        (missing,) = {KERNELS, HALF_KERNELS} - set(there)
        raise InputError(
            f"{folder / missing}: no such file, must stand beside {there[0]} as dtype is {dtype}"
        )
    return there


def read_anchors(path: Path) -> tuple[Anchor, ...]:
    """The anchors of a model; none where the file does not exist."""
    if path_kind(path) == "nothing":
        return ()
    return tuple(row.made(Anchor) for row in read_rows(path, ANCHOR_COLUMNS))


def read_entries(table: Table, key: str, names: list[str], made: Callable[[Table], T]) -> dict[str, list[T]]:
    """The entries of an array of tables, by the component that they are of."""
    entries: dict[str, list[T]] = {name: [] for name in names}
    for entry in table.tables(key):
        entries[entry.choice("component", names)].append(made(entry))
        entry.finish()
    return entries


def read_of(entry: Table) -> Read:
    """A table of ``reads``."""
    return entry.made(Read, source=entry.text("input"), size_bytes=entry.number("MB") * MB)
