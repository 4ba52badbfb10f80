"""How busy a machine is, as its kernel says."""

import math
import os

import pytest

from profiles.measuring.machine import NOT_KNOWN, QUIET_CORES, disturbance, machine_busy_s

TICKS = os.sysconf("SC_CLK_TCK")


def stat(folder, line):
    path = folder / "stat"
    path.write_text(f"{line}\ncpu0 1 1 1 1 1 1 1 1 1 1\n", encoding="ascii")
    return path


def test_stolen_time_is_busy_and_waiting_for_a_disk_is_not(tmp_path):
    """User, nice, system, idle, waiting, interrupts, soft interrupts, steal; guests are in the first two."""
    line = "cpu  1 20 300 4000 50000 600000 7000000 80000000 1 1"
    assert machine_busy_s(stat(tmp_path, line)) == 87600321 / TICKS


@pytest.mark.parametrize("line", ["", "cpu", "cpu 1 2 3 4", "cpu a b c d e f g h"])
def test_what_cannot_be_read_is_not_known(tmp_path, line):
    assert math.isnan(machine_busy_s(stat(tmp_path, line)))
    assert math.isnan(machine_busy_s(tmp_path / "nowhere"))


def test_only_a_quiet_machine_has_nothing_said_of_it():
    assert disturbance(0.0) == disturbance(QUIET_CORES) == ""
    assert disturbance(0.5).startswith("other programs kept 0.50 cores busy, more than 0.1")
    assert "is not known" in disturbance(NOT_KNOWN)
