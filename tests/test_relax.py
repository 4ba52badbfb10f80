"""Relaxing: a question that nothing fits ends with one example, the same everywhere, and what fits."""

import re

import pytest

import sim
from profiles.errors import in_flags
from sim.cli.main import main
from sim.explore.relax import Question, least_recomputed, relax
from sim.outcomes.runs import least_memory_bytes
from strategies.plans.workloads import RELIEF

TIGHT = {"gpus": 2, "batch_size": 2, "memory": "10.4GiB"}
"""Weights, gradients and states of the optimizer of sd21 take 14 GiB."""


@pytest.fixture(scope="module")
def nothing():
    """A sweep of which no point fits."""
    return sim.sweep("sd21", strategy="ddp,gpipe", workers=1, **TIGHT)


def test_the_error_the_table_and_python_name_one_example(nothing, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = "--gpus 2 --batch-size 2 --memory 10.4GiB --strategy ddp,gpipe"
    assert main(["sweep", "--model", "sd21", *flags.split()]) == 2
    said = capsys.readouterr()
    examples = [re.search(r"\(such as (.*?)\)", " ".join(text.split()))[1] for text in said]
    assert examples[0] == examples[1]
    with pytest.raises(sim.InfeasibleError) as caught:
        _ = nothing.best
    assert f"(such as {examples[0]})" in str(caught.value)
    assert f"sim: error: {in_flags(caught.value.message)}" in said.err.replace("\n", " ")


def test_the_batch_that_fits_is_the_largest():
    asked, batch = {"gpus": 2, "strategy": "ddp", "micro_batches": 1}, 14  # 7 for each GPU
    with pytest.raises(sim.InfeasibleError, match=f"batch_size {batch} ") as caught:
        _ = sim.sweep("sd21", memory="27.3GiB", checkpointing="none", workers=1, batch_size=512, **asked).best
    assert "batch-size" in in_flags(caught.value.message)
    less, more = ({**asked, "batch_size": size} for size in (batch, batch + asked["gpus"]))
    assert sim.sweep("sd21", memory="27.3GiB", checkpointing="none", workers=1, **less).best.fits_memory
    assert sim.sweep("sd21", memory="27.3GiB", checkpointing="none", workers=1, **more).best_point() is None


def test_nothing_is_told_where_nothing_would_do():
    scenario = sim.run("sd21", "ddp", gpus=1, batch_size=1).source.scenario
    short = sim.run("sd21", "ddp", gpus=1, batch_size=1, memory="1GiB").source.scenario
    assert relax(Question(short, ["ddp"], relief=True)) == ""
    assert " fits" in relax(Question(scenario, ["ddp"]))  # of one that fits anything does


def ways_told(said):
    """The flags of each way that an error or a warning tells, and those that it tells to leave out."""
    ways = re.search(r"too much\)?; (.*?) fits", said)[1]
    told = []
    for way in re.split(r", | or ", ways):
        flags, _, dropped = way.removeprefix("the same").partition("without ")
        told.append((flags.split(), dropped.split(" and ") if dropped else []))
    return told


def with_way(command, flags, dropped):
    """A command with flags after it, without those to leave out."""
    kept = list(command)
    for flag in dropped:
        at = kept.index(flag)
        del kept[at : at + 2]
    return [*kept, *flags]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            "run --model flux-dev --gpus 1 --strategy ddp --offload optimizer --checkpointing block --memory 87GiB",
            "--micro-batches",
        ),
        ("run --model flux-dev --strategy zero2 --batch-size 8", "--strategy fsdp --checkpointing block"),
        ("run --model wan2.1-14b --strategy fsdp --shard-size 1", "--shard-size 8 --checkpointing block"),
        (
            "sweep --model sd21 --gpus 2 --batch-size 2 --memory 10.4GiB --strategy gpipe --micro-batches 1",
            "--strategy",
        ),
        (
            "sweep --model flux2-dev --cluster l20-pcie-8 --steps 28 --strategy ulysses",
            "--include all --offload sequential",
        ),
        (
            "sweep --model hunyuanvideo --cluster l20-pcie-8 --strategy 1f1b,fsdp",
            "--offload optimizer",
        ),  # of what truly lacks least
    ],
)
def test_each_way_fits_when_it_is_added_to_the_very_command(asked, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = [*asked.split(), *(["--gpus", "8"] if "--gpus" not in asked else [])]
    main(command)
    said = capsys.readouterr().err
    assert told in said and "lora" not in said  # which trains something else
    for flags, dropped in ways_told(said):
        assert main(with_way(command, flags, dropped)) == 0
        assert "does not fit" not in capsys.readouterr().err


def test_where_no_recomputation_is_enough_that_is_taken_with_which_a_point_lacks_least():
    def scene(**options):
        return sim.run("sd21", "gpipe", gpus=2, batch_size=8, partition="blocks", **options).source

    short = scene(memory="11.2GiB")
    tried, remark = least_recomputed(short.strategy, short.scenario)
    needs = {
        kind: least_memory_bytes(short.strategy, short.scenario.with_options(checkpointing=kind))
        for kind in ("none", *RELIEF)
    }
    assert tried.workload.checkpointing == min(needs, key=needs.get) == "block"
    assert "took block, with which it lacks least" in remark
