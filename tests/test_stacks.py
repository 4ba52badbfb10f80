import json
from dataclasses import FrozenInstanceError, replace

import pytest

import sim
from profiles.errors import InputError
from profiles.software.stacks import STACKS, Fusion, Shares, load_stack, stack_names
from sim.cli.main import main
from sim.explore.points import find_points
from sim.report.views import Sweep

ASKED = ("--model", "sd21", "--gpus", "8", "--batch-size", "64", "--strategy", "ddp")


def printed(capsys, *arguments):
    """Exit code, standard output and the last line of standard error of a command."""
    code = main(list(map(str, arguments)))
    out, err = capsys.readouterr()
    return code, out, (err.splitlines() or [""])[-1]


def own(tmp_path, *changes):
    """A copy of a shipped stack with some text changed."""
    text = (STACKS / "eager.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


def test_the_shipped_stacks_are_these_and_the_default_is_eager():
    assert stack_names() == ["compiled", "eager", "eager-2023"]
    assert load_stack() is load_stack("eager")
    assert [load_stack(name).name for name in stack_names()] == stack_names()


def test_a_stack_cannot_change():
    with pytest.raises(FrozenInstanceError):
        load_stack().name = "another"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"forward_operator_s": -1.0}, "stack eager: forward_operator_s is -1.0, must not be negative"),
        ({"backward_operator_s": 2.0}, "stack eager: backward_operator_s is 2.0, must be at most 1"),
        ({"attention": "slow"}, "stack eager: attention is 'slow', must be one of flash, packed, math"),
        ({"norms": "double"}, "stack eager: norms is 'double', must be one of half, float32"),
        ({"optimizer": "none"}, "stack eager: optimizer is 'none', must be one of loop, foreach, fused"),
        ({"channels_last": 1}, "stack eager: channels_last is 1, must be true or false"),
        ({"rates": 1.0}, "stack eager: rates is 1.0, must be Shares"),
    ],
)
def test_a_stack_refuses_what_breaks_a_rule(changes, words):
    with pytest.raises(InputError) as error:
        replace(load_stack(), **changes)
    assert str(error.value) == words


def test_shares_lie_between_0_and_1_and_rates_above_0():
    assert (Fusion(copy=0.0).copy, Shares(conv=0.5).conv) == (0.0, 0.5)
    for make, words in (
        (lambda: Fusion(copy=1.5), "fusion: copy is 1.5, must be at most 1"),
        (lambda: Fusion(softmax=-1), "fusion: softmax is -1, must not be negative"),
        (lambda: Shares(conv=0.0), "rates: conv is 0.0, must be positive"),
        (lambda: Shares(memory=1.1), "rates: memory is 1.1, must be at most 1"),
    ):
        with pytest.raises(InputError) as error:
            make()
        assert str(error.value) == words


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("forward = 10", "forward = -10"), "operator_us.forward is -10, must not be negative"),
        (("conv = 0.83", "conv = 1.2"),
         "rates.conv is 1.2, must be at most 1, the peak: what the device's law reaches"),
        (("[operator_us]", "[traffic]\ncopy = 2\n[operator_us]"), "traffic.copy is 2, must be at most 1"),
        (("[operator_us]", "[launches]\ncopies = 1\n[operator_us]"), "unknown key launches.copies"),
        (('attention = "flash"', 'attention = "fast"'), "attention is 'fast', must be one of flash, packed, math"),
        (("channels_last = false", 'channels_last = "no"'), "channels_last is 'no', must be true or false"),
        (('norms = "float32"\n', ""), "norms is missing"),
        (('norms = "float32"', "nroms = 1\nnorms = 'half'"), "unknown key nroms"),
    ],
)  # fmt: skip
def test_a_stack_file_that_breaks_a_rule_is_refused_in_one_line(capsys, tmp_path, change, rule):
    path = own(tmp_path, change)
    code, out, err = printed(capsys, "run", *ASKED, "--stack", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"sim: error: {path}: {rule}")


def test_an_unknown_stack_is_refused_in_one_line(capsys):
    code, _, err = printed(capsys, "run", *ASKED, "--stack", "fast")
    assert code == 2
    assert err == (
        "sim: error: unknown stack 'fast'; choose from compiled, eager, eager-2023, or pass a .toml file"
    )
    with pytest.raises(InputError, match="stack is 3, must be a name, a file or a Stack"):
        sim.run("sd21", "ddp", gpus=8, stack=3)


def test_every_source_of_a_stack_must_be_named(tmp_path):
    path = own(tmp_path, ('traffic = "nothing is fused: every operator is a kernel"\n', ""))
    with pytest.raises(InputError, match=r"sources\.traffic is missing"):
        load_stack(str(path))


def test_stacks_are_listed_with_what_they_are(capsys):
    _, out, _ = printed(capsys, "stacks")
    assert all(name in out for name in stack_names())
    _, out, _ = printed(capsys, "stacks", "--json")
    assert [stack["name"] for stack in json.loads(out)] == stack_names()
    assert list(sim.stacks()["summary"]) == [load_stack(name).summary for name in stack_names()]


def test_a_result_names_its_stack_and_asks_for_it_again(capsys, tmp_path):
    path = own(tmp_path)
    for stack in ("compiled", str(path)):
        _, out, _ = printed(capsys, "run", *ASKED, "--stack", stack, "--json")
        result = json.loads(out)
        assert result["stack"] == stack
        _, table, _ = printed(capsys, "run", *ASKED, "--stack", stack)
        assert f"stack {stack}".replace(" ", "") in "".join(table.replace("│", "").split())
        again = sim.run("sd21", "ddp", gpus=8, batch_size=64, stack=stack)
        assert again.to_json() == result
        assert f"stack {stack}" in again.title
        assert list(again.frame()["stack"]) == [stack]


def test_a_stack_of_ones_own_goes_by_its_name():
    mine = replace(load_stack(), name="mine")
    assert sim.run("sd21", "ddp", gpus=8, batch_size=64, stack=mine).stack == "mine"


def test_a_sweep_is_of_one_stack_in_rows_title_and_table(capsys, tmp_path):
    swept = sim.sweep("sd21", gpus=8, batch_size=64, strategy="ddp,zero2", stack="compiled", workers=1)
    assert {row["stack"] for row in swept.rows()} == {"compiled"}
    assert "stack compiled" in swept.title
    out = tmp_path / "rows.csv"
    asked = ("--model", "sd21", "--gpus", 8, "--batch-size", 64, "--strategy", "ddp", "--out", out)
    _, table, _ = printed(capsys, "sweep", *asked, "--stack", "compiled")
    assert "stack compiled" in " ".join(table.split())
    assert "--stack compiled" in " ".join(table.split())


def test_a_scenario_says_its_stack_already():
    scenario = sim.run("sd21", "ddp", gpus=8, stack="compiled").source.scenario
    assert scenario.stack is load_stack("compiled")
    assert "by stack compiled" in repr(scenario)
    with pytest.raises(InputError, match="stack is given, but the scenario says it already"):
        sim.run(scenario, "ddp", stack="eager")
    found = Sweep(scenario)
    found.points = find_points(scenario, ["ddp"], {})
    assert "stack compiled" in found.title


def test_tuning_and_sampling_take_a_stack(capsys):
    _, out, _ = printed(capsys, "tune", "--model", "uvit-h", "--gpus", "2", "--stack", "compiled", "--json")
    assert {choice["result"]["stack"] for choice in json.loads(out) if choice["result"]} == {"compiled"}
    _, out, _ = printed(
        capsys,
        "run",
        "--model",
        "pixart",
        "--gpus",
        1,
        "--strategy",
        "single",
        "--stack",
        "compiled",
        "--json",
    )
    assert json.loads(out)["stack"] == "compiled"
