"""What a person reads of a sweep: the right rows, the winner, how to have it again, and why nothing else fits."""

import json
import re
import shlex

import pytest
from making import swept

import sim
from profiles.architectures.models import load_model
from profiles.errors import flag_of
from profiles.machines.clusters import load_cluster
from sim.cli.main import main
from sim.report.blocks import print_blocks
from sim.report.rankings import BEST, sweep_blocks, table_blocks
from sim.report.results import command_of
from strategies.plans.workloads import TrainingWorkload
from strategies.scenario import Scenario


@pytest.fixture(scope="module")
def scenario():
    return Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 64))


@pytest.fixture(scope="module")
def sweep(scenario):
    return swept(scenario)


def table_rows(text):
    """The cells of the lines below the head of the only table, by two spaces or more between them."""
    below = text[text.index("─\n", text.index("range")) :].split("\n\n")[0]
    return [re.split(r" {2,}", line.strip()) for line in below.splitlines()[1:] if "──" not in line]


def test_a_sweep_shows_the_best_and_the_best_of_each_strategy(capsys, monkeypatch, sweep):
    monkeypatch.setenv("COLUMNS", "200")
    print_blocks(sweep_blocks(sweep))
    rows = table_rows(capsys.readouterr().out)
    simulated = [point for point in sweep.ranked() if point.status == "simulated"]
    ties = sweep.ties()
    ranks = [int(row[0].split()[0]) for row in rows]
    assert ranks == sorted(set(ranks))
    for rank, row in zip(ranks, rows, strict=True):
        point = simulated[rank - 1]
        mark = " best" if point is sweep.best_point() else " tie" * any(point is tie for tie in ties)
        assert row[:2] == [f"{rank}{mark}", point.name]
        assert f"{point.result.expected.duration_s * 1e3:,.1f}" in row
        low, high = next(cell for cell in row if " to " in cell).split(" to ")
        assert float(low.replace(",", "")) / 1e3 == pytest.approx(point.result.low_s, rel=0.05)
        assert float(high.replace(",", "")) / 1e3 == pytest.approx(point.result.high_s, rel=0.05)
    assert {row[1] for row in rows} == {point.name for point in simulated}
    later = [row[1] for rank, row in zip(ranks, rows, strict=True) if rank > BEST]
    assert len(set(later)) == len(later)


def test_a_point_with_the_result_of_the_best_is_named_beside_it_and_is_no_tie():
    asked = {"steps": 2, "strategy": "usp,hybrid", "guidance_degree": 1, "workers": 1}
    sweep = sim.sweep("pixart", "l20-pcie-8", 4, **asked)
    assert table_blocks(sweep)[0].rows[0][:2] == ("1 best", "usp = hybrid")
    assert sweep.verdict.same_as == ["hybrid, ulysses 2, ring 2"]


def test_a_sweep_that_finds_nothing_shows_the_reasons(capsys):
    scenario = Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(1, 8))
    sweep = swept(scenario, names=["spp"])
    print_blocks(sweep_blocks(sweep))
    text = " ".join(capsys.readouterr().out.split())
    assert text == (
        "infeasible: 1 x no pipeline degree (such as spp: no divisor of gpus(1) between 2 and the 25 blocks of"
        " the backbone) no point is left of spp: no pipeline degree 1 configuration: 1 not possible"
    )


@pytest.mark.parametrize(
    "asked",
    [
        {"gpus": 16, "strategy": "fsdp"},
        {
            "gpus": 8,
            "batch_size": 64,
            "strategy": "fsdp",
            "shard_size": 4,
            "resolution": "256x512",
            "ema": "fp32",
        },
        {"gpus": 8, "strategy": "gpipe", "pipeline_degree": 4, "group_size": 8, "self_conditioning": 0.5},
        {
            "gpus": 1,
            "strategy": "single",
            "steps": 20,
            "guidance": "none",
            "include": "all",
            "stack": "compiled",
        },
        {"gpus": 4, "strategy": "pipefusion", "steps": 8, "patches": 8, "batch_size": 2, "link": "intra=2x"},
    ],
    ids=lambda asked: asked["strategy"],
)
def test_the_command_gives_the_result_again_and_names_no_flag_at_its_default(asked, capsys):
    asked = {"model": "pixart" if "steps" in asked else "sd21", "cluster": "p4de", **asked}
    result = sim.run(**asked)
    words = shlex.split(command_of(result))
    flags = {flag_of(name): str(value) for name, value in asked.items()}
    assert dict(zip(words[2::2], words[3::2], strict=True)) == flags
    assert main([*words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(result.to_json()))
