"""Errands: what a verdict replays is the same whoever replays it."""

import os
from dataclasses import replace

import pytest

import sim
from profiles.errors import InputError
from sim.explore.working.errands import errands_done
from sim.explore.working.workers import SERIAL_POINTS


@pytest.fixture(scope="module")
def swept():
    sweep = sim.sweep("sd21", gpus=8, workers=2)
    assert len(sweep.points) > SERIAL_POINTS
    return sweep


def by_process(number):
    return number, os.getpid()


def refuse(number):
    raise InputError(f"{number} is refused")


def test_errands_come_back_in_their_order_from_processes_of_their_own(swept):
    told = errands_done(swept, *[(by_process, (number,)) for number in range(8)])
    assert [number for number, _ in told] == list(range(8))
    assert os.getpid() not in {process for _, process in told}


def test_a_sweep_of_one_worker_makes_its_errands_itself():
    alone = sim.sweep("sd21", gpus=8, strategy="gpipe", workers=1)
    assert errands_done(alone, (by_process, (1,)), (by_process, (2,))) == [(1, os.getpid()), (2, os.getpid())]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_done_meanwhile_is_done_here_and_once(swept, workers):
    done = []
    asked = replace(swept, workers=workers)
    told = errands_done(
        asked, (by_process, (1,)), (by_process, (2,)), meanwhile=lambda: done.append(os.getpid())
    )
    assert [number for number, _ in told] == [1, 2]
    assert done == [os.getpid()]


def test_what_an_errand_is_given_need_not_travel(swept):
    assert (
        errands_done(swept, *[(lambda of: len(of()), (lambda: swept.points,))] * 2) == [len(swept.points)] * 2
    )


def test_an_errand_that_is_refused_says_so_here(swept):
    with pytest.raises(InputError, match="3 is refused"):
        errands_done(swept, (by_process, (2,)), (refuse, (3,)))


@pytest.mark.parametrize(
    ("model", "given"),
    [("sd21", {"batch_size": 64}), ("flux-dev", {"task": "sample"}), ("sd21", {"objective": "memory"})],
)
def test_a_verdict_is_the_same_however_many_processes_replay_for_it(model, given):
    alone, shared = (sim.sweep(model, gpus=8, workers=count, **given) for count in (1, 2))
    assert (alone.workers, shared.workers) == (1, 2)
    assert shared.verdict.to_json() == alone.verdict.to_json()
    assert shared.verdict.lines == alone.verdict.lines
