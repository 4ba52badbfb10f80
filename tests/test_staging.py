"""Stages run one after another are the whole network, forwards and backwards; blocks are recomputed as asked."""

import json
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sim
from profiles.measuring.timing.staging import Stage
from profiles.measuring.timing.starting import blocks_of, draw, recompute, start

CONFIGS = json.loads(
    (Path(__file__).parents[1] / "profiles/measuring/counting/configs.json").read_text(encoding="utf-8")
)


class Counting(TorchDispatchMode):
    """Counts the calls of one kernel."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel, self.calls = kernel, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls += func is self.kernel
        return func(*args, **kwargs or {})


def passed_on(outputs):
    """The outputs of a stage as the next one receives them."""
    return [of.detach().requires_grad_(of.is_floating_point()) for of in outputs]


@pytest.mark.parametrize("config", ["tiny_pixart", pytest.param("tiny_unet", marks=pytest.mark.long)])
def test_stages_in_turn_return_and_learn_what_the_whole_network_does(tmp_path, config):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[config]), encoding="utf-8")
    empty, batch = start(str(path), 2, height=64, width=64, text_tokens=8)
    assert all(of.is_meta for of in empty.parameters())
    whole = draw(deepcopy(empty), "cpu")
    arguments, layers = batch("cpu"), len(blocks_of(whole))
    cuts = [0, layers // 3, 2 * layers // 3, layers]
    stages = [
        Stage(deepcopy(whole), arguments, first, end - 1, torch.float32) for first, end in pairwise(cuts)
    ]
    given, sent = [], [()]
    for stage in stages:
        given.append(passed_on(sent[-1]))
        sent.append(stage(*given[-1]))
    (expected,) = whole(**arguments, return_dict=False)
    assert torch.equal(sent[-1][0], expected)

    expected.square().sum().backward()
    gradients = [2 * expected.detach()]
    for received, returned in zip(reversed(given), reversed(sent), strict=False):
        torch.autograd.backward(returned, gradients)
        gradients = [of.grad for of in received]
    known = {name: of.grad for name, of in whole.named_parameters() if of.grad is not None}
    found = {
        name.removeprefix("network."): of.grad
        for stage in stages
        for name, of in stage.named_parameters()
        if of.grad is not None
    }
    assert found.keys() == known.keys()
    for name, gradient in known.items():
        largest = gradient.abs().max().item()
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5 * largest)


def test_adapters_are_those_that_are_priced_in_single_precision_beside_frozen_halves(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["pixart_transformer"]), encoding="utf-8")
    weights = [*start(str(tmp_path / "config.json"), 1, lora=4, height=1024, width=1024)[0].parameters()]
    assert {of.requires_grad: of.dtype for of in weights} == {True: torch.float32, False: torch.bfloat16}
    model = sim.run("pixart", "ddp", gpus=1, trainable="lora:4").source.scenario.model
    priced = sum(layer.adapters for component in model.components for layer in component.layers)
    assert sum(of.numel() for of in weights if of.requires_grad) == priced


@pytest.mark.parametrize(("kind", "attentions"), [("block", 2), ("selective", 1)])
def test_blocks_run_again_in_the_backward_and_their_attention_only_where_it_is_not_kept(
    tmp_path, monkeypatch, kind, attentions
):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["tiny_pixart"] | {"num_layers": 2}), encoding="utf-8")
    network, batch = start(str(path), 1, height=64, width=64, text_tokens=8)
    blocks, ran = blocks_of(draw(network, "cpu")), []
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: ran.append("block"))
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    monkeypatch.setattr(
        "profiles.measuring.timing.starting.ATTENTION", [kernel]
    )  # those of GPUs never run here
    recompute(network, kind)
    with Counting(kernel) as counting:
        network(**batch("cpu"), return_dict=False)[0].sum().backward()
    assert len(ran) == 2 * len(blocks)
    assert counting.calls == attentions * 2 * len(blocks)
