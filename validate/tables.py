"""Tables: rows of shipped files, and sections of Markdown, with a heading and a paragraph."""

import csv
import re
from collections.abc import Iterable, Sequence
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from profiles.errors import InputError
from profiles.files import read_text
from profiles.outputs import whole_file


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


def read_cells(path: Path) -> list[dict[str, str]]:
    """The rows of a shipped CSV file, by column."""
    return list(csv.DictReader(StringIO(read_text(path))))


class Section(NamedTuple):
    """One part of a report: a table in words, and a paragraph that explains it where needed."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    remark: str = ""

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


def parts_around(path: Path, command: str) -> tuple[str, str, str]:
    """The text of a file up to the line that names a command, to the line that ends its tables, and from there."""
    start, end = f"<!-- python -m validate {command} -->", "<!-- end -->"
    match = re.fullmatch(
        rf"(.*?^{re.escape(start)}$)(.*?)(^{end}$.*)", read_text(path), re.DOTALL | re.MULTILINE
    )
    if match is None:
        raise InputError(f"--readme is '{path}', must hold a line '{start}' and then a line '{end}'")
    return match[1], match[2], match[3]


def write_tables(path: Path, command: str, tables: Iterable[Section]) -> None:
    """Write the tables of a command, without their titles and remarks, between two lines of a file."""
    before, _, after = parts_around(path, command)
    texts = ("\n".join(table._replace(remark="").markdown().splitlines()[2:]) for table in tables)
    write_file(path, "\n\n".join([before, *texts, after]))
