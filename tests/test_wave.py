"""Waves: their order, the closed forms that it meets on replayed plans, and what travels."""

import pytest

from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes, resident_bytes
from strategies.orders.list_scheduling import lower_bound_s
from strategies.orders.problem import wave_problem
from strategies.orders.wave import wave_order
from strategies.plans.actions import format_order
from strategies.registry import make as make_strategy


def symmetric(blocks):
    """Skips from each block of the first half to its mirror image."""
    return [(i, blocks - 1 - i) for i in range(blocks // 2)]


def wave(degree, micro_batches, waves=1, **parameters):
    return make_strategy(
        "wave", {"pipeline_degree": degree, "micro_batches": micro_batches, "waves": waves, **parameters}
    )


def replay_equal(make, strategy, backward_s=2.0, **unet):
    """The trace of a wave of one layer for each stage, on free links."""
    stages = 2 * strategy.waves * strategy.pipeline_degree
    component = make.component("unet", [1.0] * stages, [backward_s] * stages, **unet)
    scenario = make.scenario(
        make.model(component), make.cluster(), strategy.pipeline_degree, strategy.micro_batches
    )
    return simulate(strategy.plan(scenario))


# The order.


def test_a_wave_goes_down_and_up_again_and_turns_where_it_is():
    assert format_order(wave_order(2, 2, 1)) == (
        "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1\n1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1\n"
    )


def test_stages_lie_in_zigzags(make):
    plan = replay_equal(make, wave(3, 1, 2)).plan
    assert [stage.position for stage in plan.stages] == [0, 1, 2, 2, 1, 0] * 2


# Closed forms. Stages are half as long as those of one stage per position.


@pytest.mark.parametrize("degree", [1, 2, 3, 8])
def test_as_many_micro_batches_as_positions_take_the_closed_form(make, degree):
    trace = replay_equal(make, wave(degree, degree), saved_bytes=1.0)
    assert trace.end_s == 10 * degree - 4
    held = peak_memory_bytes(trace) - resident_bytes(trace)
    assert held[-1] == held.max() == 2 * degree


@pytest.mark.parametrize(("degree", "rounds", "waves"), [(2, 2, 1), (3, 8, 1), (8, 2, 1), (4, 3, 2)])
def test_from_two_rounds_on_no_order_takes_less(make, degree, rounds, waves):
    count = rounds * degree
    trace = replay_equal(make, wave(degree, count, waves))
    assert trace.end_s == lower_bound_s(wave_problem(degree, count, waves))
    assert trace.end_s == 6 * waves * count + 3 * (degree - 1)


# What travels: bytes of K equal blocks on D positions, an activation being 1.


def sent_bytes(make, strategy, blocks):
    component = make.component("unet", [1.0] * blocks, output_bytes=1.0, skips=symmetric(blocks))
    scenario = make.scenario(
        make.model(component), make.cluster(), strategy.pipeline_degree, strategy.micro_batches
    )
    return simulate(strategy.plan(scenario)).p2p_bytes


@pytest.mark.parametrize(("degree", "blocks_per_stage"), [(2, 1), (4, 3)])
def test_folded_skips_that_stay_local_cost_the_published_bytes(make, degree, blocks_per_stage):
    blocks, count = 2 * degree * blocks_per_stage, 3
    local = wave(degree, count, skip_route="local")
    assert sent_bytes(make, local, blocks) == 2 * count * 2 * (degree - 1)
    relayed = make_strategy("1f1b", {"pipeline_degree": degree, "micro_batches": count})
    assert sent_bytes(make, relayed, blocks) == 2 * count * ((blocks + 4) * degree / 4 - 1)


# What it refuses.
