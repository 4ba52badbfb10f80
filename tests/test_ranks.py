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
from validate.__main__ import main
from validate.ranks import check_places

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
RANK = """
import time
from torch import distributed as dist
from validate.ranks import gather_pids, name_lost, one_machine, watched
dist.init_process_group("gloo")
one_machine()
pids = gather_pids()
"""
WAITS = """
with watched(pids, "test"):
    print(*pids.values(), flush=True)
    time.sleep(60)
"""
FAILS_AT_ONCE = """
import os
import torch
if dist.get_rank() == 1:
    print(*pids.values(), flush=True)
    try:
        dist.recv(torch.zeros(1), 2)
    except RuntimeError as error:
        print(name_lost(error, pids), flush=True)
        os._exit(2)
"""
NAMES = """
print(*pids.values(), flush=True)
for waited_for in (-1, 1):
    print(name_lost(ValueError("first line\\nsecond line"), pids, waited_for), flush=True)
dist.barrier()
"""


@pytest.fixture
def start():
    """Start ranks of a programme; they end with the test."""
    started = []

    def all_of(programme, ranks=2):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        for rank in range(ranks):
            common = {
                "WORLD_SIZE": str(ranks),
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
        pids = " ".join(str(process.pid) for process in started) + "\n"
        assert [process.stdout.readline() for process in started] == [pids] * ranks
        return started

    yield all_of
    for process in started:
        process.kill()
        process.communicate()


def test_a_rank_that_waits_for_nothing_learns_of_a_dead_one_and_says_so_in_one_line(start):
    left, killed = start(RANK + WAITS)
    begin = time.monotonic()
    killed.kill()
    killed.wait()
    left.send_signal(signal.SIGTERM)  # as torchrun does: it must not keep the rank from saying it
    _, errors = left.communicate(timeout=30)
    assert time.monotonic() - begin < 10
    assert errors == f"validate: error: test: rank 1 (process {killed.pid}) died; rank 0 stopped\n"
    assert left.returncode == 2


def test_a_rank_that_has_stopped_because_of_another_is_not_taken_for_a_dead_one(start):
    waiting, failing, killed = start(RANK + FAILS_AT_ONCE + WAITS, 3)
    killed.kill()
    lost = f"rank 2 (process {killed.pid}) died; rank"
    assert failing.communicate(timeout=30)[0] == f"{lost} 1 stopped\n"
    assert waiting.communicate(timeout=30)[1] == f"validate: error: test: {lost} 0 stopped\n"


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


@pytest.mark.parametrize(
    "command",
    [
        "links --device a100-80gb-sxm --output never.toml --ranks 33",
        "sample --strategy ulysses --ranks 33",
        "run --schedule ddp --mode sleep --gpus 33 --batch-size 33",
    ],
)
def test_more_processes_than_a_machine_should_start_are_refused(command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("validate: error: ")
    assert not list(tmp_path.iterdir())
