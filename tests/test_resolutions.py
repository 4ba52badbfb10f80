"""Resolutions: which a model can have, and what a model is at another than that of its files."""

from dataclasses import replace

import numpy as np
import pytest
from making import refused

from profiles.architectures.models import load_model
from profiles.costs.layers import ModelCosts, TaskCosts
from profiles.costs.resolutions import check_resolution, resized
from profiles.machines.devices import load_device
from profiles.machines.laws import Rates
from profiles.software.stacks import load_stack

A100 = load_device("a100-80gb-sxm")
SUMS = ("conv_flop", "matmul_flop", "moved_bytes", "output_bytes", "saved_bytes")


def component(model, name):
    return next(component for component in model.components if component.name == name)


def test_sides_are_made_of_whole_tokens_of_every_component(make):
    unet = replace(make.component("unet", [1.0], inputs=["vae"]), image_tokens=64)
    vae = replace(make.component("vae", [1.0], trainable=False), image_tokens=16)
    model = make.model(vae, unet)
    check_resolution(model, 48, 80)
    with refused(r"width\(40\) is no multiple of 16, the pixels along a token of vae"):
        check_resolution(model, 48, 40)


def test_work_and_activations_grow_with_the_tokens_and_attention_with_their_square():
    model = load_model("sd21")
    large = resized(model, 1024, 512, A100)
    before, after = component(model, "unet"), component(large, "unet")
    assert (large.height, large.width, after.image_tokens) == (1024, 512, 2 * before.image_tokens)
    for old, new in zip(before.layers, after.layers, strict=True):
        for name in SUMS:
            assert getattr(new, name) == 2 * getattr(old, name)
        assert new.attention_flop == 4 * old.attention_flop
        assert (new.parameters, new.kernels) == (old.parameters, old.kernels)
    assert after.carried_bytes == before.carried_bytes
    assert component(large, "text_encoder") == component(model, "text_encoder")


@pytest.mark.parametrize("name", ["sd21", "flux-dev"])
def test_a_layer_takes_as_long_in_training_as_in_sampling_at_any_resolution(name):
    model = load_model(name)
    height, width = 2 * model.height, model.width
    uncast = replace(load_stack(), norms="half", cast_weights=False)
    trained = ModelCosts(resized(model, height, width, A100), A100, uncast)
    drawn = TaskCosts(model, A100, height, width, uncast)
    for index, costs in enumerate(trained.components):
        np.testing.assert_allclose(costs.forward_s(8), drawn.forward_s(index, 8), rtol=1e-9)


def test_measured_times_follow_the_estimated_work(make):
    unet = replace(make.component("unet", [1.0]), image_tokens=64)
    (layer,) = unet.layers
    device = replace(make.cluster().device, rates=Rates(1e12, 1e12, 1e12, 1e12, 0.0))
    unet = replace(unet, layers=(replace(layer, matmul_flop=1e12, attention_flop=1e12),))
    costs = ModelCosts(resized(make.model(unet), 128, 64, device), device).components[0]
    # forwards 1 s linear and 1 s attention become 2 s and 4 s; backwards twice and 2.5 times that
    assert costs.forward_s(1) == pytest.approx([1.0 * 6 / 2])
    assert costs.backward_s(1) == pytest.approx([2.0 * (2 * 2 + 2.5 * 4) / (2 + 2.5)])


@pytest.mark.parametrize(("height", "width", "halo"), [(1, 2, 2.0), (2, 1, 1.0)])
def test_what_patches_exchange_grows_with_the_image_with_its_rows_or_not_at_all(height, width, halo):
    model = load_model("sdxl")
    larger = resized(model, height * model.height, width * model.width, A100)
    before, after = (component(of, "unet").exchanges for of in (model, larger))
    times = {(one.kind, two.elements / one.elements) for one, two in zip(before, after, strict=True)}
    assert times == {("halo", halo), ("key_value", 2.0), ("reduce", 2.0), ("statistics", 1.0)}
