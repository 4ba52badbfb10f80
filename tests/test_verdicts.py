"""The verdict on a sweep: its numbers are those of the sweep, and what it says of changes is simulated."""

import json
import re
from dataclasses import FrozenInstanceError, replace

import pytest
from rich.console import Console

import sim
from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from profiles.machines.whatifs import changed
from sim.explore.legality import starters
from sim.outcomes.runs import run_point
from sim.report import blocks, changes
from sim.report.blocks import print_blocks
from sim.report.changes import Change, Variation, _change, variations
from sim.report.rankings import print_rows_json, sweep_blocks
from sim.report.results import time_words


@pytest.fixture(scope="module")
def trained():
    return sim.sweep("sd21", gpus=16, batch_size=256, strategy="ddp,zero2,zero3,fsdp,1f1b", workers=1)


@pytest.fixture(scope="module")
def drawn():
    return sim.sweep("pixart", "a100-nvlink-8", 4, task="sample", workers=1)


@pytest.fixture(scope="module")
def verdict(trained):
    return trained.verdict


def test_the_verdict_is_of_the_best_point_and_the_best_of_another_strategy(trained, verdict):
    assert verdict.best == trained.best_point().result
    running = (point for point in trained.ranked() if starters(point, trained.scenario))
    others = [point for point in running if point.name != verdict.best.strategy]
    assert verdict.runner_up is others[0].result
    assert verdict.runner_up_ties == any(point is others[0] for point in trained.ties())
    assert sum(verdict.ties.values()) == len(trained.ties())


def test_the_verdict_prints_what_it_holds(trained, verdict):
    text = " ".join(str(verdict).replace("│", "").split())
    result = verdict.best
    assert "Stable Diffusion 2.1, training on 16 GPUs of p4de, stack eager, batch 256" in text
    assert f"best {result.strategy}, " in text
    assert f"{result.iteration_s * 1e3:,.1f} ms an iteration (" in text
    assert f"{result.peak_memory_bytes / 2**30:.1f} of 79.2 GiB" in text
    assert " ".join(time_words(verdict.account).split()) in text
    shares = re.findall(r"([0-9.]+)%", time_words(replace(verdict.account, slowed=0.05)))
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.3)  # rounded one by one
    assert verdict.account.compute + verdict.account.host == pytest.approx(1 - result.bubble_ratio)
    assert f"runner-up {verdict.runner_up.strategy}" in text
    assert all(f"{change.name}: {change.words(result.strategy)}" in text for change in verdict.changes)
    assert all(len(line) <= 80 for line in str(verdict).splitlines())
    with pytest.raises(FrozenInstanceError):
        verdict.title = ""


def test_the_link_that_is_doubled_is_the_one_that_is_used(trained, drawn):
    def names(sweep, gpus):
        return [one.name for one in variations(sweep.scenario, gpus)]

    assert names(trained, 16)[-3:-1] == ["twice both links", "twice the link between nodes"]
    assert names(trained, 8)[-1] == "twice the link in a node"
    assert names(drawn, 1) == ["stack fused-graphs", "4 images at once"]
    online = sim.sweep("sd21", gpus=2, checkpointing="full", frozen="cached", strategy="ddp", workers=1)
    assert names(online, 2)[:2] == ["no checkpointing", "encoders online"]


def test_the_links_of_two_levels_share_one_line_that_says_which_is_the_limit(trained, monkeypatch):
    links = [one for one in variations(trained.scenario, 16) if one.name.startswith("twice ")]
    for gains, said in {
        (1.05, 1.001, 1.001): "twice both links, which limit alike",
        (1.05, 1.04, 1.001): "twice the link between nodes",
        (1.05, 1.001, 1.04): "twice the link in a node",
    }.items():
        made = [Change(of.name, "", "", x, stays=True, tie=False) for of, x in zip(links, gains, strict=True)]
        monkeypatch.setattr(changes, "_change", lambda one, *_, made=made: made[links.index(one)])
        assert changes._limiting(links, trained, None).name == said


def test_where_cost_is_ranked_by_a_change_compares_copies_with_copies():
    """With more memory one GPU draws an image where four had to; two copies of four become eight of one."""
    sweep = sim.sweep("flux-dev", "rtx4090-pcie-8", 8, steps=4, memory="27GiB", objective="cost", workers=1)
    answer = sweep.best_point()
    assert (answer.result.num_gpus, sweep.copies(answer)) == (4, 2)
    single = next(point for point in sweep.points if point.name == "single")
    larger = replace(sweep.scenario, cluster=changed(load_cluster("rtx4090-pcie-8"), {"memory": "80GiB"}))
    change = _change(Variation("more memory", "--memory 80GiB", larger), sweep, answer)
    alone = run_point(single.strategy, larger.on(1))
    assert change.words("hybrid", "cost").startswith("0.41 x the cost, single on 1 GPU best")
    assert change.speed == pytest.approx(answer.result.gpu_s_per_sample / alone.gpu_s_per_sample)


def test_the_json_of_the_best_row_holds_the_verdict_and_no_other(trained, verdict, capsys):
    print_rows_json([trained])
    first, *others = json.loads(capsys.readouterr().out)
    said = first.pop("verdict")
    assert first == json.loads(json.dumps(trained.rows()[0]))
    assert not any("verdict" in row for row in others)
    assert said == json.loads(json.dumps(verdict.to_json()))
    assert said["best"]["iteration_s"] == first["iteration_s"]
    assert sum(said["time_shares"].values()) == pytest.approx(1)


def test_the_verdict_comes_first_and_all_lines_fit_the_terminal(trained, drawn, monkeypatch, capsys):
    for width in (60, 140):
        monkeypatch.setattr(blocks, "console", lambda width=width: Console(width=width, highlight=False))
        for sweep in (trained, drawn):
            print_blocks(sweep_blocks(sweep))
            lines = capsys.readouterr().out.splitlines()
            assert lines[0].startswith("╭─")
            commands = ("again: ", "start it: ")
            assert all(len(line) <= width for line in lines if not line.startswith(commands)), width


def test_names_in_a_verdict_are_never_taken_for_markup(trained):
    model = replace(load_model("sd21"), title="<b>[red] *x* | y")
    named = replace(trained, scenario=replace(trained.scenario, model=model)).verdict
    assert "<b>[red] *x* | y, training" in str(named)
    assert "<b>[red]" not in named._repr_html_()
    assert "&lt;b&gt;[red] *x* | y" in named._repr_html_()
    assert re.search(r"\\<b\\>\\\[red\\\] \\\*x\\\* \\\| y", named.markdown())


def test_a_sweep_in_which_nothing_fits_has_no_verdict(monkeypatch):
    sweep = sim.sweep("sd21", gpus=1, batch_size=8, strategy="spp", workers=1)
    none = sweep.verdict
    assert not none and none == sweep.verdict
    with pytest.raises(FrozenInstanceError):
        none.sweep = None
    monkeypatch.setattr(type(sweep), "none_fits", lambda _: "<b>no point")
    assert "&lt;b&gt;no point" in none._repr_html_()
