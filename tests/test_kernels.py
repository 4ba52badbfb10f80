"""Kernels are read as they are counted, and they are counted as worked out by hand."""

import re
from fractions import Fraction

import pytest
import torch
from making import model_head, refused
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from profiles.architectures.component_files import KERNEL_COLUMNS, LAYER_COLUMNS
from profiles.architectures.kernels import Kernel
from profiles.architectures.models import read_model
from profiles.errors import InputError
from profiles.measuring.counting.component import ModelCount, count_component, count_model
from profiles.measuring.counting.configured import TINY
from profiles.measuring.counting.folder import folder_texts, kernel_texts
from profiles.measuring.counting.kernels import Launch, component_kernels, grown, kernels_of
from profiles.measuring.counting.specs import ComponentSpec, LayerSpec, tensor

pytestmark = pytest.mark.slow

HALF, SINGLE = 2, 4  # bytes

# Reading

MODEL = f"""{model_head("small", 64, 32)}[[components]]
name = "text"
trainable = false
[[components]]
name = "unet"
trainable = true
"""
LAYERS = f"""\
{",".join(LAYER_COLUMNS)}
text,0,0,embed,10,none,0,0.000048,0,2,3,0.5,0
unet,0,0,in,100,full,0.000288,0.00048,0.0128,4,5,1,2
unet,1,0,out,100,full,0.000288,0,0,4,5,1,2
"""
KERNELS = f"""\
{",".join(KERNEL_COLUMNS)}
text,0,matmul,2,1,3,4,1000,0,0,0,0.1,0.2,0.3
unet,0,conv,1,2,8,4,2250,0,8,0,1,2,3
unet,0,attention,1,5,8,8,10000,0,6,6,1,2,0
unet,0,attention,1,5,8,3,1000,0,6,0,1,2,0
unet,0,group_norm,3,1,64,0,0,0,64,0,0.5,0.25,0.125
unet,0,dispatch,7,0,0,0,0,0,0,0,0,0,0
unet,1,conv,1,2,8,4,2250,0,8,0,1,2,3
"""


def write(folder, model=MODEL, **files):
    """Write the model folder, with some files of kernels changed, or others besides."""
    texts = {"model.toml": model, "layers.csv": LAYERS, "kernels.csv": KERNELS}
    for name, text in (texts | {f"{key}.csv": text for key, text in files.items()}).items():
        (folder / name).write_text(text)
    return folder


def test_kernels_are_read_into_bytes_by_layer(tmp_path):
    text, unet = read_model(write(tmp_path)).components
    assert text.kernels == (
        (Kernel("matmul", 2, 1, 3, 4, 1000, read_bytes=1e5, written_bytes=2e5, weight_bytes=3e5),),
    )
    conv, _, _, norm, dispatch = unet.kernels[0]
    assert unet.kernels[1] == (conv,)
    assert (norm.count, norm.m, norm.image_m, norm.moved_bytes) == (3, 64, 64, 875e3)
    assert dispatch == Kernel("dispatch", 7)
    assert unet.half_kernels is unet.kernels


def test_kernels_in_half_precision_stand_beside_those_of_a_model_in_single(tmp_path):
    write(tmp_path, kernels_half=KERNELS)
    with refused(r"kernels_half.csv: must be left out: of float16, kernels.csv says the same"):
        read_model(tmp_path)
    write(tmp_path, MODEL.replace("float16", "float32"))
    (tmp_path / "kernels_half.csv").unlink()
    with refused(r"kernels_half.csv: no such file, must stand beside kernels.csv as dty"):
        read_model(tmp_path)


def test_a_broken_rule_is_refused_by_file_place_and_value(tmp_path):
    for old, new, problem in (
        (",weight_MB", "", "kernels.csv:1: column weight_MB is missing"),
        ("text,0", "vae,0", "kernels.csv:2: component is 'vae', must be one of text, unet"),
        ("unet,1", "unet,2", "kernels.csv:8: index is '2', must be below 2, the layers of unet"),
        ("group_norm", "batch_norm", "kernels.csv:6: kernel: kind is 'batch_norm', must be one of matmul"),
        ("0,6,6", "0,6,9", "kernels.csv:4: kernel: image_n is 9, must be at most 8"),
        ("1,64,0,0", "1,64,2,0", "kernels.csv:6: kernel: n is 2, must be 0 of group_norm"),
        ("8,4,2250", "8,4,225", "conv_gflop of layer 0 of unet is 2.88e-05, must be the 0.000288 of"),
    ):
        assert old in KERNELS
        with refused(re.escape(problem)):
            read_model(write(tmp_path, kernels=KERNELS.replace(old, new, 1)))


# Counting


class Parts(nn.Module):
    """One of each: convolution, norm, linear layers, attention to itself and to text, and a joined table."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(6, 16, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2, bias=False)
        self.norm = nn.GroupNorm(2, 8)
        self.rows = nn.LayerNorm(8)
        self.query, self.text = nn.Linear(8, 8), nn.Linear(12, 16, bias=False)
        self.register_buffer("table", torch.empty(1, 3, 8))

    def forward(self, image, text):
        hidden = self.norm(self.up(self.conv(image))).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.rows(hidden), self.table], dim=1)
        query = heads(self.query(tokens))
        key, value = self.text(text).chunk(2, dim=-1)
        crossed = scaled_dot_product_attention(query, heads(key), heads(value))
        return gelu(scaled_dot_product_attention(query, query, query) @ crossed.transpose(2, 3))


def heads(tokens):
    """Split into two heads."""
    return tokens.unflatten(-1, (2, -1)).transpose(1, 2)


PARTS = ComponentSpec(
    "parts",
    Parts,
    lambda height, width: {"image": tensor(1, 6, height, width), "text": tensor(1, 5, 12)},
    (LayerSpec("up", 0, "up"), LayerSpec("rest", 0, "")),
    token_pixels=1,
)


@pytest.mark.parametrize("other", [(2, 3), (8, 12)])
def test_kernels_are_those_worked_out_by_hand(other):
    """Of an image of 4x6 pixels, 96 tokens when it is enlarged, beside 3 tokens of a table and 5 of text."""
    first, last = component_kernels(count_component(PARTS, 4, 6), (4, 6), other)
    small, large, tokens, all_tokens = 24 * HALF, 96 * HALF, 96 * 8 * HALF, 99 * 8 * HALF
    assert first == (
        Kernel("conv", 1, 2, 24, 8, 3 * 9, 0, 24, 0, 6 * small, 16 * small, 16 * 27 * HALF),
        Kernel("pointwise", 1, 1, 16 * 24, 0, 0, 0, 16 * 24, 0, 16 * small, 16 * small, 0),  # its bias
        Kernel("conv", 1, 1, 24, 8 * 4, 16, 0, 24, 0, 16 * small, 8 * large, 16 * 8 * 4 * HALF),
        Kernel("dispatch", 2),
    )
    statistics = 2 * 2 * HALF, 2 * 96 * SINGLE
    lse = 2 * 99 * SINGLE
    squared = 2 * 99 * 99
    norm, rows, cat, query, text, crossed, itself, *product, activation, dispatch = last
    assert norm == Kernel(
        "group_norm", 1, 1, 768, 0, 0, 0, 768, 0, 2 * tokens, tokens + statistics[0], 16 * HALF
    )
    assert rows == Kernel("layer_norm", 1, 1, 768, 0, 0, 0, 768, 0, tokens, tokens + statistics[1], 16 * HALF)
    assert cat == Kernel("copy", 1, 1, 99 * 8, 0, 0, 0, 96 * 8, 0, tokens, all_tokens, 3 * 8 * HALF)
    assert query == Kernel("matmul", 1, 1, 99, 8, 8, 0, 96, 0, all_tokens, all_tokens, (64 + 8) * HALF)
    assert text == Kernel("matmul", 1, 1, 5, 16, 12, 0, 0, 0, 60 * HALF, 80 * HALF, 12 * 16 * HALF)
    assert crossed == Kernel(
        "attention", 1, 2, 99, 5, 4, 0, 96, 0, all_tokens + 80 * HALF, all_tokens + lse, 0
    )
    assert itself == Kernel("attention", 1, 2, 99, 99, 4, 0, 96, 96, 3 * all_tokens, all_tokens + lse, 0)
    assert product[-1] == Kernel("matmul", 1, 2, 99, 99, 4, 0, 96, 96, 2 * all_tokens, squared * HALF, 0)
    assert (activation.kind, activation.m, activation.read_bytes) == ("pointwise", squared, squared * HALF)
    assert dispatch.kind == "dispatch"


def test_passes_of_a_component_add_up():
    frames = [lambda height, width, n=n: {"input": tensor(n, 5, 8)} for n in (2, 3)]
    spec = ComponentSpec(
        "chain", lambda: nn.Linear(8, 8), frames[0], (LayerSpec("all", 0, ""),),
        again=(frames[1],),
    )  # fmt: skip
    ((two, three, dispatch),) = component_kernels(count_component(spec, 8, 8), (8, 8), (4, 4))
    assert (two.m, three.m, dispatch.count) == (10, 15, 8)


def test_launches_are_matched_in_order_and_what_has_no_counterpart_grows_by_its_rows():
    half = [Launch("embed", Kernel("matmul", 1, 1, 5, 4, 4)), Launch("table", Kernel("pointwise", 1, 1, 9))]
    half += [Launch("attend", Kernel("attention", 1, 3, 17, 17, 4))]
    whole = [half[0], Launch("attend", Kernel("attention", 1, 6, 29, 29, 4)), Launch("cat", half[1].kernel)]
    embed, attend, cat = grown(whole, half, Fraction(1, 2))
    assert embed == whole[0].kernel
    assert attend == Kernel("attention", 1, 6, 29, 29, 4, 6, 24, 24)
    assert cat == Kernel("pointwise", 1, 1, 9, image_m=9)


@pytest.mark.parametrize(
    "name", [pytest.param(of, marks=pytest.mark.long) if of == "tiny-sd" else of for of in TINY]
)
def test_kernels_grow_as_they_are_counted_at_another_resolution(name):
    """Matrix products, convolutions and attention at twice the height, against those at once; U-ViT at half."""
    model, factor = count_model(TINY[name]), Fraction(1, 2) if "uvit" in name else Fraction(2)
    there = ModelCount(model.architecture, int(model.height * factor), model.width, model.components)
    for whole, other in zip(kernels_of(model, "float16"), kernels_of(there, "float16"), strict=True):
        for here, target in zip(whole, other, strict=True):
            products = [one for one in here if one.k]
            assert [at(one, factor) for one in products] == [at(one, Fraction(1)) for one in target if one.k]


def at(kernel, pixels):
    """Shape of a kernel at a multiple of the pixels."""
    sides = [getattr(kernel, k) + (pixels - 1) * getattr(kernel, f"image_{k}") for k in ("heads", "m", "n")]
    return (kernel.kind, kernel.count, *sides, kernel.k)


def test_a_counted_folder_holds_kernels_of_every_precision_and_is_read(tmp_path):
    model = count_model(TINY["tiny-uvit"])
    for name, text in (folder_texts("tiny", model) | kernel_texts(model)).items():
        (tmp_path / name).write_text(text)
    (uvit,) = read_model(tmp_path).components
    casts = [sum(one.count for one in layer if one.kind == "copy") for layer in uvit.half_kernels]
    assert casts[0] == sum(one.count for one in uvit.kernels[0] if one.kind == "copy") + 1
    single, half = ([one for one in layers[1] if one.k] for layers in (uvit.kernels, uvit.half_kernels))
    assert [at(one, 1) for one in single] == [at(one, 1) for one in half]
    assert [one.weight_bytes for one in single] == [2 * one.weight_bytes for one in half]
    (tmp_path / "adapted.csv").write_text("component,index,saved_MB\nuvit,1,1\n")
    shares = [of.adapted_share for of in read_model(tmp_path).components[0].layers[:3]]
    assert shares == [1, pytest.approx(1e6 / uvit.layers[1].saved_bytes), 1]
    for rows, words in (
        ("uvit,1,-1", "saved_MB is -1"), ("uvit,99,1", "must be below 7"), ("uvit,0-1,1\nuvit,1,1", "stands twice"),
    ):  # fmt: skip
        (tmp_path / "adapted.csv").write_text(f"component,index,saved_MB\n{rows}\n")
        with pytest.raises(InputError, match=words):
            read_model(tmp_path)
