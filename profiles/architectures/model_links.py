"""Skips and reads: layers of a model that need what other layers gave, as ``model.toml`` lists them."""

from collections.abc import Mapping, Sequence

from profiles.architectures.components import Read, Skip
from profiles.files import Table
from profiles.units import MB


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
