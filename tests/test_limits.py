"""Limits: what would take longer than anybody waits is refused before any work, in one line with the limit."""

from dataclasses import replace

import pytest

import sim
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from profiles.machines.whatifs import changed
from sim.api import start_sweep
from sim.cli.main import main
from sim.explore.tuning import tune
from sim.limits import MAX_ORDERED, MAX_SIMULATED, MAX_SWEPT_GPUS, check_passes
from sim.scenarios import Request, scenario_of
from strategies.registry import make


@pytest.mark.parametrize(
    ("strategy", "parameters", "passes"),
    [
        ("ddp", {}, 2),
        ("ddp", {"micro_batches": 8}, 16),
        ("1f1b", {"pipeline_degree": 4, "micro_batches": 8}, 2 * 4 * 8),
        ("interleaved", {"pipeline_degree": 4, "micro_batches": 8, "chunks": 3}, 2 * 12 * 8),
        ("wave", {"pipeline_degree": 4, "micro_batches": 8, "waves": 2}, 2 * 16 * 8),
    ],
)
def test_passes_are_counted_by_stages_and_micro_batches(strategy, parameters, passes):
    point = make(strategy, parameters)
    check_passes(point, passes)
    with pytest.raises(InputError, match=f"= {passes} forwards and backwards, must be at most {passes - 1}$"):
        check_passes(point, passes - 1)


@pytest.mark.parametrize(
    ("asked", "limit"),
    [
        (
            "run --model sd21 --strategy 1f1b --micro-batches 65536 --gpus 8 --batch-size 524288",
            MAX_SIMULATED,
        ),
        (
            "schedule --model sd21 --strategy 1f1b --micro-batches 65536 --gpus 8 --batch-size 524288",
            MAX_SIMULATED,
        ),
        ("schedule --strategy 1f1b --pipeline-degree 65536 --micro-batches 65536", MAX_ORDERED),
        ("schedule --strategy gpipe --pipeline-degree 1024 --micro-batches 1024", MAX_ORDERED),
        ("synthesize --pipeline-degree 65536 --micro-batches 1", 1024),
        ("synthesize --pipeline-degree 1024 --micro-batches 64", 2**17),
        ("synthesize --pipeline-degree 4 --micro-batches 4 --extend-to 65536,1", 1024),
        ("sweep --model sd21 --gpus 1048576 --nodes 131072", MAX_SWEPT_GPUS),
        ("sweep --model sd21 --gpus 1048576 --nodes 131072 --strategy ddp", MAX_SWEPT_GPUS),
        ("sweep --model pixart --task sample --gpus 65536 --nodes 131072", MAX_SWEPT_GPUS),
        ("tune --model sd21 --gpus 1048576 --nodes 131072", MAX_SWEPT_GPUS),
    ],
)
def test_what_would_take_long_is_refused_with_the_limit(capsys, asked, limit):
    assert main(asked.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"at most {limit}" in err


@pytest.mark.parametrize("command", ["sweep", "sweep --strategy ddp", "tune"])
def test_gpus_that_no_point_can_use_are_refused_with_those_that_one_can(
    capsys, tmp_path, monkeypatch, command
):
    monkeypatch.chdir(tmp_path)
    assert main([*command.split(), "--model", "sd21", "--gpus", "12"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(
        "sim: error: --gpus is 12, must be a multiple of the 8 of a node, such as 8 or 16: no point "
    )
    assert not list(tmp_path.iterdir())


def test_gpus_are_swept_over_where_a_point_can_use_them():
    assert start_sweep("cdm-lsun", gpus=12).points  # a backbone on each six
    assert start_sweep("pixart", gpus=12, steps=2).points  # on eight of them
    assert start_sweep("sd21", gpus=6).points


def test_a_run_takes_a_million_gpus():
    cluster = changed(load_cluster("p4de"), {"nodes": 2**17})
    assert sim.run("sd21", "ddp", cluster, gpus=2**20).num_gpus == 2**20


def test_tuning_passes_over_degrees_that_no_pipeline_has():
    cluster = changed(replace(load_cluster("p4de"), max_nodes=2**14), {"memory": "1GiB"})
    asked = Request("sd21", cluster, 2**17, ("pulse",), {"memory_recipe": "pulse"})
    assert tune(scenario_of(asked))
