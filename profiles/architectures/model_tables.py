"""Tables of a model folder: rows of its CSV files by component, its anchors, and the skips and reads between layers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from profiles.architectures.component_files import (
    ADAPTED,
    ADAPTED_COLUMNS,
    EXCHANGE_COLUMNS,
    HALF_KERNELS,
    KERNEL_COLUMNS,
    KERNELS,
    LAYER_COLUMNS,
    TIME_COLUMNS,
    ByComponent,
    Tables,
)
from profiles.architectures.components import Anchor, Read, Skip
from profiles.errors import InputError
from profiles.files import Table, path_kind, read_rows
from profiles.units import MB

LAYERS: Final = "layers.csv"
EXCHANGES: Final = "exchanges.csv"
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

    return Tables(
        layers=of(LAYERS, LAYER_COLUMNS),
        exchanges=of(EXCHANGES, EXCHANGE_COLUMNS, optional=True),
        adapted=of(ADAPTED, ADAPTED_COLUMNS, optional=True),
        kernels={file: of(file, KERNEL_COLUMNS) for file in _kernel_files(table)},
        times={Path(file).stem: of(file, TIME_COLUMNS) for file in _time_files(folder)},
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


def _time_files(folder: Path) -> list[str]:
    """The files of measured times in a folder."""
    if path_kind(folder / "times") == "file":
        raise InputError(f"{folder / 'times'}: is not a folder; it holds one <device>.csv per device")
    return [f"times/{path.name}" for path in sorted((folder / "times").glob("*.csv"))]


def read_anchors(path: Path) -> tuple[Anchor, ...]:
    """The anchors of a model; none where the file does not exist."""
    if path_kind(path) == "nothing":
        return ()
    sizes = ("height", "width", "batch", "steps")
    return tuple(
        Anchor(
            device=row.text("device"),
            latency_s=row.positive("latency_s"),
            source=row.text("source"),
            **{key: row.integer(key, minimum=1) for key in sizes},
        )
        for row in read_rows(path, ANCHOR_COLUMNS)
    )


def read_skips(table: Table, names: list[str]) -> dict[str, list[Skip]]:
    """Skips by component."""
    skips: dict[str, list[Skip]] = {name: [] for name in names}
    for entry in table.tables("skips"):
        of = skips[entry.choice("component", names)]
        of.append(Skip(entry.integer("source"), entry.integer("target")))
        entry.finish()
    return skips


def read_reads(table: Table, names: list[str]) -> dict[str, list[Read]]:
    """Reads by the component that reads."""
    reads: dict[str, list[Read]] = {name: [] for name in names}
    for entry in table.tables("reads"):
        of = reads[entry.choice("component", names)]
        of.append(Read(entry.choice("input", names), entry.integer("layer"), entry.number("MB") * MB))
        entry.finish()
    return reads
