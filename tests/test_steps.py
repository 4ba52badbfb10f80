"""Steps are predicted and measured; a programme of them goes on where it was left."""

from dataclasses import replace

import pytest
import torch

from profiles.architectures.models import load_model
from profiles.costs.layers import ComponentCosts
from profiles.machines.devices import Device, read_device
from profiles.machines.laws import Rates
from profiles.software.recipes import RECIPES
from profiles.units import GIB
from validate.__main__ import main
from validate.steps.programme import Programme, SamplingStep, TrainingStep, alone, by_rates, report_gpu

pytestmark = pytest.mark.slow

MADE = Device("made", "a test", 80 * GIB, Rates(90e12, 150e12, 120e12, 1.2e12, 5e-6))


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_predicted_training_step_is_the_sum_of_its_parts():
    model = by_rates(load_model("sd21")).for_task("train")
    costs = [ComponentCosts(component, MADE) for component in model.components]
    frozen = sum(cost.forward_s(4).sum() for cost in costs if not cost.component.trainable)
    (unet,) = [cost for cost in costs if cost.component.trainable]
    optimizer = unet.component.parameters * RECIPES["mixed"].step_bytes / 1.2e12
    expected = 3 * (frozen + unet.forward_s(4).sum() + unet.backward_s(4).sum()) + optimizer
    assert TrainingStep("sd21", 12, 3).predict_s(model, MADE, "bfloat16") == pytest.approx(expected)


def test_a_predicted_sampling_step_runs_both_predictions_in_one_batch():
    model = by_rates(load_model("pixart"))
    costs = ComponentCosts(model.components[2], MADE)
    predicted = SamplingStep("pixart", 1024, 1024).predict_s(model, MADE)
    assert predicted == pytest.approx(costs.forward_s(2).sum())
    assert SamplingStep("pixart", 2048, 2048).predict_s(model, MADE) > 4 * predicted
    assert alone(MADE).max_devices == 1


def test_a_programme_goes_on_where_it_was_left(tmp_path, capsys):
    steps = (TrainingStep("tiny-uvit", 4, 2), SamplingStep("tiny-uvit", 256, 256))
    first = Programme("cpu", "float32", {"tiny-uvit": (1,)}, steps[:1], warmup=1, rounds=2)
    (row,) = report_gpu(tmp_path, first, "box")
    assert row.measured_s > 0
    assert row.from_layers_s > 0  # it runs; how well, no test may say
    assert "from measured layers: mean error" in capsys.readouterr().out
    again = report_gpu(tmp_path, replace(first, steps=steps), "box")
    assert again[0].measured_s == pytest.approx(row.measured_s, abs=1e-7)
    assert again[1].measured_s > 0
    assert [line for line in capsys.readouterr().err.splitlines() if "measuring" in line] == [
        "validate: measuring tiny-uvit sampling, 256x256"
    ]
    assert read_device(tmp_path / "box.toml").name == "box"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["box.toml", "steps-box.json", "tiny-uvit"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_the_programme_of_a_gpu_needs_one(tmp_path, capsys):
    assert main(["gpu", "--output", str(tmp_path / "made")]) == 2
    assert "validate: error: --device cuda: torch" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()
