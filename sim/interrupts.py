"""Interrupts: Ctrl-C, requests to terminate and lost terminals, as one exception that can be postponed."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any, Final

HANG_UP: Final[signal.Signals | None] = getattr(signal, "SIGHUP", None)
"""The signal of a lost terminal; None on systems without it."""


def numbers() -> list[signal.Signals]:
    """Return the signals that interrupt; a lost terminal does not where it is ignored, as under ``nohup``."""
    chosen = [signal.SIGINT, signal.SIGTERM]
    if HANG_UP is not None and signal.getsignal(HANG_UP) is not signal.SIG_IGN:
        chosen.append(HANG_UP)
    return chosen


@contextmanager
def as_keyboard_interrupt() -> Iterator[None]:
    """Treat a request to terminate, and the loss of the terminal, like Ctrl-C."""
    with _handled_by(signal.default_int_handler):
        yield


@contextmanager
def postponed() -> Iterator[None]:
    """Postpone interrupts until something is done that must not be left half done."""
    waiting: list[int] = []
    try:
        with _handled_by(lambda number, _frame: waiting.append(number)):
            yield
    finally:
        for number in waiting:
            signal.raise_signal(number)


@contextmanager
def _handled_by(handler: Callable[[int, Any], object]) -> Iterator[None]:
    """Let a function handle interrupts; signal handlers can be set only in the main thread."""
    if current_thread() is not main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers()}
    try:
        yield
    finally:
        for number, other in before.items():
            signal.signal(number, signal.SIG_DFL if other is None else other)
