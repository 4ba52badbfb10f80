"""List scheduling and its bound against closed forms, caps against counting, replay against both."""

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notation import parse_order

from profiles.errors import DeadlockError, InfeasibleError
from strategies.orders.list_scheduling import PRIORITIES, list_schedule, lower_bound_s
from strategies.orders.problem import (
    Chain,
    Problem,
    evaluate,
    fits,
    heads,
    lanes_of,
    tails,
    there_and_back,
    wave_positions,
    wave_problem,
)

derandomised = settings(derandomize=True, max_examples=150)


def line(degree, micro_batches, forward_s=1.0, backward_s=2.0):
    """One stage per device, on free links."""
    stages, hops = range(degree), (0.0,) * (degree - 1)
    passes = there_and_back(stages, (forward_s,) * degree, (backward_s,) * degree, hops)
    return Problem((Chain(passes, range(micro_batches)),), tuple(stages))


@st.composite
def problems(draw, caps=True):
    """Small problems of any shape, some with lags and with limits of what is in flight."""
    degree = draw(st.integers(1, 4))
    positions = draw(
        st.sampled_from([wave_positions(degree), tuple(range(degree)), tuple(range(degree)) * 2])
        | st.lists(st.integers(0, degree - 1), max_size=4).map(lambda more: (*range(degree), *more))
    )
    count = len(positions)
    cut = draw(st.integers(1, count))
    times = st.lists(st.integers(1, 4).map(float), min_size=count, max_size=count)
    lags = st.lists(st.sampled_from([0.0, 0.5, 3.0]), min_size=count, max_size=count)
    spans = (range(cut), 0), (range(cut, count), 10)
    chains = [
        Chain(
            there_and_back(of, draw(times), draw(times), draw(lags)[1 : len(of)]),
            range(first, first + draw(st.integers(1, 6))),
        )
        for of, first in spans
        if of
    ]
    problem = Problem(tuple(chains), positions)
    if not caps:
        return problem
    limits = draw(st.none() | st.lists(st.integers(1, 3), min_size=count, max_size=count).map(tuple))
    return replace(problem, in_flight=limits)


def passes_of(problem):
    return {
        (problem.positions[of.stage], of.stage, of.kind, micro_batch)
        for chain in problem.chains
        for of, micro_batch in product(chain.passes, chain.micro_batches)
    }


@pytest.mark.parametrize(("degree", "times", "waves"), [(2, 2, 1), (3, 4, 2), (5, 3, 1), (8, 2, 2)])
def test_waves_of_several_times_as_many_micro_batches_meet_the_bound(degree, times, waves):
    problem = wave_problem(degree, times * degree, waves)
    assert list_schedule(problem).makespan_s == lower_bound_s(problem)


@derandomised
@given(problems())
def test_every_pass_runs_once_and_in_order_within_the_caps(problem):
    for priority in ("best", *PRIORITIES):
        ordering = list_schedule(problem, priority)
        ran = [(d, *action) for d, row in enumerate(ordering.rows) for action in row]
        assert len(ran) == len(passes_of(problem))
        assert set(ran) == passes_of(problem)
        for row in ordering.rows:
            for key in {(a.stage, a.kind) for a in row}:
                numbers = [a.micro_batch for a in row if (a.stage, a.kind) == key]
                assert numbers == sorted(numbers)
        assert fits(problem, ordering.rows)
        assert ordering.makespan_s >= lower_bound_s(problem) * (1 - 1e-9)


@derandomised
@given(problems())
def test_a_replay_of_the_listed_order_is_never_longer(problem):
    ordering = list_schedule(problem)
    replayed = evaluate(problem, ordering.rows)
    assert replayed.rows == ordering.rows
    assert replayed.makespan_s <= ordering.makespan_s + 1e-9


@derandomised
@given(problems(caps=False))
def test_a_replay_keeps_inputs_and_devices(problem):
    ordering = evaluate(problem, list_schedule(problem).rows)
    lanes = {(lane.stage, lane.kind): lane for lane in lanes_of(problem)}
    keys = list(lanes)
    starts = {}
    for row, starts_s in zip(ordering.rows, ordering.starts_s, strict=True):
        starts |= dict(zip(row, starts_s, strict=True))
        for (one, at), (_, after) in pairwise(zip(row, starts_s, strict=True)):
            assert after >= at + lanes[one.stage, one.kind].duration_s
    for action, at in starts.items():
        lane = lanes[action.stage, action.kind]
        if lane.following is not None:
            after = starts[type(action)(*keys[lane.following], action.micro_batch)]
            assert after >= at + lane.duration_s + lane.lag_s


@derandomised
@given(problems(caps=False))
def test_the_bound_is_the_largest_head_work_and_tail_over_all_thresholds(problem):
    lanes = lanes_of(problem)
    every = [
        (lane.device, head, lane.duration_s, tail)
        for lane, before, after in zip(lanes, heads(problem, lanes), tails(problem, lanes), strict=True)
        for head, tail in zip(before, after, strict=True)
    ]
    largest = 0.0
    for device in range(problem.num_devices):
        passes = [one[1:] for one in every if one[0] == device]
        for head, tail in product({one[0] for one in passes}, {one[2] for one in passes}):
            work = [duration for h, duration, q in passes if h >= head and q >= tail]
            if work:
                largest = max(largest, head + sum(work) + tail)
    assert lower_bound_s(problem) == pytest.approx(largest, rel=1e-12)


def test_a_stage_that_may_hold_nothing_is_refused():
    with pytest.raises(InfeasibleError, match="in_flight of stage 3 is 0, must be at least 1"):
        list_schedule(replace(wave_problem(2, 2), in_flight=(1, 1, 1, 0)))


def test_a_cyclic_order_is_a_deadlock_that_names_who_waits():
    rows = parse_order("0F0 0B0\n1B0 1F0\n")
    with pytest.raises(DeadlockError, match="device 0 waits in 0B0; device 1 waits in 1B0"):
        evaluate(line(2, 1), rows)
