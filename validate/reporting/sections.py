"""Sections: a table with its heading and a paragraph, as Markdown."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report: a table in words, and a paragraph on what it says where that is not plain."""

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


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by what a function says of them, in the order in which that first appears."""
    groups: dict[Key, list[Item]] = {}
    for one in items:
        groups.setdefault(key(one), []).append(one)
    return groups


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
