"""Columns: a table that gives up its least important columns where the terminal is narrow."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import zip_longest
from typing import Final

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

RULED: Final = Box("    \n    \n ── \n    \n ── \n ── \n    \n    \n")
"""Lines below the head and between sections alone."""
LEFT: Final = ' style="text-align: left; padding: 2px 8px"'
"""Of cells of words, which notebooks would put at the right."""
NUMBER: Final = ' style="text-align: right; white-space: nowrap; padding: 2px 8px"'
LINE: Final = ' style="border-top: 2px solid"'
"""Of the first row below a line."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: its head; a line break may stand in it.
        cells: one for each row.
        rank: 0 is never given up; of the others, the highest goes first.
        words: whether it holds words, which stand at the left and may go on in a second line.
        widest: characters that its words may take.
        tells: whether it helps to tell rows apart; a column that alone does so is never given up.
    """

    name: str
    cells: Sequence[str]
    rank: int = 0
    words: bool = False
    widest: int | None = None
    tells: bool = False


def _table_of(title: str, columns: Sequence[Column], above: int | None = None) -> Table:
    """A table of columns; a line parts the rows above from those below."""
    table = Table(
        title=Text(title), title_justify="left", box=RULED, show_edge=False, pad_edge=False, padding=(0, 1)
    )
    table.collapse_padding = True
    for column in columns:
        table.add_column(
            Text(column.name), justify="left" if column.words else "right", no_wrap=not column.words,
            max_width=column.widest, vertical="top", overflow="fold",
        )  # fmt: skip
    for number, cells in enumerate(zip(*(column.cells for column in columns), strict=True), 1):
        table.add_row(*map(Text, cells), end_section=number == above)
    return table


def fitting(columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that a width has room for, words on one line or two; else without those of the highest ranks."""
    free = [replace(column, widest=None) for column in columns]
    if _width(free) <= width:
        return free
    kept = list(columns)
    while _width(kept) > width:
        last = max(kept, key=lambda column: column.rank * _spare(column, kept))
        if not last.rank * _spare(last, kept):
            break
        kept.remove(last)
    return kept


def _spare(column: Column, columns: Sequence[Column]) -> bool:
    """Whether rows are told apart without a column as well as with it."""
    others = [other for other in columns if other is not column]
    return not column.tells or _labels(others) == _labels(columns)


def _labels(columns: Sequence[Column]) -> int:
    """How many different rows there are by the columns that tell them apart."""
    return len(set(zip(*(column.cells for column in columns if column.tells), strict=True)))


def _width(columns: Sequence[Column]) -> int:
    """Characters of a table of these columns."""
    screen = Console(width=1000)
    return screen.measure(_table_of("", columns)).maximum


def show_table(
    screen: Console, title: str, columns: Sequence[Column], above: int | None = None
) -> list[Column]:
    """Print a table as wide as the terminal at most, and return the columns that there was room for."""
    full = [column for column in columns if any(cell not in ("", "-") for cell in column.cells)]
    shown = fitting(full, screen.width)
    screen.print(_table_of(title, shown, above))
    return shown


def markdown_of(title: str, columns: Sequence[Column]) -> str:
    """A table in Markdown, with all its columns."""
    rows = [[column.name.replace("\n", " ") for column in columns]]
    rows += [list(cells) for cells in zip_longest(*(column.cells for column in columns), fillvalue="")]
    rule = ["---" if column.words else "---:" for column in columns]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (rows[0], rule, *rows[1:])]
    return "\n".join([title, "", *lines])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def table_html(title: str, shown: Sequence[Column], above: int | None = None) -> str:
    """A table under its title; a line parts the rows above from those below."""
    kept = [column for column in shown if any(cell not in ("", "-") for cell in column.cells)]
    looks = [LEFT if column.words else NUMBER for column in kept]
    heads = _row("th", [column.name for column in kept], looks)
    lines = [
        _row("td", cells, looks, LINE if number == above else "")
        for number, cells in enumerate(zip(*(column.cells for column in kept), strict=True))
    ]
    body = f"<thead>{heads}</thead><tbody>{''.join(lines)}</tbody>"
    return f'<p>{escape(title)}</p><table style="border-collapse: collapse">{body}</table>'


def _row(kind: str, cells: Sequence[str], looks: Sequence[str], line: str = "") -> str:
    """A row of cells; line breaks stay."""
    said = (escape(cell).replace("\n", "<br>") for cell in cells)
    return f"<tr{line}>{''.join(f'<{kind}{look}>{cell}</{kind}>' for cell, look in zip(said, looks, strict=True))}</tr>"


def more_html(*calls: str) -> str:
    """Return how to see more of an answer, in HTML."""
    code = ", ".join(f"<code>.{call}</code>" for call in ("frame()", *calls, "write_report('report.html')"))
    return f"<p>More: {code}</p>"
