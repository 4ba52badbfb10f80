"""Fine-tuning: adapters beside frozen linears, and optimizers whose states take fewer bytes."""

from dataclasses import replace

import numpy as np
import pytest
from making import refused

import sim
from profiles.architectures.models import load_model
from profiles.costs.adapters import OPERATORS, with_adapters
from profiles.costs.layers import ComponentCosts
from profiles.errors import InputError
from profiles.machines.devices import load_device
from profiles.software.stacks import load_stack
from strategies.pipelining.footprint import IN_FLIGHT

RANK = 8


@pytest.fixture(scope="module")
def plain():
    return load_model("pixart")


@pytest.fixture(scope="module")
def adapted(plain):
    return with_adapters(plain.for_task("train"), RANK)


def backbone(model):
    return model.components[model.backbones[0]]


def asked(strategy="ddp", **given):
    return sim.run("pixart", strategy, **{"gpus": 4, "batch_size": 16, **given})


def test_each_linear_that_tokens_pass_has_two_products_of_the_rank(plain, adapted):
    expected = sum(
        kernel.count * RANK * (kernel.n + kernel.k)
        for of in backbone(plain).kernels for kernel in of if kernel.of_tokens
    )  # fmt: skip
    found = backbone(adapted)
    assert sum(layer.trained_parameters for layer in found.layers) == expected
    assert found.parameters == backbone(plain).parameters + expected
    # PixArt's block: queries, keys, values and output of two attentions, two linears of the MLP; 1152 wide.
    block = 8 * 2 * 1152 + 2 * (1152 + 4 * 1152)
    assert found.layers[1].adapters == RANK * block
    assert with_adapters(adapted, RANK) is adapted
    with pytest.raises(InputError, match="asks for all weights, but this pixart has adapters of rank 8"):
        with_adapters(adapted, 0)
    shapes = [k for k in backbone(plain).kernels[0] if k.kind == "matmul" and not k.of_tokens]
    assert {kernel.m for kernel in shapes} == {1, 2}  # the time step; height and width


def test_adapters_keep_what_goes_into_their_second_products_and_spare_what_modulations_need(plain, adapted):
    before, after = (backbone(m).layers[1].saved_bytes for m in (plain, adapted))
    linears = [kernel for kernel in backbone(plain).kernels[1] if kernel.of_tokens]
    kept = sum(2 * RANK * kernel.m * kernel.count for kernel in linears)
    # Norms before they are scaled and outputs before they are gated, of attention and of the MLP.
    spared = 4 * backbone(plain).layers[1].output_bytes
    assert after == pytest.approx(before - spared + kept, rel=1e-3)


def test_frozen_weights_have_no_gradients_and_no_casts_and_adapters_have_both(plain, adapted):
    device, stack = load_device("a100-80gb-sxm"), load_stack()
    whole, own = (ComponentCosts(backbone(model), device, stack=stack) for model in (plain, adapted))
    assert np.all(own.weight_s(8) < 0.35 * whole.weight_s(8))
    assert np.all(own.weight_s(8) > 0)
    frozen = replace(backbone(adapted), adapters=())
    base = ComponentCosts(frozen, device, stack=replace(stack, cast_weights=False))
    beside = ComponentCosts(backbone(adapted).of_adapters, device, stack=stack)
    assert not base.weight_s(8).any()
    assert own.gpu_s(8) == pytest.approx(base.gpu_s(8) + beside.gpu_s(8))
    dispatched = backbone(adapted).table.operators
    assert beside.host_s.sum() > OPERATORS * 10 * stack.forward_operator_s
    assert own.host_s.sum() == pytest.approx(
        dispatched.sum() * stack.forward_operator_s + beside.host_s.sum()
    )


def held_bytes(result):
    """Bytes that stay on each device, without gradients in flight."""
    resident = result.trace.plan.resident
    return [sum(of.size_bytes for of in device if of.name != IN_FLIGHT) for device in resident]


def test_only_adapters_are_summed_stepped_and_kept_with_their_states(adapted):
    whole, lora = asked(), asked(trainable=f"lora:{RANK}")
    own, all_ = (
        sum(of.trained_parameters for of in backbone(m).layers) for m in (adapted, load_model("pixart"))
    )
    ratio = lora.expected.collective_bytes / whole.expected.collective_bytes
    assert ratio == pytest.approx(own / all_)
    frozen = sum(of.parameters for of in adapted.components) - own
    assert held_bytes(lora) == [18 * own + 2 * frozen]
    assert "LoRA of rank 8" in lora.title
    assert lora.options["trainable"] == "lora:8"
    assert lora.flags["trainable"] == "lora:8"
    assert "trainable" not in whole.options


def test_fsdp_shards_and_gathers_the_frozen_backbone_too(adapted):
    lora = asked("fsdp", trainable="lora:8")
    own = sum(of.trained_parameters for of in backbone(adapted).layers)
    locked = backbone(adapted).parameters - own
    frozen = sum(of.parameters for of in adapted.components) - own - locked
    # what is gathered is cast from the masters, and nothing else of the weights stays
    assert held_bytes(lora) == pytest.approx([(16 * own + 2 * locked) / 4 + 2 * frozen])
    gathered = sum(c.size_bytes for c in lora.trace.plan.collectives if c.operation == "all_gather")
    last = backbone(adapted).layers[-1]
    units = 2 * 2 * (own + locked) - 2 * last.parameters  # the last stays between its passes
    assert gathered == pytest.approx(units)


def test_what_cannot_be_adapted_is_refused_in_one_line():
    uncounted = replace(backbone(load_model("pixart")), kernels=())
    with refused(r"trainable needs the linears of transformer: pixart has no kernels\.csv"):
        with_adapters(replace(load_model("pixart"), components=(replace(uncounted, inputs=()),)), RANK)
