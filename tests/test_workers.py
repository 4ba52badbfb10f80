"""Workers: whoever carries out the tasks of a sweep, and however often they die, its bytes are the same."""

import json
import os
import signal
import sys
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import active_children

import pytest

import sim
from profiles.errors import DiffusimWarning, InputError
from sim.explore import workers as working
from sim.explore.search import SERIAL_POINTS
from sim.explore.workers import on_cluster, parallel_calls

SMALL = {"gpus": 4, "batch_size": 16, "strategy": ["ddp", "gpipe", "1f1b", "interleaved", "zero2"]}
FAILED = r"^workers failed, .* \(.*\): "


def document(sweep):
    return json.dumps(sweep.rows(), allow_nan=False)


@pytest.fixture(scope="module")
def alone():
    """The bytes of a sweep that this process does by itself."""
    sweep = sim.sweep("sd21", workers=1, **SMALL)
    assert len(sweep.points) > SERIAL_POINTS  # so that others start processes
    return document(sweep)


def at(stage, count, act):
    """A report that does something once so many points of a stage are done."""

    def report(now, done, _total):
        if (now, done) == (stage, count):
            act()

    return report


def kill_a_worker():
    os.kill(active_children()[0].pid, signal.SIGKILL)


def test_own_processes_give_the_bytes_of_one(alone):
    assert document(sim.sweep("sd21", workers=2, **SMALL)) == alone
    assert active_children() == []


@pytest.mark.parametrize("make", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_somebodys_executor_gives_the_bytes_of_one(alone, make):
    with make(2) as executor:
        assert document(sim.sweep("sd21", executor=executor, **SMALL)) == alone


@pytest.mark.parametrize("done", [1, 3])
def test_where_a_worker_is_killed_this_process_goes_on_alone_and_nothing_is_lost(alone, done):
    with pytest.warns(DiffusimWarning, match=FAILED + "this process goes on without$"):
        sweep = sim.sweep("sd21", workers=2, report=at("simulating", done, kill_a_worker), **SMALL)
    assert document(sweep) == alone
    assert active_children() == []


def test_a_task_for_which_memory_runs_out_in_a_worker_is_done_again(alone, monkeypatch):
    monkeypatch.setattr(working, "_in_worker", _run_out)
    with pytest.warns(DiffusimWarning, match=FAILED):
        assert document(sim.sweep("sd21", workers=2, **SMALL)) == alone


def _run_out(_task):
    raise MemoryError


def test_a_fault_of_a_task_is_raised_as_it_is(monkeypatch):
    monkeypatch.setattr(working, "_in_worker", _divide)
    with pytest.raises(ZeroDivisionError):
        sim.sweep("sd21", workers=2, **SMALL)


def _divide(_task):
    return 1 // 0


class Failing(Executor):
    """Fails at every other task, or breaks at the third."""

    def __init__(self, error):
        self.error, self.count = error, 0

    def submit(self, work, /, *given, **named):
        self.count += 1
        future = Future()
        if self.count > 2 and isinstance(self.error, BrokenExecutor):
            raise self.error
        if self.count % 2:
            future.set_result(work(*given, **named))
        else:
            future.set_exception(self.error)
        return future


@pytest.mark.parametrize("error", [ValueError("lost"), BrokenExecutor("over")])
def test_what_an_executor_fails_at_is_done_without_it(alone, error):
    with pytest.warns(DiffusimWarning, match=FAILED + "this"):
        assert document(sim.sweep("sd21", executor=Failing(error), **SMALL)) == alone


def test_a_worker_of_another_version_is_refused(monkeypatch):
    codes = iter(["asking"])
    monkeypatch.setattr(working, "engine", lambda: next(codes, "working"))
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(InputError, match=r"^a worker runs diffusim working, but"),
    ):
        sim.sweep("sd21", executor=executor, **SMALL)


def test_an_interrupt_ends_all_processes_and_keeps_what_is_known():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sim.sweep("sd21", workers=2, report=at("simulating", 2, interrupt), **SMALL)
    assert active_children() == []


def _number(number):
    if number < 0:
        raise InputError(f"{number} is negative")
    return number, os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_parallel_calls_come_back_in_order_and_errors_are_raised_here(workers):
    values = parallel_calls(workers, *[(_number, (number,)) for number in range(5)])
    assert [number for number, _ in values] == list(range(5))
    assert all((pid == os.getpid()) == (workers == 1) for _, pid in values)
    with pytest.raises(InputError, match=r"^-1 is negative$"):
        parallel_calls(workers, (_number, (1,)), (_number, (-1,)))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of its own threads and sockets
def test_a_dask_cluster_gives_the_bytes_of_one_though_a_worker_is_killed(alone):
    distributed = pytest.importorskip("distributed")
    shape = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(**shape) as cluster, on_cluster(cluster.scheduler_address) as given:
        assert given["workers"] == 2

        def kill():
            os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)

        assert document(sim.sweep("sd21", report=at("simulating", 2, kill), **given, **SMALL)) == alone


@pytest.mark.filterwarnings("default")
def test_an_address_without_a_scheduler_and_a_missing_package_are_refused(monkeypatch):
    monkeypatch.setattr(working, "DASK_S", 1.0)
    with pytest.raises(InputError, match=r"^dask is 'nonsense', "), on_cluster("nonsense"):
        pass
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(InputError, match="that needs Dask: pip install"), on_cluster("tcp://host:1"):
        pass
