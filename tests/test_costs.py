"""The layer cost model against sums done by hand: estimates, measured times and where they come from."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.architectures.models import Component, Layer, MeasuredTime, Model, load_model
from profiles.costs.layers import OPTIMIZER_TRAFFIC, ComponentCosts, ModelCosts
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from profiles.machines.devices import Device
from profiles.machines.laws import Rates
from profiles.software.recipes import RECIPES
from profiles.software.stacks import load_stack

RATES = Rates(
    conv_flop_per_s=100e12,
    matmul_flop_per_s=200e12,
    attention_flop_per_s=50e12,
    memory_bytes_per_s=1e12,
    kernel_s=10e-6,
)
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


@pytest.mark.parametrize("batch", [1, 4])
def test_a_forward_is_the_sum_of_its_work_and_its_launches(batch):
    expected = batch * (CONV_S + MATMUL_S + ATTENTION_S + MOVED_S) + KERNELS_S
    assert costs_of().forward_s(batch) == pytest.approx([expected])


@pytest.mark.parametrize("batch", [1, 4])
def test_a_full_backward_is_twice_the_forward_and_attention_two_and_a_half_times(batch):
    expected = 2 * (batch * (CONV_S + MATMUL_S + MOVED_S) + KERNELS_S) + 2.5 * batch * ATTENTION_S
    assert costs_of().backward_s(batch) == pytest.approx([expected])
    assert costs_of().weight_s(batch) == pytest.approx([expected / 2])


def test_an_input_backward_is_once_the_forward_and_attention_twice():
    expected = 3 * (CONV_S + MATMUL_S + MOVED_S) + KERNELS_S + 2 * 3 * ATTENTION_S
    assert costs_of(backward="input").backward_s(3) == pytest.approx([expected])
    assert costs_of(backward="input").weight_s(3) == 0


def test_component_costs_are_the_estimates_of_its_layers():
    small = replace(LAYER, conv_flop=0.0, kernels=1)
    costs = ComponentCosts(component(LAYER, small), DEVICE)
    for batch in (1, 2, 7, 100):
        for way in ("forward_s", "backward_s"):
            alone = [getattr(ComponentCosts(component(of), DEVICE), way)(batch)[0] for of in (LAYER, small)]
            assert getattr(costs, way)(batch) == pytest.approx(alone)


@pytest.mark.parametrize("batch", [1, 4])
def test_recomputing_all_but_attention_takes_the_rest_of_the_forward(batch):
    expected = batch * (CONV_S + MATMUL_S + MOVED_S) + KERNELS_S
    assert costs_of().recomputed_s(batch, attention=False) == pytest.approx([expected])
    assert costs_of().attention_s(batch) == pytest.approx([batch * ATTENTION_S])


def test_copies_take_what_the_law_says_and_are_scaled_as_the_layers_are():
    model, device, stack = load_model("uvit-h"), load_cluster("p4de").device, load_stack()
    backbone = model.components[model.backbones[0]]
    whole_s, fixed_s = (float(device.laws.memory_s("copy", moved)) for moved in (1e9, 0.0))
    for factor in (1.0, 1.5):
        costs = ComponentCosts(backbone, device, calibration=factor, stack=stack)
        assert costs.copied_s(1e9, 1) == pytest.approx(factor * whole_s / stack.rates.memory)
        assert costs.copied_s(1e9, 3) == pytest.approx(factor * (whole_s + 2 * fixed_s) / stack.rates.memory)


def test_the_least_estimate_per_sample_is_that_of_the_largest_batch():
    costs = costs_of()
    assert costs.least_forward_s_per_sample(7)[0] == costs.forward_s(7)[0] / 7
    assert costs.least_forward_s_per_sample(1)[0] == costs.forward_s(1)[0]


# Measured times


def test_each_layer_takes_what_was_measured_of_it_however_long_the_others_take():
    seconds = (0.25, 8.0, 1.0, 0.5)
    times = tuple(
        MeasuredTime(layer, batch, batch * forward_s, 2 * batch * forward_s)
        for layer, forward_s in enumerate(seconds)
        for batch in (1, 2)
    )
    costs = ComponentCosts(component(*[LAYER] * 4, times=(("ideal", times),)), IDEAL)
    for batch in (1, 2):
        assert costs.forward_s(batch).tolist() == [batch * layer_s for layer_s in seconds]
        assert costs.backward_s(batch).tolist() == [2 * batch * layer_s for layer_s in seconds]


def test_measured_times_are_linear_between_batches():
    costs = measured((1, 0.3, 0.7), (4, 0.6, 1.0), (16, 3.0, 7.0))
    assert costs.forward_s(2)[0] == pytest.approx(0.4)
    assert costs.backward_s(10)[0] == pytest.approx(4.0)


def test_measured_times_go_on_linearly_beyond_the_outer_two_batches():
    costs = measured((2, 0.4, 0.4), (4, 0.6, 0.8), (8, 1.2, 2.0))
    assert costs.forward_s(1)[0] == pytest.approx(0.3)
    assert costs.forward_s(16)[0] == pytest.approx(2.4)
    assert costs.backward_s(12)[0] == pytest.approx(3.2)


def test_one_measurement_goes_through_the_origin():
    costs = measured((4, 0.8, 2.0))
    assert [costs.forward_s(batch)[0] for batch in (1, 4, 8)] == pytest.approx([0.2, 0.8, 1.6])


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


@given(
    st.lists(
        st.tuples(st.integers(1, 40), st.floats(0.01, 10)), min_size=1, max_size=4, unique_by=lambda p: p[0]
    ),
    st.integers(1, 40),
)
def test_the_least_time_per_sample_is_that_of_the_best_batch(points, largest):
    costs = measured(*sorted((batch, seconds, 0.0) for batch, seconds in points))
    best = min(costs.forward_s(batch)[0] / batch for batch in range(1, largest + 1))
    assert costs.least_forward_s_per_sample(largest)[0] == pytest.approx(best)


# Provenance


def test_measured_times_of_the_device_take_the_place_of_estimates():
    times = (MeasuredTime(0, 1, 9.0, 9.0),)
    both = component(LAYER, times=(("made", times),))
    assert ComponentCosts(both, DEVICE).forward_s(1)[0] == 9.0
    assert ComponentCosts(both, DEVICE).provenance == "measured"
    other = component(LAYER, times=(("elsewhere", times),))
    assert ComponentCosts(other, DEVICE).forward_s(1)[0] == costs_of().forward_s(1)[0]
    assert ComponentCosts(other, DEVICE).provenance == "estimated"


def test_a_model_is_measured_where_all_its_components_are():
    times = (("made", (MeasuredTime(0, 1, 9.0, 9.0),)),)
    known, unknown = component(LAYER, times=times), replace(component(LAYER), name="other")

    def provenance(*components):
        return ModelCosts(Model("m", "M", "t", "float16", 1, 1, components), DEVICE).provenance

    assert provenance(known) == provenance(known, replace(known, name="also")) == "measured"
    assert provenance(known, unknown) == "estimated"


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
