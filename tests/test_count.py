"""The committed model folders are what the counter finds, and what it finds is what is published."""

import tomllib
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from profiles.errors import InputError
from profiles.models import MODELS, load_model
from validate.__main__ import main
from validate.architectures import ARCHITECTURES, ComponentSpec, architecture, tensor
from validate.count import ComponentCount, ModelCount, count, count_component
from validate.folder import layers_text, model_text
from validate.layering import LayerSpec

HALF = 2  # bytes


@cache
def counted(name: str) -> ModelCount:
    return count(architecture(name))


def component(model: str, name: str) -> ComponentCount:
    return next(c for c in counted(model).components if c.spec.name == name)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_committed_layers_are_what_is_counted(name):
    committed = (MODELS / name / "layers.csv").read_text(encoding="utf-8").splitlines()
    for committed_row, row in zip(committed, layers_text(counted(name)).splitlines(), strict=True):
        assert committed_row == row


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_committed_model_file_is_what_is_counted(name):
    committed = tomllib.loads((MODELS / name / "model.toml").read_text(encoding="utf-8"))
    recounted = tomllib.loads(model_text(name, counted(name)))
    assert committed.pop("source").startswith("counted by python -m validate count at ")
    recounted.pop("source")  # names the versions of the tools
    assert committed == recounted


@pytest.mark.parametrize(
    ("model", "name", "megaparameters", "gigamacs", "blocks", "skips"),
    [
        ("sd21", "text_encoder", 340, 22.6, 23, 0),
        ("sd21", "vae_encoder", 34, 558, 17, 0),
        ("sd21", "unet", 866, 402, 25, 12),
        ("sdxl", "unet", 2567, 3381, 19, 9),
        ("pixart", "text_encoder", 4762, 558, 24, 0),
        ("pixart", "transformer", 611, 3255, 28, 0),
    ],
)
def test_totals_are_those_of_the_published_architecture(model, name, megaparameters, gigamacs, blocks, skips):
    found = component(model, name)
    assert found.parameters / 1e6 == pytest.approx(megaparameters, abs=0.5)
    assert found.flop / 2e9 == pytest.approx(gigamacs, abs=0.05 if gigamacs < 100 else 0.5)
    assert [layer.block for layer in found.layers] == sorted(layer.block for layer in found.layers)
    assert {layer.block for layer in found.layers} == set(range(blocks))
    assert len(found.skips) == skips


@pytest.mark.parametrize("model", ["sd21", "sdxl"])
def test_block_i_of_a_unet_skips_to_its_mirror_image(model):
    unet = component(model, "unet")
    blocks = [layer.block for layer in unet.layers]
    pairs = [(blocks[source], blocks[target]) for source, target in unet.skips]
    assert pairs == [(i, blocks[-1] - i) for i in range(len(pairs))]
    assert all("resnet" in unet.layers[target].name for _, target in unet.skips)


def test_fifty_guided_steps_of_sdxl_take_the_macs_that_distrifusion_prints():
    wide = count_component(architecture("sdxl").components[-1], 1280, 1920)
    guidance, steps = 2, 50
    assert guidance * steps * component("sdxl", "unet").flop / 2e12 == pytest.approx(338, abs=0.5)
    assert guidance * steps * wide.flop / 2e12 == pytest.approx(907, abs=0.5)


def test_frozen_components_keep_nothing_for_a_backward_pass():
    for frozen in ("text_encoder", "vae_encoder"):
        assert all(work.saved_bytes == 0 for work in component("sd21", frozen).work)


def test_what_a_unet_carries_over_every_cut_is_its_text_and_its_time_embedding():
    assert component("sd21", "unet").carried_bytes == (77 * 1024 + 1280) * HALF


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


class Attention(nn.Module):
    """Attends to itself or to ``text``."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, image, text=None):
        context = image if text is None else text
        query, key, value = self.query(image), self.key(context), self.value(context)
        return scaled_dot_product_attention(
            *(t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (query, key, value))
        )


def chain_layers(module):
    return [
        LayerSpec("first", 0, module.first),
        LayerSpec("second", 1, module.second),
        LayerSpec("norm", 2, module.norm),
    ]


def whole(module):
    return [LayerSpec("whole", 0, module)]


def test_work_between_layers_falls_to_the_next_one_and_work_after_all_to_the_last():
    sample = {"image": tensor(1, 4, 8, 8)}
    image = 4 * 8 * 8 * HALF
    spec = ComponentSpec("chain", Chain, lambda height, width: sample, chain_layers)
    found = count_component(spec, 8, 8)
    first, second, norm = found.work

    assert [work.parameters for work in found.work] == [1 + 16 + 4, 16, 8]
    assert [work.conv_flop for work in found.work] == [2 * 16 * 64, 2 * 16 * 64, 0]
    assert [work.output_bytes for work in found.work] == [image] * 3
    assert found.skips == ((0, 2),)
    assert first.moved_bytes == (2 * image + HALF) + 2 * image  # scale, then the convolution's bias
    assert second.moved_bytes == 0
    statistics = 2 * 2 * HALF
    add_one, normalise, add, double = 2 * image, 3 * image + 8 * HALF + statistics, 3 * image, 2 * image
    assert norm.moved_bytes == add_one + normalise + add + double
    assert [work.kernels for work in found.work] == [1 + 2, 1, 1 + 3 + 1 + 1]


def test_attention_keeps_no_scores_and_moves_nothing():
    tokens = 64
    sample = {"image": tensor(1, tokens, 8)}
    spec = ComponentSpec("attention", Attention, lambda height, width: sample, whole, trainable=True)
    (work,) = count_component(spec, 8, 8).work

    assert work.attention_flop == 2 * (2 * tokens * tokens * 8)
    assert work.matmul_flop == 3 * (2 * tokens * 8 * 8)
    assert work.moved_bytes == 0
    assert work.kernels == 3 + 1
    image, query_key_value_output, log_sum_exp = tokens * 8 * HALF, 4 * tokens * 8 * HALF, 2 * tokens * 4
    assert work.saved_bytes == image + query_key_value_output + log_sum_exp


def test_cross_attention_grows_with_the_tokens_and_counts_as_products():
    sample = {"image": tensor(1, 64, 8), "text": tensor(1, 5, 8)}
    spec = ComponentSpec("attention", Attention, lambda height, width: sample, whole)
    (work,) = count_component(spec, 8, 8).work

    assert work.attention_flop == 0
    assert work.matmul_flop == 2 * (2 * 64 * 5 * 8) + 2 * (64 + 5 + 5) * 8 * 8


def test_a_side_must_be_a_multiple_of_the_granularity():
    with pytest.raises(InputError, match="height is 500, must be a positive multiple of 64 pixels"):
        count(architecture("sd21"), 500)


def test_an_unknown_model_is_refused_in_one_line(capsys):
    assert main(["count", "--model", "nope"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "validate: error: unknown model 'nope'; choose from pixart, sd21, sdxl\n"


def test_the_counted_folder_is_written_where_asked(tmp_path, capsys):
    size = ["--height", "768", "--width", "768"]
    assert main(["count", "--model", "sd21", *size, "--output", str(tmp_path / "new" / "sd21")]) == 0
    written = load_model(str(tmp_path / "new" / "sd21"))
    assert (written.height, written.width) == (768, 768)
    flop = sum(
        layer.conv_flop + layer.matmul_flop + layer.attention_flop for layer in written.components[2].layers
    )
    assert flop / 2e9 == pytest.approx(1075, abs=0.5)
    assert "Stable Diffusion 2.1, 768x768" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.touch()
    assert main(["count", "--model", "sd21", "--output", str(blocked)]) == 2
    assert capsys.readouterr().err == f"validate: error: --output {blocked}: File exists\n"
