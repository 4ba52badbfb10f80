"""What a person reads on the terminal: what there is, and one result."""

import json

import pytest

from profiles.clusters import load_cluster
from profiles.models import load_model
from sim.experiment import run_training
from sim.tables import print_clusters, print_models, print_result, print_strategies, progress
from strategies.registry import all_strategies, make_strategy
from strategies.scenario import Scenario, TrainingWorkload


@pytest.fixture(scope="module")
def scenario():
    return Scenario.of(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 64))


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
    assert [row[-7] for row in rows] == ["text_encoder", "vae_encoder", "unet", "vae_decoder"]
    assert rows[2][-6:] == ["yes", "46", "25", "865.9 M", "12", "estimated"]


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


def test_progress_is_silent_where_stderr_is_no_terminal(capsys):
    with progress() as report:
        report("simulating", 1, 2)
        report("simulating", 2, 2)
    assert capsys.readouterr().err.strip() == ""
