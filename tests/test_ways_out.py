"""Ways out: a question that nothing fits ends with one example, the same everywhere, and what would fit by bound."""

import re

import pytest

import sim
from sim.cli.main import main
from sim.explore.ways_out import example_of, needed_bytes, ways_out

TIGHT = {"gpus": 2, "batch_size": 2, "memory": "9GiB"}
"""Weights, gradients and states of the optimizer of sd21 take 14 GiB."""


@pytest.fixture(scope="module")
def nothing():
    """A sweep of which no point fits."""
    return sim.sweep("sd21", strategy="ddp,gpipe", workers=1, **TIGHT)


def test_the_error_the_table_and_python_name_one_example(nothing, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = "--gpus 2 --batch-size 2 --memory 9GiB --strategy ddp,gpipe"
    assert main(["sweep", "--model", "sd21", *flags.split()]) == 2
    said = capsys.readouterr()
    examples = [re.search(r"\(such as (.*?)\)", text.replace("\n", " "))[1] for text in said]
    assert examples[0] == examples[1]
    with pytest.raises(sim.InfeasibleError) as caught:
        _ = nothing.best
    assert f"(such as {examples[0]})" in str(caught.value)
    assert f"sim: error: {caught.value.flags or caught.value}" in said.err.replace("\n", " ")


def test_the_example_lacks_least_of_all_that_was_tried(nothing):
    example = example_of(nothing.points, "out of memory")
    assert example.checkpointing == "block"  # so the least is known of what recomputes, too
    short = [point for point in nothing.points if point.kind == "out of memory"]
    assert needed_bytes(example) == min(map(needed_bytes, short)) > 9 * 2**30


def test_a_way_out_fits_as_it_is_told(nothing):
    with pytest.raises(sim.InfeasibleError) as caught:
        _ = nothing.best
    ways = re.search(r"; (.*) would fit by bound", str(caught.value))
    asked = [dict([words.split()]) for words in re.split(r", | or ", ways[1])]
    assert "strategy" in asked[0]
    for given in asked:
        found = sim.sweep("sd21", workers=1, **{"strategy": "ddp,gpipe", **TIGHT, **given})
        assert found.best.fits_memory, given


def test_nothing_is_told_where_nothing_would_do():
    scenario = sim.run("sd21", "ddp", gpus=1, batch_size=1).source.scenario
    short = sim.run("sd21", "ddp", gpus=1, batch_size=1, memory="1GiB").source.scenario
    assert ways_out(short, ["ddp"], relief=True) == ""
    assert "would fit by bound" in ways_out(scenario, ["ddp"])  # of one that fits anything does


def test_a_run_that_does_not_fit_says_what_would(capsys):
    flags = "--model sd21 --gpus 2 --batch-size 2 --memory 12GiB --strategy ddp"
    assert main(["run", *flags.split()]) == 0  # it is an answer: fits_memory is false
    assert re.search(r"warning: ddp does not fit: .*; --.* would fit by bound", capsys.readouterr().err)


def test_auto_shows_the_least_need_where_no_recomputation_makes_a_point_fit():
    found = sim.run("sd21", "ddp", gpus=2, batch_size=64, memory="10GiB", checkpointing="auto")
    plain = sim.run("sd21", "ddp", gpus=2, batch_size=64, memory="10GiB")
    assert not found.fits_memory
    assert found.options["checkpointing"] == "block"
    assert found.peak_memory_bytes < plain.peak_memory_bytes
    assert "auto took block, with which it lacks least" in found.source.remarks[0]
