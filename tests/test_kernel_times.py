"""Seconds of layers from their kernels, against sums done by hand on a device where work alone takes time."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.architectures.components import Component, Layer
from profiles.architectures.extents import Extent
from profiles.architectures.kernels import Kernel
from profiles.architectures.shares import Share
from profiles.costs.kernel_times import (
    BACKWARD_TRAFFIC,
    CAST,
    GRADIENT_TRAFFIC,
    LAYOUT,
    NORM_CASTS,
    SAVED_SCORE_BYTES,
    SCORE_BYTES,
    WEIGHT_OPERATORS,
)
from profiles.costs.layers import ComponentCosts
from profiles.machines.devices import Device
from profiles.machines.laws import AttentionLaw, Laws, MemoryLaw, ProductLaw
from profiles.software.stacks import Fusion, Shares, load_stack

FREE = {"fixed_s": 0.0, "bytes_per_s": 1e30}
"""A pace at which nothing takes time that counts."""
MATMUL, CONV, ATTENTION, ATTENTION_BACK, MEMORY = 4e12, 2e12, 1e12, 5e11, 1e9
LAWS = Laws(
    ProductLaw(flop_per_s=MATMUL, **FREE),
    ProductLaw(flop_per_s=CONV, **FREE),
    AttentionLaw(flop_per_s=ATTENTION, backward_flop_per_s=ATTENTION_BACK, **FREE),
    MemoryLaw(0.0, *[MEMORY] * 5),
)
MADE = Device("made", "made by a test", None, None, LAWS)
PLAIN = replace(
    load_stack(),
    forward_operator_s=0.0,
    backward_operator_s=0.0,
    channels_last=True,
    norms="half",
    cast_weights=False,
    rates=Shares(),
)
"""A stack that adds nothing to the kernels."""

LINEAR = Kernel(
    "matmul", 2, 1, 1024, 256, 128, image_m=1024, read_bytes=2.0, written_bytes=4.0, weight_bytes=8.0
)
CONVOLUTION = Kernel(
    "conv", 1, 1, 1024, 64, 576, image_m=1024, read_bytes=1e6, written_bytes=2e6, weight_bytes=5e5
)
SELF = Kernel("attention", 1, 8, 1024, 1024, 64, image_m=1024, image_n=1024)
CROSS = Kernel("attention", 1, 8, 1024, 77, 64, image_m=1024)
SUM = Kernel("pointwise", 3, 1, 4096, image_m=4096, read_bytes=2e6, written_bytes=1e6)
NORM = Kernel("group_norm", 1, 1, 500_000, image_m=500_000, read_bytes=2e6, written_bytes=1e6)
BATCHED = Kernel("matmul", 1, 8, 64, 32, 16)
OPERATORS = Kernel("dispatch", 20)

LINEAR_S = 2 * 2 * 1024 * 256 * 128 / MATMUL
CONV_S = 2 * 1024 * 64 * 576 / CONV
SELF_FLOP, CROSS_FLOP = 4 * 8 * 1024 * 1024 * 64, 4 * 8 * 1024 * 77 * 64
SELF_S, CROSS_S = SELF_FLOP / ATTENTION, CROSS_FLOP / ATTENTION
SUM_S, NORM_S = 3 * 3e6 / MEMORY, 3e6 / MEMORY
HEADS_BYTES = 2 * 4 * 8 * 1024 * 64 * 2
"""Read and written, of queries, keys, values and result, in half precision."""
BATCHED_S = 2 * 8 * 64 * 32 * 16 / MATMUL


def layer(backward="full"):
    return Layer(0, "layer", 1000, backward, 0, 0, 0, 0, 0, 0, 100.0)


def chain(*kernels, backward="full", text_tokens=0):
    """A component of a layer for each list of kernels."""
    layers = (layer(backward),) * len(kernels)
    trained = backward != "none"
    launched = tuple(map(tuple, kernels))
    launched = {"kernels": launched, "half_kernels": launched}
    return Component("unet", trained, (), 1024, text_tokens, 0.0, 0.0, layers, **launched)


def costs(*kernels, stack=PLAIN, extent=None, training=True, device=MADE, **rest):
    return ComponentCosts(chain(kernels, **rest), device, stack=stack, extent=extent, training=training)


EACH = [
    (LINEAR, LINEAR_S),
    (CONVOLUTION, CONV_S),
    (SELF, SELF_S),
    (CROSS, CROSS_S),
    (SUM, SUM_S),
    (NORM, NORM_S),
    (BATCHED, BATCHED_S),
]


# Forward


@pytest.mark.parametrize(("attention", "heads_s"), [("flash-2", 0.0), ("packed", HEADS_BYTES / MEMORY)])
def test_who_recomputes_all_but_attention_lays_its_heads_out_again(attention, heads_s):
    layers = costs(LINEAR, SELF, stack=replace(PLAIN, attention=attention))
    assert layers.recomputed_s(3, attention=False) == pytest.approx([3 * (LINEAR_S + heads_s)])
    assert layers.forward_s(3) == pytest.approx([3 * (LINEAR_S + heads_s + SELF_S)])


@pytest.mark.parametrize(("kernel", "seconds"), EACH)
def test_a_forward_is_the_work_of_its_kernels_over_the_laws(kernel, seconds):
    assert costs(kernel).forward_s(3) == pytest.approx([3 * seconds])


def test_weights_are_read_once_whatever_the_batch():
    product = ProductLaw(fixed_s=1e-6, flop_per_s=1e30, bytes_per_s=1e9)
    slow = replace(LAWS, matmul=product, conv=product)
    device = replace(MADE, own_laws=slow)
    moved = 2 * (8 * 1024 * 128 + 128 * 256 + 8 * 1024 * 256)
    assert costs(LINEAR, device=device).forward_s(8) == pytest.approx([2 * (1e-6 + moved / 1e9)])
    moved = 8 * 3e6 + 5e5
    assert costs(CONVOLUTION, device=device).forward_s(8) == pytest.approx([1e-6 + moved / 1e9])


# Backward


@pytest.mark.parametrize("kernel", [LINEAR, CONVOLUTION])
def test_a_product_has_the_gradient_of_its_input_and_of_its_weight(kernel):
    seconds = costs(kernel).forward_s(4)
    bias_s = 2 * 4 * 4.0 / MEMORY if kernel is LINEAR else 0.0  # its gradient reads what the product wrote
    assert costs(kernel).backward_s(4) == pytest.approx(2 * seconds + bias_s)
    assert costs(kernel).weight_s(4) == pytest.approx(seconds + bias_s)
    assert costs(kernel, backward="input").backward_s(4) == pytest.approx(seconds)
    assert costs(kernel, backward="input").weight_s(4) == 0
    assert costs(kernel, backward="none").backward_s(4) == 0


# Stacks


def test_the_host_is_a_floor_that_is_spread_over_the_layers():
    host = replace(PLAIN, forward_operator_s=1.0, backward_operator_s=0.5)
    component = chain((LINEAR, OPERATORS), (SUM, OPERATORS))
    hurried, plain = (ComponentCosts(component, MADE, stack=stack) for stack in (host, PLAIN))
    assert hurried.forward_s(1).sum() == pytest.approx(40.0)
    assert hurried.backward_s(1).sum() == pytest.approx(20.0)
    assert hurried.forward_s(1) / hurried.forward_s(1).sum() == pytest.approx(
        plain.forward_s(1) / plain.forward_s(1).sum()
    )
    assert hurried.weight_s(1).sum() < hurried.backward_s(1).sum()
    busy = 10**6
    assert hurried.forward_s(busy) == pytest.approx(plain.forward_s(busy))


def test_unfused_attention_is_two_products_and_the_traffic_of_its_scores():
    math = replace(PLAIN, attention="unfused")
    scores, product_s = 8 * 1024 * 1024, SELF_FLOP / MATMUL
    forward, backward = (bytes_ * scores + HEADS_BYTES for bytes_ in SCORE_BYTES["train"])
    layers = costs(SELF, stack=math)
    assert layers.forward_s(2) == pytest.approx([2 * (product_s + forward / MEMORY)])
    assert layers.backward_s(2) == pytest.approx([2 * (2 * product_s + backward / MEMORY)])
    assert layers.saved_bytes == pytest.approx([100.0 + SAVED_SCORE_BYTES["train"] * scores])
    assert costs(SELF).saved_bytes == pytest.approx([100.0])
    drawn = costs(SELF, stack=math, training=False)
    moved = SCORE_BYTES["sample"][0] * scores + HEADS_BYTES
    assert drawn.forward_s(2) == pytest.approx([2 * (product_s + moved / MEMORY)])
    in_half = costs(SELF, stack=replace(math, autocast=False))  # trained without autocast
    assert in_half.saved_bytes == pytest.approx([100.0 + SAVED_SCORE_BYTES["sample"] * scores])
    assert in_half.forward_s(2) == pytest.approx(drawn.forward_s(2))


def test_convolutions_lay_activations_out_anew_unless_channels_come_last():
    first = replace(PLAIN, channels_last=False)
    copied_s = 2 * (2 * 3e6 + 5e5) / MEMORY
    layers = costs(CONVOLUTION, stack=first)
    assert layers.forward_s(2) == pytest.approx([2 * CONV_S + LAYOUT["forward"] * copied_s])
    both = LAYOUT["data"] + LAYOUT["weight"]
    assert layers.backward_s(2) == pytest.approx([4 * CONV_S + both * copied_s])
    assert costs(LINEAR, stack=first).forward_s(2) == costs(LINEAR).forward_s(2)


def test_autocast_casts_weights_forward_and_their_gradients_backward_in_training_alone():
    cast = replace(PLAIN, cast_weights=True)
    cast_s, handed_s = CAST * 5e5 / MEMORY, GRADIENT_TRAFFIC * 5e5 / MEMORY
    assert costs(CONVOLUTION, stack=cast).forward_s(2) == pytest.approx([2 * CONV_S + cast_s])
    assert costs(CONVOLUTION, stack=cast).weight_s(2) == pytest.approx([2 * CONV_S + handed_s])
    assert costs(CONVOLUTION, stack=cast, training=False).forward_s(2) == pytest.approx([2 * CONV_S])
    assert costs(CONVOLUTION, stack=cast, backward="none").forward_s(2) == pytest.approx([2 * CONV_S])
    host = replace(cast, forward_operator_s=1.0)
    for training, operators in ((True, 20 + WEIGHT_OPERATORS * LINEAR.count), (False, 20)):
        layers = costs(LINEAR, OPERATORS, stack=host, training=training)
        assert layers.forward_s(1) == pytest.approx([operators])


def test_norms_in_single_precision_move_twice_as_much_and_are_cast_around():
    single = replace(PLAIN, norms="float32")
    extra = (CAST * NORM_CASTS["group_norm"] + 2) * 1e6
    layers = costs(NORM, stack=single)
    assert layers.forward_s(2) == pytest.approx([2 * (2 * 3e6 + extra) / MEMORY])
    assert layers.saved_bytes == pytest.approx([100.0 + 2e6])
    assert costs(NORM, stack=single, training=False).forward_s(2) == pytest.approx([2 * NORM_S])
    assert costs(SUM, stack=single).forward_s(2) == pytest.approx([2 * SUM_S])


def test_a_stack_may_reach_a_share_of_what_the_laws_say():
    slow = replace(PLAIN, rates=Shares(matmul=0.5, conv=0.25, attention=0.125, memory=0.1))
    assert slow.rates_on("made") == slow.rates
    assert slow.rates_on("h100-80gb-sxm") == replace(
        slow.rates, attention=0.125 * 0.58
    )  # whose law is of newer kernels
    linear = replace(LINEAR, written_bytes=0.0)  # no bias, whose gradient moves bytes
    for kernel, share in ((linear, 0.5), (CONVOLUTION, 0.25), (SELF, 0.125), (SUM, 0.1)):
        for way in ("forward_s", "backward_s"):
            fast, slowed = (getattr(costs(kernel, stack=stack), way)(2) for stack in (PLAIN, slow))
            assert slowed == pytest.approx(fast / share)


# Resolutions and shares


def at(pixels):
    return replace(Extent.reference(chain(())), pixels=pixels, tokens=pixels)


@pytest.mark.parametrize("kernel", [LINEAR, CONVOLUTION, SELF, CROSS, SUM, NORM])
def test_rows_and_sequences_divide_all_work_of_an_image(kernel):
    for share in (Share(rows=0.25), Share(ring=4), Share(ulysses=4), Share(ring=2, ulysses=2)):
        merged_s = merging_s(2, share.ring) / share.sequence if kernel is SELF else 0.0
        assert costs(kernel).forward_s(2, share) == pytest.approx(costs(kernel).forward_s(2) / 4 + merged_s)


def merging_s(samples, ring):
    """Seconds in which a ring merges all blocks of an attention, on all of its devices together."""
    elements = samples * SELF.heads * SELF.m * SELF.k
    return ((ring - 1) * 38 + 12) * elements / MEMORY if ring > 1 else 0.0


def test_a_ring_merges_each_block_but_the_first_in_single_precision_unless_fused():
    for ring in (2, 4, 8):
        blocks_s = costs(SELF).attention_s(3, Share(ring=ring)) - SELF_S * 3 / ring
        assert blocks_s == pytest.approx(merging_s(3, ring) / ring)
    fused = replace(PLAIN, traffic=Fusion(pointwise=0.25))
    blocks_s = costs(SELF, stack=fused).attention_s(3, Share(ring=4)) - SELF_S * 3 / 4
    assert blocks_s == pytest.approx(merging_s(3, 4) / 16)


@pytest.mark.parametrize("kernel", [SUM, replace(SUM, kind="copy"), replace(SUM, kind="layer_norm")])
@pytest.mark.parametrize("share", [Share(), Share(ulysses=4)])
def test_fused_chains_move_at_most_a_multiple_of_what_products_read_and_write(kernel, share):
    """CONVOLUTION moves 3 MB for an image, and each of the kernels 9 MB, a group norm apart."""
    for most, kept in ((None, 1.0), (1.5, 1 / 2), (0.6, 1 / 5), (4.0, 1.0)):
        stack = replace(PLAIN, forward_chains=most)
        seconds = costs(CONVOLUTION, kernel, NORM, stack=stack).forward_s(2, share)
        assert seconds == pytest.approx(2 * (CONV_S + kept * SUM_S + NORM_S) / share.sequence)
        assert costs(kernel, stack=stack).forward_s(2) == pytest.approx(2 * SUM_S)  # between others' products
    shares = replace(PLAIN, traffic=Fusion(pointwise=0.5, copy=0.5, layer_norm=0.5), forward_chains=1.5)
    seconds = costs(CONVOLUTION, kernel, stack=shares).forward_s(2, share)
    assert seconds == pytest.approx(2 * (CONV_S + SUM_S / 2) / share.sequence)
    least_s, all_s = (
        sum(costs(CONVOLUTION, kernel, stack=replace(PLAIN, backward_chains=most)).backward_s(2, share))
        for most in (1e-9, None)
    )
    stack = replace(PLAIN, backward_chains=1.5)
    seconds = sum(costs(CONVOLUTION, kernel, stack=stack).backward_s(2, share))
    assert least_s < seconds < all_s
    assert seconds - least_s == pytest.approx(
        (all_s - least_s) * 1.5 * 3 / (BACKWARD_TRAFFIC[kernel.kind] * 9)
    )


def test_tokens_of_the_text_are_divided_where_they_pass_through_the_layers_and_conditions_are_not():
    text, condition = (Kernel("matmul", 1, 1, rows, 256, 128, weight_bytes=8.0) for rows in (77, 1))
    for text_tokens, divided in ((77, 4), (0, 1)):
        seconds = costs(text, text_tokens=text_tokens).forward_s(1, Share(ulysses=4))
        assert seconds == pytest.approx(costs(text).forward_s(1) / divided)
        seconds = costs(condition, text_tokens=text_tokens).forward_s(1, Share(ulysses=4))
        assert seconds == pytest.approx(costs(condition).forward_s(1))


# Properties


KERNELS = (LINEAR, CONVOLUTION, SELF, CROSS, SUM, NORM, replace(NORM, kind="layer_norm"), OPERATORS)
REAL = replace(LAWS, matmul=ProductLaw(fixed_s=3e-6, flop_per_s=2e14, bytes_per_s=1.5e12,
                                       chain_s=1e-7, ramp=64.0, data=1.1, weight=1.2),
               memory=MemoryLaw(2e-6, *[1.3e12] * 5))  # fmt: skip


def every(stack, device=MADE, **rest):
    return ComponentCosts(chain(KERNELS, KERNELS[:3]), device, stack=stack, **rest)


def seconds_of(layers, batch):
    return np.concatenate([layers.forward_s(batch), layers.backward_s(batch)])
