"""Layer times: files of measured times, read back as amounts of work and the seconds that these took.

Each cell is read by the rule of its column. Beside ``times/<device>.csv``, which a model folder is read with, stand a
header of the environment (``times/<device>.toml``) and the quantiles of every quantity (``quantiles/<device>.csv``).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from profiles.architectures.component_files import TIME_COLUMNS
from profiles.architectures.models import Model
from profiles.costs.layers import BACKWARD_WORK, ELEMENT_BYTES, FloatArray
from profiles.errors import InputError
from profiles.files import Row, Table, path_kind, read_rows
from profiles.machines.devices import RATE_KEYS
from profiles.software.recipes import RECIPES
from profiles.units import GB, MILLISECOND, TFLOP

Rule = Callable[[Row, str], Any]
"""Reads a cell, given its row and the name of its column."""
Record = dict[str, Any]


CLASSES: Final = tuple(key.split("_")[0] for key in RATE_KEYS)
"""Names of the classes of work: conv, matmul, attention, memory, kernel."""
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
UPDATE: Final = "optimizer"
QUANTITIES: Final = ("forward", "backward_first", "backward_later")
"""What is timed of each layer; the first backward pass of an iteration has no gradients to add to."""
QUANTILES: Final = (0.1, 0.5, 0.9)
QUANTILE_COLUMNS: Final = tuple(f"p{100 * quantile:.0f}_ms" for quantile in QUANTILES)
PLACE_RULES: Final[Mapping[str, Rule]] = {
    "component": Row.text,
    "index": Row.integer,
    "batch_size": lambda row, key: row.integer(key, minimum=1),
}
TIME_RULES: Final = dict(PLACE_RULES) | dict.fromkeys(TIME_COLUMNS[len(PLACE_RULES) :], Row.number)
QUANTILE_RULES: Final = {
    **PLACE_RULES,
    "quantity": lambda row, key: row.choice(key, QUANTITIES),
    **dict.fromkeys(QUANTILE_COLUMNS, Row.number),
}
LAUNCHES: Final = 1e6

FirstBackwards = Mapping[tuple[str, int, int], float]
"""Seconds of the backward pass of an iteration's first micro-batch, by component, layer and batch."""


def load(path: Path, rules: Mapping[str, Rule]) -> list[Record]:
    """Rows of a CSV file by column, and under ``where`` file and line; InputError where a cell breaks its rule."""
    rows = read_rows(path, tuple(rules))
    return [{**{key: rule(row, key) for key, rule in rules.items()}, "where": row.where} for row in rows]


class Work(NamedTuple):
    """Forward work of a layer on one sample: TFLOP of three classes, GB, million kernels."""

    backward: str
    amounts: tuple[float, ...]

    def forward(self, batch: int) -> FloatArray:
        """Amounts of a forward pass; launches do not grow with the batch."""
        return np.array(self.amounts) * (batch, batch, batch, batch, 1)

    def backward_pass(self, batch: int) -> FloatArray:
        """Amounts of a backward pass."""
        work, attention = BACKWARD_WORK[self.backward]
        return self.forward(batch) * (work, work, attention, work, work)


class Update(NamedTuple):
    """A measured step of the optimizer of one component, by the memory recipe that it follows."""

    component: str
    parameters: int
    recipe: str
    seconds: float

    @classmethod
    def of(cls, table: Table) -> "Update":
        """An update as a header has it."""
        parameters, recipe = table.integer("parameters", minimum=1), table.choice("recipe", tuple(RECIPES))
        return cls(table.text("component"), parameters, recipe, table.positive("ms") * MILLISECOND)


class Header(NamedTuple):
    """What a calibration reads of a header: which model was measured, how, a GPU's memory, and the rows written."""

    model: str
    height: int
    width: int
    dtype: str
    source: str
    memory_GiB: float | None  # noqa: N815  the unit's own spelling
    rows: int | None = None
    updates: tuple[Update, ...] = ()


def read_header(times: Path) -> Header | None:
    """Header beside a file of times; None where there is none."""
    path = times.with_suffix(".toml")
    if path_kind(path) == "nothing":
        return None
    table = Table.read(path)
    model, dtype, source = (table.text(key) for key in ("model", "dtype", "source"))
    height, width = (table.integer(key, minimum=1) for key in ("height", "width"))
    memory = table.positive("memory_GiB") if "memory_GiB" in table else None
    rows = table.integer("rows") if "rows" in table else None
    updates = tuple(map(Update.of, table.tables("optimizer")))
    return Header(model, height, width, dtype, source, memory, rows, updates)


def read_first_backwards(folder: Path, device: str) -> FirstBackwards:
    """First backward pass of every layer of a model folder; nothing where quantiles were not written."""
    path = folder / "quantiles" / f"{device}.csv"
    rows = load(path, QUANTILE_RULES) if path_kind(path) == "file" else ()
    first = (row for row in rows if row["quantity"] == "backward_first")
    return {tuple(row[key] for key in PLACE_RULES): row["p50_ms"] * MILLISECOND for row in first}


def _read_times(path: Path, model: Model, header: Header | None = None) -> list[Record]:
    """Times of a model's layers; InputError where they are of other layers, or fewer rows than the header says."""
    layers = {component.name: len(component.layers) for component in model.components}
    rows: dict[tuple[str, int, int], Record] = {}
    for row in load(path, TIME_RULES):
        component, index, batch = key = row["component"], row["index"], row["batch_size"]
        rule = ""
        if component not in layers:
            rule = f"component is '{component}', is none of {model.name}'s: {', '.join(layers)}"
        elif index >= (limit := layers[component]):
            rule = f"index is '{index}', must be below {limit}, the layers of {model.name}'s {component}"
        elif key in rows:
            rule = f"index is '{index}', stands twice for {component} at batch {batch}"
        if rule:
            raise InputError(f"{row['where']}: {rule}")
        rows[key] = row
    if header is not None and header.rows not in (None, len(rows)):
        raise InputError(f"{path}: has {len(rows)} rows, its header says {header.rows}: it is not whole")
    if not rows:
        raise InputError(f"{path}: has no rows")
    for component, batch in {(component, batch) for component, _, batch in rows}:
        missing = [index for index in range(layers[component]) if (component, index, batch) not in rows]
        if missing:
            whole = f"{model.name}'s {component} has {layers[component]} layers"
            raise InputError(
                f"{path}: layer {missing[0]} of {component} has no row at batch {batch}; {whole}"
            )
    return list(rows.values())


def samples_of(path: Path, model: Model, header: Header | None) -> list[Record]:
    """Samples of a file of times, without those of zero seconds.

    Memory traffic is counted in the model's precision, and measured in the header's.
    """
    size = ELEMENT_BYTES[header.dtype] / ELEMENT_BYTES[model.dtype] if header else 1.0
    layers = {component.name: component.layers for component in model.components}
    samples = []
    for row in _read_times(path, model, header):
        component, index, batch = row["component"], row["index"], row["batch_size"]
        layer = layers[component][index]
        flop = [each / TFLOP for each in (layer.conv_flop, layer.matmul_flop, layer.attention_flop)]
        moved, kernels = size * layer.moved_bytes / GB, layer.kernels / LAUNCHES
        work = Work(layer.backward, (*flop, moved, kernels))
        for quantity, amounts in ((FORWARD, work.forward(batch)), (BACKWARD, work.backward_pass(batch))):
            seconds = row[f"{quantity}_ms"] * MILLISECOND
            if seconds > 0 and amounts.any():
                place = {"model": model.name, "component": component, "layer": index, "batch": batch}
                shape = (*work.amounts, work.backward)
                samples.append(_sample({**place, "shape": shape}, quantity, seconds, amounts))
    return samples


def updates_of(model: Model, header: Header) -> list[Record]:
    """Samples of measured updates of weights (layer -1), which only move memory, as the memory recipe counts it."""
    samples = []
    for update in header.updates:
        moved = update.parameters * RECIPES[update.recipe].step_bytes / GB
        place = {"model": model.name, "component": update.component, "layer": -1, "batch": 1, "shape": ()}
        samples.append(_sample(place, UPDATE, update.seconds, np.array([0.0, 0.0, 0.0, moved, 0.0])))
    return samples


def _sample(place: Record, quantity: str, seconds: float, amounts: np.ndarray) -> Record:
    return {**place, "quantity": quantity, "seconds": seconds, **dict(zip(CLASSES, amounts, strict=True))}
