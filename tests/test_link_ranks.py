"""Ranks measure their links; one that is lost is named, and the others stop."""

import csv
import os
import signal
import time

import numpy as np
import pytest

from profiles.errors import DiffusimError, InputError
from profiles.machines.clusters import read_cluster
from profiles.machines.collectives import Group
from profiles.measuring.launching import Place, launch
from profiles.measuring.linking.fits import predict
from profiles.measuring.linking.samples import Sample
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
    time.sleep(60)


def test_what_ranks_return_is_given_by_rank_and_a_killed_one_is_named_as_the_others_are_stopped():
    assert launch(3, os.getenv, "RANK") == ["0", "1", "2"]
    begin = time.monotonic()
    with pytest.raises(DiffusimError, match=r"^rank 1 was killed by SIGKILL; the others were stopped$"):
        launch(3, dies, "1")
    assert time.monotonic() - begin < 50


def held_back_of(table):
    """The samples of a file that no fit has seen."""
    with table.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["held_back"] == "yes"]
    return [
        Sample(row["operation"], Group(2, 1), float(row["size_bytes"]), float(row["us"]) / 1e6)
        for row in rows
    ]


@pytest.mark.timed
def test_two_processes_over_gloo_give_a_cluster_that_simulates(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    output, table = tmp_path / "gloo.toml", tmp_path / "gloo.csv"
    arguments = f"links --device {DEVICE} --output {output} --samples {table} --max-mib 4"
    assert main(arguments.split()) == 0, capfd.readouterr().err
    cluster = read_cluster(output)
    assert (cluster.name, cluster.devices_per_node, cluster.max_nodes) == ("gloo", 2, 1)
    assert 1.0 <= cluster.overlap_slowdown < 50
    assert "gloo" in cluster.source and "torch" in cluster.source
    held_back = held_back_of(table)
    assert len(held_back) == 6 * len(sizes_up_to(2**22))
    errors = [abs(predict(cluster, sample) / sample.seconds - 1) for sample in held_back]
    assert np.median(errors) < 0.45, f"median error {np.median(errors):.2f} of rounds held back"
    assert sim(f"run --model sd21 --cluster {output} --strategy ddp --batch-size 8".split()) == 0
