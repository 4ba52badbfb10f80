"""The queue of a sweep: in which order points are bounded, and what a later round leaves out."""

import sim
from sim.explore.points import Point, groups
from sim.explore.queue import simulate_points
from sim.explore.working.desk import Desk
from strategies.registry import make_strategy


class Nobody:
    """Workers that must not be asked."""

    chunk = 1

    def submit(self, task):
        raise AssertionError(f"asked for {task}")


def test_a_second_round_asks_for_nothing_that_the_first_has_ruled_out():
    sweep = sim.sweep("sd21", gpus=8, workers=1, top=1, strategy=("1f1b", "gpipe", "wave"))
    ruled_out = [point for point in sweep.points if point.status == "bounded"]
    assert ruled_out
    for point in ruled_out:  # as points that were not there before
        point.rough = True
    simulate_points(sweep, sweep.points, Desk(Nobody(), None), lambda stage, done, total: None)
    assert [point for point in sweep.points if point.status == "bounded"] == ruled_out


def test_the_largest_groups_are_bounded_first_and_of_equal_ones_those_of_the_longest_orders():
    shapes = [(2, 4), (4, 8), (2, 8), (2, 4)]
    points = [
        Point(make_strategy("1f1b", {"pipeline_degree": degree, "micro_batches": count}), "1f1b")
        for degree, count in shapes
    ]
    assert groups(points) == [[points[0], points[3]], [points[1]], [points[2]]]
