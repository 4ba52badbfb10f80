"""Output files: refused before the work where they cannot be written, and written whole or not at all."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from profiles.errors import InputError
from profiles.files import path_kind

_numbers: Final = count()
"""Tells apart the files that this process writes at the same time."""
_kept_open: Final[list[int]] = []
"""Pipes that stay open: if one were closed before it is written to, its reader would see its end."""


def check_writable(flag: str, path: Path) -> None:
    """Refuse a file that could not be written later.

    Raises:
        InputError: it is a folder or a device, a pipe that nobody reads or a loop of links, or its folder is missing,
            or one of them is not writable.
    """
    try:
        real = path.resolve()
        kind = real.stat().st_mode if real.exists() else None
        inside = real.parent.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a name too long; a NUL
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{flag} is '{path}', which cannot be written: {words.lower()}") from None
    if not inside or (kind is not None and stat.S_ISDIR(kind)):
        raise InputError(f"{flag} is '{path}', must be a file in a folder that exists")
    if not os.access(real.parent if kind is None else real, os.W_OK):
        raise InputError(f"{flag} is '{path}', which cannot be written")
    if kind is None or stat.S_ISREG(kind):
        _check_made(flag, path, real.parent)
    elif stat.S_ISFIFO(kind):
        _check_read(flag, path)
    elif not _swallows(real):
        raise InputError(f"{flag} is '{path}', which is a device, must be a file")


def check_new(path: Path) -> None:
    """Refuse a path where something lies already.

    Raises:
        InputError: there is something, or it cannot be looked up.
    """
    if path_kind(path) != "nothing":
        raise InputError(f"{path}: is there already, must be a new file")


def _check_made(flag: str, path: Path, folder: Path) -> None:
    """Refuse a file beside which none can be made although permissions allow it, as in ``/proc``."""
    try:
        with NamedTemporaryFile(dir=folder, prefix=".sim-"):
            pass
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise InputError(f"{flag} is '{path}', which cannot be written: {words}") from None


def _check_read(flag: str, path: Path) -> None:
    """Refuse a pipe that nobody reads: opening it would block for ever."""
    try:
        _kept_open.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        raise InputError(f"{flag} is '{path}', a pipe that nobody reads") from None


def _swallows(path: Path) -> bool:
    """Whether a device takes all that is written: the null device, or a terminal."""
    return str(path) == os.devnull or str(path).startswith(("/dev/pts/", "/dev/tty"))


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file to write, which replaces ``path`` at the end, so that nobody ever sees half of it.

    Raises:
        InputError: it cannot be written.
    """
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
