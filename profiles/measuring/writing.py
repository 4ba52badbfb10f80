"""Writing: tables that the command line prints, and files, which come whole or not at all."""

import csv
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from io import StringIO
from typing import TypeVar

from rich.console import Console
from rich.table import Table

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by their key, in the order in which keys first appear."""
    groups: dict[Key, list[Item]] = {}
    for one in items:
        groups.setdefault(key(one), []).append(one)
    return groups


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str]) -> Table:
    """A table whose columns are aligned to the right, except those named in ``left``."""
    result = Table(title=title, title_justify="left")
    for column in columns:
        result.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        result.add_row(*row)
    return result


def show(width: int, *parts: Table | str) -> None:
    """Print tables and lines as they are, wrapped at a width."""
    console = Console(width=width)
    for part in parts:
        console.print(part, highlight=False, markup=False)


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
        content = [value] if isinstance(value, Mapping) else value
        if isinstance(content, list) and all(isinstance(one, Mapping) for one in content):
            tables[key] = content
            continue
        written = format(value, number) if isinstance(value, float) and number else json.dumps(value)
        yield f"{key} = {value if isinstance(value, Exact) else written}"
    for key, entries in tables.items():
        name = f"{path}{key}"
        for table in entries:
            yield from ("", f"[{name}]" if isinstance(values[key], Mapping) else f"[[{name}]]")
            yield from _toml_lines(table, number, f"{name}.")
