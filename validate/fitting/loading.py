"""Loading: tables of observations, each cell read by the rule of its column."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from profiles.files import Row, read_rows

Rule = Callable[[Row, str], Any]
Record = dict[str, Any]


def load(path: Path, rules: Mapping[str, Rule]) -> list[Record]:
    """Rows of a CSV file by column, and under ``where`` file and line; InputError where a cell breaks its rule."""
    rows = read_rows(path, tuple(rules))
    return [{**{key: rule(row, key) for key, rule in rules.items()}, "where": row.where} for row in rows]


def count(row: Row, key: str) -> int:
    """An integer of at least one."""
    return row.integer(key, minimum=1)


def one_of(*choices: str) -> Rule:
    """The rule of a column that holds one of some words."""
    return lambda row, key: row.choice(key, choices)


text: Final[Rule] = Row.text
number: Final[Rule] = Row.number
index: Final[Rule] = Row.integer
