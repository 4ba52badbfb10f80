"""Blocks of an answer: panels, tables and lines, and their writers for a terminal, for Markdown and for HTML."""

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import StringIO
from itertools import compress
from shutil import get_terminal_size
from typing import Final, NamedTuple

from rich.box import ROUNDED, Box
from rich.console import Console
from rich.measure import Measurement
from rich.panel import Panel as Frame
from rich.table import Table as Grid
from rich.text import Text

WIDEST: Final = 100
"""Characters of a line that can still be read."""
NARROW: Final = 80
"""Characters of a panel that is text, for no terminal at all."""
NO_TERMINAL: Final = 140
"""Characters of a line where no terminal is there and COLUMNS is not set."""
RULED: Final = Box("    \n    \n ── \n    \n ── \n ── \n    \n    \n")
"""Lines below the head and between sections alone."""
MARKDOWN: Final = r"([\\`*_{}\[\]<>#|])"
"""Letters that Markdown would take for its own."""
LEFT: Final = ' style="text-align: left; padding: 2px 8px"'
"""Of cells of words, which notebooks would put at the right."""
WORDS: Final = f'{LEFT[:-1]}; min-width: 5em"'
NUMBER: Final = ' style="text-align: right; white-space: nowrap; padding: 2px 8px"'
LINE: Final = ' style="border-top: 2px solid"'
"""Of the first row below a line."""

SHADES: Final = {"█": "#0072B2", "▓": "#E69F00", "▒": "#56B4E9", "░": "#A0A0A055"}
"""Colours of the marks of bars in HTML."""
BAR: Final = re.compile("|".join(f"{mark}+" for mark in SHADES))
PLAIN_BARS: Final = str.maketrans("█▓▒░", "#+-.")
"""The marks of bars where an encoding lacks them."""

Line = tuple[str, str]
"""A label and its text; a line without a label goes on with the one above."""


class Panel(NamedTuple):
    """An answer in a few lines; text is never taken for markup."""

    title: str
    lines: Sequence[Line]


class Column(NamedTuple):
    """The head of a column of a table.

    Attributes:
        rank: 0 is never given up where a terminal is narrow; of the others, the highest goes first.
        words: whether it holds words, which stand at the left and may go on in a second line.
        widest: characters that its words may take in a narrow table.
    """

    name: str
    rank: int = 0
    words: bool = False
    widest: int | None = None


class Table(NamedTuple):
    """A table; a line parts the rows above from those below."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    above: int | None = None

    def having(self, kept: Sequence[bool]) -> "Table":
        """Return the table with those columns that are kept."""
        rows = [[*compress(row, kept)] for row in self.rows]
        return self._replace(columns=[*compress(self.columns, kept)], rows=rows)

    @property
    def filled(self) -> "Table":
        """The table with the columns that say something."""
        columns = zip(*self.rows, strict=True)
        return self.having([any(cell not in ("", "-") for cell in cells) for cells in columns])


class Command(NamedTuple):
    """A command line, and what it gives."""

    gives: str
    line: str


Block = Panel | Table | Command | str
"""A part of an answer; a text is a line of its own."""


def console() -> Console:
    """Return the console that answers are printed on; as wide as COLUMNS says, or 140, where it is no terminal."""
    width = None if sys.stdout.isatty() else get_terminal_size((NO_TERMINAL, 0)).columns
    return Console(highlight=False, markup=False, emoji=False, width=width)


def print_blocks(blocks: Sequence[Block], *, as_markdown: bool = False) -> None:
    """Print blocks on the terminal, or as Markdown."""
    screen = console()
    if as_markdown:
        print(_with_bars(markdown(*blocks), screen))
    else:
        write(screen, *blocks)


def _with_bars(words: str, screen: Console) -> str:
    """Return words with bars that the encoding of a screen has."""
    return words.translate(PLAIN_BARS) if screen.options.ascii_only else words


def write(screen: Console, *blocks: Block) -> None:
    """Write blocks on a screen."""
    for block in blocks:
        match block:
            case Panel():
                _write_panel(screen, block)
            case Table():
                screen.print()
                screen.print(_grid(fitting(block.filled, screen.width)))
                screen.print()
            case Command():
                screen.print(f"{block.gives}: {block.line}", soft_wrap=True)
            case _:
                screen.print(block)


def text(*blocks: Block) -> str:
    """Blocks as text without colours."""
    file = StringIO()
    screen = Console(file=file, width=NARROW, highlight=False, emoji=False, markup=False, color_system=None)
    write(screen, *blocks)
    return file.getvalue().rstrip("\n")


def _write_panel(screen: Console, panel: Panel) -> None:
    """Print a panel, no wider than can be read; a title too long for its edge stands within."""
    width = min(screen.width, WIDEST)
    within = len(panel.title) > width - 6
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    lines = [("", panel.title), *panel.lines] if within else panel.lines
    for number, (label, words) in enumerate(lines):
        said = _with_bars(words, screen)
        grid.add_row(Text(label, style="dim"), Text(said, style="" if number else "bold"))
    title = Text("" if within else panel.title)
    screen.print(Frame(grid, title=title, title_align="left", box=ROUNDED, padding=(0, 1)), width=width)


def _grid(table: Table) -> Grid:
    """Return a table of rich."""
    grid = Grid(
        title=Text(table.title), title_justify="left", box=RULED, show_edge=False, pad_edge=False, padding=(0, 1)
    )  # fmt: skip
    grid.collapse_padding = True
    for column in table.columns:
        grid.add_column(
            Text(column.name), justify="left" if column.words else "right", no_wrap=not column.words,
            max_width=column.widest, vertical="top", overflow="fold",
        )  # fmt: skip
    for number, cells in enumerate(table.rows, 1):
        grid.add_row(*map(Text, cells), end_section=number == table.above)
    return grid


def fitting(table: Table, width: int) -> Table:
    """Return what a width has room for, with words on one line or two; without the columns of the highest ranks."""
    kept = table._replace(columns=[column._replace(widest=None) for column in table.columns])
    if _width(kept) > width:
        kept = table
    while _width(kept) > width and (last := max(kept.columns, key=lambda column: column.rank)).rank:
        kept = kept.having([column is not last for column in kept.columns])
    return kept


def _width(table: Table) -> int:
    """Characters of a table."""
    wide = Console(width=1000, height=1)  # without both, a dumb terminal has 80 characters
    return Measurement.get(wide, wide.options, _grid(table)).maximum


def markdown(*blocks: Block) -> str:
    """Blocks as Markdown; tables with all columns that say something."""
    return "\n\n".join(map(_markdown_of, blocks))


def _markdown_of(block: Block) -> str:
    match block:
        case Panel():
            items = [
                f"- **{label}** {_plain(words)}" if label else f"  - {_plain(words)}"
                for label, words in block.lines
            ]
            return "\n".join([f"**{_plain(block.title)}**", "", *items])
        case Table():
            table = block.filled
            rows: list[Sequence[str]] = [[column.name for column in table.columns]]
            rows += [["---" if column.words else "---:" for column in table.columns]]
            cells = (
                [" ".join(cell.replace("|", "\\|").split()) for cell in row] for row in [*rows, *table.rows]
            )
            return "\n".join([block.title, "", *(f"| {' | '.join(row)} |" for row in cells)])
        case Command():
            return f"{block.gives}:\n\n```\n{block.line}\n```"
    return block


def _plain(words: str) -> str:
    return re.sub(MARKDOWN, r"\\\1", words)


def html(*blocks: Block) -> str:
    """Blocks as HTML."""
    return "".join(map(_html_of, blocks))


def _html_of(block: Block) -> str:
    match block:
        case Panel():
            rows = (
                f"<tr>{_cell('th', label, LEFT)}{_cell('td', words, LEFT)}</tr>"
                for label, words in block.lines
            )
            title = f"<b>{escape(block.title)}</b>" if block.title else ""
            return f'{title}<table class="lines">{"".join(rows)}</table>'
        case Table():
            filled = block.filled
            looks = [f'{WORDS if head.words else NUMBER} class="rank{head.rank}"' for head in filled.columns]

            def row(kind: str, cells: Sequence[str]) -> str:
                return "".join(_cell(kind, cell, look) for cell, look in zip(cells, looks, strict=True))

            heads = row("th", [column.name for column in filled.columns])
            lines = [
                f"<tr{LINE if number == block.above else ''}>{row('td', cells)}</tr>"
                for number, cells in enumerate(filled.rows)
            ]
            body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
            table = f'<table style="border-collapse: collapse">{body}</table>'
            return f'<p>{escape(block.title)}</p><div class="scroll">{table}</div>'
        case Command():
            return f"<p>{escape(block.gives)}</p><pre><code>{escape(block.line)}</code></pre>"
    return f"<p>{escape(block)}</p>"


def _cell(kind: str, words: str, look: str) -> str:
    """Return a cell; line breaks stay, and a bar is drawn."""
    return f"<{kind}{look}>{BAR.sub(_bar, escape(words)).replace(chr(10), '<br>')}</{kind}>"


def _bar(match: re.Match[str]) -> str:
    """Return a part of a bar of one shade."""
    look = f"display: inline-block; height: 0.75em; width: {len(match[0]) * 0.45:.2f}em"
    return f'<span style="{look}; background: {SHADES[match[0][0]]}"></span>'


class Panelled(ABC):
    """An answer that prints itself as a panel."""

    __slots__ = ()

    @property
    @abstractmethod
    def panel(self) -> Panel:
        """The answer as a panel."""

    def __str__(self) -> str:
        return text(self.panel)

    def _repr_html_(self) -> str:
        """Return the answer as a table, in a notebook."""
        return html(self.panel)

    def markdown(self) -> str:
        """Return the answer as a Markdown list."""
        return markdown(self.panel)


@dataclass(frozen=True, slots=True)
class Answer(Panelled):
    """An answer that is a panel."""

    panel: Panel
