"""Tables: sections of Markdown, with a heading and a paragraph."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from profiles.errors import InputError
from profiles.files import read_text
from profiles.outputs import whole_file


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a report: a table in words, and a paragraph that explains it where needed."""

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


def parts_around(path: Path, start: str, end: str) -> tuple[str, str]:
    """The text of a file before the line ``start``, and after the first line ``end`` that follows it."""
    lines = f"^{re.escape(start)}$(.*?)^{re.escape(end)}$"
    match = re.search(lines, read_text(path), re.DOTALL | re.MULTILINE)
    if match is None:
        raise InputError(f"--readme is '{path}', must hold a line '{start}' and then a line '{end}'")
    return match.string[: match.start()], match.string[match.end() :]


def write_tables(path: Path, markers: tuple[str, str], tables: Iterable[Section]) -> None:
    """Write tables, without their titles and remarks, between two lines of a file."""
    before, after = parts_around(path, *markers)
    texts = ("\n".join(replace(table, remark="").markdown().splitlines()[2:]) for table in tables)
    write_file(path, before + "\n\n".join([markers[0], *texts, markers[1]]) + after)
