"""Sections: a table with its heading and a paragraph, as the terminal prints it and the page shows it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report.

    Attributes:
        title: its heading.
        header: the columns of its table.
        rows: the table's cells, in words.
        remark: one paragraph on what the numbers say; empty where they speak for themselves.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remark: str = ""

    def __post_init__(self) -> None:
        wrong = [row for row in self.rows if len(row) != len(self.header)]
        if wrong:
            raise ValueError(f"section '{self.title}' has {len(self.header)} columns, but a row {wrong[0]}")

    def markdown(self) -> str:
        """The section as Markdown."""
        lines = [f"### {self.title}", "", _line(self.header), _line(["---"] * len(self.header))]
        lines += map(_line, self.rows)
        return "\n".join([*lines, *(["", self.remark] if self.remark else [])])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def print_sections(sections: Iterable[Section]) -> None:
    """Print sections as Markdown, each as soon as it is made."""
    for section in sections:
        print(section.markdown(), end="\n\n", flush=True)


def percent(share: float) -> str:
    """A share in words."""
    return f"{share:.1%}"


def signed(error: float) -> str:
    """A relative error in words."""
    return f"{error:+.1%}".replace("-0.0%", "+0.0%")
