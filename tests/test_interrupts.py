"""Interrupts: none is lost, and none is told with a traceback."""

import signal

import pytest

from sim.interrupts import as_one, check, numbers


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_that_ends_a_command_is_an_interrupt_as_long_as_a_question_is_asked(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), as_one():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_lost_terminal_is_no_interrupt_where_it_is_ignored_as_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with as_one():
            signal.raise_signal(signal.SIGHUP)
        assert signal.SIGHUP not in numbers()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
