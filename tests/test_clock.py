"""The clock of a replay: collectives that go on without a step of the environment between, in the order of events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.replay.clock import Clock
from sim.replay.engine import simulate
from strategies.plans.placement import Placement

POSITIONS = 4
COMPUTED_S = st.lists(st.sampled_from([0.0, 1e-3, 0.01, 0.0123, 0.4]), min_size=POSITIONS, max_size=POSITIONS)
SIZES = st.lists(st.sampled_from([1e-4, 0.01, 0.1, 0.37]), min_size=POSITIONS, max_size=POSITIONS)


def event_by_event(clock, due, moment):
    clock.schedule_at(due, moment)


def plan_of(make, computed_s, sizes, slowdown, each=POSITIONS):
    # The positions of a node share its two ports, and compute beside what they reduce with their replicas.
    links = make.link("nvswitch"), make.link("nic", bandwidth=1.0)
    cluster = make.cluster(*links, devices_per_node=each, slowdown=slowdown)
    rows = [
        [make.op(f"{p}B0", seconds, writes=f"g{p}"), make.op(f"{p}B1", 0.2), make.op(f"{p}B2", 0.1, f"r{p}")]
        for p, seconds in enumerate(computed_s)
    ]
    reductions = [((p,), size, p, f"g{p}", f"r{p}") for p, size in enumerate(sizes)]
    placement = Placement(cluster, 2 * POSITIONS, POSITIONS, POSITIONS)
    return make.plan(rows, placement=placement, collectives=reductions)


@given(COMPUTED_S, SIZES, st.sampled_from([1.0, 1.25]), st.sampled_from([2, 4]))
def test_collectives_that_share_ports_take_turns_as_event_by_event(make, computed_s, sizes, slowdown, each):
    plan = plan_of(make, computed_s, sizes, slowdown, each)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "then", event_by_event)
        events = simulate(plan)
    trace = simulate(plan)
    for name in ("starts", "ends", "collectives", "arrived", "end_s", "nearest_s"):
        assert getattr(trace, name) == getattr(events, name), name


def test_without_another_collective_whose_turn_it_is_the_clock_only_schedules(make):
    turns, then = [], Clock.then
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "then", lambda *given: turns.append(then(*given)) or turns[-1])
        simulate(plan_of(make, [0.0, 1.0, 2.0, 3.0], [0.01] * POSITIONS, 1.0))
        assert turns and not any(turns)
        simulate(plan_of(make, [0.0] * POSITIONS, [0.1] * POSITIONS, 1.0))
        assert any(turns)
