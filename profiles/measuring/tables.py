"""Tables: what the command line prints in columns."""

from collections.abc import Callable, Hashable, Iterable, Sequence
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
