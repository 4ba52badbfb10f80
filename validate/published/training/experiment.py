"""Experiments: small functions that yield records, and the lines of the table in which they are printed."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import Any, Final, NamedTuple, ParamSpec

from profiles.files import read_text
from validate.published.records import Record
from validate.tables import Section

TEXTS: Final = Path(__file__).with_name("experiments.toml")
_Given = ParamSpec("_Given")
Found = Iterator[Record | Sequence[str]]
"""What an experiment yields: records, for each number that of the base setting first, and rows of its table."""


class Findings(NamedTuple):
    """The table of an experiment, with the texts of ``experiments.toml``, and the records of its numbers."""

    section: Section
    records: tuple[Record, ...]


@cache
def texts() -> dict[str, Any]:
    """The texts around the tables, and their order."""
    return tomllib.loads(read_text(TEXTS))


def experiment(find: Callable[_Given, Found]) -> Callable[_Given, Findings]:
    """Make an experiment of a function; its texts stand under its module and name."""

    @wraps(find)
    def run(*args: _Given.args, **kwargs: _Given.kwargs) -> Findings:
        said = texts()[find.__module__.rpartition(".")[2]][find.__name__]
        found = list(find(*args, **kwargs))
        rows = [one for one in found if not isinstance(one, Record)]
        section = Section(said["title"], said["header"], rows, " ".join(said.get("remark", "").split()))
        return Findings(section, tuple(one for one in found if isinstance(one, Record)))

    return run
