"""Interrupts: none is lost, and none is told with a traceback."""

import signal

import pytest

from sim.interrupts import as_one, check


class Interrupted:
    """An object that an interrupt hits while it is taken away."""

    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_while_an_object_is_taken_away_is_raised_later_and_says_nothing(capfd):
    with as_one():
        one = Interrupted()
        del one
        with pytest.raises(KeyboardInterrupt):
            check()
    assert capfd.readouterr().err == ""


def test_what_else_is_lost_there_is_told_as_ever(monkeypatch):
    class Faulty:
        def __del__(self):
            raise ValueError

    told = []
    monkeypatch.setattr("sys.unraisablehook", lambda lost: told.append(lost.exc_type))
    with as_one():
        one = Faulty()
        del one
    assert told == [ValueError]
