"""Printing: tables and lines of the command line."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: Sequence[str]) -> Table:
    """A table whose columns are aligned to the right, but for those of words in ``left``."""
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
