"""ZB-H1: backwards in two parts, closed forms on replayed plans, and what remains for few micro-batches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes, resident_bytes
from strategies.orders.named import zero_bubble_order
from strategies.plans.actions import format_order
from strategies.registry import make as make_strategy

degrees = st.integers(1, 6)
counts = st.integers(1, 12)


def replay_equal(make, degree, micro_batches, times=(1.0, 1.0, 1.0), name="zero-bubble", **unet):
    """The strategy, its scenario and its trace: stages alike, each of a trained layer and a locked one.

    The trained layer's backward takes twice the weight part W, the locked one's the rest of the input part B.
    """
    forward_s, input_s, weight_s = times
    component = make.component(
        "unet", [forward_s / 2] * (2 * degree), [2 * weight_s, input_s - weight_s] * degree,
        locked=range(1, 2 * degree, 2), blocks=[i // 2 for i in range(2 * degree)], **unet,
    )  # fmt: skip
    scenario = make.scenario(make.model(component), make.cluster(), degree, micro_batches)
    strategy = make_strategy(name, {"pipeline_degree": degree, "micro_batches": micro_batches})
    return strategy, scenario, simulate(strategy.plan(scenario))


def test_weight_parts_wait_for_as_many_micro_batches_as_positions_are_before():
    assert format_order(zero_bubble_order(3, 4)) == (
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3\n"
        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3\n"
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3\n"
    )


@given(degrees, counts, st.sampled_from([(1, 1, 1), (2, 1, 1), (1, 2, 1), (4, 3, 2), (3, 2, 0)]))
@settings(max_examples=80)
def test_the_makespan_is_the_closed_form(make, degree, more, times):
    count = degree + more - 1
    forward_s, input_s, weight_s = map(float, times)
    strategy, scenario, trace = replay_equal(make, degree, count, (forward_s, input_s, weight_s))
    work_s = count * (forward_s + input_s + weight_s)
    assert trace.end_s == work_s + (degree - 1) * (forward_s + input_s - weight_s)
    assert strategy.order_bound(scenario) == trace.end_s


@given(degree=degrees, count=counts)
@settings(max_examples=40)
def test_every_position_holds_at_most_as_many_micro_batches_as_there_are_positions(make, degree, count):
    strategy, scenario, trace = replay_equal(make, degree, count, saved_bytes=0.5)
    held = peak_memory_bytes(trace) - resident_bytes(trace)
    assert list(held) == [min(count, degree)] * degree
    assert strategy.least_memory_bytes(scenario) == peak_memory_bytes(trace).max()


@pytest.mark.parametrize(
    ("micro_batches", "checkpointing"), [(1, "full"), (3, "block"), (9, "block"), (9, "none")]
)
def test_what_blocks_recompute_stays_until_weights_have_their_gradients_and_the_memory_bound_knows(
    make, micro_batches, checkpointing
):
    unet = make.component("unet", [1.0] * 8, saved_bytes=100.0, output_bytes=1.0)
    scenario = make.scenario(make.model(unet), make.cluster(), 4, micro_batches, checkpointing=checkpointing)
    strategy = make_strategy("zero-bubble", {"pipeline_degree": 4, "micro_batches": micro_batches})
    peak_bytes = peak_memory_bytes(simulate(strategy.plan(scenario))).max()
    assert 0.95 * peak_bytes < strategy.least_memory_bytes(scenario) <= peak_bytes * (1 + 1e-12)
