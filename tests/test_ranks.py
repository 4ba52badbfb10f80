"""Ranks: those of several machines, and more than a machine should start, are refused; a broken link is one line."""

import os
import signal

import pytest
import torch
from torch import distributed as dist

from profiles.errors import DiffusimError, InputError
from profiles.measuring.launching import Place, launch, unbroken
from validate.__main__ import main
from validate.running.rank import check_places, join

pytestmark = pytest.mark.slow


def leaves_the_other(lost):
    """Rank 1 closes its connections without a word, as a process does that ends; rank 0 waits for it."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join(Place(rank, ranks, rank, ranks))
    if rank == 1:  # a rank that has returned is kept until all have: its connections would stay
        dist.destroy_process_group()
        return lost
    with pytest.raises(DiffusimError) as broken, unbroken(rank):
        dist.recv(torch.zeros(1), 1)
    return str(broken.value)


def test_a_rank_whose_connection_breaks_says_so_in_one_line():
    said, lost = launch(2, leaves_the_other, "lost")
    assert lost == "lost"
    assert said.startswith("rank 0 stopped: ")
    assert "\n" not in said


def is_killed():
    """Rank 1 is killed while rank 0 waits for it, and stops because of that."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    join(Place(rank, ranks, rank, ranks))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with unbroken(rank):
        dist.recv(torch.zeros(1), 1)


def test_a_rank_that_stops_because_another_was_killed_is_not_taken_for_the_dead_one():
    with pytest.raises(DiffusimError, match=r"^rank 1 was killed by SIGKILL; the others were stopped$"):
        launch(2, is_killed)


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
