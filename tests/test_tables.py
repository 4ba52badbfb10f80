"""What a person reads on the terminal: what there is, and one result."""

import re

import pytest

from profiles.architectures.models import load_model, model_names
from profiles.machines.clusters import load_cluster
from sim.api import run
from sim.report.blocks import print_blocks
from sim.report.listings import print_listing
from sim.report.results import result_blocks
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make as make_sampler
from strategies.sampling_scenario import SamplingScenario


def test_models_are_shown_with_their_components(capsys):
    print_listing("models", as_json=False)
    lines = (line.split() for line in capsys.readouterr().out.splitlines())
    rows = {line[1]: line[2:] for line in lines if line[:1] == ["sd21"]}
    assert list(rows) == ["text_encoder", "vae_encoder", "unet", "vae_decoder"]
    assert rows["unet"] == ["yes", "46", "865.9", "M", "derived", "several", "GPUs", "32", "12"]
    assert rows["vae_decoder"] == ["no", "21", "49.5", "M", "derived", "several", "GPUs", "32", "0"]


def test_names_that_one_types_are_whole_in_a_narrow_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_listing("models", as_json=False)
    assert {*model_names()} <= {*capsys.readouterr().out.split()}


def test_a_word_lists_those_whose_names_have_it(ask, tell):
    sizes = {"", "4b", "9b", "base", "base-4b", "base-9b"}
    assert {one["name"].partition("klein")[2].lstrip("-") for one in ask("models", "klein")} == sizes
    assert tell("models", "show", "klein")[1].startswith('name = "flux2-klein-4b"')


def test_devices_say_what_their_pace_rests_on(ask):
    basis = {one["name"]: one["basis"] for one in ask("devices")}
    assert basis["h100-80gb-sxm"] == "measured"
    assert basis["a100-40gb-sxm"] == "derived"
    assert basis["ascend910a-32gb"] == basis["mi300x-192gb"] == basis["l4-24gb"] == "data sheet"
    for kind in ("models", "devices", "clusters"):
        everything, key = ask(kind), "links" if kind == "clusters" else "basis"
        assert [one for one in everything if one[key] == "measured"] == ask(kind, "measured") != everything


@pytest.fixture(scope="module")
def drawn():
    """A scenario of two images, and what pipefusion and the text encoder make of it."""
    workload = SamplingWorkload(4, 2048, 1024, 5, "none", 2, include=("text_encoder",))
    scenario = SamplingScenario(load_model("pixart"), load_cluster("a100-nvlink-8"), workload)
    sampler = make_sampler("pipefusion", {"layers": (7, 7, 7, 7), "warmup_steps": 1})
    return scenario, run(scenario, sampler)


def test_a_drawing_is_shown_with_its_parts(capsys, drawn):
    _, result = drawn
    print_blocks(result_blocks(result))
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
    print_blocks(result_blocks(result))
    shown = capsys.readouterr().out.partition("stages, per micro-batch")[2].splitlines()[3:]
    firsts = [re.split(r" {2,}", line.strip()) for line in shown if line.strip()]
    assert len(firsts) < 8 < len(result.stages)
    named = [tuple(map(int, cells[0].split(" to "))) for cells in firsts]
    assert [number for first, *last in named for number in range(first, (last or [first])[0] + 1)] == [
        *range(len(result.stages))
    ]
    alike = next(cells for cells in firsts if " to " in cells[0])
    assert re.fullmatch(r"(\d+)-\d+, each 1", alike[2])
