"""Anchors: a prediction for one GPU is what was published for it, and several GPUs start from there."""

import csv
from dataclasses import replace
from math import log, sqrt
from statistics import median

import pytest

from profiles.architectures.component_files import read_anchors
from profiles.architectures.components import Anchor, MeasuredTime
from profiles.architectures.models import MODELS, load_model, model_names
from profiles.costs.layers import ModelCosts, TaskCosts, published
from profiles.errors import InputError
from profiles.machines.devices import Device, load_device
from profiles.machines.laws import Rates
from validate.__main__ import main
from validate.equal_blocks import equal_blocks_transformer
from validate.fitting.anchors import factor, published_anchors
from validate.published.ledger import NEAR
from validate.published.runs import INFERENCE

RATED = Device("rated", "made by a test", None, Rates(1e12, 1e12, 1e12, 1e12, 0.0))


def anchored(*anchors, device=RATED):
    """Two equal blocks of a second each, and published latencies of (side, batch, steps, seconds)."""
    model = equal_blocks_transformer(2)
    (transformer,) = model.components
    layers = tuple(replace(layer, matmul_flop=1e12) for layer in transformer.layers)
    found = tuple(Anchor(device.name, side, side, batch, n, s, "a test") for side, batch, n, s in anchors)
    return replace(model, components=(replace(transformer, layers=layers, times=()),), anchors=found)


def pass_s(model, side=256, batch=1, device=RATED):
    return TaskCosts(model, device, side, side).forward_s(0, batch).sum()


def test_one_gpu_takes_what_was_published():
    model = anchored((256, 2, 10, 60.0))
    assert 10 * pass_s(model, batch=2) == pytest.approx(60.0)
    assert pass_s(model, batch=1) == pytest.approx(3.0)


def test_between_resolutions_the_factor_follows_the_logarithm_of_the_pixels():
    model = anchored((256, 1, 1, 2.0 * 1.2), (1024, 1, 1, 2.0 * 16 * 3.0))
    factor = {side: published(model, RATED, side**2).factor for side in (128, 256, 512, 1024, 4096)}
    assert factor == pytest.approx({128: 1.2, 256: 1.2, 512: sqrt(1.2 * 3.0), 1024: 3.0, 4096: 3.0})
    assert log(factor[512]) == pytest.approx((log(1.2) + log(3.0)) / 2)


def test_frozen_components_and_measured_times_are_not_scaled(make):
    model = anchored((256, 1, 1, 20.0))
    encoder = make.component("text", [1.0], trainable=False)
    layers = tuple(replace(layer, matmul_flop=1e12) for layer in encoder.layers)
    both = replace(model, components=(*model.components, replace(encoder, layers=layers, times=())))
    assert TaskCosts(both, RATED, 256, 256).forward_s(1, 1).sum() == 1.0
    times = tuple(MeasuredTime(i, 1, 5.0, 0.0) for i in range(2))
    measured = replace(model, components=(replace(model.components[0], times=((RATED.name, times),)),))
    assert pass_s(measured) == pytest.approx(10.0)


def published_once():
    """Yield each model's anchors of which there is one alone for the device and the resolution."""
    for name in model_names():
        anchors = load_model(name).anchors
        places = [(anchor.device, anchor.height, anchor.width) for anchor in anchors]
        yield from ((name, a) for a, place in zip(anchors, places, strict=True) if places.count(place) == 1)


def test_shipped_models_take_one_gpu_as_long_as_published():
    for name, anchor in published_once():
        model, device = load_model(name).for_task("sample"), load_device(anchor.device)
        (backbone,) = model.backbones
        costs = TaskCosts(model, device, anchor.height, anchor.width)
        seconds = anchor.steps * costs.forward_s(backbone, anchor.batch).sum()
        assert seconds == pytest.approx(anchor.latency_s) and anchor.source, (name, anchor)


def test_anchors_are_read_and_refused_by_line(tmp_path):
    path = tmp_path / "anchors.csv"
    assert read_anchors(path) == ()
    head = "device,height,width,batch,steps,latency_s,source\n"
    path.write_text(head + "a100-80gb-sxm,1024,512,2,20,1.5,a paper\n")
    assert read_anchors(path) == (Anchor("a100-80gb-sxm", 1024, 512, 2, 20, 1.5, "a paper"),)
    for cells, message in (
        ("x,1024,512,2,20,0,a paper", "anchors.csv:2: .*latency_s is .*0.*, must be positive"),
        ("x,1024,512,0,20,1,a paper", "anchors.csv:2: .*batch is 0"),
        ("x,1024,512,2,20,-1,a paper", "anchors.csv:2: latency_s is .*-1.*, must "),
    ):
        path.write_text(head + cells + "\n")
        with pytest.raises(InputError, match=message):
            read_anchors(path)


def test_a_backbone_alone_takes_as_long_as_beside_the_others():
    """The anchor times both backbones together."""
    model = anchored((256, 1, 1, 9.0))
    (backbone,) = model.components
    slow = tuple(replace(layer, matmul_flop=2e12) for layer in backbone.layers)
    both = replace(model, components=(backbone, replace(backbone, name="other", layers=slow)))
    assert published(both, RATED, 256**2).factor == pytest.approx(9.0 / 6.0)
    for index in range(2):
        alone = ModelCosts(both.only(index), RATED).components[0]
        assert alone.forward_s(3).tolist() == ModelCosts(both, RATED).components[index].forward_s(3).tolist()


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
