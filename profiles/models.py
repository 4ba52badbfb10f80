"""Models: their components, read from a model folder."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

from profiles.anchors import Anchor, read_anchors
from profiles.component_files import (
    BACKWARDS,
    EXCHANGE_COLUMNS,
    LAYER_COLUMNS,
    TASKS,
    TIME_COLUMNS,
    read_component,
)
from profiles.components import Component, Exchange, Layer, MeasuredTime, Read, Skip
from profiles.errors import InputError
from profiles.files import Row, Table, path_kind, read_rows
from profiles.units import MB

__all__ = [
    "BACKWARDS",
    "EXCHANGE_COLUMNS",
    "LAYER_COLUMNS",
    "TASKS",
    "Component",
    "Exchange",
    "Layer",
    "MeasuredTime",
    "Model",
    "Read",
    "Skip",
    "load_model",
    "model_names",
    "read_model",
]

MODELS: Final = Path(__file__).parent / "models"
GUIDANCES: Final = ("batch", "none")


@dataclass(frozen=True)
class Model:
    """A diffusion model: frozen components and one or several backbones, in the order of its file.

    ``guidance`` says whether it samples with classifier-free guidance (``batch``) or without (``none``), ``anchors``
    how long that took one GPU.
    """

    name: str
    title: str
    source: str
    dtype: str
    height: int
    width: int
    components: tuple[Component, ...]
    guidance: str = "batch"
    anchors: tuple[Anchor, ...] = ()

    @cached_property
    def backbones(self) -> tuple[int, ...]:
        """Indices of the trainable components."""
        return tuple(i for i, component in enumerate(self.components) if component.trainable)

    @cached_property
    def frozen(self) -> tuple[int, ...]:
        """Indices of the frozen components, inputs before the components that need them."""
        return tuple(i for i in self.order if not self.components[i].trainable)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Indices of all components in topological order."""
        numbers = {component.name: i for i, component in enumerate(self.components)}
        graph = {i: sorted(numbers[n] for n in c.inputs) for i, c in enumerate(self.components)}
        return tuple(TopologicalSorter(graph).static_order())

    def inputs_of(self, component: int) -> tuple[int, ...]:
        """Return the indices of the components whose output a component needs."""
        names = self.components[component].inputs
        return tuple(i for i, other in enumerate(self.components) if other.name in names)

    def reads_of(self, component: int, source: int) -> tuple[tuple[int, float], ...]:
        """Return which layers of a component read the output of another, as (layer, bytes per sample).

        Where the model file names none, the first layer reads the whole output.
        """
        input_ = self.components[source]
        reads = self.components[component].reads
        named = tuple((read.layer, read.size_bytes) for read in reads if read.source == input_.name)
        return named or ((0, input_.layers[-1].output_bytes),)

    def times_elsewhere(self, device: str) -> tuple[str, ...]:
        """Other devices on which components were measured that were not measured on this one."""
        measured = [[name for name, _ in component.times] for component in self.components]
        return tuple(sorted({name for names in measured if device not in names for name in names}))

    def only(self, backbone: int) -> "Model":
        """Return the model of one backbone: with the frozen components it needs, without the other backbones."""
        needed = {backbone}
        for index in reversed(self.order):
            if index in needed:
                needed |= set(self.inputs_of(index)).intersection(self.frozen)
        return replace(self, components=_closed([self.components[index] for index in sorted(needed)]))

    def for_task(self, task: str) -> "Model":
        """Return the model with only the components that a task needs; itself where it needs all of them."""
        assert task in TASKS, task
        kept = [component for component in self.components if task in component.tasks]
        return self if len(kept) == len(self.components) else replace(self, components=_closed(kept))


def _closed(kept: Iterable[Component]) -> tuple[Component, ...]:
    """Return some components of a model, which forget their inputs among the others."""
    names = {component.name for component in kept}
    return tuple(
        replace(
            component,
            inputs=tuple(name for name in component.inputs if name in names),
            reads=tuple(read for read in component.reads if read.source in names),
        )
        for component in kept
    )


def model_names() -> list[str]:
    """Return the names of the shipped models."""
    return sorted(path.parent.name for path in MODELS.glob("*/model.toml"))


def load_model(name: str) -> Model:
    """Return a shipped model by name, or any by the path of its folder.

    Raises:
        InputError: there is none, or a file of its folder breaks a rule.
    """
    if name in model_names():
        return read_model(MODELS / name)
    folder = Path(name)
    kind = path_kind(folder)
    if kind == "folder":
        return read_model(folder)
    if kind == "file":
        raise InputError(f"{folder}: is not a folder; a model is a folder with model.toml and layers.csv")
    raise InputError(f"unknown model '{name}'; choose from {', '.join(model_names())} or pass a model folder")


def read_model(folder: Path) -> Model:
    """Read a model folder.

    Raises:
        InputError: a file is missing or breaks a rule.
    """
    if path_kind(folder / "model.toml") == "nothing":
        raise InputError(f"{folder}: is not a model folder: it has no model.toml")
    table = Table.read(folder / "model.toml")
    reference = table.table("reference")
    heads = list(table.tables("components"))
    if not heads:
        raise InputError(f"{table.path}: components is empty, must name at least one")
    names = _component_names(heads)
    skips = _read_skips(table, names)
    reads = _read_reads(table, names)
    rows = _rows_by_component(read_rows(folder / "layers.csv", LAYER_COLUMNS), names)
    exchanges = _optional_rows(folder / "exchanges.csv", EXCHANGE_COLUMNS, names)
    times = _read_times(folder, names)
    model = Model(
        name=table.text("name"),
        title=table.text("title"),
        source=table.text("source"),
        dtype=table.choice("dtype", ("float16", "bfloat16", "float32")),
        height=reference.integer("height", minimum=1),
        width=reference.integer("width", minimum=1),
        components=tuple(
            read_component(
                head, rows[name], skips[name], reads[name], exchanges=exchanges[name], times=times[name]
            )
            for name, head in zip(names, heads, strict=True)
        ),
        guidance=table.choice("guidance", GUIDANCES) if "guidance" in table else "batch",
        anchors=read_anchors(folder / "anchors.csv"),
    )
    reference.finish()
    table.finish()
    _check_inputs(table, model)
    _check_skips(table, model)
    _check_reads(table, model)
    _check_coverage(folder, model)
    return model


def _component_names(heads: Iterable[Table]) -> list[str]:
    names: list[str] = []
    for head in heads:
        name = head.text("name")
        if name in names:
            raise head.fail("name", name, "must not be the name of two components")
        names.append(name)
    return names


def _read_skips(table: Table, names: list[str]) -> dict[str, list[Skip]]:
    skips: dict[str, list[Skip]] = {name: [] for name in names}
    for entry in table.tables("skips"):
        name = entry.choice("component", names)
        skip = Skip(entry.integer("source"), entry.integer("target"))
        if skip in skips[name]:
            raise entry.fail("source", skip.source, f"stands twice with target {skip.target}")
        skips[name].append(skip)
        entry.finish()
    return skips


def _read_reads(table: Table, names: list[str]) -> dict[str, list[Read]]:
    reads: dict[str, list[Read]] = {name: [] for name in names}
    for entry in table.tables("reads"):
        name = entry.choice("component", names)
        read = Read(entry.choice("input", names), entry.integer("layer"), entry.number("MB") * MB)
        if any((read.source, read.layer) == (other.source, other.layer) for other in reads[name]):
            raise entry.fail("layer", read.layer, f"stands twice with input '{read.source}'")
        reads[name].append(read)
        entry.finish()
    return reads


def _rows_by_component(rows: list[Row], names: list[str]) -> dict[str, list[Row]]:
    by_name: dict[str, list[Row]] = {name: [] for name in names}
    for row in rows:
        by_name[row.choice("component", names)].append(row)
    return by_name


def _optional_rows(path: Path, columns: tuple[str, ...], names: list[str]) -> dict[str, list[Row]]:
    return _rows_by_component([] if path_kind(path) == "nothing" else read_rows(path, columns), names)


def _read_times(folder: Path, names: list[str]) -> dict[str, dict[str, list[Row]]]:
    times: dict[str, dict[str, list[Row]]] = {name: {} for name in names}
    if path_kind(folder / "times") == "file":
        raise InputError(f"{folder / 'times'}: is not a folder; it holds one <device>.csv per device")
    for path in sorted((folder / "times").glob("*.csv")):
        for name, rows in _rows_by_component(read_rows(path, TIME_COLUMNS), names).items():
            times[name][path.stem] = rows
    return times


def _check_inputs(table: Table, model: Model) -> None:
    names = [component.name for component in model.components]
    for number, component in enumerate(model.components):
        for name in component.inputs:
            if name not in names:
                rule = f"names no component; choose from {', '.join(names)}"
                raise table.fail(f"components[{number}].inputs", name, rule)
            if component.inputs.count(name) > 1:
                raise table.fail(f"components[{number}].inputs", name, "stands twice")
    try:
        _ = model.order
    except CycleError as error:
        cycle = " -> ".join(names[i] for i in error.args[1])
        raise InputError(f"{table.path}: components.inputs form the cycle {cycle}") from None


def _check_skips(table: Table, model: Model) -> None:
    for component in model.components:
        last = len(component.layers) - 1
        for skip in component.skips:
            for key, index in (("source", skip.source), ("target", skip.target)):
                if index > last:
                    rule = f"must be a layer of {component.name}, which has 0 to {last}"
                    raise table.fail(f"skips.{key}", index, rule)
            if skip.target <= skip.source:
                raise table.fail("skips.target", skip.target, f"must come after its source {skip.source}")


def _check_reads(table: Table, model: Model) -> None:
    frozen = [model.components[i].name for i in model.frozen]
    for component in model.components:
        if component.reads and not component.trainable:
            raise table.fail("reads.component", component.name, "must be a trainable component")
        sources = [name for name in component.inputs if name in frozen]
        last = len(component.layers) - 1
        for read in component.reads:
            if read.source not in sources:
                rule = f"must be a frozen input of {component.name}: {', '.join(sources) or 'it has none'}"
                raise table.fail("reads.input", read.source, rule)
            if read.layer > last:
                rule = f"must be a layer of {component.name}, which has 0 to {last}"
                raise table.fail("reads.layer", read.layer, rule)


def _check_coverage(folder: Path, model: Model) -> None:
    for component in model.components:
        for device, times in component.times:
            measured = {time.layer for time in times}
            for index, layer in enumerate(component.layers):
                if index not in measured:
                    path = folder / "times" / f"{device}.csv"
                    raise InputError(f"{path}: layer {index} ({layer.name}) of {component.name} has no row")
