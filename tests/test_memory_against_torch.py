"""Bytes and recomputation of training against torch itself: a small U-Net, on the CPU."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers.models import UNet2DConditionModel
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import silu
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from profiles.architectures.models import read_model
from profiles.machines.clusters import load_cluster
from profiles.mappings import FrozenMapping
from profiles.measuring.counting.configured import count_configured
from profiles.measuring.counting.folder import folder_texts, kernel_texts
from profiles.measuring.counting.networks import attend
from profiles.measuring.counting.specs import ConfigFile, ConfigOptions
from profiles.software.stacks import load_stack
from sim.outcomes.parts import replay
from sim.replay.memory import memory_events
from strategies.pipelining.footprint import resident_buffers, saved_bytes
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make as make_strategy
from strategies.scenario import Scenario

pytestmark = pytest.mark.slow

SAMPLES, SIDE, TEXT = 2, 16, (12, 128)
GIVEN_BYTES = 4 * SAMPLES * 4 * SIDE**2
"""Of the latents that a pass gets; in a model they are the output of an encoder, which the counted backbone lacks."""
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
FUSED = {ATTENTION.overloadpacket: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)}
UNET = {
    "_class_name": "UNet2DConditionModel", "block_out_channels": [32, 64],
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
    "layers_per_block": 1, "cross_attention_dim": TEXT[1], "attention_head_dim": 4, "norm_num_groups": 16,
    "use_linear_projection": True, "sample_size": SIDE,
}  # fmt: skip


class Unet:
    """A U-Net as the functions of its blocks: each takes the hidden state, a skip or none, and what all need."""

    def __init__(self):
        self.net = net = UNet2DConditionModel(**{k: v for k, v in UNET.items() if k[0] != "_"}).eval()
        self.blocks = [lambda hidden, skip, time, text: net.conv_in(hidden)]
        for down in net.down_blocks:
            self.blocks += [partial(self.pair, down, i) for i in range(len(down.resnets))]
            self.blocks += [partial(self.sampler, sampler) for sampler in down.downsamplers or ()]
        self.blocks += [lambda h, skip, time, text: net.mid_block(h, time, encoder_hidden_states=text)]
        ups = [partial(self.up, up, i) for up in net.up_blocks for i in range(len(up.resnets))]
        self.blocks, self.ups = [*self.blocks, *ups], len(ups)

    def run(self, wrap):
        """One forward pass, each block called through ``wrap``."""
        hidden, needed = self.given()
        skips = []
        for number, block in enumerate(self.blocks):
            left = len(self.blocks) - number
            hidden = wrap(block, hidden, skips.pop() if left <= self.ups else None, *needed)
            if left > self.ups + 1:
                skips.append(hidden)
        return hidden

    @contextmanager
    def checkpointed(self, wrapped):
        """A pass as diffusers checkpoints it, without the head, whose activations go before anything runs again."""
        net, head = self.net, ("conv_norm_out", "conv_act", "conv_out")
        if wrapped.checkpointing == "none":
            yield partial(self.run, wrapped)
            return
        parts = [getattr(net, name) for name in head]
        net.enable_gradient_checkpointing(wrapped.checkpoint)
        for name in head:
            setattr(net, name, nn.Identity())
        yield lambda: net(self.given()[0], torch.tensor([3, 4]), self.given()[1][1], return_dict=False)[0]
        net.disable_gradient_checkpointing()
        for name, part in zip(head, parts, strict=True):
            setattr(net, name, part)

    def given(self):
        time = self.net.time_embedding(self.net.time_proj(torch.tensor([3, 4])))
        return torch.randn(SAMPLES, 4, SIDE, SIDE), (time, torch.randn(SAMPLES, *TEXT))

    def pair(self, level, number, hidden, skip, time, text):
        return attend(level, number, level.resnets[number](hidden, time), text)

    def sampler(self, sampler, hidden, skip, time, text):
        return sampler(hidden)

    def up(self, level, number, hidden, skip, time, text):
        hidden = self.pair(level, number, torch.cat([hidden, skip], dim=1), None, time, text)
        if number == len(level.resnets) - 1:
            for sampler in level.upsamplers or ():
                hidden = sampler(hidden)
            if level is self.net.up_blocks[-1]:
                hidden = self.net.conv_out(silu(self.net.conv_norm_out(hidden)))
        return hidden


def keep_attention(context, operator, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if operator == ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE


class Wrapped:
    """Calls of blocks under a checkpointing; ``kept_bytes`` are of what attention left."""

    def __init__(self, checkpointing):
        self.checkpointing, self.modes = checkpointing, []

    def __call__(self, block, *given):
        if self.checkpointing == "none":
            return block(*given)
        return self.checkpoint(block, *given)

    def checkpoint(self, block, *given):
        more = {"context_fn": self.contexts} if self.checkpointing == "selective" else {}
        return checkpoint(block, *given, use_reentrant=False, **more)

    def contexts(self):
        pair = create_selective_checkpoint_contexts(keep_attention)
        self.modes.append(pair[0])
        return pair

    @property
    def kept_bytes(self):
        found = [leaf for mode in self.modes for leaf in tree_leaves([*mode.storage.values()])]
        tensors = {getattr(one, "val", one) for one in found}
        kept = [of.untyped_storage() for of in tensors if isinstance(of, torch.Tensor)]
        storages = {of.data_ptr(): of.nbytes() for of in kept}
        return sum(storages.values())


def saved_by_torch(blocks, checkpointing, adapters=frozenset()):
    """Bytes that a forward pass leaves for the backward, beyond the parameters."""
    own = {parameter.untyped_storage().data_ptr() for parameter in blocks.net.parameters()} | adapters
    kept, wrapped = {}, Wrapped(checkpointing)

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = (tensor.untyped_storage().nbytes(), tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor), blocks.checkpointed(wrapped) as run:
        output = run()
    del output
    return sum(size for size, _ in kept.values()) + wrapped.kept_bytes


@pytest.fixture(scope="module")
def blocks():
    torch.manual_seed(0)
    return Unet()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The same network as a counted model folder."""
    counted = count_configured(
        [ConfigFile(Path("config.json"), FrozenMapping(UNET))],
        ConfigOptions(height=8 * SIDE, width=8 * SIDE, text_tokens=TEXT[0], dtype="float32"),
    )
    folder = tmp_path_factory.mktemp("models") / "small"
    for path, text in (folder_texts("small", counted) | kernel_texts(counted)).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    return read_model(folder)


def layout_of(model, checkpointing, strategy="ddp", ranks=1, **given):
    stack = replace(load_stack(), norms="half")  # no autocast: norms see what they are given
    workload = TrainingWorkload(
        ranks, ranks * SAMPLES, checkpointing=checkpointing, memory_recipe="fp32", **given
    )
    return make_strategy(strategy, {}).layout(Scenario(model, load_cluster("p4de"), workload, stack=stack))


def saved_in(layout):
    return sum(saved_bytes(layout, stage) for stage in layout.stages)


@contextmanager
def beside_adapters(net, rank):
    """Adapters beside the linears that tokens pass, as PEFT calls them; all else is locked."""

    def beside(down, up, linear, given, output):
        return output if given[0].dim() < 3 else output + 0.5 * up(down(given[0]))

    linears = [part for part in net.modules() if isinstance(part, nn.Linear)]
    pairs = [
        (nn.Linear(of.in_features, rank, bias=False), nn.Linear(rank, of.out_features, bias=False))
        for of in linears
    ]
    net.requires_grad_(False)
    hooks = [of.register_forward_hook(partial(beside, *at)) for of, at in zip(linears, pairs, strict=True)]
    yield {weight.untyped_storage().data_ptr() for pair in pairs for of in pair for weight in of.parameters()}
    net.requires_grad_(True)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("checkpointing", ["none", "block", "selective"])
def test_saved_activations_are_those_that_torch_keeps(blocks, model, checkpointing):
    """Where all is trained, on one rank or in sharded units, and where adapters alone are."""
    given = 0 if checkpointing == "none" else GIVEN_BYTES
    saved = saved_by_torch(blocks, checkpointing)
    assert saved_in(layout_of(model, checkpointing)) + given == pytest.approx(saved, rel=0.03)
    assert saved_in(layout_of(model, checkpointing, "fsdp", 4)) + given == pytest.approx(saved, rel=0.03)
    adapted = saved_in(layout_of(model, checkpointing, trainable="lora:8"))
    with beside_adapters(blocks.net, 8) as own:
        assert adapted + given == pytest.approx(saved_by_torch(blocks, checkpointing, own), rel=0.03)


def test_parameters_gradients_and_states_are_those_of_torch(blocks, model):
    optimizer = torch.optim.AdamW(blocks.net.parameters())
    blocks.run(Wrapped("none")).sum().backward()
    optimizer.step()
    parameters = [p for p in blocks.net.parameters() if p.grad is not None]
    states = tree_leaves([optimizer.state[p] for p in parameters])
    layout = layout_of(model, "none")
    buffers = {buffer.name: buffer.size_bytes for buffer in resident_buffers(layout)}
    assert buffers["weights"] == pytest.approx(sum(p.nbytes for p in parameters), rel=0.03)
    assert buffers["gradients"] == pytest.approx(sum(p.grad.nbytes for p in parameters), rel=0.03)
    assert buffers["optimizer"] == pytest.approx(sum(state.nbytes for state in states), rel=0.03)


def flop(blocks, checkpointing):
    """FLOP of a forward pass, and of its backward, all operators of a block run again."""
    with set_checkpoint_early_stop(False), FlopCounterMode(display=False, custom_mapping=FUSED) as counter:
        output = blocks.run(Wrapped(checkpointing)).sum()
        forward = counter.get_total_flops()
        output.backward()
        return forward, counter.get_total_flops() - forward


def test_recomputation_is_one_forward_without_the_attention_that_was_kept(blocks, model):
    (forward, plain), (_, selective) = (flop(blocks, each) for each in ("none", "selective"))
    of = model.components[model.backbones[0]]
    counted = SAMPLES * sum(layer.conv_flop + layer.matmul_flop + layer.attention_flop for layer in of.layers)
    kernels = [kernel for own in of.kernels for kernel in own if kernel.kind == "attention"]
    attended = SAMPLES * sum(kernel.flop for kernel in kernels)
    assert forward == pytest.approx(counted, rel=0.001)
    assert selective - plain == pytest.approx(forward - attended, rel=0.001)


# Sharded


class Unit(nn.Module):
    """A block as a module: what it calls, and what that has of parameters."""

    def __init__(self, call, parts):
        super().__init__()
        self.call, self.parts = call, nn.ModuleList(parts)

    def forward(self, *given):
        return self.call(*given).clone()  # of a view torch warns


def units_of(blocks):
    """The blocks as modules; what several call is of the first."""
    called, known = [[]], set()

    def note(leaf, given):
        if leaf not in known:
            known.add(leaf)
            called[-1].append(leaf)

    leaves = [of for of in blocks.net.modules() if not [*of.children()] and [*of.parameters()]]
    hooks = [of.register_forward_pre_hook(note) for of in leaves]
    blocks.run(lambda block, *given: (block(*given), called.append([]))[0])
    for hook in hooks:
        hook.remove()
    return [Unit(block, parts) for block, parts in zip(blocks.blocks, called, strict=False)]


class Root(nn.Module):
    """Sharded blocks, one after the other, on what a pass was given before."""

    def __init__(self, blocks):
        super().__init__()
        given, blocks.conditions = tree_map_only(torch.Tensor, torch.detach, blocks.given()), -1
        self.units = nn.ModuleList(units_of(blocks))
        blocks.given, blocks.blocks = lambda: given, self.units
        self.run = blocks.run

    def forward(self):
        return self.run(lambda unit, *given: unit(*given))


class Tracker(FSDPMemTracker):
    """Notes the most bytes that gathered weights, gradients and buffers of exchanges take together."""

    noted = ("UNSHARDED_PARAM", "UNSHARDED_GRAD", "ALL_GATHER", "REDUCE_SCATTER")
    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        now = [size for of in self._curr_mem_snap.values() for kind, size in of.items() if kind != "Total"
               and kind.name in self.noted]  # fmt: skip
        self.most = max(self.most, sum(now))
        return result


@pytest.fixture
def four_ranks():
    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield torch.distributed.init_device_mesh("cpu", (4,))
    torch.distributed.destroy_process_group()


def local_bytes(tensors):
    return sum(getattr(tensor, "_local_tensor", tensor).nbytes for tensor in tensors)


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@pytest.mark.parametrize(("reshard", "recipe"), [("true", "mixed"), ("false", "fp32")])
def test_sharded_states_gathered_weights_and_what_is_exchanged_take_what_torch_says(
    blocks, model, four_ranks, reshard, recipe
):
    root, options = (Root(Unet()), {"mesh": four_ranks} | ({"mp_policy": HALF} if recipe == "mixed" else {}))
    for unit in root.units:
        fully_shard(unit, reshard_after_forward=reshard == "true" and unit is not root.units[-1], **options)
    fully_shard(root, **options)
    optimizer = torch.optim.AdamW(root.parameters())
    with Tracker(root) as tracker:
        root().float().square().mean().backward()
    optimizer.step()
    parameters = [p for p in root.parameters() if p.grad is not None]
    states = local_bytes(tree_leaves([optimizer.state[p] for p in parameters]))

    workload = TrainingWorkload(4, 4 * SAMPLES, memory_recipe=recipe)
    asked = Scenario(model, load_cluster("p4de"), workload)
    trace = replay(make_strategy("fsdp", {"reshard": reshard}), asked)
    held = {buffer.name: buffer.size_bytes for buffer in trace.plan.resident[0]}
    assert held["gradients"] == pytest.approx(local_bytes(p.grad for p in parameters), rel=0.03)
    kept = held["optimizer"] + held.get("weights", 0.0)  # of mixed precision masters alone
    assert kept == pytest.approx(states + local_bytes(parameters), rel=0.03)
    _, _, changes, tensors = memory_events(trace)
    exchanged = np.array([trace.plan.roles[tensor] in ("gathered", "gradients") for tensor in tensors])
    assert np.cumsum(changes * exchanged).max() == pytest.approx(tracker.most, rel=0.03)
