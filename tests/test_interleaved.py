"""Interleaved 1F1B: its order, closed forms on replayed plans, and what it refuses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import refused

from profiles.errors import InfeasibleError
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes, resident_bytes
from sim.replay.metrics import idle_s
from strategies.orders.named import interleaved_order
from strategies.plans.actions import format_order
from strategies.registry import make as make_strategy

rounds = st.integers(1, 5)
degrees = st.integers(1, 6)
chunk_counts = st.integers(2, 5)


def replay_equal(make, degree, micro_batches, chunks, forward_s=1.0, backward_s=2.0, **unet):
    """The strategy, its scenario and its trace on equal layers, one for each stage, and free links."""
    stages = degree * chunks
    component = make.component("unet", [forward_s] * stages, [backward_s] * stages, **unet)
    scenario = make.scenario(make.model(component), make.cluster(), degree, micro_batches)
    strategy = make_strategy(
        "interleaved", {"pipeline_degree": degree, "micro_batches": micro_batches, "chunks": chunks}
    )
    return strategy, scenario, simulate(strategy.plan(scenario))


def test_two_positions_alternate_chunk_by_chunk():
    assert format_order(interleaved_order(2, 4, 2)) == (
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3\n"
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3\n"
    )


@given(degree=degrees, rounds=rounds, chunks=chunk_counts, cost=st.sampled_from([(1, 1), (1, 2), (3, 2)]))
@settings(max_examples=60)
def test_the_makespan_is_the_closed_form(make, degree, rounds, chunks, cost):
    forward_s, backward_s = map(float, cost)
    count = degree * rounds
    _, _, trace = replay_equal(make, degree, count, chunks, forward_s, backward_s)
    assert trace.end_s == (count * chunks + degree - 1) * (forward_s + backward_s)
    assert idle_s(trace) / trace.end_s == pytest.approx((degree - 1) / (count * chunks + degree - 1))


@given(degree=degrees, rounds=rounds, chunks=chunk_counts)
@settings(max_examples=40)
def test_activations_held_are_the_closed_form(make, degree, rounds, chunks):
    count = degree * rounds
    strategy, scenario, trace = replay_equal(make, degree, count, chunks, saved_bytes=1.0)
    held = peak_memory_bytes(trace) - resident_bytes(trace)
    assert list(held) == [
        min(count * chunks, 2 * (degree - 1 - position) + (chunks - 1) * degree + 1)
        for position in range(degree)
    ]
    assert strategy.least_memory_bytes(scenario) == peak_memory_bytes(trace).max()


def test_micro_batches_come_in_whole_rounds(make):
    strategy = make_strategy("interleaved", {"pipeline_degree": 4, "micro_batches": 6})
    scenario = make.scenario(make.model(make.component("unet", [1.0] * 8)), make.cluster(), 4, 12)
    for ask in (strategy.order, lambda: strategy.plan(scenario), lambda: strategy.bound(scenario)):
        with pytest.raises(InfeasibleError, match=r"micro_batches\(6\) / pipeline_degree\(4\) = 1.5 is not"):
            ask()


@pytest.mark.parametrize(("partition", "unit"), [("blocks", "4 blocks"), ("optimal", "6 layers")])
def test_more_stages_than_the_backbone_has_are_refused(make, partition, unit):
    model = make.model(make.component("unet", [1.0] * 6, blocks=[0, 0, 1, 1, 2, 3]))
    scenario = make.scenario(model, make.cluster(), 2, 4)
    strategy = make_strategy("interleaved", {"chunks": 4, "partition": partition})
    with refused(rf"4 stages per position \* pipeline_degree\(2\) = 8 exceeds the {unit}", InfeasibleError):
        strategy.bound(scenario)
