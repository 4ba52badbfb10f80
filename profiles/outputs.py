"""Output files: refused before the work where they cannot be written, and written whole or not at all."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Final

from profiles.errors import InputError
from profiles.files import path_kind

FIGURES: Final = (".png", ".svg", ".pdf")
"""Endings of pictures."""
_numbers: Final = count()
"""Tells apart the files that this process writes at the same time."""


def check_writable(flag: str, path: Path) -> None:
    """Refuse a file that could not be written later."""
    try:
        real = path.resolve()
        there, usable = real.exists(), real.is_file() or str(path).startswith("/dev/")
        inside = real.parent.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a name too long; a NUL
        raise InputError(f"{flag} is '{path}', which cannot be written: {str(error).lower()}") from None
    if not inside or (there and not usable):
        raise InputError(f"{flag} is '{path}', must be a file in a folder that exists")
    if not os.access(real if there else real.parent, os.W_OK):
        raise InputError(f"{flag} is '{path}', which cannot be written")


def check_ending(flag: str, path: Path, endings: Sequence[str]) -> None:
    """Refuse a file whose ending is none of those that are known."""
    if path.suffix.lower() not in endings:
        raise InputError(f"{flag} is '{path}', must end in {', '.join(endings)}")


def check_new(path: Path) -> None:
    """Refuse a path where something lies already."""
    if path_kind(path) != "nothing":
        raise InputError(f"{path}: is there already, must be a new file")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file to write, which replaces ``path`` at the end, so that nobody ever sees half of it."""
    target = path.resolve()
    if target.exists() and not target.is_file():  # a pipe or a device
        yield path
        return
    beside = target.with_name(f".sim-{os.getpid()}-{next(_numbers)}{target.suffix}")
    try:
        yield beside
        beside.replace(target)
    except OSError as error:
        if error.filename not in (None, str(beside)):  # errors of writing, such as of a full disk, name none
            raise
        raise InputError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    finally:
        beside.unlink(missing_ok=True)


def write_files(folder: Path, texts: Mapping[Path, str]) -> None:
    """Write files into a folder, which is made where it is missing: none of them if one cannot be written."""
    try:
        with ExitStack() as drafts:
            for path, text in texts.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                drafts.enter_context(whole_file(folder / path)).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {(error.strerror or str(error)).lower()}") from None
