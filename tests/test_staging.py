"""Stages: one after the other they are the network, and hold each of its weights once."""

import json

import pytest
import torch

from profiles.measuring.counting.specs import CONFIGS
from profiles.measuring.counting.trace import tensors
from profiles.measuring.timing.staging import Stage
from profiles.measuring.timing.starting import loss_of, start

CUTS = [(0, 1), (2, 5), (6, None)]
UNET = {
    "block_out_channels": [8, 16],
    "cross_attention_dim": 8,
    "norm_num_groups": 4,
    "attention_head_dim": [1, 2],
}
UNET |= {
    "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
}
FLUX = {"num_layers": 4, "num_single_layers": 4, "num_attention_heads": 2, "attention_head_dim": 16}
FLUX |= {"joint_attention_dim": 8, "pooled_projection_dim": 8, "axes_dims_rope": [4, 4, 8]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "handed_on", "layers"),
    [(CONFIGS["sd21_unet"] | UNET, [3, 5], 22), (CONFIGS["flux_transformer"] | FLUX, [3, 3], 8)],
)
def test_stages_one_after_the_other_are_the_network(tmp_path, config, handed_on, layers):
    (tmp_path / "config.json").write_text(json.dumps(config))

    def made():
        return start(str(tmp_path / "config.json"), 2, height=64, width=64)

    network, batch = made()
    arguments, received, sizes = batch("cpu"), (), []
    wanted = tensors(network(**arguments))
    stages = [
        Stage(made()[0], arguments, first, layers - 1 if last is None else last, torch.float32)
        for first, last in CUTS
    ]
    for stage in stages:
        received = stage(*received)
        sizes.append(len(received))
    assert sizes == [*handed_on, 1]
    assert torch.equal(received[0], wanted[0])
    assert sum(of.numel() for stage in stages for of in stage.parameters()) == sum(
        of.numel() for of in network.parameters()
    )
    loss_of(received).backward()
    assert all(of.grad is not None for stage in stages for of in stage.parameters())
