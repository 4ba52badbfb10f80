"""Laws of kernels: closed forms, monotone in every shape, and paces that large shapes reach."""

import numpy as np
import pytest

from profiles.devices import Rates, load_device
from profiles.errors import InputError
from profiles.laws import MEMORY_KINDS, Laws

RATES = Rates(
    conv_flop_per_s=50e12,
    matmul_flop_per_s=100e12,
    attention_flop_per_s=80e12,
    memory_bytes_per_s=1e12,
    kernel_s=5e-6,
)
LAWS = Laws.of_rates(RATES)


def test_a_product_takes_a_launch_and_the_longer_of_work_and_traffic_or_a_little_more():
    heads, m, n, k = 3, 100, 200, 300
    work = 2 * heads * m * n * k / 100e12
    traffic = 2 * heads * (m * k + k * n + m * n) / 1e12
    assert LAWS.matmul_s(heads, m, n, k) == pytest.approx(5e-6 + (work**3 + traffic**3) ** (1 / 3))


def test_shapes_broadcast():
    m = np.arange(1, 501)
    assert LAWS.matmul_s(1, m, 320, 320).shape == (500,)
    assert LAWS.conv_s(1, m, 320, 2880, 1e6, part="weight").shape == (500,)
    assert LAWS.attention_s(8, m[:, None], m[None, :20], 64).shape == (500, 20)


@pytest.mark.parametrize("kind", MEMORY_KINDS)
def test_large_memory_kernels_reach_the_pace_of_their_kind(kind):
    assert LAWS.memory_s(kind, 1e13) == pytest.approx(10, rel=1e-5)


def test_an_unknown_part_or_kind_is_refused():
    with pytest.raises(InputError, match="laws: part is 'backward', must be one of forward, data, weight"):
        LAWS.matmul_s(1, 1, 1, 1, part="backward")
    with pytest.raises(InputError, match="laws: kind is 'norm', must be one of pointwise, copy"):
        LAWS.memory_s("norm", 1)


def test_a_device_without_laws_of_its_own_has_those_of_its_rates():
    device = load_device("ascend910a-32gb")
    assert device.own_laws is None
    assert device.laws == Laws.of_rates(device.rates)
    assert load_device("ideal").laws is None
