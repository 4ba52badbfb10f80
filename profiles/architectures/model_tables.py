"""Tables of a model folder: rows of its CSV files by component, its anchors, and the skips and reads between layers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from profiles.architectures.component_files import (
    ADAPTED,
    ADAPTED_COLUMNS,
    EXCHANGE_COLUMNS,
    HALF_KERNELS,
    KERNEL_COLUMNS,
    KERNELS,
    LAYER_COLUMNS,
    TIME_COLUMNS,
)
from profiles.architectures.components import Anchor, Read, Skip
from profiles.errors import InputError
from profiles.files import Row, Table, path_kind, read_rows
from profiles.units import MB

LAYERS: Final = "layers.csv"
EXCHANGES: Final = "exchanges.csv"
ANCHOR_COLUMNS: Final = ("device", "height", "width", "batch", "steps", "latency_s", "source")
DTYPES: Final = ("float16", "bfloat16", "float32")

ByComponent = dict[str, list[Row]]


class Tables(NamedTuple):
    """Rows by component: of three files; of kernels, by file; of times, by device."""

    layers: ByComponent
    exchanges: ByComponent
    adapted: ByComponent
    kernels: dict[str, ByComponent]
    times: dict[str, ByComponent]

    @property
    def counts(self) -> dict[str, int]:
        """Layers of each component."""
        return {name: len(rows) for name, rows in self.layers.items()}


def read_tables(table: Table, names: list[str]) -> Tables:
    """The tables beside a model file whose components have these names.

    Raises:
        InputError: a file is missing or breaks a rule.
    """
    folder = table.path.parent
    kernels, times = _kernel_files(table), _time_files(folder)
    files: dict[str, tuple[str, ...]] = {LAYERS: LAYER_COLUMNS}
    optional = {EXCHANGES: EXCHANGE_COLUMNS, ADAPTED: ADAPTED_COLUMNS}
    files |= {file: of for file, of in optional.items() if path_kind(folder / file) != "nothing"}
    files.update(dict.fromkeys(kernels, KERNEL_COLUMNS))
    files.update(dict.fromkeys(times, TIME_COLUMNS))
    rows = {file: read_rows(folder / file, columns) for file, columns in files.items()}
    found = {file: _by_component(of, names) for file, of in rows.items()}
    exchanges, adapted = (found.get(file) or _by_component([], names) for file in optional)
    by_device = {Path(file).stem: found[file] for file in times}
    return Tables(found[LAYERS], exchanges, adapted, {file: found[file] for file in kernels}, by_device)


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


def _by_component(rows: list[Row], names: list[str]) -> ByComponent:
    """Rows by the component they are of.

    Raises:
        InputError: one is of none.
    """
    found: ByComponent = {name: [] for name in names}
    for row in rows:
        found[row.choice("component", names)].append(row)
    return found


def read_anchors(path: Path) -> tuple[Anchor, ...]:
    """The anchors of a model; none where the file does not exist.

    Raises:
        InputError: the file breaks a rule.
    """
    if path_kind(path) == "nothing":
        return ()
    anchors = []
    for row in read_rows(path, ANCHOR_COLUMNS):
        latency_s = row.number("latency_s")
        if latency_s == 0:
            raise row.fail("latency_s", "must be positive")
        anchor = Anchor(
            device=row.text("device"),
            height=row.integer("height", minimum=1),
            width=row.integer("width", minimum=1),
            batch=row.integer("batch", minimum=1),
            steps=row.integer("steps", minimum=1),
            latency_s=latency_s,
            source=row.text("source"),
        )
        anchors.append(anchor)
    return tuple(anchors)


def read_skips(table: Table, names: list[str]) -> dict[str, list[Skip]]:
    """Skips by component.

    Raises:
        InputError: one breaks a rule, or stands twice.
    """
    skips: dict[str, list[Skip]] = {name: [] for name in names}
    seen: set[tuple[str, Skip]] = set()
    for entry in table.tables("skips"):
        name = entry.choice("component", names)
        source, target = entry.integer("source"), entry.integer("target")
        if target <= source:
            raise entry.fail("target", target, f"must come after its source {source}")
        skip = Skip(source, target)
        if (name, skip) in seen:
            raise entry.fail("source", source, f"stands twice with target {target}")
        seen.add((name, skip))
        skips[name].append(skip)
        entry.finish()
    return skips


def read_reads(table: Table, names: list[str]) -> dict[str, list[Read]]:
    """Reads by the component that reads.

    Raises:
        InputError: one breaks a rule, or stands twice.
    """
    reads: dict[str, list[Read]] = {name: [] for name in names}
    for entry in table.tables("reads"):
        name = entry.choice("component", names)
        read = Read(entry.choice("input", names), entry.integer("layer"), entry.number("MB") * MB)
        if any((read.source, read.layer) == (other.source, other.layer) for other in reads[name]):
            raise entry.fail("layer", read.layer, f"stands twice with input '{read.source}'")
        reads[name].append(read)
        entry.finish()
    return reads


def check_skips(table: Table, skips: Mapping[str, Sequence[Skip]], counts: Mapping[str, int]) -> None:
    """Refuse skips of layers that are not there; a component without layers is refused elsewhere.

    Raises:
        InputError: there is one.
    """
    for name, of in skips.items():
        for skip in of:
            _check_layer(table, "skips.source", skip.source, name, counts[name])
            _check_layer(table, "skips.target", skip.target, name, counts[name])


def _check_layer(table: Table, key: str, index: int, name: str, count: int) -> None:
    if index >= count > 0:
        raise table.fail(key, index, f"must be a layer of {name}, which has 0 to {count - 1}")


def check_reads(
    table: Table,
    heads: Mapping[str, Table],
    reads: Mapping[str, Sequence[Read]],
    counts: Mapping[str, int],
) -> None:
    """Refuse reads by frozen components, of what is no frozen input, and by layers that are not there.

    Raises:
        InputError: there is one.
    """
    for name, of in reads.items():
        if of and not heads[name].flag("trainable"):
            raise table.fail("reads.component", name, "must be a trainable component")
        sources = [
            other
            for other in heads[name].texts("inputs", ())
            if other in heads and not heads[other].flag("trainable")
        ]
        for read in of:
            if read.source not in sources:
                rule = f"must be a frozen input of {name}: {', '.join(sources) or 'it has none'}"
                raise table.fail("reads.input", read.source, rule)
            _check_layer(table, "reads.layer", read.layer, name, counts[name])
