"""Answers: what is noted of a point by its bounds and its outcome."""

import pytest

import sim
from sim.explore.answers import Bounds, bounds_of, take_bounds
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
