"""Ranks measure their links; one that is lost is named, and the others stop."""

import os
import signal
import time

import pytest

from profiles.errors import DiffusimError, InputError
from profiles.machines.clusters import read_cluster
from profiles.measuring.launching import Place, launch
from profiles.measuring.linking.times import choose_backend, sizes_up_to
from sim.cli.main import main as sim
from validate.__main__ import main

pytestmark = pytest.mark.slow

DEVICE = "a100-80gb-sxm"


def test_nccl_needs_a_gpu_for_every_rank():
    with pytest.raises(InputError, match=r"--backend nccl: 99 ranks per node need as many GPUs, found \d"):
        choose_backend(Place(0, 99, 0, 99), "nccl")


def dies(rank):
    """One of the ranks is killed, the others wait."""
    if os.environ["RANK"] == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def test_what_ranks_return_is_given_by_rank_and_a_killed_one_is_named_as_the_others_are_stopped():
    assert launch(3, os.getenv, "RANK") == ["0", "1", "2"]
    begin = time.monotonic()
    with pytest.raises(DiffusimError, match=r"^rank 1 was killed by SIGKILL; the others were stopped$"):
        launch(3, dies, "1")
    assert time.monotonic() - begin < 500


def test_two_processes_over_gloo_give_a_cluster_that_simulates(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    output = tmp_path / "gloo.toml"
    arguments = f"links --device {DEVICE} --output {output} --max-mib 4"
    assert main(arguments.split()) == 0
    shown = capfd.readouterr()
    assert "held back (even rounds; the file is fitted to the odd ones)" in shown.out, shown.err
    assert f"of {6 * len(sizes_up_to(2**22))} times" in " ".join(shown.out.split())
    cluster = read_cluster(output)
    assert (cluster.name, cluster.devices_per_node, cluster.max_nodes) == ("gloo", 2, 1)
    assert cluster.overlap_slowdown >= 1.0
    assert "gloo" in cluster.source and "torch" in cluster.source
    assert sim(f"run --model sd21 --cluster {output} --strategy ddp --batch-size 8".split()) == 0
