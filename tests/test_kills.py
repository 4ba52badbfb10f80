"""Kills: a sweep that is ended at any moment loses no finished point, leaves no worker, and goes on to the byte.

``DIFFUSIM_KILLS_SEED=7 python -m pytest -m slow tests/test_kills.py`` kills at other moments.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SWEEP = (
    "sweep", "--model", "sd21", "--gpus", "4", "--batch-size", "16", "--strategy", "ddp,gpipe,1f1b,interleaved,zero2",
    "--json", "--out", "rows.csv",
)  # fmt: skip
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SEED = int(os.environ.get("DIFFUSIM_KILLS_SEED", "20"))
ROUNDS, KILLS = 4, 5
"""Sweeps that are killed so many times each before they may end."""


def start(folder, *arguments):
    """The command in a folder of its own, and in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "sim", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def handles(pid, kind, number):
    """Whether a process catches (SigCgt) or ignores (SigIgn) a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith(kind))
    return bool(int(mask, 16) >> (number - 1) & 1)


def wait_until_it_listens(process):
    """Wait until the command says what is to become of a request to terminate: Python itself takes a while."""
    while process.poll() is None and not handles(process.pid, "SigCgt", signal.SIGTERM):
        time.sleep(0.001)


def nobody_is_left(process):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def kept(store):
    """The answers of a store by their numbers; none where it was not made yet."""
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            return dict(connection.execute("SELECT rowid, answer FROM answers"))
    except sqlite3.OperationalError:
        return {}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks at what a process catches")
def test_twenty_kills_lose_no_finished_point_leave_no_worker_and_change_no_byte(tmp_path):
    before = time.monotonic()
    whole = start(tmp_path, *SWEEP)
    expected, err = whole.communicate(timeout=300)
    assert whole.returncode == 0, err
    taken_s, rows = time.monotonic() - before, (tmp_path / "rows.csv").read_bytes()
    draw = random.Random(SEED)
    struck = 0
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        store = folder / "kept.sqlite"
        for kill in range(KILLS):
            there = kept(store)
            process = start(folder, *SWEEP, "--store", store)
            wait_until_it_listens(process)
            time.sleep(draw.uniform(0.0, 0.8 * taken_s))
            own = SIGNALS[(number + kill) % len(SIGNALS)]
            struck += process.poll() is None
            if own in (signal.SIGINT, signal.SIGHUP):  # Ctrl-C and lost terminals reach the workers too
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, own)
            else:
                process.send_signal(own)
            _, err = process.communicate(timeout=300)
            assert nobody_is_left(process), own
            assert process.returncode in ((0, -own) if own is signal.SIGKILL else (0, 130)), (own, err)
            assert there.items() <= kept(store).items()
        there = kept(store)
        process = start(folder, *SWEEP, "--store", store)
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out) == (0, expected), err
        assert (folder / "rows.csv").read_bytes() == rows
        assert there.items() <= kept(store).items(), "a finished point was replayed again"
    assert struck >= ROUNDS * KILLS // 2, "most sweeps were over before they were killed"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_quarter_of_a_second_can_be_interrupted(tmp_path, number):
    for delay in (0.0, 0.03, 0.06, 0.09, 0.12, 0.16, 0.2, 0.25):
        process = start(tmp_path, *SWEEP)
        wait_until_it_listens(process)
        time.sleep(delay)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
        assert (process.returncode, out) == (130, ""), (delay, err)
        assert err.splitlines()[-1] == "sim: interrupted"
        assert "Traceback" not in err


@pytest.mark.slow
def test_two_sweeps_at_once_in_one_folder_and_one_store_do_not_harm_one_another(tmp_path):
    alone = start(tmp_path, *SWEEP)
    expected, _ = alone.communicate(timeout=300)
    assert alone.returncode == 0
    rows = (tmp_path / "rows.csv").read_bytes()
    both = [start(tmp_path, *SWEEP, "--store", "kept.sqlite") for _ in range(2)]
    told = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert [out for out, _ in told] == [expected] * 2
    assert (tmp_path / "rows.csv").read_bytes() == rows
    # SQLite's last reader tidies up beside a store; of two that leave at once neither may be it, so the next one is
    assert start(tmp_path, *SWEEP, "--store", "kept.sqlite").communicate(timeout=300)[0] == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.sqlite", "rows.csv"]


def children(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for the children of a process")
@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has no workers")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_is_killed_costs_a_line_and_nothing_else(tmp_path, number):
    expected, _ = start(tmp_path, *SWEEP).communicate(timeout=300)
    process = start(tmp_path, *SWEEP)
    while process.poll() is None and not any(
        started := [pid for pid in children(process) if not handles(pid, "SigCgt", signal.SIGTERM)]
    ):
        time.sleep(0.002)
    assert process.poll() is None
    os.kill(started[0], number)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, expected)
    warned, wrote = err.splitlines()
    assert warned == "sim: warning: a worker process died (killed, or out of memory): new ones go on"
    assert wrote.startswith("sim: wrote ")
    assert nobody_is_left(process)
