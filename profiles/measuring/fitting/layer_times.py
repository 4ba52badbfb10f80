"""Layer times: files of measured times, read back as amounts of work and the seconds that these took.

Beside ``times/<device>.csv``, which a model folder is read with, stands a header of the environment
(``times/<device>.toml``).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from profiles.architectures.component_files import TIME_COLUMNS, read_layer_times
from profiles.architectures.models import Model
from profiles.architectures.shares import ELEMENT_BYTES
from profiles.costs.layer_times import BACKWARD_WORK
from profiles.errors import InputError
from profiles.files import Row, Table, path_kind, read_rows
from profiles.machines.devices import RATE_KEYS
from profiles.measuring.writing import grouped
from profiles.software.recipes import RECIPES
from profiles.units import GB, MILLISECOND, TFLOP, FloatArray

Record = dict[str, Any]

CLASSES: Final = tuple(key.split("_")[0] for key in RATE_KEYS)
"""Names of the classes of work: conv, matmul, attention, memory, kernel."""
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
QUANTITIES: Final = (FORWARD, BACKWARD)
"""Quantities timed of each layer."""
UPDATE: Final = "optimizer"
LAUNCHES: Final = 1e6


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
    """Header of a profile, as a calibration needs it: model, measurement, memory of the GPU, and number of rows."""

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


def samples_of(path: Path, model: Model, header: Header | None) -> list[Record]:
    """Samples of a file of times, without those of zero seconds.

    Memory traffic is counted in the model's precision, and measured in the header's; launches do not grow with the
    batch.
    """
    size = ELEMENT_BYTES[header.dtype] / ELEMENT_BYTES[model.dtype] if header else 1.0
    samples = []
    for name, rows in grouped(_rows(path, header), lambda row: row.text("component")).items():
        component = next((of for of in model.components if of.name == name), None)
        if component is None:
            known = ", ".join(of.name for of in model.components)
            raise rows[0].fail("component", f"is none of {model.name}'s: {known}")
        for time in read_layer_times(component.layers, rows):
            layer, batch = component.layers[time.layer], time.batch_size
            flop = [each / TFLOP for each in (layer.conv_flop, layer.matmul_flop, layer.attention_flop)]
            amounts = np.array([*flop, size * layer.moved_bytes / GB, layer.kernels / LAUNCHES])
            place = {"model": model.name, "component": name, "layer": time.layer, "batch": batch}
            place["shape"] = (*amounts, layer.backward)
            work, attention = BACKWARD_WORK[layer.backward]
            forward = amounts * (batch, batch, batch, batch, 1)
            backward = forward * (work, work, attention, work, work)
            passes = (FORWARD, time.forward_s, forward), (BACKWARD, time.backward_s, backward)
            samples += [_sample(place, *of) for of in passes if of[1] > 0 and of[2].any()]
    return samples


def _rows(path: Path, header: Header | None) -> list[Row]:
    rows = read_rows(path, TIME_COLUMNS)
    if header is not None and header.rows not in (None, len(rows)):
        raise InputError(f"{path}: has {len(rows)} rows, its header says {header.rows}: it is not whole")
    if not rows:
        raise InputError(f"{path}: has no rows")
    return rows


def updates_of(model: Model, header: Header) -> Iterator[Record]:
    """Yield samples of measured updates of weights (layer -1), which move the bytes of the memory recipe."""
    for update in header.updates:
        moved = update.parameters * RECIPES[update.recipe].step_bytes / GB
        place = {"model": model.name, "component": update.component, "layer": -1, "batch": 1, "shape": ()}
        yield _sample(place, UPDATE, update.seconds, np.array([0.0, 0.0, 0.0, moved, 0.0]))


def _sample(place: Record, quantity: str, seconds: float, amounts: FloatArray) -> Record:
    return {**place, "quantity": quantity, "seconds": seconds, **dict(zip(CLASSES, amounts, strict=True))}
