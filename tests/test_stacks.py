from dataclasses import replace

import pytest

import sim
from profiles.errors import InputError
from profiles.software.stacks import STACKS, load_stack

ASKED = ("--model", "sd21", "--gpus", "8", "--batch-size", "64", "--strategy", "ddp")


def own(tmp_path, *changes):
    """A copy of a shipped stack with some text changed."""
    text = (STACKS / "eager.toml").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / "own.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("conv = 0.71", "conv = 1.2"), "rates.conv is 1.2, must be at most 1"),
        (("[operator_us]", "[traffic]\ncopy = 2\n[operator_us]"), "traffic.copy is 2, must be at most 1"),
        (("channels_last = false", 'channels_last = "no"'), "channels_last is 'no', must be true or false"),
        (('norms = "float32"', "nroms = 1\nnorms = 'half'"), "unknown key nroms"),
    ],
)  # fmt: skip
def test_a_stack_file_that_breaks_a_rule_is_refused_in_one_line(tell, tmp_path, change, rule):
    path = own(tmp_path, change)
    code, out, err = tell("run", *ASKED, "--stack", path)
    assert (code, out) == (2, "")
    assert err.startswith(f"sim: error: {path}: {rule}")


def test_a_result_names_its_stack_and_asks_for_it_again(tell, ask, tmp_path):
    path = own(tmp_path)
    for stack in ("compiled", str(path)):
        result = ask("run", *ASKED, "--stack", stack)
        assert result["stack"] == stack
        _, table, _ = tell("run", *ASKED, "--stack", stack)
        assert f"stack {stack}".replace(" ", "") in "".join(table.replace("│", "").split())
        again = sim.run("sd21", "ddp", gpus=8, batch_size=64, stack=stack)
        assert again.to_json() == result
        assert f"stack {stack}" in again.title
        assert list(again.frame()["stack"]) == [stack]
    with pytest.raises(InputError, match="stack is 3, must be a name, a file or a Stack"):
        sim.run("sd21", "ddp", gpus=8, stack=3)


def test_a_stack_file_may_say_only_how_it_differs_from_a_shipped_one(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('like = "compiled"\nname = "own"\nnorms = "float32"\n[traffic]\ncopy = 0.9\n')
    shipped, fusion = load_stack("compiled"), load_stack("compiled").traffic
    changed = replace(fusion, copy=0.9)
    assert load_stack(str(path)) == replace(shipped, name="own", norms="float32", traffic=changed)


@pytest.mark.parametrize(
    ("strategy", "degree"), [("ddp", {}), ("fsdp", {}), ("1f1b", {"pipeline_degree": 2})]
)
def test_what_the_host_takes_in_an_iteration_is_added_to_it_and_divided_by_stages(strategy, degree):
    options = {"gpus": 8, "batch_size": 64, "frozen": "cached"} | degree
    plain, slow = (sim.run("sd21", strategy, iteration_us=us, **options).iteration_s for us in (0, 100_000))
    assert slow - plain == pytest.approx(0.1) if strategy != "1f1b" else 0.04 < slow - plain < 0.1


def test_newer_kernels_of_attention_are_faster_where_the_device_has_them():
    options = {"cluster": "h100-nvlink-8", "gpus": 1, "stack": "eager"}
    generations = ("newest", "flash-2", "packed", "flash-1")
    seconds = [sim.run("flux-dev", "single", attention=of, **options).latency_s for of in generations]
    assert seconds == sorted(seconds)
    assert seconds[1] == sim.run("flux-dev", "single", **options).latency_s


def test_compiling_a_model_leaves_its_optimizer_as_it_is():
    assert load_stack("inductor").optimizer == load_stack("eager").optimizer == "foreach"


def test_a_runtime_stands_for_its_stack_unless_one_is_given():
    options = {"gpus": 4, "cluster": "h100-nvlink-8", "runtime": "sglang"}
    assert sim.run("flux-dev", "ulysses", **options).stack == "fused"
    assert sim.run("flux-dev", "ulysses", stack="inductor", **options).stack == "inductor"
