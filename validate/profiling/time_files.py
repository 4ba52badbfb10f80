"""The files of measured times: written whole or not at all, and read back with what was measured with.

Beside ``times/<device>.csv``, which a model folder is read with, stand a header of the environment
(``times/<device>.toml``) and the quantiles of every quantity (``quantiles/<device>.csv``).
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final

from profiles.component_files import TIME_COLUMNS
from profiles.errors import InputError
from profiles.files import Table, path_kind, read_rows
from profiles.models import Model
from profiles.recipes import RECIPES as MEMORY_RECIPES
from profiles.units import MILLISECOND
from validate.profiling.environment import Value, toml_lines
from validate.profiling.measuring import QUANTILES, QUANTITIES, BatchTimes, ComponentTimes
from validate.profiling.optimizers import RECIPES

QUANTILE_COLUMNS: Final = (
    "component",
    "index",
    "batch_size",
    "quantity",
    *(f"p{100 * quantile:.0f}_ms" for quantile in QUANTILES),
)
BACKWARD: Final = "backward_ms is a later micro-batch's, whose gradients are added to those already there"
FirstBackwards = Mapping[tuple[str, int, int], float]
"""Seconds of the backward pass of an iteration's first micro-batch, by component, layer and batch."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a calibration reads of a header: which model was measured, how, a GPU's memory, and the rows written."""

    model: str
    height: int
    width: int
    dtype: str
    source: str
    memory_GiB: float | None  # noqa: N815  the unit's own spelling
    rows: int | None = None
    updates: tuple["Update", ...] = ()


@dataclass(frozen=True, slots=True)
class Update:
    """A measured step of the optimizer of one component, by the memory recipe that it follows."""

    component: str
    parameters: int
    recipe: str
    seconds: float


@dataclass(frozen=True, slots=True)
class TimeRow:
    """Measured times of one layer at one batch size; ``layer`` is its index in its component."""

    component: str
    layer: int
    batch: int
    forward_s: float
    backward_s: float


def time_texts(name: str, components: list[ComponentTimes], header: Mapping[str, Value]) -> dict[Path, str]:
    """Return the files of a profile, by their path in the model folder.

    Args:
        name: of the device.
        components: what was measured.
        header: the environment.
    """
    rows = sum(len(part.counted.layers) * len(part.batches) for part in components)
    lines = toml_lines({**header, "backward": BACKWARD, "rows": rows})
    for component in components:
        for batch in component.batches:
            lines += ["", "[[whole]]", *toml_lines(_whole(component, batch))]
    for component in components:
        if component.optimizer_s is not None:
            lines += ["", "[[optimizer]]", *toml_lines(_update(component, str(header["dtype"])))]
    return {
        Path("times") / f"{name}.csv": _csv(TIME_COLUMNS, _time_rows(components)),
        Path("times") / f"{name}.toml": "\n".join(lines) + "\n",
        Path("quantiles") / f"{name}.csv": _csv(QUANTILE_COLUMNS, _quantile_rows(components)),
    }


def read_header(times: Path) -> Header | None:
    """Return the header beside a file of times; None where there is none.

    Raises:
        InputError: it breaks a rule.
    """
    path = times.with_suffix(".toml")
    if path_kind(path) == "nothing":
        return None
    table = Table.read(path)
    return Header(
        model=table.text("model"),
        height=table.integer("height", minimum=1),
        width=table.integer("width", minimum=1),
        dtype=table.text("dtype"),
        source=table.text("source"),
        memory_GiB=table.positive("memory_GiB") if "memory_GiB" in table else None,
        rows=table.integer("rows") if "rows" in table else None,
        updates=tuple(map(_read_update, table.tables("optimizer"))),
    )


def read_first_backwards(folder: Path, device: str) -> FirstBackwards:
    """Return the first backward pass of every layer of a model folder; nothing where quantiles were not written.

    Raises:
        InputError: the file breaks a rule.
    """
    path = folder / "quantiles" / f"{device}.csv"
    rows = read_rows(path, QUANTILE_COLUMNS) if path_kind(path) == "file" else ()
    return {
        (row.text("component"), row.integer("index"), row.integer("batch_size")): row.number("p50_ms")
        * MILLISECOND
        for row in rows
        if row.text("quantity") == "backward_first"
    }


def _read_update(table: Table) -> Update:
    return Update(
        table.text("component"),
        table.integer("parameters", minimum=1),
        table.choice("recipe", tuple(MEMORY_RECIPES)),
        table.positive("ms") * MILLISECOND,
    )


def read_times(path: Path, model: Model, header: Header | None = None) -> list[TimeRow]:
    """Read the times of a model's layers, as many as a header says.

    Raises:
        InputError: the file breaks a rule, or is of other layers than the model's.
    """
    layers = {component.name: len(component.layers) for component in model.components}
    rows: dict[tuple[str, int, int], TimeRow] = {}
    for row in read_rows(path, TIME_COLUMNS):
        component = row.text("component")
        if component not in layers:
            raise row.fail("component", f"is none of {model.name}'s: {', '.join(layers)}")
        index = row.integer("index")
        if index >= layers[component]:
            raise row.fail(
                "index", f"must be below {layers[component]}, the layers of {model.name}'s {component}"
            )
        key = (component, index, row.integer("batch_size", minimum=1))
        if key in rows:
            raise row.fail("index", f"stands twice for {component} at batch {key[2]}")
        times = (row.number("forward_ms") * MILLISECOND, row.number("backward_ms") * MILLISECOND)
        rows[key] = TimeRow(*key, *times)
    if header is not None and header.rows not in (None, len(rows)):
        raise InputError(f"{path}: has {len(rows)} rows, its header says {header.rows}: it is not whole")
    _check_whole(path, model, rows)
    return list(rows.values())


def _check_whole(path: Path, model: Model, rows: Mapping[tuple[str, int, int], TimeRow]) -> None:
    """Refuse a file without rows, or one in which layers of a component are missing (one cut short)."""
    if not rows:
        raise InputError(f"{path}: has no rows")
    layers = {component.name: len(component.layers) for component in model.components}
    for component, batch in {(component, batch) for component, _, batch in rows}:
        missing = [i for i in range(layers[component]) if (component, i, batch) not in rows]
        if missing:
            rule = f"layer {missing[0]} of {component} has no row at batch {batch}"
            raise InputError(f"{path}: {rule}; {model.name}'s {component} has {layers[component]} layers")


def _whole(component: ComponentTimes, batch: BatchTimes) -> dict[str, Value]:
    found: dict[str, Value] = {"component": component.counted.spec.name, "batch_size": batch.batch}
    found["forward_ms"] = _ms(batch.whole["forward"])
    found["forward_sum_over_whole"] = round(batch.sum_over_whole("forward"), 4)
    if component.counted.spec.trainable:
        found["backward_ms"] = _ms(batch.whole["backward_later"])
        found["backward_sum_over_whole"] = round(batch.sum_over_whole("backward_later"), 4)
        found["backward_first_ms"] = _ms(sum(batch.median("backward_first")))
    for name, quantity in (("forward", "forward"), ("backward", "backward_later")):
        share = batch.waiting(quantity)
        if share is not None:
            found[f"{name}_waiting_for_host"] = round(share, 4)
    return found


def _update(component: ComponentTimes, dtype: str) -> dict[str, Value]:
    assert component.optimizer_s is not None
    return {
        "component": component.counted.spec.name,
        "parameters": component.trained,
        "recipe": RECIPES[dtype],
        "ms": _ms(component.optimizer_s),
    }


def _time_rows(components: list[ComponentTimes]) -> Iterator[list[str | int | float]]:
    for component in components:
        for batch in component.batches:
            columns = zip(batch.median("forward"), batch.median("backward_later"), strict=True)
            for index, times in enumerate(columns):
                yield [component.counted.spec.name, index, batch.batch, *(_ms(seconds) for seconds in times)]


def _quantile_rows(components: list[ComponentTimes]) -> Iterator[list[str | int | float]]:
    for component in components:
        for batch in component.batches:
            for quantity in QUANTITIES:
                for index, seconds in enumerate(batch.layers[quantity].T):
                    name, values = component.counted.spec.name, [_ms(value) for value in seconds]
                    yield [name, index, batch.batch, quantity, *values]


def _ms(seconds: float) -> float:
    return round(float(seconds) / MILLISECOND, 5)


def _csv(columns: tuple[str, ...], rows: Iterator[list[str | int | float]]) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
