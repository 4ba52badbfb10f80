"""Layers get the time that they take, and a profile is a model folder that a simulation reads."""

import csv
import tomllib
from dataclasses import replace
from time import thread_time

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel

from profiles.architectures.models import load_model
from profiles.costs.layers import ComponentCosts
from profiles.machines.devices import Device
from profiles.measuring.counting.component import count_component
from profiles.measuring.counting.configured import TINY
from profiles.measuring.counting.specs import ComponentSpec, LayerSpec, tensor
from profiles.measuring.timing.passes import Clock, Settings, Subject, measure
from validate.__main__ import main

pytestmark = pytest.mark.slow

FORWARD_MS = (2, 7, 3, 5)
BACKWARD_MS = (0, 4, 9, 3)
BETWEEN_MS = 4
AFTER_MS = 3
SLACK_S = 0.003  # of the operators around; a layer mistaken for its neighbour is further off


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Layers whose times are known


def spin(milliseconds):
    end = thread_time() + milliseconds / 1e3
    while thread_time() < end:
        pass


class Spin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, forward_ms, backward_ms):
        ctx.backward_ms = backward_ms
        spin(forward_ms)
        return hidden.clone()

    @staticmethod
    def backward(ctx, gradient):
        spin(ctx.backward_ms)
        return gradient, None, None


class Block(nn.Module):
    """Returns two streams; the second is made first, so that neither order of the two can pass for the other."""

    def __init__(self, forward_ms, backward_ms):
        super().__init__()
        self.linear, self.times = nn.Linear(4, 4), (forward_ms, backward_ms)

    def forward(self, image, text):
        text = text + self.linear.bias
        return Spin.apply(self.linear(image), *self.times), text


class Net(nn.Module):
    """Four blocks; the first is locked, the last reads its output too, with work of the whole before and after it."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(map(Block, FORWARD_MS, BACKWARD_MS))

    def forward(self, sample):
        first = hidden = self.blocks[0](sample, sample)
        for block in self.blocks[1:3]:
            hidden = block(*hidden)
        spin(BETWEEN_MS)
        image, _ = self.blocks[3](hidden[0] + first[0], hidden[1])
        spin(AFTER_MS)
        return image * 1


def measured(trainable=True, passes=1):
    def sample(height, width):
        return {"sample": tensor(1, 4)}

    layers = tuple(LayerSpec(f"block{i}", i, f"blocks.{i}", streams=2) for i in range(4))
    spec = ComponentSpec("net", Net, sample, layers, trainable=trainable, again=(sample,) * (passes - 1))
    counted = count_component(replace(spec, locked=("blocks.0",) if trainable else ()), 8, 8, "float32")
    return measure(counted, 8, 8, Settings((2,), warmup=1, rounds=3), Clock(thread_time)).batches[0]


def assert_times(found_s, expected_ms, slack_s=SLACK_S):
    for seconds, milliseconds in zip(found_s, expected_ms, strict=True):
        assert milliseconds / 1e3 <= seconds + 1e-9 < milliseconds / 1e3 + slack_s


@pytest.mark.timed
def test_each_layer_gets_the_time_that_it_takes_and_the_whole_is_their_sum():
    times, forward_ms = measured(), [*FORWARD_MS[:3], FORWARD_MS[3] + BETWEEN_MS + AFTER_MS]
    assert_times(times.layers["forward"], forward_ms)
    assert_times(times.layers["backward"], BACKWARD_MS)
    assert times.sum_over_whole("forward") == pytest.approx(1, abs=0.04)
    assert times.sum_over_whole("backward") == pytest.approx(1, abs=0.04)
    frozen = measured(trainable=False, passes=2)
    assert_times(frozen.layers["forward"], [2 * milliseconds for milliseconds in forward_ms], 2 * SLACK_S)
    assert frozen.layers["backward"] == [0.0] * 4


# Weights and inputs


def bert():
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16,
    )  # fmt: skip
    return BertModel(config, add_pooling_layer=False)


BERT = ComponentSpec("bert", bert, lambda h, w: {"input_ids": tensor(1, 8, dtype=torch.long)}, word="layer")
SMALL = [(BERT, 64)]
SMALL += [(spec, model.height // 2) for model in TINY.values() for spec in model.components if spec.trainable]


@pytest.mark.parametrize(("spec", "side"), SMALL)
def test_a_batch_runs_and_stays_finite(spec, side):
    size = (side, side)
    subject = Subject(count_component(spec, *size, "float32"), size, "float32", Clock(thread_time))
    (given,) = subject.inputs(3)
    assert {len(value) for value in given.values() if isinstance(value, torch.Tensor)} == {3}
    output = subject.forward(given)
    assert len(output) == 3
    assert torch.isfinite(output).all()
    assert output.requires_grad == spec.trainable


# The command and its files

VAE = ["profile", "--model", "tiny-sd", "--device", "cpu", "--components", "vae_encoder"]
FAST = ["--height", "32", "--width", "32", "--warmup", "1", "--rounds", "2"]


def run(folder, *arguments, batch_sizes="1,2"):
    return main([*VAE, *FAST, "--batch-sizes", batch_sizes, "--output", str(folder), *arguments])


def rows(path):
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_profile_is_a_model_folder_with_its_environment(tmp_path, capsys):
    folder = tmp_path / "made" / "tiny"
    assert run(folder, "--name", "box") == 0
    model = load_model(str(folder))
    (component,) = model.components
    assert (model.name, model.height, model.dtype, component.inputs) == ("tiny-sd", 32, "float32", ())
    costs = ComponentCosts(component, Device("box", "a test", None, None))
    assert costs.provenance == "measured"
    times = rows(folder / "times" / "box.csv")
    assert len(times) == 2 * len(component.layers)
    assert costs.forward_s(2)[3] == pytest.approx(
        next(float(r["forward_ms"]) for r in times if (r["index"], r["batch_size"]) == ("3", "2")) / 1e3
    )
    assert (costs.forward_s(1) > 0).all()
    assert not costs.backward_s(1).any()
    header = tomllib.loads((folder / "times" / "box.toml").read_text(encoding="utf-8"))
    assert header.keys() >= {"torch", "date", "threads", "dtype", "processor"}
    assert (header["model"], len(header["whole"])) == ("tiny-sd", 2)
    assert "vae_encoder" in capsys.readouterr().out


@pytest.mark.long
def test_times_are_added_to_the_folder_of_the_same_layers_alone(tmp_path, capsys):
    assert run(tmp_path, "--name", "first") == 0
    before = (tmp_path / "model.toml").read_text(encoding="utf-8")
    assert run(tmp_path, "--name", "second", batch_sizes="1") == 0
    assert (tmp_path / "model.toml").read_text(encoding="utf-8") == before
    assert [device for device, _ in load_model(str(tmp_path)).components[0].times] == ["first", "second"]
    capsys.readouterr()
    assert run(tmp_path, "--height", "64") == 2
    assert "holds tiny-sd at 32x32, not at 64x32" in capsys.readouterr().err
    assert run(tmp_path, "--components", "text_encoder") == 2
    assert "with other layers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "tpu"], "--device is 'tpu', must be one of cpu, cuda"),
        (["--model", "tinny"], "unknown model 'tinny'; choose from "),
        (["--components", "unet,vae"], "unknown component 'vae' of Tiny Stable Diffusion; choose from "),
        (
            ["--height", f"{2**20}", "--width", f"{2**20}"],
            "vae_encoder at 1048576x1048576, batch 1: memory ran",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_cannot_be_measured_is_one_line_and_leaves_nothing(tmp_path, capsys, arguments, message):
    assert run(tmp_path / "made", *arguments) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "measuring" not in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"validate: error: {message}")
    assert not (tmp_path / "made").exists()
