"""Anchors are the published one-GPU latencies, and the rates alone come near most of them."""

import csv
from statistics import median

import pytest

from profiles.architectures.models import MODELS, load_model, model_names
from profiles.costs.layers import SamplingCosts
from profiles.machines.devices import load_device
from validate.__main__ import main
from validate.fitting.anchors import (
    anchor_text,
    factor,
    published_anchors,
)
from validate.published.ledger import NEAR
from validate.published.rows import INFERENCE

ANCHORS, LEFT = published_anchors()
ROWS = list(csv.DictReader(INFERENCE.read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("name", model_names())
def test_the_committed_anchors_are_those_of_the_published_table(name):
    path = MODELS / name / "anchors.csv"
    anchors = [anchor for model, anchor in ANCHORS if model == name]
    assert (path.read_text(encoding="utf-8") if path.exists() else "") == (
        anchor_text(anchors) if anchors else ""
    )
    assert sorted(load_model(name).anchors, key=repr) == sorted(anchors, key=repr)


def test_every_row_of_one_gpu_is_an_anchor_or_has_a_reason():
    assert len(ANCHORS) + len(LEFT) == sum(row["num_gpus"] == "1" for row in ROWS)


def test_most_factors_are_within_their_goal():
    """Half of all one-GPU latencies within 12 % without anchors, and two in three within the goal."""
    factors = [factor(name, anchor) for name, anchor in ANCHORS if name in model_names()]
    assert median(abs(1 / value - 1) for value in factors) <= 0.12
    assert sum(abs(value - 1) <= NEAR for value in factors) > 0.65 * len(factors)


def test_a_predicted_one_gpu_latency_is_the_published_one():
    model, device = load_model("pixart"), load_device("l20-48gb")
    for anchor in (anchor for anchor in model.anchors if anchor.device == device.name):
        costs = SamplingCosts(model, device, anchor.height, anchor.width)
        seconds = sum(costs.forward_s(index, anchor.batch).sum() for index in model.backbones)
        assert anchor.steps * seconds == pytest.approx(anchor.latency_s, rel=1e-9)


def test_the_command_prints_factors_and_writes_the_committed_files(tmp_path, capsys):
    names = sorted({name for name, _ in ANCHORS})
    for name in names:
        (tmp_path / name).mkdir()
    assert main(["anchors", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "factors within 0.15 of 1" in printed
    assert "[digitised]" in printed  # and not taken for a style
    for name in names:
        assert (tmp_path / name / "anchors.csv").read_bytes() == (MODELS / name / "anchors.csv").read_bytes()
