"""Measured files as tables: JSON, CSV or TOML of any shape, whoever wrote them.

An array of objects is a table, an object a table of keys and values; what lies deeper gets tables of its own.
"""

import csv
import json
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError
from profiles.files import read_text
from validate.reporting.sections import Section

MAX_DEPTH: Final = 6
MAX_ROWS: Final = 2000
"""Rows of one table; the remark says how many are left out."""


def read_measured(path: Path) -> list[Section]:
    """Tables of one file."""
    ending = path.suffix.lower()
    if ending not in READERS:
        raise InputError(f"{path}: ends in '{ending}', must end in {', '.join(READERS)}")
    text = read_text(path)
    try:
        value = READERS[ending](text)
    except RecursionError:
        raise InputError(f"{path}: is not valid {ending[1:].upper()}: nested too deeply") from None
    except (ValueError, csv.Error) as error:
        raise InputError(f"{path}: is not valid {ending[1:].upper()}: {str(error).lower()}") from None
    found = list(_sections(path.name, value, 0))
    if not found:
        raise InputError(f"{path}: holds nothing to show, must hold an object or an array of objects")
    return found


def _csv(text: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(text.splitlines(), strict=True)
    return [{key or "": value for key, value in row.items()} for row in reader]


READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    ".json": json.loads,
    ".csv": _csv,
    ".toml": tomllib.loads,
}


def _sections(title: str, value: object, depth: int) -> Iterator[Section]:
    if isinstance(value, Mapping):
        plain = {key: one for key, one in value.items() if not _nested(one) or depth >= MAX_DEPTH}
        if plain:
            rows = [[str(key), words(one)] for key, one in plain.items()]
            yield Section(title, ("key", "value"), rows)
        for key, one in value.items():
            if key not in plain:
                yield from _sections(f"{title}, {key}", one, depth + 1)
    elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        yield _rows(title, value)
    elif value not in (None, [], ""):
        yield Section(title, ("value",), [[words(value)]])


def _rows(title: str, objects: list[Mapping[str, Any]]) -> Section:
    columns = list(dict.fromkeys(key for one in objects for key in one))
    rows = [[words(one[key]) if key in one else "" for key in columns] for one in objects[:MAX_ROWS]]
    left = len(objects) - len(rows)
    return Section(
        title, [str(key) for key in columns], rows, f"{left} more rows are left out." if left else ""
    )


def _nested(value: object) -> bool:
    """Whether a value gets a table of its own: an object, or an array of objects."""
    objects = isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)
    return objects or (isinstance(value, Mapping) and bool(value))


def words(value: object) -> str:
    """A value in words; numbers with six digits."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping | list):
        return json.dumps(value, default=str)
    return "" if value is None else str(value)
