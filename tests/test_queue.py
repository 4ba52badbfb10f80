"""The queue of a sweep: in which order points are bounded, and what a later round leaves out."""

from dataclasses import replace
from math import inf

import pytest

import sim
from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from sim.explore.points import MAX_MICRO_BATCHES, Asked, Point, find_points, groups
from sim.explore.queue import UNSURE, _Queue, bound_points, simulate_points
from sim.explore.sweep import Sweep
from sim.explore.working.desk import Desk
from sim.explore.working.workers import Workers
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload
from strategies.registry import make_strategy
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.training.diffusionpipe import FILLS


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


def test_rough_bounds_that_were_found_on_the_way_are_not_handed_out_as_full_ones():
    scenario = sim.sweep("sd21", gpus=2, batch_size=64, strategy="gpipe", memory="24GiB", workers=1).scenario
    asked = Asked(make_strategy("gpipe", {"pipeline_degree": 2, "micro_batches": 1}), 2)
    again = asked._replace(checkpointing="block")
    with Workers(scenario, 1) as workers:
        desk = Desk(workers, None)
        assert dict(desk.bounds([[asked]], rough=True, relief=("block",)))[asked].lacks(24 * 2**30)
        for rough in (False, True):
            assert dict(desk.bounds([[again]], rough=rough))[again].rough == rough


class Listening(Desk):
    """A desk that takes down what it is asked: the point as it is known then, and the limit in seconds."""

    def __init__(self, workers, points):
        super().__init__(workers, None)
        self.points, self.heard = {(of.strategy, of.num_gpus): of for of in points}, []

    def ask(self, requests):
        requests = list(requests)
        found = ((self.points[asked.strategy, asked.num_gpus], limit_s) for asked, limit_s in requests)
        self.heard += [(replace(point), limit_s) for point, limit_s in found]
        super().ask(requests)


def drawn():
    workload = SamplingWorkload(4, 512, 512, 4)
    return SamplingScenario(load_model("pixart"), load_cluster("a100-nvlink-8"), workload)


def trained():
    return Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(4, 64))


@pytest.mark.parametrize(
    ("scenario", "names", "objective"),
    [
        (trained, ("diffusionpipe", "1f1b"), "throughput"),
        *((drawn, None, objective) for objective in ("latency", "cost", "memory", "pareto")),
    ],
)
def test_only_what_may_matter_is_asked_for_up_to_the_score_of_another(scenario, names, objective):
    points = [replace(point, num_gpus=point.num_gpus or 4) for point in find_points(scenario(), names)]
    sweep = Sweep(scenario(), objective, points, top=1)
    with Workers(sweep.scenario, 1) as workers:
        desk = Listening(workers, points)
        for step in (bound_points, simulate_points):
            step(sweep, points, desk, lambda stage, done, total: None)
    by_memory = objective == "memory"
    seconds = [p.result.expected.duration_s * p.price(objective) for p in points if p.result is not None]
    assert 0 < len(desk.heard) < len(points)
    for point, limit_s in desk.heard:
        score = limit_s * point.price(objective)
        assert by_memory or (not point.rough and point.least_score(objective) < score)
        assert score == inf or (not by_memory and score in map(pytest.approx, seconds))
    assert not by_memory or not any(point.rough for point in points)


@pytest.fixture(scope="module")
def result():
    return sim.run("sd21", "ddp", gpus=1, batch_size=1)


def taking(result, seconds, **known):
    """A point of data parallelism that was simulated."""
    expected = replace(result.expected, duration_s=seconds)
    return Point(make_strategy("ddp", {}), "ddp", result=replace(result, expected=expected), **known)


def filling(*bounds_s, **known):
    """Points that fill the bubbles of one plan in their own ways, with their bounds."""
    return [
        Point(make_strategy("diffusionpipe", {"fill": fill}), "diffusionpipe", bound_s, **known)
        for fill, bound_s in zip(FILLS[1:], bounds_s, strict=False)
    ]


def queue(points, objective="throughput"):
    """A queue whose desk answers nothing."""
    return _Queue(Sweep(trained(), objective, points, top=1), points, Listening(Nobody(), points))


def test_of_a_strategy_of_which_nothing_is_known_only_few_places_are_under_way():
    points = [
        Point(make_strategy("1f1b", {"pipeline_degree": 2, "micro_batches": 2 * count}), "1f1b", 1.0)
        for count in range(1, 5)
    ]
    waiting = queue(points)
    waiting.desk.ask = list
    assert waiting.fill()
    assert len(waiting.under_way) == UNSURE


def test_of_points_that_share_a_replay_those_that_no_longer_matter_are_not_asked_about(result):
    for seconds, asked in ((2.5, 2), (1.5, 1)):
        waiting = queue(points := filling(1.0, 2.0))
        assert len({waiting._plan(point) for point in points}) == 1
        waiting.learn(taking(result, seconds))
        waiting.known[True].best_of["diffusionpipe"] = 0.0
        assert waiting._next() == points[:asked]


def test_what_is_recommended_rules_out_nothing_that_is_not(result):
    points = [*filling(2.0, seamless=False), *filling(2.0)]
    waiting = queue(points)
    waiting.learn(taking(result, 1.0))
    for known in waiting.known.values():
        known.best_of["diffusionpipe"] = 0.0
    assert [waiting._matters(point) for point in points] == [True, False]


def test_no_more_micro_batches_are_looked_at_than_the_most():
    counts = (MAX_MICRO_BATCHES, MAX_MICRO_BATCHES + 1)
    points = [Point(make_strategy("1f1b", {"micro_batches": count}), "1f1b") for count in counts]
    assert groups(points) == [points[:1]]
    assert points[1].kind == "too many micro-batches"


def test_the_largest_groups_are_bounded_first_and_of_equal_ones_those_of_the_longest_orders():
    shapes = [(2, 4), (4, 8), (2, 8), (2, 4)]
    points = [
        Point(make_strategy("1f1b", {"pipeline_degree": degree, "micro_batches": count}), "1f1b")
        for degree, count in shapes
    ]
    assert groups(points) == [[points[0], points[3]], [points[1]], [points[2]]]
