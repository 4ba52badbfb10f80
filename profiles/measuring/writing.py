"""Writing: files come whole or not at all, so that no reader meets half of one."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp

from profiles.errors import InputError
from profiles.outputs import whole_file


def scratch_folder(name: str) -> Path:
    """A path called ``name`` in a new temporary folder."""
    return Path(mkdtemp()) / name


def write_file(path: Path, text: str, flag: str = "--output") -> None:
    """Write a file whole or not at all; ``flag`` is named in errors."""
    with drafts([path], f"{flag} {path}") as (draft,):
        draft.write_text(text, encoding="utf-8")


def write_files(folder: Path, texts: Mapping[Path, str]) -> None:
    """Write files into a folder, which is made where it is missing: none of them if one cannot be written."""
    paths = [folder / path for path in texts]
    made: list[Path] = []
    try:
        with drafts(paths, f"--output {folder}") as files:
            for draft, text in zip(files, texts.values(), strict=True):
                made += [parent for parent in draft.parents if not parent.exists()][::-1]
                draft.parent.mkdir(parents=True, exist_ok=True)
                draft.write_text(text, encoding="utf-8")
    finally:
        for parent in reversed(made):
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Text of a CSV file."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


@contextmanager
def drafts(paths: Sequence[Path], what: str) -> Iterator[list[Path]]:
    """Yield a draft of each path, all of which take their places if all goes well."""
    try:
        with ExitStack() as written:
            yield [written.enter_context(whole_file(path)) for path in paths]
    except OSError as error:
        raise InputError(f"{what}: {error.strerror or error}") from error


class Exact(str):
    """A value that is written as it is."""


def toml_text(values: Mapping[str, object], number: str = "") -> str:
    """Text of a TOML file: plain values, then a table for each mapping, and one for each of a list of mappings.

    ``number`` is the format of floats, all of whose digits are written by default.
    """
    return "\n".join(_toml_lines(values, number, "")) + "\n"


def _toml_lines(values: Mapping[str, object], number: str, path: str) -> Iterator[str]:
    tables = {key: _tables_of(value) for key, value in values.items()}
    for key, value in values.items():
        if tables[key] is None:
            written = format(value, number) if isinstance(value, float) and number else json.dumps(value)
            yield f"{key} = {value if isinstance(value, Exact) else written}"
    for key, entries in tables.items():
        name = f"{path}{key}"
        for table in entries or ():
            yield from ("", f"[{name}]" if isinstance(values[key], Mapping) else f"[[{name}]]")
            yield from _toml_lines(table, number, f"{name}.")


def _tables_of(value: object) -> Sequence[Mapping[str, object]] | None:
    """The tables that a value is written as; None where it stands on a line."""
    of = [value] if isinstance(value, Mapping) else value
    return of if isinstance(of, list) and all(isinstance(one, Mapping) for one in of) else None
