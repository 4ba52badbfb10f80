"""Peaks of activations and gradients in flight against torch's MemTracker: diffusers' networks, on fake tensors."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import FluxTransformer2DModel, PixArtTransformer2DModel, UNet2DConditionModel
from diffusers.models import embeddings
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional

from profiles.architectures.models import read_model
from profiles.machines.clusters import load_cluster
from profiles.mappings import FrozenMapping
from profiles.measuring.counting.configured import count_configured
from profiles.measuring.counting.folder import folder_texts, kernel_texts
from profiles.measuring.counting.specs import ConfigFile, ConfigOptions
from profiles.software.stacks import load_stack
from strategies.pipelining.footprint import resident_buffers, saved_bytes
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make as make_strategy
from strategies.scenario import Scenario

pytestmark = pytest.mark.slow

SAMPLES, HALF, SINGLE = 64, torch.bfloat16, ("norm", "scale_shift_table")
NETWORKS = {
    "unet": (UNet2DConditionModel, 256, 77, {
        "cross_attention_dim": 64, "attention_head_dim": 8, "layers_per_block": 1, "sample_size": 32,
        "block_out_channels": [64, 128], "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "use_linear_projection": True,
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}),
    "pixart": (PixArtTransformer2DModel, 512, 120, {
        "num_layers": 3, "sample_size": 64, "caption_channels": 64, "norm_type": "ada_norm_single", "out_channels": 8,
        "num_attention_heads": 4, "cross_attention_dim": 288, "norm_elementwise_affine": False}),
    "flux": (FluxTransformer2DModel, 512, 128, {
        "num_layers": 1, "num_single_layers": 4, "in_channels": 64, "joint_attention_dim": 64,
        "num_attention_heads": 2, "pooled_projection_dim": 64}),
}  # fmt: skip


class Tracker(MemTracker):
    """Notes the most bytes of activations, and of gradients that are not of weights."""

    most = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = super().__torch_dispatch__(func, types, args, kwargs)
        now = [size for of in self._curr_mem_snap.values() for kind, size in of.items() if kind != "Total"
               and kind.name in ("ACT", "TEMP")]  # fmt: skip
        self.most = max(self.most, sum(now))
        return result


def given(name):
    """What a pass gets."""

    def made(*shape):
        return torch.empty(SAMPLES, *shape, dtype=HALF)

    image, text = (4, 32, 32) if name == "unet" else (4, 64, 64), NETWORKS[name][2]
    if name == "flux":
        ids = {"img_ids": torch.zeros(1024, 3), "txt_ids": torch.zeros(text, 3)}
        return {"hidden_states": made(1024, 64), "timestep": made(), "encoder_hidden_states": made(text, 64),
                "pooled_projections": made(64), **ids}  # fmt: skip
    added = {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}} if name == "pixart" else {}
    latents = {"sample" if name == "unet" else "hidden_states": made(*image)}
    steps = torch.ones(SAMPLES, dtype=torch.long)
    return {**latents, "timestep": steps, "encoder_hidden_states": made(text, 64), **added}


def fused(query, key, value, *_, **__):
    """Attention as a fused kernel: it keeps no scores."""
    query, key, value = (of.to(HALF) for of in (query, key, value))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value)[0]


def in_single(norm):
    """A norm as autocast runs it on CUDA; that of the CPU leaves it alone."""

    def call(given, *rest):
        return norm(given.float() if torch.is_autocast_enabled("cpu") else given, *rest)

    return call


def tracked(name, autocast, monkeypatch):
    """Bytes at the peak; weights lie in half precision, as the recipe ``mixed`` keeps them beside their masters."""
    cls, _, _, config = NETWORKS[name]
    monkeypatch.setattr(functional, "scaled_dot_product_attention", fused)
    for norm in ("layer_norm", "group_norm"):
        monkeypatch.setattr(functional, norm, in_single(getattr(functional, norm)))
    for fill in ("uniform_", "normal_"):
        monkeypatch.setattr(torch.Tensor, fill, lambda tensor, *_, **__: tensor)
    table = lambda width, side, *_, **__: torch.zeros(side**2, width)  # noqa: E731
    monkeypatch.setattr(embeddings, "get_2d_sincos_pos_embed", table)
    with FakeTensorMode():
        net = cls(**config).train()
        for key, weight in net.named_parameters():
            if not (autocast and any(part in key for part in SINGLE)):
                weight.data = weight.data.to(HALF)
        net.enable_gradient_checkpointing()
        tracker = Tracker()
        tracker.track_external(net)
        with tracker:
            with torch.autocast("cpu", HALF, enabled=autocast):
                output = net(**given(name), return_dict=False)[0]
            output.float().square().mean().backward()
        return tracker.most


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The same networks as counted model folders."""

    def count(name):
        cls, pixels, tokens, config = NETWORKS[name]
        said = FrozenMapping({"_class_name": cls.__name__, **config})
        options = ConfigOptions(height=pixels, width=pixels, text_tokens=tokens, dtype="bfloat16")
        counted = count_configured([ConfigFile(Path("config.json"), said)], options)
        folder = tmp_path_factory.mktemp("models") / name
        for path, text in (folder_texts(name, counted) | kernel_texts(counted)).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        return read_model(folder)

    return {name: count(name) for name in NETWORKS}


OTHERS = (pytest.param(*of, marks=pytest.mark.long) for of in (("unet", True), ("flux", False)))


@pytest.mark.parametrize(("name", "autocast"), [("pixart", True), *OTHERS])
def test_peaks_are_within_three_percent_of_those_that_torch_tracks(models, name, autocast, monkeypatch):
    stack = replace(load_stack(), norms="float32" if autocast else "half")
    workload = TrainingWorkload(1, SAMPLES, checkpointing="block")
    layout = make_strategy("ddp", {}).layout(
        Scenario(models[name], load_cluster("p4de"), workload, stack=stack)
    )
    space = sum(buffer.size_bytes for buffer in resident_buffers(layout) if buffer.name == "recomputed block")
    ours = space + sum(saved_bytes(layout, stage) for stage in layout.stages)
    assert ours == pytest.approx(tracked(name, autocast, monkeypatch), rel=0.03)
