"""What sampling takes: shares of the classes of work, resolutions compared with real counts, and measured times."""

from dataclasses import replace

import pytest

from profiles.architectures.components import MeasuredTime
from profiles.architectures.extents import Extent
from profiles.architectures.models import load_model
from profiles.architectures.shares import WHOLE, Share
from profiles.costs.layers import ModelCosts, TaskCosts
from profiles.machines.devices import Device
from profiles.machines.laws import Rates
from profiles.measuring.counting.component import count_component
from profiles.measuring.counting.configured import architecture
from validate.equal_blocks import equal_blocks_transformer

pytestmark = pytest.mark.slow

RATES = Rates(4e12, 2e12, 1e12, 1e9, 1e-3)
RATED = Device("rated", "made by a test", None, RATES)
LINEAR_S, ATTENTION_S, MEMORY_S, LAUNCH_S = 0.5, 0.25, 0.125, 0.01
"""Of one block: 1e12 FLOP of products, 2.5e11 of attention, 1.25e8 bytes, 10 kernels."""


def worked(**rest):
    """Three equal blocks with work of every class, and no measured times."""
    model = equal_blocks_transformer(3, **{"rows": 16, **rest})
    (transformer,) = model.components
    work = {"matmul_flop": 1e12, "attention_flop": 2.5e11, "moved_bytes": 1.25e8, "kernels": 10}
    layers = tuple(replace(layer, **work) for layer in transformer.layers)
    return replace(model, components=(replace(transformer, layers=layers, times=()),))


def block_s(model, batch=1, share=WHOLE, *, height=256, width=256, device=RATED):
    """Seconds of one block; all are alike."""
    seconds = TaskCosts(model, device, height, width).forward_s(0, batch, share)
    assert len(seconds) == len(model.components[0].layers)
    return float(seconds[0])


# Shares.


def test_the_whole_image_at_the_reference_takes_the_estimate_of_training():
    model = worked()
    expected = LINEAR_S + ATTENTION_S + MEMORY_S + LAUNCH_S
    assert block_s(model) == pytest.approx(expected)
    assert block_s(model) == pytest.approx(ModelCosts(model, RATED).components[0].forward_s(1)[0])


@pytest.mark.parametrize("degree", [1, 4])
def test_a_sequence_is_divided_whatever_passes_around(degree):
    """Tokens by both; of attention queries around a ring, heads by Ulysses: launches are those of the whole."""
    work_s = (LINEAR_S + ATTENTION_S + MEMORY_S) / degree
    for share in (Share(ring=degree), Share(ulysses=degree)):
        assert block_s(worked(), 1, share) == pytest.approx(work_s + LAUNCH_S)
        attention_s = TaskCosts(worked(), RATED, 256, 256).components[0].attention_s(3, share)
        assert attention_s == pytest.approx([3 * ATTENTION_S / degree] * 3)


def extent(model, height=256, width=256):
    return Extent.of(model, model.components[0], height, width)


def test_a_patch_attends_with_its_rows_to_all_tokens():
    """Attention by share of the queries times all keys; alone, by the share of both."""
    rest_s = 0.25 * (LINEAR_S + MEMORY_S) + LAUNCH_S
    assert block_s(worked(), 1, Share(0.25)) == pytest.approx(rest_s + 0.25 * ATTENTION_S)
    assert block_s(worked(), 1, Share(0.25, 0.25)) == pytest.approx(rest_s + 0.0625 * ATTENTION_S)


def test_every_patch_carries_all_tokens_of_the_text():
    model, of = worked(text_tokens=64), extent(worked(text_tokens=64))
    tokens = (0.25 * 256 + 64) / 320
    assert of.image == 256 / 320
    assert of.tokens_share(0.25) == pytest.approx(tokens)
    assert of.tokens_share(1.0) == 1.0
    rest_s = tokens * (LINEAR_S + MEMORY_S) + LAUNCH_S
    assert block_s(model, 1, Share(0.25)) == pytest.approx(rest_s + tokens * ATTENTION_S)
    assert block_s(model, 1, Share(0.25, 0.25)) == pytest.approx(rest_s + tokens**2 * ATTENTION_S)


# Resolutions.


COUNTED = {"pixart": 0.04, "sd3-medium": 0.04, "sdxl": 0.01}
"""Models, and how far the growth of any column may be from that of a real count. What is off: pooled text, time
embeddings and the text's keys and values, which the columns let grow with the pixels."""


@pytest.mark.parametrize("name", COUNTED)
def test_columns_grow_as_a_count_at_another_resolution(name):
    """One forward pass of the real module at 2048 x 1024, on the meta device, and the folder's columns scaled to it."""
    model = load_model(name)
    backbone = model.components[model.backbones[0]]
    (spec,) = (spec for spec in architecture(name).components if spec.name == backbone.name)
    counted, of = count_component(spec, 2048, 1024), Extent.of(model, backbone, 2048, 1024)
    growth = {"conv_flop": of.pixels, "matmul_flop": of.tokens, "moved_bytes": of.tokens}
    for column, factor in {**growth, "attention_flop": of.tokens**2}.items():
        scaled = factor * sum(getattr(layer, column) for layer in backbone.layers)
        real = sum(getattr(work, column) for work in counted.work)
        assert real == pytest.approx(scaled, rel=COUNTED[name]), column
    assert [work.output_bytes for work in counted.work] == pytest.approx(
        [layer.output_bytes * of.tokens for layer in backbone.layers[:-1]]
        + [backbone.layers[-1].output_bytes * of.pixels]
    )


# Measured times.


def timed(model, device, *points):
    """The model with measured (batch, seconds) of each block on a device."""
    (transformer,) = model.components
    times = tuple(MeasuredTime(i, n, s, 0.0) for i in range(len(transformer.layers)) for n, s in points)
    return replace(model, components=(replace(transformer, times=((device.name, times),)),))


def test_measured_times_are_divided_and_grow_in_proportion_to_the_estimated_work():
    model = timed(worked(), RATED, (1, 3.0), (2, 5.0))
    work_s = LINEAR_S + ATTENTION_S + MEMORY_S
    linear, attention, memory = (2.0 * part / work_s for part in (LINEAR_S, ATTENTION_S, MEMORY_S))
    assert block_s(model, height=512) == pytest.approx(2 * linear + 4 * attention + 2 * memory + 1.0)
    shared = block_s(model, 1, Share(0.5, 0.5))
    assert shared == pytest.approx(0.5 * linear + 0.25 * attention + 0.5 * memory + 1.0)
