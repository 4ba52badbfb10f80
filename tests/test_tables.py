"""What a person reads on the terminal: the right rows, the winner, and how to have it again."""

import json
import shlex
from dataclasses import replace

import pytest

from profiles.clusters import load_cluster
from profiles.models import load_model
from sim.experiment import run_training
from sim.sweep import Point, Sweep, find_points, run_sweep
from sim.tables import (
    BEST,
    command,
    print_clusters,
    print_models,
    print_result,
    print_rows_json,
    print_strategies,
    print_sweep,
    progress,
)
from strategies.registry import all_strategies, make_strategy
from strategies.scenario import Scenario, TrainingWorkload


@pytest.fixture(scope="module")
def scenario():
    return Scenario.of(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 64))


@pytest.fixture(scope="module")
def sweep(scenario):
    sweep = Sweep(scenario, points=find_points(scenario))
    run_sweep(sweep, workers=1)
    return sweep


@pytest.fixture(scope="module")
def result(scenario):
    return run_training(make_strategy("spp", {"pipeline_degree": 4}), scenario)


def table_rows(text):
    """The cells of the lines that belong to a table."""
    lines = [line.strip("│ ") for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.split("│")] for line in lines]


def test_models_are_shown_with_their_components(capsys):
    print_models([load_model("sd21")], False)
    rows = table_rows(capsys.readouterr().out)
    assert [row[-7] for row in rows] == ["text_encoder", "vae_encoder", "unet"]
    assert rows[-1][-6:] == ["yes", "46", "25", "865.9 M", "12", "estimated"]


def test_models_as_json_say_what_the_table_says(capsys):
    print_models([load_model("sd21")], True)
    (model,) = json.loads(capsys.readouterr().out)
    assert list(model) == ["name", "title", "source", "components"]
    assert model["components"][2]["layers"] == 46


def test_clusters_are_shown_with_their_links(capsys):
    print_clusters([load_cluster("p4de"), load_cluster("ideal")], False)
    assert table_rows(capsys.readouterr().out) == [
        ["p4de", "a100-80gb-sxm", "8", "1024", "nvswitch 300 GB/s", "nic 50 GB/s"],
        ["ideal", "ideal", "65536", "1", "ideal", "-"],
    ]


def test_strategies_are_shown_with_their_flags(capsys):
    print_strategies(list(all_strategies().values()), False)
    text = capsys.readouterr().out
    for name in all_strategies():
        assert f"│ {name} " in text
    assert "--pipeline-degree" in text


def test_strategies_as_json_describe_every_parameter(capsys):
    print_strategies([all_strategies()["diffusionpipe"]], True)
    (strategy,) = json.loads(capsys.readouterr().out)
    assert strategy["parameters"]["fill"]["choices"] == ["none", "full", "partial"]
    assert strategy["parameters"]["fill"]["default"] == "partial"


def test_a_result_is_shown_with_its_stages(capsys, result):
    print_result(result)
    text = capsys.readouterr().out
    assert "spp (pipeline_degree 4, micro_batches 4, group_size 4" in text
    assert f"{result.expected.iteration_s * 1e3:,.1f} ms" in text
    assert f"{result.bubble_ratio:.1%}" in text
    assert [row[0] for row in table_rows(text)] == ["0", "1", "2", "3"]


def test_names_are_never_taken_for_markup(capsys, result, sweep):
    print_result(replace(result, model="[/red] :smile:"))
    assert "[/red] :smile: on 8 GPUs" in capsys.readouterr().out
    model = replace(sweep.scenario.model, title="[bold] title [/x]")
    print_sweep(replace(sweep, scenario=replace(sweep.scenario, model=model)))
    assert "[bold] title [/x] on 8 GPUs" in capsys.readouterr().out


def test_a_sweep_shows_the_best_and_the_best_of_each_strategy(capsys, sweep):
    print_sweep(sweep)
    rows = table_rows(capsys.readouterr().out)
    simulated = [point for point in sweep.ranked() if point.status == "simulated"]
    assert [row[:2] for row in rows[:BEST]] == [
        [str(rank), point.name] for rank, point in enumerate(simulated[:BEST], 1)
    ]
    assert {row[1] for row in rows} == {point.name for point in simulated}
    names = [row[1] for row in rows[BEST:]]
    assert len(set(names)) == len(names)
    for row in rows:
        expected = simulated[int(row[0]) - 1].result.expected
        assert row[6] == f"{expected.iteration_s * 1e3:,.1f} ms"


def test_a_sweep_says_how_many_points_were_simulated(capsys, sweep):
    print_sweep(sweep)
    statuses = [point.status for point in sweep.ranked()]
    last = capsys.readouterr().out.splitlines()[-1]
    counts = ", ".join(
        f"{statuses.count(status)} {status}" for status in ("simulated", "bounded", "infeasible")
    )
    assert last == f"points: {counts}, {len(sweep.points) - len(statuses)} with the result of another"


def test_a_sweep_that_finds_nothing_shows_the_reasons(capsys):
    scenario = Scenario.of(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(1, 8))
    sweep = Sweep(scenario, points=find_points(scenario, ["spp"]))
    run_sweep(sweep, workers=1)
    print_sweep(sweep)
    text = " ".join(capsys.readouterr().out.split())
    assert text == (
        "infeasible: 1 x no pipeline degree (such as spp: no divisor of gpus(1) between 2 and the 25 blocks of"
        " the backbone) not a point left of spp: no pipeline degree points: 0 simulated, 0 bounded, 1 infeasible,"
        " 0 with the result of another"
    )


def test_strategies_without_a_feasible_point_are_named_by_what_they_lack(capsys):
    scenario = Scenario.of(load_model("cdm-lsun"), load_cluster("p4de"), TrainingWorkload(8, 8))
    sweep = Sweep(scenario, points=find_points(scenario, ["1f1b", "ddp", "gpipe", "spp"]))
    run_sweep(sweep, workers=1)
    print_sweep(sweep)
    text = " ".join(capsys.readouterr().out.split())
    assert "not a point left of 1f1b, gpipe, spp: needs one backbone points:" in text
    assert (
        "infeasible: 3 x needs one backbone (such as 1f1b: needs one backbone, the model has 2 (unet_64, unet_128))"
        in text
    )


def test_the_command_names_model_and_cluster_as_they_were_asked_for(scenario, result):
    asked = replace(result, model="my models/small", cluster="./mine.toml")
    words = shlex.split(command(Point(make_strategy("spp", result.parameters), "spp", result=asked)))
    assert words[:8] == [
        "sim", "run", "--model", "my models/small", "--cluster", "./mine.toml", "--gpus", "8",
    ]  # fmt: skip
    assert words[words.index("--pipeline-degree") + 1] == "4"


def test_rows_as_json_are_one_list(capsys, sweep):
    print_rows_json(sweep)
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(sweep.ranked())
    assert rows[0]["status"] == "simulated"


def test_progress_is_silent_where_stderr_is_no_terminal(capsys):
    with progress() as report:
        report("simulating", 1, 2)
        report("simulating", 2, 2)
    assert capsys.readouterr().err.strip() == ""


def test_what_a_sweep_holds_fixed_is_said_as_it_was_asked_for(capsys):
    scenario = Scenario.of(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(4, 16))
    sweep = Sweep(scenario, points=find_points(scenario, ["spp", "ddp"], {"p2p": "blocking"}))
    run_sweep(sweep, workers=1)
    print_sweep(sweep)
    text = " ".join(capsys.readouterr().out.split())
    held = text[text.index("held fixed:") : text.index("layer times")]
    assert "p2p blocking" in held
    assert "partition optimal" in held
    assert "overlap " not in held  # ddp was tried with both


def test_where_other_strategies_vary_what_one_holds_fixed_it_is_named(capsys):
    scenario = Scenario.of(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(4, 16))
    sweep = Sweep(scenario, points=find_points(scenario, ["pulse", "wave"]))
    run_sweep(sweep, workers=1)
    print_sweep(sweep)
    text = " ".join(capsys.readouterr().out.split())
    held = text[text.index("held fixed:") : text.index("layer times")]
    assert "waves 1 (pulse)" in held
    assert "p2p overlapped" in held
