"""Writing: files come whole or not at all, so that no reader meets half of one."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path

from profiles.outputs import whole_file


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Text of a CSV file."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


class Exact(str):
    """A value that is written as it is."""


def toml_text(values: Mapping[str, object], number: str = "") -> str:
    """Text of a TOML file: plain values, then a table for each mapping, and one for each of a list of mappings.

    ``number`` is the format of floats, all of whose digits are written by default.
    """
    return "\n".join(_toml_lines(values, number, "")) + "\n"


def _toml_lines(values: Mapping[str, object], number: str, path: str) -> Iterator[str]:
    tables: dict[str, list[Mapping[str, object]]] = {}
    for key, value in values.items():
        of = [value] if isinstance(value, Mapping) else value
        if isinstance(of, list) and all(isinstance(one, Mapping) for one in of):
            tables[key] = of
            continue
        written = format(value, number) if isinstance(value, float) and number else json.dumps(value)
        yield f"{key} = {value if isinstance(value, Exact) else written}"
    for key, entries in tables.items():
        name = f"{path}{key}"
        for table in entries:
            yield from ("", f"[{name}]" if isinstance(values[key], Mapping) else f"[[{name}]]")
            yield from _toml_lines(table, number, f"{name}.")
