"""Texts of another length, and texts that each device of a sequence holds whole."""

import pytest
from making import refused

from profiles.architectures.extents import Extent
from profiles.architectures.models import load_model
from profiles.costs.resolutions import with_text
from profiles.machines.clusters import load_cluster
from strategies.patching.layer_runs import exchanged
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario


def drawing(text_tokens=None, text="divided", gpus=8, size=1024):
    workload = SamplingWorkload(gpus, size, size, 1, "none", text_tokens=text_tokens, text=text)
    return SamplingScenario(load_model("flux-dev"), load_cluster("h100-nvlink-8"), workload)


def products(model):
    component = model.components[model.backbones[0]]
    return [k for of in component.half_kernels for k in of if k.kind in ("matmul", "attention")]


def test_joint_attention_has_the_rows_and_keys_of_image_and_text():
    for kernel in products(with_text(load_model("flux-dev"), 256)):
        if kernel.kind == "attention":
            assert (kernel.m, kernel.n, kernel.image_m) == (4096 + 256, 4096 + 256, 4096)


def test_a_whole_text_costs_its_own_products_once_more_on_each_device_and_is_not_exchanged():
    whole, divided = drawing(text="replicated"), drawing()
    layers = len(whole.backbone.layers)
    extent = Extent.of(whole.model, whole.backbone, 1024, 1024)
    passed = [exchanged(one, 0, layers).hidden_bytes for one in (whole, divided)]
    assert passed[0] / passed[1] == pytest.approx(extent.image)
    summed = [exchanged(one, 0, layers).summed_bytes for one in (whole, divided)]
    assert summed[0] == summed[1]


def test_a_model_whose_text_stands_aside_is_refused():
    with refused("text_tokens is 100, but no text passes through the layers of pixart"):
        with_text(load_model("pixart"), 100)


def test_a_model_is_trained_on_another_text_at_another_size():
    def trained(text_tokens):
        workload = TrainingWorkload(8, 8, text_tokens=text_tokens, resolution="512")
        return Scenario(load_model("flux-dev"), load_cluster("h100-nvlink-8"), workload)

    attentions = [kernel for kernel in products(trained(256).model) if kernel.kind == "attention"]
    assert {(kernel.m, kernel.n) for kernel in attentions} == {(1024 + 256, 1024 + 256)}
    usual, asked = (trained(tokens).costs.components[-1] for tokens in (None, 512))
    assert list(usual.backward_s(1)) == list(asked.backward_s(1))
