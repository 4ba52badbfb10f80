"""Ranks: a lost one is named, also by one that waits for nothing; ranks on several machines are refused."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiles.errors import InputError
from validate.ranks import check_places

ROOT = Path(__file__).resolve().parent.parent
RANK = """
import time
from torch import distributed as dist
from validate.ranks import gather_pids, name_lost, one_machine, watched
dist.init_process_group("gloo")
one_machine()
pids = gather_pids()
print(*pids.values(), flush=True)
"""
WAITS = """
with watched(pids, "test"):
    time.sleep(60)
"""
NAMES = """
dist.barrier()
for waited_for in (-1, 1):
    print(name_lost(ValueError("first line\\nsecond line"), pids, waited_for), flush=True)
dist.barrier()
"""


@pytest.fixture
def start():
    """Start two ranks of a programme; they end with the test."""
    started = []

    def both(programme):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(2):
            common = {
                "WORLD_SIZE": "2",
                "RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            }
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", programme], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    text=True, env=os.environ | common | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                )
            )  # fmt: skip
        pids = f"{started[0].pid} {started[1].pid}\n"
        assert [process.stdout.readline() for process in started] == [pids, pids]
        return started

    yield both
    for process in started:
        process.kill()
        process.communicate()


def test_a_rank_that_waits_for_nothing_learns_of_a_dead_one_and_says_so_in_one_line(start):
    left, killed = start(RANK + WAITS)
    begin = time.monotonic()
    killed.kill()
    left.send_signal(signal.SIGTERM)  # as torchrun does: it must not keep the rank from saying it
    _, errors = left.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert errors == f"validate: error: test: rank 1 (process {killed.pid}) died; rank 0 stopped\n"
    assert left.returncode == 2


def test_a_rank_that_is_terminated_while_all_live_ends(start):
    left, other = start(RANK + WAITS)
    left.send_signal(signal.SIGTERM)
    assert left.wait(10) == 128 + signal.SIGTERM
    assert "rank 0 (process" in other.communicate(timeout=30)[1]


def test_where_all_live_the_one_waited_for_is_named_or_else_the_error(start):
    left, other = start(RANK + NAMES)
    printed = left.communicate(timeout=30)[0].splitlines()
    assert printed == [
        "rank 0 stopped: first line",
        f"rank 1 (process {other.pid}) stopped answering; rank 0 stopped",
    ]


def test_ranks_on_several_machines_are_refused_with_their_names():
    check_places([("boot", "here"), ("boot", "here, in a container")])
    with pytest.raises(
        InputError, match=r"^ranks are on 2 machines \(rank 0 on here, rank 2 on there\), must all"
    ):
        check_places([("a", "here"), ("a", "here"), ("b", "there"), ("b", "there")])
