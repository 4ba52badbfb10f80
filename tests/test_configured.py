"""Architectures from configuration files count as torch counts a pass, and several files are one model."""

import json

import pytest
import torch
from making import refused
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from profiles.architectures.models import read_model
from profiles.measuring.counting.configured import count_configured
from profiles.measuring.counting.specs import ConfigOptions, read_config
from profiles.measuring.timing.building import build, inputs, largest_integer
from sim.cli.main import main as sim_main
from validate.__main__ import main

pytestmark = pytest.mark.slow

UNET = {"_class_name": "UNet2DConditionModel", "sample_size": 32, "block_out_channels": [64, 128, 256]}
UNET |= {"layers_per_block": 1, "cross_attention_dim": 512, "attention_head_dim": 8}
UNET |= {
    "down_block_types": ["CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"],
    "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"],
}
T5 = {"architectures": ["T5EncoderModel"], "d_model": 256, "d_kv": 32, "d_ff": 512}
T5 |= {"num_layers": 3, "num_heads": 8, "vocab_size": 1000}
HEADS = {"num_layers": 3, "num_attention_heads": 4, "attention_head_dim": 32, "sample_size": 64}
PIXART = {"_class_name": "PixArtTransformer2DModel", "in_channels": 4, "out_channels": 8} | HEADS
PIXART |= {"cross_attention_dim": 128, "caption_channels": 256}
SD3 = {"_class_name": "SD3Transformer2DModel", "joint_attention_dim": 256} | HEADS
SD3 |= {"caption_projection_dim": 128, "pooled_projection_dim": 64}
CLIP = {"architectures": ["CLIPTextModel"], "hidden_size": 128, "num_attention_heads": 4}
CLIP |= {"num_hidden_layers": 3, "intermediate_size": 256, "max_position_embeddings": 77, "vocab_size": 1000}
VAE = {
    "_class_name": "AutoencoderKL",
    "latent_channels": 4,
    "block_out_channels": [32, 32, 64, 64],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
}


@pytest.fixture
def write(tmp_path):
    """Return a function from a configuration to its file."""

    def file(values, name="config.json"):
        path = tmp_path / name
        path.write_text(values if isinstance(values, str) else json.dumps(values), encoding="utf-8")
        return path

    return file


@pytest.fixture
def counted(write):
    """Return a function from configurations to their count."""

    def run(*configs, **asked):
        files = [read_config(write(values, f"{number}.json")) for number, values in enumerate(configs)]
        return count_configured(files, ConfigOptions(**asked))

    return run


# What is not shipped is as torch counts it.

BLOCKS = {"num_layers": 3, "num_attention_heads": 2, "attention_head_dim": 32}
SIZE = {"height": 64, "width": 64, "text_tokens": 16}
VIDEO = SIZE | {"frames": 3}
CLASSES = {
    "FluxTransformer2DModel": BLOCKS
    | {"num_single_layers": 3, "axes_dims_rope": [8, 12, 12], "joint_attention_dim": 64}
    | {"pooled_projection_dim": 32, "guidance_embeds": True},
    "ZImageTransformer2DModel": {"n_layers": 3, "n_refiner_layers": 2, "dim": 96, "n_heads": 4, "n_kv_heads": 4}
    | {"axes_dims": [8, 8, 8], "axes_lens": [512, 64, 64], "cap_feat_dim": 64},
    "HunyuanVideoTransformer3DModel": BLOCKS
    | {"num_single_layers": 2, "num_refiner_layers": 1, "text_embed_dim": 48, "pooled_projection_dim": 32}
    | {"rope_axes_dim": [8, 12, 12]},
    "HunyuanImageTransformer2DModel": BLOCKS
    | {"num_single_layers": 2, "num_refiner_layers": 1, "text_embed_dim": 48, "text_embed_2_dim": 40}
    | {"rope_axes_dim": [16, 16], "use_meanflow": True},
    "Lumina2Transformer2DModel": {"hidden_size": 96, "num_layers": 3, "num_attention_heads": 4, "num_kv_heads": 2}
    | {"axes_dim_rope": [8, 8, 8], "cap_feat_dim": 64},
    "SanaTransformer2DModel": BLOCKS
    | {"num_cross_attention_heads": 2, "cross_attention_head_dim": 32, "cross_attention_dim": 64}
    | {"caption_channels": 48, "guidance_embeds": True},
}  # fmt: skip
LLAMA = {"architectures": ["LlamaModel"], "num_attention_heads": 4, "num_key_value_heads": 2}
LLAMA |= {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "vocab_size": 1000,
    "head_dim": 32,
}


def configured(name):
    return {"_class_name": name} | CLASSES[name]


@pytest.mark.filterwarnings("ignore")  # the libraries' own, of arguments that they make themselves
@pytest.mark.parametrize(
    ("config", "asked"),
    [
        *((configured(name), VIDEO if "3D" in name else SIZE) for name in CLASSES),
        (PIXART | {"num_layers": 2}, SIZE),
        (SD3, SIZE),
        (CLIP, {"text_tokens": 16}),
        (LLAMA, {"text_tokens": 16}),
    ],
    ids=lambda value: str(value.get("_class_name", value.get("architectures", ""))),
)
def test_a_class_counts_as_a_real_pass_over_numbers(counted, config, asked):
    (component,) = counted(config, **asked, dtype="float32").components
    generator = torch.Generator("cpu").manual_seed(0)
    module = build(component.spec, torch.float32, generator)
    sample = component.spec.sample(asked.get("height", 0), asked.get("width", 0))
    numbers = inputs(sample, 1, torch.float32, largest_integer(module), generator)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        module(**numbers)
    parameters = sum(p.numel() for p in module.parameters())
    assert (component.total.parameters, component.total.flop) == (parameters, counter.get_total_flops())
    assert len(component.layers) > 1
    assert all(work.output_bytes for work in component.work)


def test_prompts_pixels_and_frames_are_as_asked(counted):
    (small,) = counted(PIXART, height=256, width=512, text_tokens=40).components
    assert small.image_tokens == 256 * 512 // 256
    assert small.carried.keys() == {"adaln_single", "caption_projection"}
    assert counted(configured("SanaTransformer2DModel")).height == 32 * 32
    (pixels,) = counted(PIXART, latent_scale=4).components
    assert pixels.spec.token_pixels == (2 * 4) ** 2


# Several files are one model.


def test_a_backbone_with_its_encoders_is_a_model_that_trains(write, tmp_path, capsys):
    files = [
        write(config, f"{i}.json")
        for i, config in enumerate((UNET | {"cross_attention_dim": 128}, CLIP, VAE))
    ]
    folder = tmp_path / "mine"
    options = ["--name", "my-unet", "--output", str(folder)]
    assert main(["count", "--config", *map(str, files), *options]) == 0
    assert "vae_encoder" in capsys.readouterr().out
    model = read_model(folder)
    names = [component.name for component in model.components]
    assert (model.name, model.title) == ("my-unet", "my-unet")
    assert names == ["vae_encoder", "text_encoder", "unet", "vae_decoder"]
    assert [component.trainable for component in model.components] == [False, False, True, False]
    ask = ["run", "--model", str(folder), "--gpus", "2", "--strategy", "1f1b", "--batch-size", "8", "--json"]
    assert sim_main(ask) == 0
    assert json.loads(capsys.readouterr().out)["iteration_s"] > 0


def test_nothing_is_fetched_or_run_that_a_file_names(counted):
    harmful = {"auto_map": {"AutoModel": "os.system"}, "attn_implementation": "somewhere/kernels"}
    assert counted(CLIP | harmful).components[0].total == counted(CLIP).components[0].total


def test_encoders_take_the_backbone_s_prompts_up_to_their_own_positions(counted):
    t5, clip, transformer = counted(T5, CLIP, PIXART).components
    assert (t5.text_tokens, clip.text_tokens) == (120, 77)
    assert sum(transformer.carried.values()) == 2 * (120 * 128 + 7 * 128)


# One line for what does not work.


@pytest.mark.parametrize(
    ("config", "message", "asked"),
    [
        (UNET, "height is 250, must be a positive multiple of 8 pixels", {"height": 250, "width": 256}),
        (UNET, "--frames is 3, but UNet2DConditionModel makes images", {"frames": 3}),
        (UNET, "--text-tokens is 0, must be at least 1", {"text_tokens": 0}),
        ("{", r"0\.json: is not valid JSON", {}),
        ({"_class_name": "os.system"}, r"names no model of diffusers", {}),
        (UNET | {"block_out_chanels": [1]}, r"UNet2D\w+ cannot be counted: TypeError: .*chanels", {}),
        (UNET | {"sample_size": None}, r"sample_size is missing; give UNet2DConditionModel --height", {}),
        ({"_class_name": "AuraFlowTransformer2DModel"}, r"AuraFlow\w+ has no recipe; choose .*count", {}),
        ({"architectures": ["CLIPVisionModel"]}, r"CLIPVisionModel cannot be counted", {}),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused_by_key(counted, config, message, asked):
    with refused(message):
        counted(config, **asked)


def test_a_missing_file_and_options_of_the_other_way_are_one_line(write, capsys):
    path = str(write(UNET))
    for options, message in (
        (["--config", f"{path}x"], "no such file"),
        (["--model", "sd21", "--text-tokens", "7"], "--text-tokens goes with --config"),
    ):
        assert main(["count", *options]) == 2
        assert message in capsys.readouterr().err


# One command from a configuration to measured times.


def test_a_configured_architecture_is_profiled(tmp_path, capsys):
    name = "ZImageTransformer2DModel"
    path, folder = tmp_path / "config.json", tmp_path / "mine"
    path.write_text(json.dumps(configured(name)), encoding="utf-8")
    ask = ["profile", "--config", str(path), "--device", "cpu", "--batch-sizes", "1,2", "--height", "64"]
    ask += ["--width", "64", "--warmup", "1", "--rounds", "1", "--output", str(folder)]
    ask += ["--name", "here"]
    assert main([*ask, "--text-tokens", "16"]) == 0
    model = read_model(folder)
    assert model.name == name.lower()
    rows = (folder / "times" / "here.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 7
    assert main([*ask[:2], "nowhere.json", *ask[3:]]) == 2
    assert "no such file" in capsys.readouterr().err
