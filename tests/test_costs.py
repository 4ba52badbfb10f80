"""The layer cost model against sums done by hand: estimates, measured times and where they come from."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.architectures.components import Component, Layer, MeasuredTime
from profiles.architectures.models import Model
from profiles.costs.layers import OPTIMIZER_TRAFFIC, ComponentCosts, ModelCosts
from profiles.errors import InputError
from profiles.machines.devices import Device
from profiles.machines.laws import Rates
from profiles.software.recipes import RECIPES
from profiles.software.stacks import load_stack

RATES = Rates(100e12, 200e12, 50e12, 1e12, 10e-6)  # convolutions, products, attention, memory; a kernel
DEVICE = Device("made", "made by a test", 80e9, RATES)
IDEAL = Device("ideal", "made by a test", None, None)

LAYER = Layer(
    block=0, name="layer", parameters=1000, backward="full", conv_flop=300e9, matmul_flop=400e9,
    attention_flop=50e9, moved_bytes=2e9, kernels=7, output_bytes=0.0, saved_bytes=0.0,
)  # fmt: skip
CONV_S, MATMUL_S, ATTENTION_S, MOVED_S, KERNELS_S = 0.003, 0.002, 0.001, 0.002, 70e-6
"""What the layer's work takes on the device, by class of work: per sample, and the launches per call."""


def component(*layers, times=()):
    return Component("unet", True, (), 1, 0, 0.0, 0.0, layers, times=times)


def measured(*points):
    """The costs of one layer measured at (batch, forward seconds, backward seconds)."""
    times = tuple(MeasuredTime(0, *point) for point in points)
    return ComponentCosts(component(LAYER, times=(("ideal", times),)), IDEAL)


def costs_of(**changes):
    """The costs of one layer, estimated from its totals."""
    return ComponentCosts(component(replace(LAYER, **changes)), DEVICE)


# Estimates from totals


def test_a_forward_is_the_sum_of_its_work_and_its_launches():
    expected = 4 * (CONV_S + MATMUL_S + ATTENTION_S + MOVED_S) + KERNELS_S
    assert costs_of().forward_s(4) == pytest.approx([expected])


def test_a_full_backward_is_twice_the_forward_and_attention_two_and_a_half_times():
    expected = 2 * (4 * (CONV_S + MATMUL_S + MOVED_S) + KERNELS_S) + 2.5 * 4 * ATTENTION_S
    assert costs_of().backward_s(4) == pytest.approx([expected])
    assert costs_of().weight_s(4) == pytest.approx([expected / 2])


def test_an_input_backward_is_once_the_forward_and_attention_twice():
    expected = 3 * (CONV_S + MATMUL_S + MOVED_S) + KERNELS_S + 2 * 3 * ATTENTION_S
    assert costs_of(backward="input").backward_s(3) == pytest.approx([expected])
    assert costs_of(backward="input").weight_s(3) == 0


# Measured times


def test_measured_times_go_on_linearly_beyond_the_outer_two_batches():
    costs = measured((2, 0.4, 0.4), (4, 0.6, 0.8), (8, 1.2, 2.0))
    assert costs.forward_s(1)[0] == pytest.approx(0.3)
    assert costs.forward_s(16)[0] == pytest.approx(2.4)
    assert costs.backward_s(12)[0] == pytest.approx(3.2)


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.floats(0, 10), st.floats(0, 10)),
        min_size=1,
        max_size=5,
        unique_by=lambda point: point[0],
    ),
    st.integers(1, 200),
)
def test_measured_times_are_finite_at_every_batch(points, batch):
    costs = measured(*sorted(points))
    times = np.concatenate([costs.forward_s(batch), costs.backward_s(batch)])
    assert np.isfinite(times).all()
    assert (times >= 0).all()
    inside = [value for at, value, _ in points if at == batch]
    assert costs.forward_s(batch)[0] == pytest.approx(inside[0]) if inside else True


# Provenance


def test_measured_times_of_the_device_take_the_place_of_estimates():
    times = (MeasuredTime(0, 1, 9.0, 9.0),)
    both = component(LAYER, times=(("made", times),))
    assert ComponentCosts(both, DEVICE).forward_s(1)[0] == 9.0
    assert ComponentCosts(both, DEVICE).provenance == "measured"
    other = component(LAYER, times=(("elsewhere", times),))
    assert ComponentCosts(other, DEVICE).forward_s(1)[0] == costs_of().forward_s(1)[0]
    assert ComponentCosts(other, DEVICE).provenance == "estimated"


def test_a_device_without_rates_needs_measured_times():
    with pytest.raises(InputError) as error:
        ComponentCosts(component(LAYER), IDEAL)
    assert str(error.value) == (
        "device 'ideal' has no rates of its own, and unet has no times measured on it (times/ideal.csv);"
        " a device without rates is for models whose times are given, such as sim.equal_layers_model"
    )


# Optimizer


@pytest.mark.parametrize("optimizer", OPTIMIZER_TRAFFIC)
def test_an_optimizer_step_is_bound_by_memory(optimizer):
    model = Model("m", "M", "t", "float16", 1, 1, (component(LAYER),))
    costs = ModelCosts(model, DEVICE, replace(load_stack(), optimizer=optimizer))
    once = 1e9 * 30 / 1e12
    assert costs.optimizer_s(1e9, RECIPES["mixed"]) == pytest.approx(OPTIMIZER_TRAFFIC[optimizer] * once)
    assert costs.optimizer_s(0, RECIPES["mixed"]) == 0
