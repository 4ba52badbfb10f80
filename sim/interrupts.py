"""Interrupts: Ctrl-C, requests to terminate and lost terminals, as one exception that comes at a time that suits."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any, Final, NoReturn

HANG_UP: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)
"""The terminal is gone; None where systems know no such signal."""

_told: Final[list[int]] = []
"""Interrupts that came; the exception is lost where it is raised while Python cleans up."""


def numbers() -> list[signal.Signals]:
    """The signals that interrupt; the loss of the terminal does not where it is ignored, as under ``nohup``."""
    found = [signal.SIGINT, signal.SIGTERM]
    if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:
        found.append(HANG_UP)
    return found


@contextmanager
def as_one() -> Iterator[None]:
    """Treat a request to terminate, and the loss of the terminal, like Ctrl-C."""

    def interrupt(number: int, _frame: object) -> NoReturn:
        _told.append(number)
        raise KeyboardInterrupt

    before = sys.unraisablehook

    def unraisable(lost: Any) -> None:  # noqa: ANN401  as of sys.unraisablehook
        """Say nothing of an interrupt that came while an object was taken away: ``check`` raises it."""
        if not (_told and isinstance(lost.exc_value, KeyboardInterrupt)):
            before(lost)

    _told.clear()
    try:
        sys.unraisablehook = unraisable
        with _handled_by(interrupt):
            yield
    finally:
        sys.unraisablehook = before
        _told.clear()


def check() -> None:
    """Raise an interrupt that was lost; whoever works for long calls it now and then.

    Raises:
        KeyboardInterrupt: one was.
    """
    if _told:
        raise KeyboardInterrupt


@contextmanager
def held() -> Iterator[None]:
    """Let interrupts wait until something is done that must not be left half done."""
    waiting: list[int] = []
    try:
        with _handled_by(lambda number, _frame: waiting.append(number)):
            yield
    finally:
        for number in waiting:
            signal.raise_signal(number)


@contextmanager
def _handled_by(handler: Any) -> Iterator[None]:  # noqa: ANN401  as of signal.signal
    """Let a function handle interrupts meanwhile; only the main thread can say who does."""
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers()}
    try:
        yield
    finally:
        for number, other in before.items():
            signal.signal(number, signal.SIG_DFL if other is None else other)
