"""The critical path of a named order: it is what a replay takes on ports that nobody shares, and never more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notation import parse_order

from sim.replay.engine import simulate
from strategies.bounds.pipelines import order_bound, staged_bound
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Cut, Shape
from strategies.registry import make as make_strategy

POINTS = [
    ("interleaved", {"chunks": 2}),
    ("interleaved", {"chunks": 4}),
    ("zero-bubble", {}),
    ("wave", {"waves": 1}),
    ("wave", {"waves": 2}),
    ("gpipe", {}),
    ("1f1b", {}),
]

seconds = st.lists(st.floats(0.1, 2.0), min_size=8, max_size=8)


def unet(make, forward_s, **rest):
    return make.component("unet", forward_s, output_bytes=1.0, **rest)


def with_encoder(make, forward_s, **rest):
    encoder = make.component("encoder", [0.3], trainable=False)
    return make.model(encoder, unet(make, forward_s, inputs=["encoder"], **rest))


@pytest.mark.parametrize(("name", "parameters"), POINTS)
@given(forward_s=seconds, rounds=st.integers(1, 4), extra_forward=st.booleans())
@settings(max_examples=15)
def test_on_free_links_the_bound_is_the_truth(make, name, parameters, forward_s, rounds, extra_forward):
    scenario = make.scenario(
        with_encoder(make, forward_s), make.cluster(), 2, 8 * rounds, extra_forward=extra_forward
    )
    strategy = make_strategy(name, {"micro_batches": 2 * rounds, **parameters})
    assert strategy.order_bound(scenario) == pytest.approx(simulate(strategy.plan(scenario)).end_s, rel=1e-12)


@pytest.mark.parametrize(("name", "parameters"), POINTS)
def test_messages_and_optimizer_steps_count(make, name, parameters):
    # Ports of their own in each direction: on two positions no message waits for another for long.
    cluster = make.cluster(make.link(bandwidth=1e3, latency_s=0.1, call_s=0.05), memory_bytes_per_s=1e6)
    model = with_encoder(make, [1.0] * 8, parameters=10**5, carried_bytes=1.0)
    scenario = make.scenario(model, cluster, 2, 4)
    strategy = make_strategy(name, {"micro_batches": 4, **parameters})
    truth_s = simulate(strategy.plan(scenario)).end_s
    assert 0.999 * truth_s < strategy.order_bound(scenario) <= truth_s * (1 + 1e-12)


def reducing(make, name, parameters, cluster):
    model = make.model(unet(make, [1.0] * 8, parameters=10**6))
    scenario = make.scenario(model, cluster, 4, 16)
    strategy = make_strategy(name, {"micro_batches": 4, **parameters})
    return strategy.order_bound(scenario), simulate(strategy.plan(scenario)).end_s


@pytest.mark.parametrize(("name", "parameters"), POINTS)
def test_a_device_sums_the_gradients_of_its_stages_one_after_the_other(make, name, parameters):
    cluster = make.cluster(make.link(bandwidth=1e6), call_s=0.5, memory_bytes_per_s=1e9)
    bound_s, truth_s = reducing(make, name, parameters, cluster)
    # a message waits for a piece of a sum before it at most
    assert 0.995 * truth_s < bound_s <= truth_s * (1 + 1e-12)


def test_without_its_order_a_pipeline_is_bounded_for_any(make):
    scenario = make.scenario(make.model(unet(make, [1.0, 2.0] * 4)), make.cluster(), 2, 512)
    strategy = make_strategy("interleaved", {"micro_batches": 512})
    assert strategy.bound(scenario) == staged_bound(strategy.layout(scenario))
    assert (
        strategy.bound(scenario) <= strategy.order_bound(scenario) == simulate(strategy.plan(scenario)).end_s
    )


def test_stages_of_equal_layers_wait_for_the_last_of_them(make):
    cluster = make.cluster(make.link(bandwidth=1e6), memory_bytes_per_s=1e9)
    scenario = make.scenario(make.model(unet(make, [1.0] * 2, parameters=10**6)), cluster, 2, 2)
    # two directions over one backbone of two positions: both hold its layers, and sum their gradients together
    cuts = (Cut(0, (0, 1, 2), (0, 1), (0, 1)), Cut(0, (0, 1, 2), (1, 0), (1, 2)))
    rows = parse_order("0F0 3F1 3B1 0B0\n2F1 1F0 1B0 2B1\n")
    # layer 0 is complete after 6 s; then come a sum of 4 MB over two members, and a step
    bound_s = order_bound(Layout(scenario, Shape(2, 2, 2), cuts), lambda: rows, "both ways")
    assert bound_s == pytest.approx(6.0 + 4.0 + 30e-3)


def test_one_slow_hop_sets_the_pace_of_1f1b(make):
    cluster = make.cluster(make.link(), make.link("nic", latency_s=1.0), devices_per_node=4)
    model = make.model(make.component("unet", [1.0] * 8, output_bytes=1.0))
    scenario = make.scenario(model, cluster, 8, 64)
    strategy = make_strategy("spp", {"pipeline_degree": 8, "micro_batches": 64})
    truth_s = simulate(strategy.plan(scenario)).end_s
    assert truth_s > (64 + 7) * 3.0 + 60  # each pair of micro-batches waits for the hop there and back
    assert 0.99 * truth_s < strategy.order_bound(scenario) <= truth_s * (1 + 1e-12)
