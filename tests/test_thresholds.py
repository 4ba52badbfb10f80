"""Thresholds: each point is ruled out from exactly the score on from which it cannot matter."""

from dataclasses import replace
from math import inf

import pytest

import sim
from sim.explore.points import Point
from sim.explore.thresholds import Threshold
from strategies.registry import make_strategy

GIB = 2.0**30


@pytest.fixture(scope="module")
def result():
    return sim.run("sd21", "ddp", gpus=1, batch_size=1)


@pytest.fixture
def simulated(result):
    """Return a point of a strategy that takes so many seconds and GiB."""

    def make(seconds, gib=1.0, name="ddp"):
        expected = replace(result.expected, duration_s=seconds, peak_memory_bytes=gib * GIB)
        return Point(make_strategy(name, {}), name, result=replace(result, expected=expected), num_gpus=1)

    return make


def unknown(name="zero2", gib=0.0):
    return Point(make_strategy(name, {}), name, least_memory_bytes=gib * GIB)


@pytest.mark.parametrize(("objective", "own"), [("throughput", 1.0), ("memory", GIB)])
def test_a_point_is_ruled_out_by_the_last_of_the_top_unless_it_may_be_the_best_of_its_own(
    simulated, objective, own
):
    known = Threshold(objective, 2)
    one, other, third = (simulated(seconds, seconds) for seconds in (1.0, 2.0, 3.0))
    known.add(third)
    assert known.limit(unknown()) == inf  # the top has room
    assert known.limit(unknown("ddp")) == inf
    known.add(one)
    assert known.limit(unknown()) == inf  # nothing is known of its own strategy
    known.best_of["zero2"] = 0.5 * own
    assert known.limit(unknown()) == 3.0 * own
    known.add(other)
    assert known.best_of["ddp"] == own
    assert known.limit(unknown()) == 2.0 * own
    assert known.limit(unknown("ddp")) == 2.0 * own
    known.best_of["zero2"] = 2.5 * own
    assert known.limit(unknown()) == 2.5 * own


def test_points_of_equal_results_take_one_place_of_the_top(simulated):
    known = Threshold("throughput", 2)
    known.best_of["zero2"] = 0.0
    for _ in range(3):
        known.add(simulated(1.0))
    assert known.limit(unknown()) == inf
    known.add(simulated(4.0))
    assert known.limit(unknown()) == 4.0


def test_a_point_is_beaten_by_the_fastest_that_takes_no_more_memory_than_it_must(simulated):
    known = Threshold("pareto", 1)
    known.best_of["zero2"] = 0.0
    for seconds, gib in ((3.0, 1.0), (2.0, 2.0), (2.5, 3.0), (1.0, 4.0)):
        known.add(simulated(seconds, gib))
    asked = {gib: known.limit(unknown(gib=gib)) for gib in (0.5, 1.0, 1.9, 2.0, 3.5, 4.0, 9.0)}
    assert asked == {0.5: inf, 1.0: 3.0, 1.9: 3.0, 2.0: 2.0, 3.5: 2.0, 4.0: 1.0, 9.0: 1.0}
    known.best_of["zero2"] = 2.75
    assert known.limit(unknown(gib=4.0)) == 2.75  # it may still be the best of its own
