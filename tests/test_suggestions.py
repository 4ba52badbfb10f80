"""Suggestions: a refusal of what was asked names what would do."""

import io
import json

import pytest

import sim
from profiles.errors import InfeasibleError, InputError, would_divide
from sim.cli.main import main
from sim.inputs import suggestions
from strategies.registry import make

PIXART = {"gpus": 8, "steps": 4}


def test_the_values_that_divide_a_number_are_named():
    assert would_divide(24) == "2, 3, 4, 6, 8, 12 and 24 divide 24"
    assert would_divide(5) == "only 5 divides 5"
    assert would_divide(1) == "only 1 divides 1"


@pytest.mark.parametrize("strategy", ["hybrid", "attention2d", "usp"])
def test_defaults_that_do_not_give_the_gpus_are_refused_with_some_that_do(strategy):
    with pytest.raises(InfeasibleError) as refused:
        sim.run("pixart", strategy, **PIXART)
    words = refused.value.flags.rpartition("; ")[2].removesuffix(" would do").split()
    named = {
        flag[2:].replace("-", "_"): int(value) for flag, value in zip(words[::2], words[1::2], strict=True)
    }
    assert named
    assert sim.run("pixart", strategy, **PIXART, **named).num_gpus == 8


def test_what_was_given_is_held_and_an_error_from_python_names_parameters():
    with pytest.raises(InfeasibleError, match=r"; ulysses_degree 4 would do$") as refused:
        sim.run("pixart", "usp", **PIXART, ring_degree=2)
    assert refused.value.flags.endswith("; --ulysses-degree 4 would do")


def test_nothing_is_suggested_where_nothing_would_do():
    with pytest.raises(InfeasibleError, match=r"context_degree\(3\) does not divide gpus\(8\)$"):
        sim.run("wan2.1-1.3b", "fsdp", gpus=8, context_degree=3)
    with pytest.raises(InfeasibleError, match=r"^runs on one GPU, not on gpus\(8\): leave gpus out$"):
        sim.run("pixart", "single", gpus=8)


@pytest.mark.parametrize(
    ("given", "needs"),
    [
        (
            {"vae_parallel": 4},
            "vae_parallel is 4, but changes nothing without include vae_decoder, or include all",
        ),
        ({"vae_tile": 512}, "vae_tile is 512, but"),
        ({"decode_chunks": 2, "include": "text_encoder"}, "decode_chunks is 2, but"),
        ({"encoders": "offloaded", "include": "vae_decoder"}, "without include text_encoder, or include all"),
    ],
)
def test_an_option_of_a_component_that_does_not_run_is_refused(given, needs):
    with pytest.raises(InputError, match=needs):
        sim.run("pixart", "ulysses", gpus=4, steps=2, **given)


def test_options_as_they_are_anyway_and_those_of_components_that_run_are_taken():
    usual = {"vae_parallel": 1, "decode_chunks": 1, "encoders": "resident"}
    sim.run("pixart", "ulysses", gpus=2, steps=2, **usual)
    sim.run("pixart", "ulysses", gpus=2, steps=2, include="vae_decoder", vae_parallel=2)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("gpu", "gpus"), ("clusters", "cluster"), ("resolutions", "resolution"), ("stacks", "stack")],
)
def test_an_unknown_keyword_is_compared_with_arguments_and_options_too(name, meant):
    for ask in (
        lambda **given: sim.run("pixart", "ulysses", **given),
        lambda **given: sim.sweep("pixart", **given),
    ):
        with pytest.raises(InputError, match=f"unknown parameter '{name}'; did you mean {meant}\\?"):
            ask(steps=2, **{name: 8})
    with pytest.raises(InputError, match=r"did you mean objective\?"):
        sim.sweep("sd21", objectives="memory")


def test_a_question_and_a_result_are_read_from_standard_input(monkeypatch, capsys):
    def asked(*arguments, given=""):
        monkeypatch.setattr("sys.stdin", io.StringIO(given))
        code = main(arguments)
        return code, *capsys.readouterr()

    point = ("--model", "sd21", "--strategy", "zero2", "--gpus", "8", "--batch-size", "64")
    code, question, _ = asked("run", *point, "--print-experiment")
    assert code == 0
    code, result, _ = asked("run", "--experiment", "-", "--json", given=question)
    assert (code, json.loads(result)["batch_size"]) == (0, 64)
    code, again, _ = asked("run", "--experiment", "-", "--json", given=result)
    assert (code, again) == (0, result)
    launched = asked("launch", *point)
    assert asked("launch", "--result", "-", given=result)[:2] == launched[:2]
    for wrong, words in (
        ("[1]", "-: is [1], must be flags"),
        ("x =", "neither JSON nor TOML"),
        ("{", "neither"),
    ):
        code, _, said = asked("run", "--experiment", "-", given=wrong)
        assert code == 2
        assert words in said


def test_a_point_that_takes_no_time_exists(monkeypatch):
    scenario = sim.run(
        "sd21", "gpipe", gpus=4, pipeline_degree=4, micro_batches=4, batch_size=16
    ).source.scenario
    monkeypatch.setattr(suggestions, "bound", lambda *_: 0.0)
    assert not list(
        suggestions._needed(make("gpipe", {"pipeline_degree": 4}), scenario, {})
    )  # any degree does
