"""What a person reads on the terminal: what there is, and one result."""

import re

import pytest

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from sim.api import run
from sim.outcomes.runs import run_point
from sim.report.tables import (
    print_models,
    print_result,
)
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload
from strategies.registry import make_sampler, make_strategy
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario


@pytest.fixture(scope="module")
def scenario():
    return Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 64))


@pytest.fixture(scope="module")
def result(scenario):
    return run_point(make_strategy("spp", {"pipeline_degree": 4}), scenario)


def table_rows(text):
    """The cells of the lines that belong to a table."""
    lines = [line for line in text.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


def test_models_are_shown_with_their_components(capsys):
    print_models([load_model("sd21")], False)
    rows = table_rows(capsys.readouterr().out)
    assert [row[1] for row in rows] == ["text_encoder", "vae_encoder", "unet", "vae_decoder"]
    assert rows[2][2:] == ["yes", "46", "25", "865.9 M", "12", "estimated", "several GPUs"]
    assert rows[3][2:] == ["frozen", "21", "21", "49.5 M", "0", "estimated", ""]


def test_a_result_is_shown_with_its_stages(capsys, result):
    print_result(result)
    text = capsys.readouterr().out
    assert "pipeline_degree 4, micro_batches 4, group_size 4" in text
    assert f"{result.iteration_s * 1e3:,.1f} ms" in text
    assert f"compute {1 - result.bubble_ratio:.1%}" in text
    assert re.findall(r"^ +(\d) ", text, re.MULTILINE) == ["0", "1", "2", "3"]


@pytest.fixture(scope="module")
def drawn():
    """A scenario of two images, and what pipefusion and the text encoder make of it."""
    workload = SamplingWorkload(4, 2048, 1024, 5, "none", 2, include=("text_encoder",))
    scenario = SamplingScenario(load_model("pixart"), load_cluster("a100-nvlink-8"), workload)
    sampler = make_sampler("pipefusion", {"layers": (7, 7, 7, 7), "warmup_steps": 1})
    return scenario, run(scenario, sampler)


def test_a_drawing_is_shown_with_its_parts(capsys, drawn):
    _, result = drawn
    print_result(result)
    text = capsys.readouterr().out
    words = " ".join(text.replace("│", "").split())
    assert "strategy pipefusion with warmup_steps 1, receive before, layers 7,7,7,7" in words
    assert (
        "pixart by pipefusion, denoising with text_encoder on 4 GPUs of a100-nvlink-8, stack eager, 2 images of"
        " 1024x2048 pixels, 5 steps, no guidance" in words
    )
    sent = f"{result.expected.p2p_bytes / 2e9:,.2f} GB point to point"
    assert f"{sent}, 0.00 GB in collectives, per image by all GPUs together" in words
    assert f"{4 * result.latency_s / 2:,.2f} GPU-seconds each" in words
    assert re.findall(r" (\d+-\d+) ", text) == ["0-6", "7-13", "14-20", "21-27"]


def test_neighbouring_stages_that_look_alike_share_a_row(capsys):
    result = run("flux-dev", "fsdp", gpus=64, checkpointing="block", batch_size=64)
    print_result(result)
    shown = capsys.readouterr().out.partition("stages, per micro-batch")[2].splitlines()[3:]
    firsts = [re.split(r" {2,}", line.strip()) for line in shown if line.strip()]
    assert len(firsts) < 8 < len(result.stages)
    named = [tuple(map(int, cells[0].split(" to "))) for cells in firsts]
    assert [number for first, *last in named for number in range(first, (last or [first])[0] + 1)] == [
        *range(len(result.stages))
    ]
    alike = next(cells for cells in firsts if " to " in cells[0])
    assert re.fullmatch(r"(\d+)-\d+, each 1", alike[2])
