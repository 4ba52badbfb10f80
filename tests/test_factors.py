"""Anchors are the published one-GPU latencies, and the rates alone come near most of them."""

import csv
from statistics import median

import pytest

from profiles.architectures.models import MODELS, load_model, model_names
from profiles.costs.sampling import SamplingCosts
from profiles.machines.devices import load_device
from profiles.software.stacks import load_stack
from validate.__main__ import main
from validate.fitting.anchors import (
    anchor_text,
    factor,
    published_anchors,
    shared_attention,
)
from validate.published.ledger import NEAR
from validate.published.rows import INFERENCE

FOUND, LEFT = published_anchors()
SAID = list(csv.DictReader(INFERENCE.read_text(encoding="utf-8").splitlines()))


def row(**cells):
    """A published row of one GPU that is an anchor, but for some cells."""
    good = {
        "source": "a paper", "table_or_figure": "Table 1", "model": "SDXL", "resolution_px": "1024", "steps": "50",
        "cfg": "yes", "batch": "1", "hardware": "A100", "interconnect": "NVLink", "num_gpus": "1",
        "method": "original", "latency_s": "5", "note": "[text] a note",
    }  # fmt: skip
    return dict.fromkeys(SAID[0], "") | good | cells


@pytest.fixture
def read(tmp_path):
    """Return the anchors, and the reasons why other rows are none, of some rows."""

    def read(*rows):
        path = tmp_path / "inference.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, SAID[0])
            writer.writeheader()
            writer.writerows(rows)
        found, left = published_anchors(path)
        return found, [reason for _, reason in left]

    return read


@pytest.mark.parametrize("name", model_names())
def test_the_committed_anchors_are_those_of_the_published_table(name):
    path = MODELS / name / "anchors.csv"
    anchors = [anchor for model, anchor in FOUND if model == name]
    assert (path.read_text(encoding="utf-8") if path.exists() else "") == (
        anchor_text(anchors) if anchors else ""
    )
    assert sorted(load_model(name).anchors, key=repr) == sorted(anchors, key=repr)


def test_every_row_of_one_gpu_is_an_anchor_or_has_a_reason():
    assert len(FOUND) + len(LEFT) == sum(said["num_gpus"] == "1" for said in SAID)


def test_a_row_says_device_size_passes_and_where_it_stands(read):
    [(model, anchor)], left = read(row(resolution_px="1280x1920"))
    assert (model, left) == ("sdxl", [])
    assert (anchor.device, anchor.height, anchor.width) == ("a100-80gb-sxm", 1280, 1920)
    assert (anchor.batch, anchor.steps, anchor.latency_s) == (2, 50, 5.0)
    assert anchor.source == "a paper, Table 1 [text]"


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "Mochi-1 10B"}, "no model folder of Mochi-1 10B"),
        ({"latency_s": ""}, "no latency"),
        ({"method_config": " torch.compile"}, "not the plain eager pass"),
        ({"method": "teacache"}, "not the plain eager pass"),
        ({"steps": "?"}, "steps '?' are not said"),
        ({"resolution_px": ""}, "resolution '' is not said"),
        ({"resolution_px": "720x480x49f"}, "is not said, or not counted"),
        ({"cfg": "yes?"}, "whether guidance is on"),
        ({"batch": "4"}, "the batch, is not clear"),
        ({"interconnect": "?"}, "which device it was is not clear"),
        ({"hardware": "A5000"}, "no cluster of A5000"),
    ],
)
def test_a_row_that_is_no_anchor_says_why(read, cells, reason):
    found, [why] = read(row(**cells))
    assert found == []
    assert reason in why


def test_a_number_that_stands_twice_counts_once(read):
    found, left = read(row(), row(table_or_figure="Table 2"), row(latency_s="6"))
    assert [anchor.latency_s for _, anchor in found] == [5, 6]
    assert left == ["the same number again"]


def test_schnell_stands_in_only_where_dev_was_not_measured(read):
    dev = {"model": "FLUX.1-dev 12B", "steps": "28", "cfg": "no"}
    schnell = {"model": "FLUX.1-schnell", "steps": "4", "cfg": "no"}
    found, [why] = read(row(**schnell), row(**dev), row(**schnell, resolution_px="4096"))
    assert [(anchor.height, anchor.steps) for _, anchor in found] == [(1024, 28), (4096, 4)]
    assert "28 steps of the same transformer" in why


def test_most_factors_are_within_their_goal():
    """Half of all one-GPU latencies within 12 % without anchors, and two in three within the goal."""
    factors = [factor(name, anchor) for name, anchor in FOUND if name in model_names()]
    assert median(abs(1 / value - 1) for value in factors) <= 0.12
    assert sum(abs(value - 1) <= NEAR for value in factors) > 0.65 * len(factors)


def test_a_predicted_one_gpu_latency_is_the_published_one():
    model, device = load_model("pixart"), load_device("l20-48gb")
    for anchor in (anchor for anchor in model.anchors if anchor.device == device.name):
        costs = SamplingCosts(model, device, anchor.height, anchor.width)
        seconds = sum(costs.forward_s(index, anchor.batch).sum() for index in model.backbones)
        assert anchor.steps * seconds == pytest.approx(anchor.latency_s, rel=1e-9)


def test_the_command_prints_factors_and_writes_the_committed_files(tmp_path, capsys):
    names = sorted({name for name, _ in FOUND})
    for name in names:
        (tmp_path / name).mkdir()
    assert main(["anchors", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "factors within 0.15 of 1" in said
    assert "[digitised]" in said  # and not taken for a style
    for name in names:
        assert (tmp_path / name / "anchors.csv").read_bytes() == (MODELS / name / "anchors.csv").read_bytes()


def test_the_stack_gives_attention_the_share_that_latencies_it_takes_most_of_leave_it():
    found, _ = published_anchors()
    rates = load_stack().rates
    assert rates.attention == pytest.approx(shared_attention(found), abs=0.01)
    assert rates.attention > rates.matmul
