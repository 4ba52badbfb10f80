"""The store: what was found is found again, to the byte, by the sweep it belongs to and by no other."""

import json
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import sim
from profiles.errors import DiffusimWarning, InputError
from sim.cli.main import main
from sim.explore import points as answering
from sim.explore.points import find_points
from sim.explore.search import run_sweep
from sim.explore.store import Store, StoreFile
from sim.outcomes.runs import run_point
from sim.report.views import Sweep

ROOT = Path(__file__).parents[1]
SMALL = {"gpus": 4, "batch_size": 16, "strategy": ["ddp", "gpipe", "1f1b"], "workers": 1}


def document(sweep):
    return json.dumps(sweep.rows(), allow_nan=False)


def execute(path, statement, *values):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


@pytest.fixture
def replays(monkeypatch):
    """The points that are replayed, in order."""
    seen = []

    def watched(strategy, scenario):
        seen.append(strategy)
        return run_point(strategy, scenario)

    monkeypatch.setitem(answering.ANSWERS, answering.REPLAY, watched)
    return seen


@pytest.fixture(scope="module")
def uninterrupted():
    return document(sim.sweep("sd21", **SMALL))


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The bytes of the store of a complete sweep."""
    path = tmp_path_factory.mktemp("complete") / "store"
    sim.sweep("sd21", store=path, **SMALL)
    return path.read_bytes()


def test_a_sweep_goes_on_where_it_was_stopped_and_gives_the_same_bytes(tmp_path, replays, uninterrupted):
    count = 17

    def report(stage, done, _total):
        if stage == "simulating" and done == count:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sim.sweep("sd21", store=tmp_path / "store", report=report, **SMALL)
    assert len(replays) == count
    assert document(sim.sweep("sd21", store=tmp_path / "store", **SMALL)) == uninterrupted
    assert len(replays) == len(set(replays)), "a point was replayed twice"
    replays.clear()
    assert document(sim.sweep("sd21", store=tmp_path / "store", **SMALL)) == uninterrupted
    assert replays == []


def test_a_point_is_in_the_store_before_anybody_is_told_that_it_is_done(tmp_path):
    def report(stage, done, _total):
        kind = {"bounding": "coarse", "simulating": "replay"}[stage]
        select = "SELECT count(*) FROM answers WHERE kind = ?"
        assert execute(tmp_path / "store", select, kind)[0][0] >= done

    sim.sweep("sd21", store=tmp_path / "store", report=report, **SMALL)


def test_inputs_and_numbers_of_gpus_are_told_apart(tmp_path, replays):
    asked = {"strategy": ["ulysses", "distrifusion"], "steps": 4, "workers": 1, "exhaustive": True}
    sim.sweep("pixart", "a100-nvlink-8", 8, store=tmp_path / "store", **asked)
    replays.clear()
    sim.sweep("pixart", "a100-nvlink-8", 4, store=tmp_path / "store", **asked)
    assert replays == [], "points on fewer GPUs are in the store"
    sim.sweep("pixart", "a100-nvlink-8", 4, store=tmp_path / "store", **asked | {"steps": 5})
    assert replays


def test_two_stores_merge_into_one_that_knows_what_both_do(tmp_path, replays, capsys):
    for name, strategy in (("a", ["ddp", "gpipe"]), ("b", ["gpipe", "1f1b"])):
        sim.sweep("sd21", store=tmp_path / name, **SMALL | {"strategy": strategy, "exhaustive": True})
    assert main(["merge", str(tmp_path / "both"), str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert " answers from " in capsys.readouterr().err
    replays.clear()
    sim.sweep("sd21", store=tmp_path / "both", **SMALL)
    assert replays == []
    assert main(["compare", str(tmp_path / "both"), str(tmp_path / "both")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "both"], "no log is left"


def test_stores_are_made_and_written_by_several_at_once(tmp_path, uninterrupted):
    def opened(number):
        with StoreFile(tmp_path / "store") as store:
            return store.questions()

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(opened, range(64))) == [[]] * 64
    documents = []

    def report(stage, done, _total):
        if (stage, done) == ("simulating", 3):
            documents.append(document(sim.sweep("sd21", store=tmp_path / "store", **SMALL)))

    documents.append(document(sim.sweep("sd21", store=tmp_path / "store", report=report, **SMALL)))
    assert documents == [uninterrupted] * 2


# Files


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("text", "cannot be used as a store: file is not a database"),
        ("other", "is a database, but no store of sweeps"),
        ("older", "is a store of version 2, must be 3"),
        ("folder", "must be a file in a folder that exists"),
    ],
)
def test_what_is_no_store_is_refused_in_one_line_that_names_it(tmp_path, name, problem):
    (tmp_path / "text").write_text("no database at all, and long enough to tell\n" * 100)
    execute(tmp_path / "other", "CREATE TABLE mine (x)")
    with StoreFile(tmp_path / "older") as older:
        older.connection.execute("PRAGMA user_version = 2")
    (tmp_path / "folder").mkdir()
    before = (tmp_path / name).read_bytes() if name != "folder" else b""
    with pytest.raises(InputError) as refused:
        sim.sweep("sd21", store=tmp_path / name, **SMALL)
    assert name == "folder" or (tmp_path / name).read_bytes() == before
    assert str(tmp_path / name) in str(refused.value)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_store_that_may_not_be_written_is_compared_and_merged(tmp_path, complete, monkeypatch):
    path = tmp_path / "kept" / "store"
    path.parent.mkdir()
    path.write_bytes(complete)
    monkeypatch.setattr(os, "access", lambda at, mode: "kept" not in str(at))
    assert main(["compare", str(path), str(path)]) == 0
    with StoreFile(path, reads=True) as store, pytest.raises(sqlite3.OperationalError, match="readonly"):
        store.connection.execute("DELETE FROM answers")
    with StoreFile(tmp_path / "both") as both:
        assert both.merge(path) > 0
    assert path.read_bytes() == complete


@pytest.mark.parametrize("forged", ["no JSON", "{}"])
def test_a_damaged_answer_is_refused_by_sweeps_and_comparisons(tmp_path, complete, capsys, forged):
    path = tmp_path / "store"
    path.write_bytes(complete)
    execute(path, "UPDATE answers SET answer = ? WHERE kind = 'bounds'", forged)
    with pytest.raises(InputError, match=f"^{path}: is damaged: .*$"):
        sim.sweep("sd21", store=path, **SMALL)
    assert main(["compare", str(path), str(path)]) == 2
    assert f"sim: error: {path}: is damaged: " in capsys.readouterr().err


def test_a_full_disk_under_the_store_costs_a_warning(tmp_path, uninterrupted):
    scenario = sim.sweep("sd21", **SMALL).scenario
    sweep, plain = (Sweep(scenario, points=(*find_points(scenario, SMALL["strategy"]),)) for _ in range(2))
    run_sweep(plain, workers=1)
    with (
        Store(tmp_path / "store", scenario) as store,
        pytest.warns(DiffusimWarning, match="database or disk is full: what is still found is not kept"),
    ):
        store.connection.execute("PRAGMA max_page_count = 8")
        run_sweep(sweep, workers=1, store=store)
    assert document(sweep) == document(plain)


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(2, marks=pytest.mark.long), 9])  # Ctrl-C, a kill
def test_a_killed_sweep_goes_on_to_the_same_bytes_and_leaves_no_process(tmp_path, number):
    """Struck once the store holds answers, whose rows no later run replays again."""
    asked = "sweep --model sd21 --gpus 4 --batch-size 16 --strategy ddp,gpipe,1f1b,zero2 --json"
    command = [sys.executable, "-m", "sim", *asked.split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    kept = {"cwd": tmp_path, "env": environment, **piped}
    expected = subprocess.run(command, check=True, **kept).stdout
    process = subprocess.Popen([*command, "--store", "store"], start_new_session=True, **kept)
    answered = []
    while process.poll() is None and len(answered) < 20:
        try:
            answered = execute(f"file:{tmp_path / 'store'}", "SELECT point, kind, answer FROM answers")
        except sqlite3.OperationalError:
            answered = []
    process.send_signal(number)
    process.communicate()
    while True:  # until the last worker has noticed
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
    again = subprocess.run([*command, "--store", "store"], check=True, **kept)
    assert again.stdout == expected
    assert set(answered) <= set(execute(tmp_path / "store", "SELECT point, kind, answer FROM answers"))
