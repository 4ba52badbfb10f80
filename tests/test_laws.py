"""Laws of kernels: closed forms, monotone in every shape, and paces that large shapes reach and none passes."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from profiles.machines.devices import device_names, load_device
from profiles.machines.laws import MEMORY_KINDS, PARTS, WIDE_CHANNELS, Laws, Rates, Traffic, padded

RATES = Rates(50e12, 100e12, 80e12, 1e12, 5e-6)  # convolutions, products, attention, memory; a kernel
LAWS = Laws.of_rates(RATES)
OWN = [name for name in device_names() if load_device(name).own_laws is not None]
SIZES = st.integers(1, 10**6)
ROUNDED = 1 - 1e-12
"""A cube root is rounded in its last digit, up or down; a time shorter by more is no rounding."""


def test_a_product_takes_a_launch_and_the_longer_of_work_and_traffic_or_a_little_more():
    heads, m, n, k = 3, 100, 200, 300
    work = 2 * heads * m * n * k / 100e12
    traffic = 2 * heads * (m * k + k * n + m * n) / 1e12
    assert LAWS.matmul_s(heads, m, n, k) == pytest.approx(5e-6 + (work**3 + traffic**3) ** (1 / 3))


def test_ramp_and_chain_come_on_top():
    law = replace(LAWS.matmul, ramp=100.0, chain_s=1e-7)
    heads, m, n, k, moved = (np.array(size) for size in (1.0, 4096.0, 4096.0, 400.0, 0.0))
    work = 2 * heads * m * n * k / 100e12
    assert law.seconds(heads, m, n, k, moved) == pytest.approx(5e-6 + 1.25 * work + 20e-7)


def test_a_last_wave_of_tiles_takes_as_long_as_a_full_one():
    law = replace(LAWS.matmul, fixed_s=0.0, processors=4.0, peak_flop_per_s=100e12)
    columns = np.array([128.0 * tiles for tiles in (1, 8, 9, 12)])
    seconds = law.seconds(np.array(1.0), np.array(64.0), columns, np.array(1e6), np.array(0.0))
    assert seconds * 100e12 / (2 * 64 * 128 * 1e6) == pytest.approx(
        [1, 8, 10, 12]
    )  # 64 x 64 fills half a wave more


def test_traffic_within_the_cache_has_its_pace_and_beyond_it_that_of_memory():
    traffic = Traffic(1e12, cache_bytes=1e7, cache_bytes_per_s=4e12)
    seconds = traffic.moved_s(np.array([1e6, 1e7, 1.5e7, 2e7, 1e9]))
    assert seconds == pytest.approx([0.25e-6, 2.5e-6, 7.5e-6, 12.5e-6, 992.5e-6])


def test_attention_pads_its_heads():
    heads = np.array([40.0, 64, 72, 88, 96, 128, 160, 256, 300])
    assert padded(heads).tolist() == [64, 64, 96, 96, 96, 128, 192, 256, 300]
    narrow_s, padded_s = (LAWS.attention.seconds(1000, 4096, 4096, of) for of in (72, 96))
    assert narrow_s == pytest.approx(padded_s, rel=1e-3)


def test_attention_works_five_products_backward_for_two_forward():
    attention = LAWS.attention
    forward, backward = (
        of(1000, 8192, 8192, 128) for of in (attention.seconds, partial(attention.seconds, backward=True))
    )
    assert backward / forward == pytest.approx(2.5, rel=1e-3)


@pytest.mark.parametrize("name", OWN)
@settings(max_examples=30)
@given(shape=st.tuples(SIZES, SIZES, SIZES, SIZES), axis=st.integers(0, 3), more=st.integers(1, 10**5))
def test_no_kernel_is_quicker_for_being_larger(name, shape, axis, more):
    laws = load_device(name).laws
    larger = [size + more * (number == axis) for number, size in enumerate(shape)]
    if laws.attention.wide != 1:  # heads of 128 channels have a kernel of their own
        assume(
            (padded(np.array(shape[3])) >= WIDE_CHANNELS) == (padded(np.array(larger[3])) >= WIDE_CHANNELS)
        )
    for law in (laws.attention.seconds, partial(laws.attention.seconds, backward=True)):
        assert law(*larger) >= ROUNDED * law(*shape)
    for part in PARTS:
        assert laws.matmul_s(*larger, part=part) >= ROUNDED * laws.matmul_s(*shape, part=part)
        assert laws.conv_s(*larger, 1e6, part=part) >= ROUNDED * laws.conv_s(*shape, 1e6, part=part)
        assert laws.conv_s(*shape, 1e6 + more, part=part) >= ROUNDED * laws.conv_s(*shape, 1e6, part=part)


@pytest.mark.parametrize("name", OWN)
def test_large_kernels_reach_their_paces_and_small_ones_a_launch(name):
    laws = load_device(name).laws
    assert laws.matmul_s(1, 10**6, 10**6, 10**6) == pytest.approx(2e18 / laws.matmul.flop_per_s, rel=1e-3)
    assert laws.matmul_s(1, 1, 1, 1) == pytest.approx(laws.matmul.fixed_s, abs=1e-6)
    law = laws.attention
    assert law.wide_flop_per_s <= law.flop_per_s  # no faster than its products alone
    assert law.seconds(10**4, 10**5, 10**5, 128) == pytest.approx(512e14 / law.wide_flop_per_s, rel=0.01)
    for kind in MEMORY_KINDS:
        assert laws.memory_s(kind, 1e13) == pytest.approx(1e13 / laws.memory.bytes_per_s(kind), rel=1e-5)
        kept = laws.memory.cache_bytes  # 0 where no cache shows
        within_s = laws.memory.fixed_s + kept / (laws.memory.cache_bytes_per_s or 1)
        assert laws.memory_s(kind, kept) == pytest.approx(within_s)
        beyond_s = within_s + kept / laws.memory.bytes_per_s(kind)
        assert laws.memory_s(kind, 2 * kept) == pytest.approx(beyond_s)
