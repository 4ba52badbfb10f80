"""Tuning: PULSE's equations by hand, and the simulator as the judge."""

import json
from dataclasses import replace

import pytest

from profiles.errors import InfeasibleError
from sim.cli.main import main
from sim.explore.tuning import all_reduce_s, peak_memory_bytes, schedule_s, tune
from sim.outcomes.runs import run_point
from strategies.training.pulse import Pulse


@pytest.fixture
def scenario(make):
    """Eight equal blocks with symmetric skips on eight devices of 100 kB."""
    unet = make.component(
        "unet", [1.0] * 8, output_bytes=10.0, saved_bytes=1000.0, parameters=100,
        skips=[(i, 7 - i) for i in range(4)],
    )  # fmt: skip
    cluster = make.cluster(make.link("nvswitch", 100.0, 0.25), memory_bytes=100_000.0)
    return make.scenario(make.model(unet), cluster, 8, 8, memory_recipe="pulse")


def test_memory_counts_the_innermost_pair_of_stages(scenario):
    layout = Pulse(4, 4, 4).layout(scenario)  # b = 1: one block per stage
    assert peak_memory_bytes(scenario, layout) == 14 * 2 * 100 + 4 * 2 * 1000 + 4 * 10


def test_time_takes_every_stage_for_the_longest(scenario):
    layout = Pulse(4, 4, 4).layout(scenario)
    reduce_s = 0.25 + 2 * (2 - 1) / 2 * 200 / 100
    assert all_reduce_s(scenario, layout) == reduce_s
    assert schedule_s(scenario, layout) == pytest.approx(36 * 1.0 + 28 * (0.25 + 10 / 100) + reduce_s)


def test_micro_batches_grow_until_the_equation_forbids_more(scenario):
    largest = {}
    for choice in tune(scenario):
        assert choice.equation_bytes <= 100_000
        assert choice.batch_size == choice.micro_batch * choice.degree * choice.replicas
        largest[choice.degree] = max(largest.get(choice.degree, 0), choice.micro_batch)
    # P = 4: 2800 + b (8000 + 40); P = 2: 5600 + b (8000 + 20)
    assert largest[4] == largest[2] == 8


def test_the_simulator_judges(scenario):
    choices = tune(scenario)
    best = choices[0]
    assert best.result is not None
    assert best.result.fits_memory
    brute = []
    for choice in choices:
        result = run_point(choice.strategy, choice.scenario)
        assert choice.bound_s <= result.iteration_s * (1 + 1e-12)
        if result.fits_memory:
            brute.append(result.samples_per_s)
    assert best.samples_per_s == max(brute)


def test_a_device_too_small_for_any_choice_is_one_clear_line(scenario):
    device = replace(scenario.cluster.device, memory_bytes=1000.0)
    small = replace(scenario, cluster=replace(scenario.cluster, device=device))
    with pytest.raises(InfeasibleError, match="no pipeline degree fits"):
        tune(small)


def test_the_command_prints_choices_and_the_way_to_have_the_best_again(capsys):
    assert main(["tune", "--model", "uvit-h", "--cluster", "v100-2node", "--gpus", "4"]) == 0
    out = capsys.readouterr().out
    assert "Eq. 14" in out
    assert "again: sim run --model uvit-h --cluster v100-2node --stack eager --gpus 4" in out
    assert main(["tune", "--model", "uvit-h", "--cluster", "v100-2node", "--gpus", "4", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)[0]
    assert first["batch_size"] == first["micro_batch"] * 4
