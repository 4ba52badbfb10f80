"""Suggestions: a refusal of what was asked names what would do."""

import io
import json

import pytest

import sim
from profiles.errors import InfeasibleError, InputError, in_flags
from sim.cli.main import main

PIXART = {"gpus": 8, "steps": 4}


@pytest.mark.parametrize("strategy", ["hybrid", "attention2d", "usp"])
def test_defaults_that_do_not_give_the_gpus_are_refused_with_some_that_do(strategy):
    with pytest.raises(InfeasibleError) as refused:
        sim.run("pixart", strategy, **PIXART)
    words = in_flags(refused.value.message).rpartition("; ")[2].removesuffix(" would do").split()
    named = {flag[2:].replace("-", "_"): int(of) for flag, of in zip(words[::2], words[1::2], strict=True)}
    assert named
    assert sim.run("pixart", strategy, **PIXART, **named).num_gpus == 8


@pytest.mark.parametrize(("name", "meant"), [("gpu", "gpus"), ("resolutions", "resolution")])
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
        ("x =", "is not valid TOML"),
        ("{", "is not valid JSON"),
    ):
        code, _, said = asked("run", "--experiment", "-", given=wrong)
        assert code == 2
        assert words in said
