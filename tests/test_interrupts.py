"""Interrupts: signals that end a command, as one exception that can be postponed."""

import csv
import signal
import subprocess
import sys

import pytest

from sim.cli.main import main
from sim.interrupts import as_keyboard_interrupt, numbers, postponed
from sim.report import rankings

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def terminal():
    """A terminal whose loss is not ignored, whatever starts the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_that_ends_a_command_is_an_interrupt_that_can_be_postponed(number):
    before, done = signal.getsignal(number), []
    with pytest.raises(KeyboardInterrupt), as_keyboard_interrupt():
        with postponed():
            signal.raise_signal(number)
            done.append("written")
        done.append("not reached")
    assert done == ["written"]
    assert signal.getsignal(number) is before


def test_a_lost_terminal_is_no_interrupt_where_it_is_ignored_as_under_nohup():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert signal.SIGHUP not in numbers()


def test_a_command_that_is_interrupted_while_it_starts_ends_without_a_traceback():
    code = """import sys, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
sys.addaudithook(lambda *of: "sim.api" in of[1] and signal.raise_signal(signal.SIGINT))
import sim"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, b"")


@pytest.mark.parametrize("more", [(), ("--out", "rows.csv")])
def test_an_interrupt_while_the_verdict_is_worked_out_loses_no_row(tmp_path, monkeypatch, capsys, more):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rankings, "sweep_blocks", interrupted)
    asked = ("sweep", "--model", "sd21", "--gpus", "2", "--batch-size", "8", "--strategy", "ddp,zero2")
    assert main([*asked, *more]) == 130
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-incomplete.csv") != bool(more)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {row["status"] for row in rows} >= {"simulated"}
    assert str(path.name) in capsys.readouterr().err
