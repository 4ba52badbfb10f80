"""Classes that are not shipped: each counts as torch counts a real pass, and is cut where all that crosses is known."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from profiles.architectures.models import read_model
from profiles.errors import InputError
from profiles.mappings import FrozenMapping
from profiles.measuring.counting.config_files import ConfigFile, ConfigOptions
from profiles.measuring.counting.configured import count_configured
from profiles.measuring.timing.building import build, inputs, largest_integer
from validate.__main__ import main

pytestmark = pytest.mark.slow

LLM = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
LLM |= {"num_hidden_layers": 2, "intermediate_size": 256, "vocab_size": 1000}
VISION = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
BLOCKS = {"num_layers": 3, "num_attention_heads": 2, "attention_head_dim": 32}
SIZE = {"height": 64, "width": 64, "text_tokens": 16}
VIDEO = SIZE | {"frames": 3}
LEVELS = {"block_out_channels": [32, 64], "layers_per_block": 1, "cross_attention_dim": 48}

UNETS = {
    "Kandinsky3UNet": {
        "block_out_channels": [32, 64],
        "layers_per_block": 2,
        "cross_attention_dim": 64,
        "encoder_hid_dim": 48,
        "attention_head_dim": 16,
        "groups": 8,
        "time_embedding_dim": 64,
    },
    "UNetSpatioTemporalConditionModel": LEVELS
    | {
        "down_block_types": ["CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"],
        "up_block_types": ["UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"],
        "num_attention_heads": [2, 4],
    },
    "UNetMotionModel": LEVELS
    | {
        "down_block_types": ["CrossAttnDownBlockMotion", "DownBlockMotion"],
        "up_block_types": ["UpBlockMotion", "CrossAttnUpBlockMotion"],
        "num_attention_heads": 4,
        "motion_num_attention_heads": 4,
    },
    "UVit2DModel": {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "block_out_channels": 64,
        "block_num_heads": 4,
        "in_channels": 64,
        "vocab_size": 256,
        "codebook_size": 200,
        "cond_embed_dim": 64,
        "encoder_hidden_size": 48,
    },
}
DITS = {
    "Lumina2Transformer2DModel": {
        "num_layers": 3,
        "num_refiner_layers": 2,
        "hidden_size": 96,
        "num_attention_heads": 4,
        "num_kv_heads": 2,
        "axes_dim_rope": [8, 8, 8],
        "axes_lens": [300, 64, 64],
        "cap_feat_dim": 64,
        "multiple_of": 32,
    },
    "ZImageTransformer2DModel": {
        "n_layers": 3,
        "n_refiner_layers": 2,
        "dim": 96,
        "n_heads": 4,
        "n_kv_heads": 4,
        "axes_dims": [8, 8, 8],
        "axes_lens": [512, 64, 64],
        "cap_feat_dim": 64,
    },
    "QwenImageTransformer2DModel": BLOCKS | {"axes_dims_rope": [8, 12, 12], "joint_attention_dim": 64},
    "ChromaTransformer2DModel": BLOCKS
    | {"num_single_layers": 2, "axes_dims_rope": [8, 12, 12], "joint_attention_dim": 64}
    | {"approximator_num_channels": 16, "approximator_hidden_dim": 32, "approximator_layers": 2},
    "AuraFlowTransformer2DModel": {
        "num_mmdit_layers": 2,
        "num_single_dit_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 32,
        "joint_attention_dim": 48,
        "caption_projection_dim": 64,
    },
    "OmniGenTransformer2DModel": {
        "hidden_size": 96,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "num_layers": 2,
        "vocab_size": 1000,
        "pad_token_id": 0,
        "rope_scaling": {"long_factor": [1.0] * 24, "short_factor": [1.0] * 24, "type": "su"},
    },
    "HiDreamImageTransformer2DModel": {
        "patch_size": 2,
        "in_channels": 16,
        "out_channels": 16,
        "caption_channels": [64, 96],
        "llama_layers": [0, 1, 2, 3],
        "num_layers": 2,
        "num_single_layers": 2,
        "num_attention_heads": 2,
        "attention_head_dim": 32,
        "axes_dims_rope": [16, 8, 8],
        "max_resolution": [32, 32],
        "text_emb_dim": 64,
    },
}
VIDEOS = {
    "MochiTransformer3DModel": BLOCKS
    | {"text_embed_dim": 48, "pooled_projection_dim": 32, "time_embed_dim": 32},
    "HunyuanVideoTransformer3DModel": BLOCKS
    | {"num_single_layers": 2, "num_refiner_layers": 1, "text_embed_dim": 48, "pooled_projection_dim": 32}
    | {"rope_axes_dim": [8, 12, 12]},
    "Kandinsky5Transformer3DModel": {
        "in_text_dim": 48,
        "in_text_dim2": 32,
        "time_dim": 32,
        "model_dim": 128,
        "ff_dim": 256,
        "num_text_blocks": 2,
        "num_visual_blocks": 3,
        "axes_dims": [8, 12, 12],
    },
}
CONTROLS = {
    "FluxControlNetModel": BLOCKS
    | {
        "num_single_layers": 1,
        "joint_attention_dim": 64,
        "pooled_projection_dim": 32,
        "axes_dims_rope": [8, 12, 12],
    },
    "SD3ControlNetModel": BLOCKS
    | {
        "joint_attention_dim": 48,
        "caption_projection_dim": 64,
        "pooled_projection_dim": 32,
        "sample_size": 8,
    },
    "ControlNetUnionModel": {
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "block_out_channels": [32, 64],
        "layers_per_block": 1,
        "cross_attention_dim": 48,
        "attention_head_dim": 4,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 80,
        "num_trans_channel": 32,
        "num_trans_head": 4,
        "num_proj_channel": 32,
    },
}
ENCODERS = {
    "Gemma2Model": LLM,
    "LlamaModel": LLM,
    "Qwen2_5_VLTextModel": LLM
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]}},
    "UMT5EncoderModel": {
        "num_layers": 2,
        "d_model": 64,
        "num_heads": 4,
        "d_kv": 16,
        "d_ff": 128,
        "vocab_size": 1000,
    },
    "SiglipVisionModel": VISION | {"image_size": 64},
}


FRAMED = re.compile("Motion|Temporal")


def counted(name, values, asked):
    key = (
        {"architectures": [name]}
        if name in (*ENCODERS, "AlbertModel", "CLIPModel")
        else {"_class_name": name}
    )
    return count_configured(
        [ConfigFile(Path("config.json"), FrozenMapping(key | values))],
        ConfigOptions(**asked, dtype="float32"),
    )


def component_of(name, values, asked):
    (component,) = counted(name, values, asked).components
    return component


def real_totals(component, asked):
    """Parameters and FLOP of a pass over numbers, attention as two matrix products."""
    generator = torch.Generator("cpu").manual_seed(0)
    module = build(component.spec, torch.float32, generator)
    sample = inputs(
        component.spec.sample(asked.get("height", 0), asked.get("width", 0)),
        1,
        torch.float32,
        largest_integer(module),
        generator,
    )
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        module(**sample)
    return sum(p.numel() for p in module.parameters()), counter.get_total_flops()


@pytest.mark.filterwarnings("ignore")  # the libraries' own, of arguments that they make themselves
@pytest.mark.parametrize(
    ("name", "values", "asked"),
    [
        *((name, values, VIDEO if FRAMED.search(name) else SIZE) for name, values in UNETS.items()),
        *((name, values, SIZE) for name, values in (DITS | CONTROLS).items()),
        *((name, values, VIDEO) for name, values in VIDEOS.items()),
        *((name, values, {} if "Vision" in name else {"text_tokens": 16}) for name, values in ENCODERS.items()),
    ],
)  # fmt: skip
def test_a_class_counts_as_a_real_pass(name, values, asked):
    component = component_of(name, values, asked)
    assert (component.parameters, component.flop) == real_totals(component, asked)
    assert len(component.layers) > 1
    assert all(work.output_bytes for work in component.work)


# What crosses a cut.


def test_a_unet_of_videos_hands_every_level_across():
    name = "UNetSpatioTemporalConditionModel"
    unet = component_of(name, UNETS[name], VIDEO)
    names = [layer.name for layer in unet.layers]
    pairs = [(names[source], names[target]) for source, target in unet.skips]
    assert pairs == [
        ("conv_in", "up1.resnet1"),
        ("down0.attention0", "up1.resnet0"),
        ("down0.downsample", "up0.resnet1"),
        ("down1.resnet0", "up0.resnet0"),
    ]


def test_a_unet_with_one_skip_per_level_has_one():
    unet = component_of("Kandinsky3UNet", UNETS["Kandinsky3UNet"], SIZE)
    names = [layer.name for layer in unet.layers]
    assert [(names[source], names[target]) for source, target in unet.skips] == [
        ("down0.resnet_out1", "up1.resnet_in0")
    ]


def test_refiners_before_the_joint_blocks_are_no_place_to_cut():
    lumina = component_of("Lumina2Transformer2DModel", DITS["Lumina2Transformer2DModel"], SIZE)
    assert [layer.name for layer in lumina.layers] == ["layer0", "layer1", "layer2"]
    assert [work.output_bytes for work in lumina.work[:-1]] == [4 * 96 * (16 + 16)] * 2
    assert (lumina.spec.text_tokens, lumina.image_tokens) == (16, 16)
    assert lumina.carried == {"time_caption_embed": 4 * 96}


def test_text_that_every_block_reads_is_carried():
    kandinsky = component_of("Kandinsky5Transformer3DModel", VIDEOS["Kandinsky5Transformer3DModel"], VIDEO)
    assert [layer.name for layer in kandinsky.layers] == [f"visual_transformer_block{i}" for i in range(3)]
    assert kandinsky.carried_bytes == 4 * (16 * 128 + 32)
    assert not kandinsky.skips


def test_both_streams_of_a_video_cross_though_their_widths_differ():
    mochi = component_of("MochiTransformer3DModel", VIDEOS["MochiTransformer3DModel"], VIDEO)
    tokens = 3 * 4 * 4
    assert mochi.work[0].output_bytes == 4 * (tokens * 64 + 16 * 32)


def test_what_a_controlnet_hands_over_leaves_with_its_last_layer():
    control = component_of("SD3ControlNetModel", CONTROLS["SD3ControlNetModel"], SIZE)
    assert [layer.name for layer in control.layers] == ["block0", "block1", "block2"]
    assert (0, 2) in control.skips


def test_exchanges_are_of_the_image_alone_where_text_has_blocks_of_its_own():
    name = "HunyuanVideoTransformer3DModel"
    video = component_of(name, VIDEOS[name], VIDEO)
    attentions = [exchange for exchange in video.exchanges if exchange.kind == "key_value"]
    assert [exchange.elements for exchange in attentions] == [2 * 64 * 3 * 4 * 4] * 5


# What only works as a whole, or with an assumption, says so.


def test_a_block_that_runs_several_times_is_one_layer():
    albert = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "num_hidden_layers": 3}
    component = component_of("AlbertModel", albert, {"text_tokens": 16})
    assert [layer.name for layer in component.layers] == ["encoder"]
    assert (component.parameters, component.flop) == real_totals(component, {})


def test_experts_are_said_to_share_the_tokens_evenly():
    name = "HiDreamImageTransformer2DModel"
    assert "spread evenly over the experts" in counted(name, DITS[name], SIZE).architecture.remark


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("LTX2VideoTransformer3DModel", {}, "without its argument 'audio_hidden_states': no rule makes it"),
        ("UNet1DModel", {}, "UNet1DModel is of sound, must be of images or videos"),
        ("WanAnimateTransformer3DModel", BLOCKS, "no rule makes its .*pose_hidden_states, face_pixel_values"),
        ("CLIPModel", {}, "it takes images too, name its text model alone"),
    ],
)
def test_what_cannot_be_counted_says_why_on_one_line(name, values, message):
    with pytest.raises(InputError, match=message) as error:
        counted(name, values, VIDEO)
    assert "\n" not in str(error.value)


# One command from a configuration to measured times.


@pytest.mark.parametrize("name", ["DiTTransformer2DModel", "ZImageTransformer2DModel"])
def test_a_configured_architecture_is_profiled(tmp_path, name, capsys):
    plain = BLOCKS | {"sample_size": 8, "out_channels": 8}
    path, folder = tmp_path / "config.json", tmp_path / "mine"
    path.write_text(json.dumps({"_class_name": name} | DITS.get(name, plain)), encoding="utf-8")
    ask = ["profile", "--config", str(path), "--device", "cpu", "--batch-sizes", "1,2", "--height", "64"]
    ask += ["--width", "64", "--warmup", "1", "--rounds", "1", "--output", str(folder), "--threads", "1"]
    ask += ["--name", "here"]
    assert main([*ask, "--text-tokens", "16"]) == 0
    model = read_model(folder)
    assert model.name == name.lower()
    rows = (folder / "times" / "here.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 3
    assert main([*ask[:2], "nowhere.json", *ask[3:]]) == 2
    assert "no such file" in capsys.readouterr().err


def test_sizes_of_a_configuration_are_refused_beside_a_model(tmp_path, capsys):
    ask = ["profile", "--model", "tiny-sd", "--frames", "3", "--device", "cpu", "--batch-sizes", "1"]
    assert main([*ask, "--output", str(tmp_path)]) == 2
    assert "--frames goes with --config" in capsys.readouterr().err
