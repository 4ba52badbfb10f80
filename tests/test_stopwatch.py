"""The stopwatch: the clocks of one device, by hand and against a replay."""

from inspect import signature

import pytest

from strategies.bounds.stopwatch import Stopwatch
from strategies.patching.builder import SamplingBuilder
from strategies.plans.actions import PatchAction
from strategies.plans.network import Network
from strategies.plans.placement import Placement

WORK = PatchAction(0, 0, 0)


@pytest.fixture
def watch(make):
    """Device 0 of four; a collective of n bytes gathers in 3/4 n seconds, and needs 0.5 seconds before."""

    def start(slowdown=1.0):
        cluster = make.cluster(make.link(bandwidth=1.0), slowdown=slowdown, call_s=0.5)
        return Stopwatch(Network(Placement(cluster, 4, 4, 4)), 0)

    return start


def test_ops_follow_one_another_and_other_devices_do_not_count(watch):
    clock = watch()
    clock.compute(0, WORK, 2.0)
    clock.compute(1, WORK, 5.0)
    clock.compute(0, WORK, 1.0)
    assert (clock.ended_s, clock.free_s) == (3.0, 3.0)


def test_the_next_op_waits_for_a_blocking_collective_and_what_was_computed_does_not(watch):
    clock = watch()
    clock.compute(0, WORK, 2.0)
    clock.collective("all_gather", range(4), 4.0)
    assert (clock.ended_s, clock.free_s) == (2.0, 5.5)
    clock.compute(0, WORK, 1.0)
    assert clock.ended_s == 6.5


def test_a_collective_of_others_takes_no_time(watch):
    clock = watch()
    clock.collective("all_gather", [1, 2], 4.0)
    assert clock.free_s == 0.0


def test_collectives_follow_one_another(watch):
    clock = watch()
    clock.collective("all_gather", range(4), 4.0)
    clock.collective("all_gather", range(4), 4.0)
    assert clock.free_s == 7.0


@pytest.mark.parametrize(
    ("slowdown", "work_s", "free_s"),
    [
        (1.0, 1.0, 3.5),  # hidden by the collective
        (1.0, 5.0, 5.0),  # hides it
        (2.0, 1.0, 3.5),  # twice as long, and still hidden
        (2.0, 5.0, 5.0 + 3.5 / 2),  # of 3.5 s beside it half is lost
    ],
)
def test_compute_beside_a_collective_is_slowed_down(watch, slowdown, work_s, free_s):
    clock = watch(slowdown)
    passed_on = clock.collective("all_gather", range(4), 4.0, wait=False)
    clock.compute(0, WORK, work_s)
    clock.expect(0, passed_on)
    assert clock.free_s == free_s


def test_builder_and_stopwatch_are_told_the_same_and_nothing_that_no_sampler_tells():
    told = list(signature(SamplingBuilder.collective).parameters)
    assert told == list(signature(Stopwatch.collective).parameters)
    assert told == [
        "self", "operation", "devices", "size_bytes", "stage", "number", "calls", "held_bytes", "wait",
        "dispatched_as",
    ]  # fmt: skip
