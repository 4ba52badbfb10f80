"""The committed model folders are what the counter finds, and what it finds is what is published."""

import tomllib
from collections.abc import Iterable
from itertools import pairwise

import pytest
import torch
from diffusers.models import AutoencoderKLWan
from diffusers.models.controlnets.controlnet import ControlNetModel
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from profiles.architectures.components import Component, Layer
from profiles.architectures.models import MODELS, load_model
from profiles.errors import InputError
from profiles.measuring.counting.component import count_component, count_model
from profiles.measuring.counting.configured import ARCHITECTURES, architecture
from profiles.measuring.counting.dataflow import attended
from profiles.measuring.counting.folder import folder_texts, kernel_texts
from profiles.measuring.counting.specs import ComponentSpec, LayerSpec, plain, tensor
from profiles.measuring.counting.trace import OpaqueAttention, record
from validate.__main__ import main

pytestmark = pytest.mark.slow

HALF = 2  # bytes


# The committed folders against the counter

LARGE = (
    *("wan2.1-1.3b", "wan2.1-14b", "hunyuanvideo", "qwen-image", "flux2-dev", "mochi"),
    *("sd3.5-large", "cogvideox-5b", "flux-schnell", "wan2.2-t2v-a14b", "wan2.2-i2v-a14b", "wan2.2-ti2v-5b"),
    *("qwen-image-2512", "qwen-image-edit", "qwen-image-edit-2509", "qwen-image-edit-2511", "flux2-klein-9b"),
    *("flux2-klein-base-4b", "flux2-klein-base-9b", "hunyuanimage-2.1", "hunyuanimage-2.1-distilled"),
    *("hunyuanimage-3", "ltx-2", "flux-kontext", "hunyuanvideo-1.5", "cosmos-predict2-2b"),
    *("cosmos-predict2.5-2b", "cosmos-predict2.5-14b", "cosmos3-nano", "qwen-image-2.1", "z-image"),
    *("cosmos-predict2-14b", "flux3-klein", "flux3-klein-base", "ideogram-4", "ltx-2.3", "minimax-h3"),
    *("hunyuan-3b", "sdv2-1.7b", "sdv2-2.5b", "sdv2-4.6b", "sdv2-7.2b", "uvit-1b", "uvit-2.7b", "uvit-6b"),
    *("cdm-lsun", "sana-1.6b", "sana-sprint-1.6b", "sd-turbo", "sdxl-turbo", "sdxl-lightning"),
)
"""Recounting these takes a minute or more together; their classes are those of others, or are held by closed forms."""
QUICK = ("uvit-h",)
OTHERS = [name for name in ARCHITECTURES if name not in QUICK + LARGE]


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)])
def test_the_committed_folder_is_what_is_counted(name):
    recount = count_model(architecture(name))
    texts = {str(path): text for path, text in folder_texts(name, recount).items()}
    rows = (MODELS / name / "layers.csv").read_text(encoding="utf-8").splitlines()
    for committed_row, row in zip(rows, texts["layers.csv"].splitlines(), strict=True):
        assert committed_row == row
    committed = tomllib.loads((MODELS / name / "model.toml").read_text(encoding="utf-8"))
    recounted = tomllib.loads(texts["model.toml"])
    begins = f"counted by sim measure count at {recount.height}x{recount.width}"
    for said in (committed, recounted):
        assert said.pop("source").startswith(begins)  # goes on with the versions of the tools
    assert committed == recounted
    exchanges = MODELS / name / "exchanges.csv"
    assert (exchanges.read_text("utf-8") if exchanges.exists() else None) == texts.get(exchanges.name)
    files = (path for of in ("kernels*.csv", "adapted.csv") for path in (MODELS / name).glob(of))
    launched = {path.name: path.read_text(encoding="utf-8") for path in files}
    assert launched == {path.name: text for path, text in kernel_texts(recount).items()}


# The committed folders against what is published


def committed(model: str, name: str) -> Component:
    return next(c for c in load_model(model).components if c.name == name)


def gigamacs(layers: Iterable[Layer]) -> float:
    return sum(layer.conv_flop + layer.matmul_flop + layer.attention_flop for layer in layers) / 2e9


@pytest.mark.parametrize(
    ("model", "name", "megaparameters", "forward_gigamacs", "blocks", "skips"),
    [
        ("sd21", "text_encoder", 340, 22.6, 23, 0),
        ("sd21", "vae_encoder", 34.2, 558, 17, 0),
        ("sd21", "unet", 866, 402, 25, 12),
        ("sdxl", "unet", 2567, 3381, 19, 9),
        ("pixart", "text_encoder", 4762, 558, 24, 0),
        ("pixart", "transformer", 611, 3255, 28, 0),
        ("dit-xl-2", "transformer", 675 + 27 * 2.776, 118.6, 28, 0),  # 27 more embeddings of time and class
        ("controlnet", "locked_encoder", 860 - 511, 131, 13, 0),
        ("controlnet", "controlnet", 361 + 511, 142 + 271, 25, 12),
        ("controlnet-cldm", "controlnet", 361 + 511, 142 + 271, 25, 12),
        ("cdm-imagenet", "unet_128", 524, 240, 41, 20),
        ("cdm-lsun", "unet_64", 464, 158, 33, 16),
        ("uvit-6b", "uvit", 6008, 1569, 49, 24),
        ("sdv2-7.2b", "unet", 7139, 727, 25, 12),
        ("hunyuan-1.5b", "transformer", 1517, 1477, 40, 19),
        ("sd3-medium", "transformer", 2028, 4452, 24, 0),
        ("flux-dev", "transformer", 11901, 37192, 57, 0),
        ("cogvideox-2b", "transformer", 1694, 59999, 30, 0),
    ],
)
def test_totals_are_those_of_the_architecture(model, name, megaparameters, forward_gigamacs, blocks, skips):
    component = committed(model, name)
    assert component.parameters / 1e6 == pytest.approx(megaparameters, rel=0.002)
    assert gigamacs(component.layers) == pytest.approx(forward_gigamacs, rel=0.01)
    assert {layer.block for layer in component.layers} == set(range(blocks))
    assert len(component.skips) == skips


def transformer_macs(width: int, keys: int, feed_forward: int, tokens: int) -> int:
    """Multiply-adds of a block: queries and output, keys and values, a gated feed-forward, and attention."""
    return tokens * (2 * width**2 + 2 * width * keys + 3 * width * feed_forward) + 2 * tokens**2 * width


def sana_macs(width: int, blocks: int, image: int = 1024, text: int = 300) -> int:
    """Multiply-adds of Sana: linear attention of heads of 32, and the sum of keys; cross-attention; convolutions."""
    linear = 4 * width**2 + 2 * width * 33
    cross = 2 * width**2 + 2 * text * width
    convolved = 5 * width * width + 9 * 5 * width + 2.5 * width**2
    block = image * (linear + cross + convolved) + 2 * text * width**2
    outside = text * (2304 * width + width**2) + 2 * 32 * width * image + 256 * width + 7 * width**2
    return round(blocks * block + outside)


def joint_macs(blocks: int, width: int, tokens: int) -> int:
    """Multiply-adds of blocks that have 12 squares of their width a token, whatever its stream, and attend jointly."""
    return blocks * 2 * tokens * width * (6 * width + tokens)


@pytest.mark.parametrize(
    ("model", "macs"),
    [
        ("flux2-klein-4b", 17410.089e9),  # DiffSynth 2.1.12's own class under FlopCounterMode, as 9b
        ("flux2-klein-base-9b", 37757.361e9),
        ("sana-1.6b", sana_macs(2240, 20)),
        ("sana-0.6b", sana_macs(1152, 28)),
        (
            "lumina-image-2.0",
            26 * transformer_macs(2304, 768, 9216, 4096 + 256)
            + 2 * transformer_macs(2304, 768, 9216, 4096)
            + 2 * transformer_macs(2304, 768, 9216, 256),
        ),
        ("cosmos3-nano", 36 * transformer_macs(4096, 1024, 12288, 48 * 23 * 40 + 256)),
        ("qwen-image-2.1", 32 * (transformer_macs(4096, 4096, 12288, 4224) - 2 * 128 * 4096**2)),
        ("flux-kontext", joint_macs(57, 3072, 2 * 4096 + 512)),
        ("hunyuanimage-2.1", joint_macs(60, 3584, 4096 + 1128) + joint_macs(2, 3584, 1000)),
        ("hunyuanimage-3", 32 * transformer_macs(4096, 1024, 9 * 3072, 4096 + 256) + 4096 * 245e6),
        ("ideogram-4", 34 * transformer_macs(4608, 4608, 12288, 17408) + 17408 * 53248 * 4608),
        ("minimax-h3", 50 * (42699 * (4 * 5376 * 7168 + 3 * 5376 * 14336) + 2 * 42699**2 * 7168)),
        ("qwen-image-2512", joint_macs(60, 3072, 83 * 83 + 128)),
        ("qwen-image-edit", joint_macs(60, 3072, 2 * 4096 + 1369 + 128)),
        ("qwen-image-edit-2511", joint_macs(60, 3072, 2 * 4096 + 196 + 128)),
    ],
)
def test_a_second_count_has_as_many_multiply_adds(model, macs):
    (transformer,) = (component for component in load_model(model).components if component.trainable)
    assert gigamacs(transformer.layers) == pytest.approx(macs / 1e9, rel=3e-3)


@pytest.mark.parametrize(
    ("model", "name"),
    [("sd21", "unet"), ("cdm-lsun", "unet_64"), ("hunyuan-3b", "transformer"), ("controlnet", "controlnet")],
)
def test_block_i_skips_to_its_mirror_image(model, name):
    layers, skips = committed(model, name).layers, committed(model, name).skips
    pairs = [(layers[skip.source].block, layers[skip.target].block) for skip in skips]
    assert pairs == [(i, layers[-1].block - i) for i in range(len(pairs))]


def test_a_cut_through_the_largest_unit_vit_printed_carries_51_times_258_tokens():
    """PULSE, Table III: 1F1B on 4 devices moves 102.80 MiB per sample, PULSE 24.19, 12 times the hidden state."""
    uvit = committed("uvit-2.7b", "uvit")
    hidden = 258 * 2048 * 4
    assert {layer.output_bytes for layer in uvit.layers[:-1]} == {hidden}
    cuts = [round(i * 49 / 4) - 1 for i in (1, 2, 3)]
    assert sum(uvit.cut_bytes[cut] for cut in cuts) == 51 * hidden
    assert 51 * hidden / 2**20 == pytest.approx(102.80, abs=0.005)
    assert 12 * hidden / 2**20 == pytest.approx(24.19, abs=0.005)


def test_hunyuan_carries_text_and_time_over_every_cut_as_pulse_prints():
    """PULSE, Fig. 14: 13.6 MB on 2 devices and 95.3 MB on 8; Table III: 95.29 (in MiB, 2 and 14 cuts)."""
    dit = committed("hunyuan-1.5b", "transformer")
    assert dit.carried_bytes == (333 * 1024 + 1408) * 4
    assert {layer.output_bytes for layer in dit.layers[:-1]} == {1024 * 1408 * 4}
    cut = dit.layers[0].output_bytes + dit.carried_bytes
    assert 2 * cut / 2**20 == pytest.approx(13.61, abs=0.005)
    assert 14 * cut / 2**20 == pytest.approx(95.29, abs=0.005)


@pytest.mark.long
def test_an_autoencoder_that_takes_frames_in_turn_does_in_all_what_its_class_does():
    with torch.device("meta"):
        net = AutoencoderKLWan(**plain("wan2_2_vae")).eval()
    for half, shape in ((net.encode, (1, 3, 121, 704, 1280)), (net.decode, (1, 48, 31, 44, 80))):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            half(tensor(*shape))
        layers = committed("wan2.2-ti2v-5b", f"vae_{half.__name__}r").layers
        assert round(gigamacs(layers) * 2e9) == counter.get_total_flops()


# ControlNet


def test_the_copy_does_what_the_published_controlnet_does():
    """The copy runs each residual's convolution after its block, the published code all of them last."""
    with torch.device("meta"):
        net = ControlNetModel(**plain("controlnet")).requires_grad_(False)
    sample = {"sample": tensor(1, 4, 64, 64), "timestep": tensor(1)}
    sample |= {"controlnet_cond": tensor(1, 3, 512, 512), "encoder_hidden_states": tensor(1, 77, 768)}
    with FlopCounterMode(display=False) as counter, OpaqueAttention():
        net(**sample)
    chain = committed("controlnet", "controlnet").layers[:21]
    assert sum(layer.parameters for layer in chain) == sum(p.numel() for p in net.parameters())
    assert round(gigamacs(chain) * 2e9) == counter.get_total_flops()


def test_controlnets_decoder_reads_what_the_locked_encoder_hands_over():
    model = load_model("controlnet")
    locked = model.components[2].layers
    outputs = [layer for layer, later in pairwise(locked) if layer.block < later.block] + [locked[-1]]
    reads = model.reads_of(3, 2)
    # the first decoder layer reads a skip and the middle's output
    assert (len(outputs), len(reads)) == (13, 12)
    assert sum(size for _, size in reads) == sum(layer.output_bytes for layer in outputs)
    targets = {skip.target: model.components[3].layers[skip.source] for skip in model.components[3].skips}
    for layer, size in reads[1:]:
        assert size == targets[layer].output_bytes


# The counter


class Chain(nn.Module):
    """Scales, convolves twice, adds the first output to a norm of the second, and doubles."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.first = nn.Conv2d(4, 4, 1)
        self.second = nn.Conv2d(4, 4, 1, bias=False)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, image):
        first = self.first(image * self.scale)
        return 2 * (self.norm(self.second(first) + 1) + first)


CHAIN = tuple(LayerSpec(name, block, name) for block, name in enumerate(("first", "second", "norm")))


def test_work_between_layers_falls_to_the_next_one_and_work_after_all_to_the_last():
    sample = {"image": tensor(1, 4, 8, 8)}
    image = 4 * 8 * 8 * HALF
    spec = ComponentSpec("chain", Chain, lambda height, width: sample, CHAIN)
    count = count_component(spec, 8, 8)
    first, second, norm = count.work

    assert [work.parameters for work in count.work] == [1 + 16 + 4, 16, 8]
    assert [work.conv_flop for work in count.work] == [2 * 16 * 64, 2 * 16 * 64, 0]
    assert [work.output_bytes for work in count.work] == [image] * 3
    assert count.skips == ((0, 2),)
    assert first.moved_bytes == (2 * image + HALF) + 2 * image  # scale, then the convolution's bias
    assert second.moved_bytes == 0
    statistics = 2 * 2 * HALF
    add_one, normalise, add, double = 2 * image, 3 * image + 8 * HALF + statistics, 3 * image, 2 * image
    assert norm.moved_bytes == add_one + normalise + add + double
    assert [work.kernels for work in count.work] == [1 + 2, 1, 1 + 3 + 1 + 1]


class Locked(Chain):
    """A chain whose second half adds an input to what it reads, with weights that are not trained."""

    def forward(self, image, other):
        first = self.first(image * self.scale)
        return self.norm(self.second(first + other))


def test_a_locked_layer_passes_gradients_on_and_its_reads_of_an_input_are_noted():
    sample = {"image": tensor(1, 4, 8, 8), "other": tensor(1, 4, 8, 8)}
    spec = ComponentSpec(
        "chain", Locked, lambda height, width: sample, CHAIN, trainable=True, locked=("second", "norm"),
        reads={"other": "encoder"},
    )  # fmt: skip
    count = count_component(spec, 8, 8, "float32")
    assert [work.backward for work in count.work] == ["full", "input", "input"]
    assert count.reads == (("encoder", 1, 4 * 8 * 8 * 4),)


class Reading(nn.Module):
    """Lets an image attend to a text, and to itself beside it where ``whole``."""

    def forward(self, image, text, whole):
        read = torch.cat([text, image], 1) if whole else text
        return nn.functional.scaled_dot_product_attention(image[:, None], read[:, None], read[:, None])


def test_an_image_attends_to_itself_beside_a_text_of_any_length_but_not_to_a_text_alone():
    for length in (2, 17, 18, 100):
        for whole in (True, False):
            sample = {"image": tensor(1, 16, 8), "text": tensor(1, length, 8), "whole": whole}
            assert attended(record(Reading(), sample, grad=False)) == whole * (16 + length)


def test_a_side_must_be_a_multiple_of_the_granularity():
    with pytest.raises(InputError, match="height is 500, must be a positive multiple of 64 pixels"):
        count_model(architecture("sd21"), 500)


@pytest.mark.long
def test_the_counted_folder_is_written_where_asked(tmp_path, capsys):
    size = ["--height", "768", "--width", "768"]
    assert main(["count", "--model", "sd21", *size, "--output", str(tmp_path / "new" / "sd21")]) == 0
    written = load_model(str(tmp_path / "new" / "sd21"))
    assert (written.height, written.width) == (768, 768)
    flop = sum(of.conv_flop + of.matmul_flop + of.attention_flop for of in written.components[2].layers)
    assert flop / 2e9 == pytest.approx(1075, abs=0.5)
    assert "Stable Diffusion 2.1, 768x768" in capsys.readouterr().out
