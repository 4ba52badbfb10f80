"""Outputs: files that can be written, refused before the work where they cannot; and written whole or not at all."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final

from profiles.errors import InputError

_numbers: Final = count()
"""Of files written by this process, several at a time."""
_kept_open: Final[list[int]] = []
"""Pipes whose readers would take it for the end if they were closed before they are written to."""


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


def _check_made(flag: str, path: Path, folder: Path) -> None:
    """Refuse a file beside which none can be made, as where a folder is the kernel's: what permissions do not tell."""
    try:
        with NamedTemporaryFile(dir=folder, prefix=".sim-"):
            pass
    except OSError as error:
        words = (error.strerror or str(error)).lower()
        raise InputError(f"{flag} is '{path}', which cannot be written: {words}") from None


def _check_read(flag: str, path: Path) -> None:
    """Refuse a pipe that nobody reads: whoever opened it would wait for ever."""
    try:
        _kept_open.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        raise InputError(f"{flag} is '{path}', a pipe that nobody reads") from None


def _swallows(path: Path) -> bool:
    """Whether a device takes all that is written: the null device, or a terminal."""
    return str(path) == os.devnull or str(path).startswith(("/dev/pts/", "/dev/tty"))


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file to write in place of another, which it replaces at the end; so nobody ever sees half of it."""
    target = path.resolve()
    if target.exists() and not target.is_file():  # a pipe or a device
        yield path
        return
    beside = target.with_name(f".sim-{os.getpid()}-{next(_numbers)}{target.suffix}")
    try:
        yield beside
        beside.replace(target)
    except OSError as error:
        if error.filename != str(beside):
            raise
        raise InputError(f"{path}: cannot be written: {(error.strerror or str(error)).lower()}") from None
    finally:
        beside.unlink(missing_ok=True)
