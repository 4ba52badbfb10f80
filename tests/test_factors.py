"""Anchors are the published one-GPU latencies, and the rates alone come near most of them."""

import csv
from statistics import median

from profiles.architectures.models import MODELS, model_names
from validate.__main__ import main
from validate.fitting.anchors import (
    factor,
    published_anchors,
)
from validate.published.ledger import NEAR
from validate.published.rows import INFERENCE

ANCHORS, LEFT = published_anchors()
ROWS = list(csv.DictReader(INFERENCE.read_text(encoding="utf-8").splitlines()))


def test_every_row_of_one_gpu_is_an_anchor_or_has_a_reason():
    assert len(ANCHORS) + len(LEFT) == sum(row["num_gpus"] == "1" for row in ROWS)


def test_most_factors_are_within_their_goal():
    """Half of all one-GPU latencies within 12 % without anchors, and two in three within the goal."""
    factors = [factor(name, anchor) for name, anchor in ANCHORS if name in model_names()]
    assert median(abs(1 / value - 1) for value in factors) <= 0.12
    assert sum(abs(value - 1) <= NEAR for value in factors) > 0.65 * len(factors)


def test_the_command_prints_factors_and_writes_the_committed_files(tmp_path, capsys):
    names = sorted({name for name, _ in ANCHORS})
    for name in names:
        (tmp_path / name).mkdir()
    assert main(["anchors", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "factors within 0.15 of 1" in printed
    assert "[digitised]" in printed  # and not taken for a style
    assert names == sorted(path.parent.name for path in MODELS.glob("*/anchors.csv"))
    for name in names:
        assert (tmp_path / name / "anchors.csv").read_bytes() == (MODELS / name / "anchors.csv").read_bytes()
