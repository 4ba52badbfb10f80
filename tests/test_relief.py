"""Sweeps whose points lack memory are tried again with what is recomputed, and say so; so does a run that asks."""

import json
from functools import cache

import pytest

import sim
from profiles.errors import InfeasibleError
from sim.api import start_sweep
from sim.cli.main import main
from sim.report.results import command_of

STRATEGIES = ("ddp", "gpipe")


@cache
def swept(memory, **more):
    return sim.sweep("sd21", gpus=2, batch_size=64, strategy=STRATEGIES, workers=1, memory=memory, **more)


def test_where_the_best_fits_as_it_is_nothing_is_tried_again():
    found = swept("80GiB", micro_batches=4, partition="blocks")
    assert found.rows() == swept("80GiB", micro_batches=4, partition="blocks", checkpointing="none").rows()
    assert found.relief == ("block", "selective")


def test_a_better_point_that_needs_something_recomputed_is_found_and_every_row_says_what_it_has():
    found = swept("24GiB")
    each = {kind: swept("24GiB", checkpointing=kind) for kind in ("none", "block", "selective")}
    seconds = {kind: own.best.iteration_s for kind, own in each.items()}
    assert found.best.iteration_s == min(seconds.values()) == seconds["selective"]
    assert seconds["selective"] < seconds["block"] < seconds["none"]
    again = [row for row in found.rows() if row.get("options", {}).get("checkpointing", "none") != "none"]
    assert {row["status"] for row in again} == {"simulated"}
    fitting = [own for kind, own in each.items() if kind != "none"]  # gpipe fits with no other
    assert found.best_of("gpipe").iteration_s == min(own.best_of("gpipe").iteration_s for own in fitting)


@pytest.mark.parametrize(
    ("memory", "taken"), [("80GiB", "none"), ("28.4GiB", "selective"), ("10GiB", "block")]
)
def test_a_run_takes_the_least_recomputation_that_fits_and_says_which(capsys, memory, taken):
    asked = f"run --model sd21 --strategy ddp --gpus 2 --batch-size 64 --memory {memory}".split()
    assert main([*asked, "--checkpointing", "auto", "--json"]) == 0
    shown = capsys.readouterr()
    assert f"checkpointing auto took {taken}" in shown.err
    assert main([*asked, "--checkpointing", taken, "--json"]) == 0
    assert json.loads(shown.out) == json.loads(capsys.readouterr().out)


def test_where_nothing_fits_without_the_verdict_names_what_is_recomputed_and_how_to_ask_again(capsys):
    found = swept("19GiB")
    with pytest.raises(InfeasibleError):
        _ = swept("19GiB", checkpointing="none").best
    verdict, point = found.verdict, found.best_point()
    assert f"checkpointing {point.checkpointing}" in verdict.lines[0][1]
    assert f"{point.checkpointing} checkpointing" in verdict.best.title
    assert (verdict.changes[0].name, verdict.changes[0].strategy) == ("no checkpointing", None)
    assert f"--checkpointing {point.checkpointing}" in verdict.again == command_of(found.result_of(point))
    assert found.result_of(point).trace.end_s == pytest.approx(verdict.best.iteration_s)
    named = {verdict.best.strategy, verdict.runner_up.strategy}
    others = [of for of in found.ties() if of.name not in named]
    said = " ".join(words for label, words in verdict.lines if not label)
    assert all(f"{of.name} ({of.checkpointing} checkpointing)" in said for of in others)
    assert point.checkpointing == "block"
    assert all(of.checkpointing for of in found.ties())
    assert main([*verdict.again.split()[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_s"] == verdict.best.iteration_s


def test_a_sweep_of_training_takes_by_default_the_batch_that_the_model_is_trained_with():
    batches = {name: start_sweep(name, gpus=64).scenario.workload.batch_size for name in ("sd21", "flux-dev")}
    assert batches == {"sd21": 2048, "flux-dev": 128}


def test_ranked_by_memory_what_fits_is_tried_again_too():
    found, plain, blocks = (
        sim.sweep(
            "sd21",
            gpus=2,
            batch_size=8,
            strategy=("ddp",),
            workers=1,
            memory="40GiB",
            objective="memory",
            **more,
        )
        for more in ({}, {"checkpointing": "none"}, {"checkpointing": "block"})
    )
    assert found.best.expected.peak_memory_bytes == blocks.best.expected.peak_memory_bytes
    assert found.best.expected.peak_memory_bytes < plain.best.expected.peak_memory_bytes
