"""Workers: whoever carries out the tasks of a sweep, and however often they die, its bytes are the same."""

import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from math import inf
from multiprocessing import active_children
from pathlib import Path

import pytest

import sim
from profiles.errors import DiffusimWarning, InputError
from sim.explore.answers import Task
from sim.explore.points import Asked
from sim.explore.working import workers as working
from sim.explore.working.dask_cluster import on_cluster
from sim.explore.working.workers import PackedScenario, Workers

ROOT = Path(__file__).parents[1]
SMALL = {"gpus": 4, "batch_size": 16, "strategy": ["ddp", "gpipe", "1f1b", "interleaved", "zero2"]}
DIED = r"^a worker process died \(killed, or out of memory\): "


def document(sweep):
    return json.dumps(sweep.rows(), allow_nan=False)


@pytest.fixture(scope="module")
def alone():
    """The bytes of a sweep that this process does by itself."""
    sweep = sim.sweep("sd21", workers=1, **SMALL)
    assert len(sweep.points) > working.SERIAL_POINTS  # so that others start processes
    assert {point.status for point in sweep.points} == {"simulated", "bounded"}
    return document(sweep)


def at(stage, count, act):
    """A report that does something once so many points of a stage are done."""

    def report(now, done, _total):
        if (now, done) == (stage, count):
            act()

    return report


# The same bytes


@pytest.mark.parametrize("workers", [2, 3, 40])
def test_own_processes_give_the_bytes_of_one(alone, workers):
    assert document(sim.sweep("sd21", workers=workers, **SMALL)) == alone


@pytest.mark.parametrize("workers", [None, 1, 2, 32])
def test_threads_give_the_bytes_of_one(alone, workers):
    with ThreadPoolExecutor(3) as executor:
        assert document(sim.sweep("sd21", executor=executor, workers=workers, **SMALL)) == alone
        assert executor.submit(int, "3").result() == 3  # it is left running


def test_somebodys_processes_give_the_bytes_of_one(alone):
    with ProcessPoolExecutor(2) as executor:
        assert document(sim.sweep("sd21", executor=executor, workers=2, **SMALL)) == alone


def test_sampling_gives_the_same_bytes_in_threads():
    asked = {"cluster": "a100-nvlink-8", "gpus": 4, "steps": 4, "objective": "pareto", "top": 3}
    with ThreadPoolExecutor(2) as executor:
        documents = {
            document(sim.sweep("pixart", **asked, **how)) for how in ({"workers": 1}, {"executor": executor})
        }
    assert len(documents) == 1


def test_an_exhaustive_sweep_gives_the_same_bytes_everywhere():
    with ThreadPoolExecutor(2) as executor:
        ways = {"workers": 1}, {"workers": 2}, {"executor": executor, "workers": 2}
        assert len({document(sim.sweep("sd21", exhaustive=True, **SMALL, **how)) for how in ways}) == 1


class Backwards(Executor):
    """Carries out what waits longest last, a few at a time, and in this thread."""

    def __init__(self):
        self.waiting = []

    def submit(self, work, /, *given):
        self.waiting.append((future := Future(), work, given))
        if len(self.waiting) > 3:
            while self.waiting:
                self.finish()
        return future

    def finish(self):
        future, work, given = self.waiting.pop()
        future.set_result(work(*given))


def test_the_order_in_which_tasks_are_done_changes_no_byte(alone, monkeypatch):
    executor = Backwards()

    def wait(futures, **given):
        while executor.waiting:
            executor.finish()
        return real(futures, **given)

    real = working.wait
    monkeypatch.setattr(working, "wait", wait)
    assert document(sim.sweep("sd21", executor=executor, workers=8, **SMALL)) == alone


class Shuffled(Executor):
    """Carries out one of what waits, by chance, whenever somebody waits."""

    def __init__(self, seed):
        self.waiting, self.chance = [], random.Random(seed)

    def submit(self, work, /, *given):
        self.waiting.append((future := Future(), work, given))
        return future

    def finish_one(self):
        future, work, given = self.waiting.pop(self.chance.randrange(len(self.waiting)))
        future.set_result(work(*given))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("workers", [1, 6])
def test_whoever_is_quick_decides_about_no_point(monkeypatch, seed, workers):
    """Of a sweep in which each outcome may rule others out."""
    asked = {**SMALL, "gpus": 8, "batch_size": 64, "top": 2}
    executor, alone = Shuffled(seed), document(sim.sweep("sd21", workers=1, **asked))

    def wait(futures, **given):
        if executor.waiting:
            executor.finish_one()
        return real(futures, **given)

    real = working.wait
    monkeypatch.setattr(working, "wait", wait)
    assert document(sim.sweep("sd21", executor=executor, workers=workers, **asked)) == alone


@pytest.fixture
def sent(monkeypatch):
    """Tasks, as they are sent to executors."""
    found = []

    def watched(question, task):
        found.append(task)
        return carry_out(question, task)

    carry_out = working._carry_out_elsewhere
    monkeypatch.setattr(working, "_carry_out_elsewhere", watched)
    return found


def test_an_executor_is_sent_chunks_with_the_best_known_threshold(sent):
    with ThreadPoolExecutor(1) as executor:
        sweep = sim.sweep("sd21", executor=executor, workers=1, top=4, **SMALL)
    replays = [task for task in sent if task.limits_s is not None]
    assert max(len(task.points) for task in replays) == working.CHUNK
    limits_s = [limit_s for task in replays for limit_s in task.limits_s]
    assert limits_s[0] == inf
    slowest_s = max(point.result.iteration_s for point in sweep.points if point.result is not None)
    assert 0 < min(limits_s) <= slowest_s


def test_whoever_bounds_what_lacks_memory_bounds_it_with_relief_and_nobody_is_asked_again(sent):
    asked = {"gpus": 2, "batch_size": 64, "strategy": ("ddp", "gpipe"), "memory": "24GiB", "workers": 1}
    with ThreadPoolExecutor(1) as executor:
        sweep = sim.sweep("sd21", executor=executor, **asked)
    assert document(sweep) == document(sim.sweep("sd21", **asked))
    bounded = [task for task in sent if task.limits_s is None]
    assert {task.relief for task in bounded if task.rough} == {("block", "selective")}
    assert {one.checkpointing for task in bounded if task.rough for one in task.points} == {None}
    assert {point.checkpointing for point in sweep.points if point.result is not None} >= {"selective"}


# Workers that die


def kill_a_worker():
    os.kill(active_children()[0].pid, signal.SIGKILL)


@pytest.mark.parametrize("stage", ["bounding", "simulating"])
def test_a_killed_worker_is_replaced_and_nothing_is_lost(alone, stage):
    with pytest.warns(DiffusimWarning, match=DIED + "new ones go on$") as warned:
        sweep = sim.sweep("sd21", workers=2, report=at(stage, 3, kill_a_worker), **SMALL)
    assert len(warned) == 1
    assert document(sweep) == alone


def test_where_workers_die_again_and_again_this_process_goes_on_alone(alone, monkeypatch):
    monkeypatch.setattr(working, "_carry_out", _die)
    with pytest.warns(DiffusimWarning, match=DIED) as warned:
        sweep = sim.sweep("sd21", workers=2, **SMALL)
    endings = [str(each.message).rpartition(": ")[2] for each in warned]
    assert endings == ["new ones go on", "a new one goes on", "this process goes on without"]
    assert document(sweep) == alone


def _die(_task):
    os._exit(9)


def test_where_one_worker_dies_the_other_ends_though_it_does_not_listen(alone, monkeypatch, tmp_path):
    """As one that has just started: it handles a request to terminate as its parent does, who lets it wait."""
    monkeypatch.setattr(working, "_carry_out", partial(_one_dies_and_one_is_deaf, tmp_path))
    with pytest.warns(DiffusimWarning, match=DIED + "new ones go on$"):
        assert document(sim.sweep("sd21", workers=2, **SMALL)) == alone
    assert all_gone()


CARRY_OUT = working._carry_out


def _one_dies_and_one_is_deaf(folder, task):
    number = len(list(folder.iterdir()))
    with suppress(FileExistsError):
        (folder / str(number)).touch(exist_ok=False)
        if number == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        if number == 1:
            os._exit(9)
    return CARRY_OUT(task)


def test_a_worker_that_dies_half_through_an_answer_is_not_waited_for(alone, monkeypatch, tmp_path):
    """Neither by the sweep, nor by the thread of the executor, for which Python waits at its exit."""
    monkeypatch.setattr(working, "_carry_out", partial(_half_an_answer, tmp_path))
    monkeypatch.setattr(working, "LOOK_S", 0.5)
    before = set(threading.enumerate())
    with pytest.warns(DiffusimWarning, match=DIED + "new ones go on$"):
        assert document(sim.sweep("sd21", workers=2, **SMALL)) == alone
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=20)
    assert set(threading.enumerate()) <= before
    assert all_gone()


def _half_an_answer(folder, task):
    with suppress(FileExistsError):
        (folder / "half").touch(exist_ok=False)
        frame = sys._getframe()
        while "result_queue" not in frame.f_locals:
            frame = frame.f_back
        queue = frame.f_locals["result_queue"]
        with queue._wlock:
            os.write(queue._writer.fileno(), struct.pack("!i", 1000) + b"half")
            os.kill(os.getpid(), signal.SIGKILL)
    return CARRY_OUT(task)


@pytest.mark.parametrize(
    "error", [BlockingIOError(11, "Resource temporarily unavailable"), RuntimeError("can't start new thread")]
)
def test_where_no_process_starts_this_one_goes_on_alone(alone, monkeypatch, error):
    def no_process():
        raise error

    monkeypatch.setattr(os, "fork", no_process)
    monkeypatch.setattr(working, "get_start_method", lambda: "fork")
    words = rf"^no worker process starts \({type(error).__name__}: .*\): "
    with pytest.warns(DiffusimWarning, match=words) as warned:
        assert document(sim.sweep("sd21", workers=2, **SMALL)) == alone
    assert str(warned[-1].message).endswith(": this process goes on without")


class Flaky(ThreadPoolExecutor):
    """Fails at some tasks as executors do whose machines fail."""

    error = ConnectionError("the machine went away")
    every = 3
    count = 0

    def submit(self, work, /, *given):
        self.count += 1
        if self.count % self.every:
            return super().submit(work, *given)
        (future := Future()).set_exception(self.error)
        return future


def test_what_an_executor_fails_at_is_done_without_it(alone):
    with (
        Flaky(2) as executor,
        pytest.warns(
            DiffusimWarning, match=r"^the executor failed \(ConnectionError: the machine went away\): "
        ),
    ):
        assert document(sim.sweep("sd21", executor=executor, **SMALL)) == alone


def test_a_broken_executor_is_asked_no_more(alone):
    with Flaky(2) as executor, pytest.warns(DiffusimWarning, match=r"^the executor failed") as warned:
        executor.error = BrokenExecutor("all of them")
        assert document(sim.sweep("sd21", executor=executor, **SMALL)) == alone
        assert (len(warned), executor.count > 3) == (1, True)


def test_an_executor_that_is_shut_down_is_done_without(alone):
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.warns(DiffusimWarning, match="the executor failed"):
        assert document(sim.sweep("sd21", executor=executor, **SMALL)) == alone


class Silent(ThreadPoolExecutor):
    """Answers nothing until it has been waited for."""

    def __init__(self):
        super().__init__(1)
        self.patience = threading.Event()
        super().submit(self.patience.wait)


def test_an_executor_that_is_silent_is_told_of_and_waited_for(alone, monkeypatch):
    monkeypatch.setattr(working, "LOOK_S", 0.25)
    said = []
    with Silent() as executor:
        monkeypatch.setattr(working, "_say", lambda words: (said.append(words), executor.patience.set()))
        assert document(sim.sweep("sd21", executor=executor, **SMALL)) == alone
    assert said == ["the executor has not answered for 3 s: still waiting for it"]


def test_a_fault_of_our_own_is_no_fault_of_the_workers(monkeypatch):
    monkeypatch.setattr(Task, "answers", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sim.sweep("sd21", workers=2, **SMALL)
    assert all_gone()
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.warns(DiffusimWarning, match="the executor failed"),
        pytest.raises(ZeroDivisionError),
    ):
        sim.sweep("sd21", executor=executor, **SMALL)


def all_gone():
    deadline = time.monotonic() + 20
    while active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not active_children()


def test_a_worker_of_another_version_is_refused(monkeypatch):
    other = PackedScenario(
        "other", PackedScenario.of(sim.sweep("sd21", gpus=2, strategy="ddp", workers=1).scenario).packed
    )
    monkeypatch.setattr(PackedScenario, "of", lambda _: other)
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(
            InputError, match=r"a worker runs diffusim [0-9a-f]+, but other asks: install the same version"
        ),
    ):
        sim.sweep("sd21", executor=executor, **SMALL)


# How much they are asked


def test_workers_are_asked_ahead_of_need_until_one_task_waits():
    scenario = sim.sweep("sd21", gpus=2, batch_size=4, strategy="ddp", workers=1).scenario
    for size, window in ((1, 0), (2, 3), (40, 41)):
        with Workers(scenario, size) as workers:
            assert workers.window == window
    with ThreadPoolExecutor(1) as executor, Workers(scenario, 1, executor) as workers:
        assert workers.window == 2, "whose way there takes longer"


def test_tasks_are_done_here_where_nobody_else_is_there():
    sweep = sim.sweep("sd21", gpus=2, batch_size=4, strategy=["ddp"], workers=1)
    asked = tuple(Asked(point.strategy, point.num_gpus) for point in sweep.points)
    with Workers(sweep.scenario, 1) as workers:
        workers.submit(Task(asked))
        assert workers.open_tasks == 1 < len(asked)  # which keeps one worker busy
        ((task, answers),) = workers.finished()
        assert (task.points, len(answers), workers.open_tasks) == (asked, len(asked), 0)


# Starting and ending


SCRIPT = f"""
import sim
sim.sweep("sd21", workers=2, **{SMALL}, report=lambda *told: print(*told, flush=True))
"""


def test_no_worker_outlives_a_process_that_was_killed(tmp_path):
    """Also where several were started one after the other, each with what tells the others of the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout.readline().startswith("bounding")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        pytest.fail("a worker is left")
    process.stdout.close()


# Dask


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of its own threads and sockets
class TestOfDask:
    """A real cluster of processes."""

    def test_it_gives_the_bytes_of_one(self, cluster, alone):
        with on_cluster(cluster.scheduler_address) as given:
            assert given["workers"] == 2
            assert document(sim.sweep("sd21", **given, **SMALL)) == alone

    def test_a_worker_killed_in_mid_sweep_costs_nothing(self, cluster, alone):
        killed = []

        def kill():
            victim = next(iter(cluster.workers.values()))
            killed.append(victim.pid)
            os.kill(victim.pid, signal.SIGKILL)

        with on_cluster(cluster.scheduler_address) as given:
            sweep = sim.sweep("sd21", report=at("simulating", 2, kill), **given, **SMALL)
        assert killed
        assert document(sweep) == alone

    def test_a_sweep_stopped_on_it_goes_on_without_it(self, cluster, alone, tmp_path):
        def stop():
            raise KeyboardInterrupt

        with on_cluster(cluster.scheduler_address) as given, pytest.raises(KeyboardInterrupt):
            sim.sweep("sd21", store=tmp_path / "s", report=at("simulating", 9, stop), **given, **SMALL)
        assert document(sim.sweep("sd21", store=tmp_path / "s", workers=1, **SMALL)) == alone

    def test_where_all_workers_are_gone_the_sweep_goes_on_alone(self, alone, monkeypatch):
        distributed = pytest.importorskip("distributed")
        monkeypatch.setattr("sim.explore.working.dask_cluster.ABSENCE_S", 1.0)
        monkeypatch.setattr("sim.explore.working.dask_cluster.LOOK_S", 0.25)
        kept = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
        with (
            distributed.LocalCluster(**kept) as cluster,
            on_cluster(cluster.scheduler_address) as given,
            pytest.warns(DiffusimWarning, match=r"^the executor failed \(.*no worker was there for 1 s\): "),
        ):
            leave = partial(cluster.scale, 0)
            assert document(sim.sweep("sd21", report=at("simulating", 2, leave), **given, **SMALL)) == alone

    def test_the_command_line_takes_its_address(self, cluster, tmp_path):
        asked = ["sweep", "--model", "sd21", "--gpus", "4", "--batch-size", "16", "--strategy", "ddp,gpipe"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        told = [
            subprocess.run(
                [sys.executable, "-m", "sim", *asked, "--json", *more],
                capture_output=True, text=True, check=True, cwd=tmp_path, env=environment,
            )
            for more in ((), ("--dask", cluster.scheduler_address))
        ]  # fmt: skip
        assert told[0].stdout == told[1].stdout
        assert [each.stderr for each in told] == ["", ""]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense", "tcp://nowhere.invalid:8786"])
def test_an_address_where_no_scheduler_answers_is_refused(address, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("sim.explore.working.dask_cluster.PATIENCE_S", 1.0)
    with (
        pytest.raises(InputError, match=f"^--dask is '{address}', where no scheduler answers"),
        on_cluster(address),
    ):
        pass


def test_without_dask_the_flag_says_what_to_install(monkeypatch):
    monkeypatch.setattr("sim.explore.working.dask_cluster.find_spec", lambda _: None)
    with (
        pytest.raises(InputError, match=r"needs Dask: pip install 'diffusim\[dask\]'"),
        on_cluster("tcp://x:1"),
    ):
        pass
