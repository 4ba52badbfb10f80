"""Answers: what is noted of a point by its bounds and its outcome."""

import pytest

import sim
from sim.explore.answers import Answer, Bounds, Task, bounds_of, take_bounds, take_outcome
from sim.explore.points import Asked, Point
from strategies.registry import make_strategy

GIB = 2.0**30


@pytest.fixture
def point():
    return Point(make_strategy("ddp", {}), "ddp")


@pytest.mark.parametrize(
    ("needs", "there", "status"),
    [(8 * GIB, 8 * GIB, "bounded"), (8 * GIB + 1, 8 * GIB, "infeasible"), (8 * GIB, None, "bounded")],
)
def test_a_point_is_given_up_where_its_device_lacks_a_byte_that_it_must_have(point, needs, there, status):
    take_bounds(point, Bounds(1.0, needs), there)
    assert point.status == status
    assert (point.bound_s, point.least_memory_bytes) == (1.0, needs)


def test_a_point_that_lacks_a_byte_has_no_bound_of_its_time():
    scenario = sim.run("sd21", "ddp", gpus=1, batch_size=1).source.scenario
    asked = Asked(make_strategy("ddp", {}), 1)
    bounds = bounds_of(asked, scenario)
    for spare, seconds in ((0.0, bounds.bound_s), (-1.0, 0.0)):
        gib = (bounds.least_memory_bytes + spare) / GIB
        short = sim.run("sd21", "ddp", gpus=1, batch_size=1, memory=f"{gib!r}GiB").source.scenario
        assert bounds_of(asked, short).bound_s == seconds


@pytest.mark.parametrize(
    ("memory", "bounded"),
    [
        ("80GiB", [None]),  # fits as it is
        ("23.5GiB", [None, "block", "selective"]),
        ("1GiB", [None, "block"]),  # lacks memory with what holds least
    ],
)
def test_a_point_that_lacks_memory_is_bounded_with_relief_right_away_and_with_more_where_that_fits(
    memory, bounded
):
    asked = {"gpus": 2, "batch_size": 64, "memory": memory}
    scenario = sim.sweep("sd21", strategy="ddp", workers=1, **asked).scenario
    task = Task((Asked(make_strategy("ddp", {}), 2),), relief=("block", "selective"))
    told = dict(task.told(task.answers(scenario)))
    assert [one.checkpointing for one in told] == bounded
    assert told == {one: bounds_of(one, scenario) for one in told}
    assert (
        list(task._replace(relief=()).told(task._replace(relief=()).answers(scenario)))
        == list(told.items())[:1]
    )


def test_an_outcome_that_was_cut_off_raises_the_bound_alone(point):
    take_bounds(point, Bounds(2.0, 0.0), None)
    take_outcome(point, 3.0)
    assert (point.status, point.bound_s) == ("bounded", 3.0)
    take_outcome(point, 2.5)
    assert point.bound_s == 3.0


def test_an_answer_holds_as_far_as_it_was_replayed():
    cut_off = Answer((1.0, 2.5), None)
    assert cut_off.holds_to_s == 2.5
    assert [cut_off.within(limit_s) for limit_s in (0.5, 1.0, 2.5)] == [1.0, 1.0, 2.5]
