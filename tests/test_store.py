"""Stores: what was found is found again, to the byte, by the sweep it belongs to and by no other."""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

import sim
from profiles.architectures.models import MODELS
from profiles.errors import InfeasibleError, InputError
from sim.cli.main import main
from sim.explore import answers as answering
from sim.explore.answers import Answer, Bounds, answer_of
from sim.explore.keeping.records import read_records
from sim.explore.keeping.store import Store, StoreFile
from sim.explore.points import Asked, find_points
from sim.explore.sweep import Sweep, run_sweep
from sim.outcomes.contents import ENGINE, content_of, inputs_of
from sim.outcomes.runs import run_within

SMALL = {"gpus": 4, "batch_size": 16, "strategy": ["ddp", "gpipe", "1f1b"]}


def document(sweep):
    return json.dumps(sweep.rows(), allow_nan=False)


def stopped_after(count):
    """A report that interrupts a sweep once so many points are simulated."""

    def report(stage, done, _total):
        if stage == "simulating" and done == count:
            raise KeyboardInterrupt

    return report


@pytest.fixture
def replays(monkeypatch):
    """The points that are replayed, in order."""
    seen = []

    def watched(strategy, scenario, limit_s, known_s):
        seen.append(strategy)
        return run_within(strategy, scenario, limit_s, known_s)

    monkeypatch.setattr(answering, "run_within", watched)
    return seen


@pytest.fixture(scope="module")
def uninterrupted():
    return document(sim.sweep("sd21", workers=1, **SMALL))


# Resuming


@pytest.mark.parametrize("count", [1, 5, 17])
def test_a_sweep_goes_on_where_it_was_stopped_and_gives_the_same_bytes(
    tmp_path, replays, uninterrupted, count
):
    path = tmp_path / "sd21.sqlite"
    with pytest.raises(KeyboardInterrupt):
        sim.sweep("sd21", store=path, workers=1, report=stopped_after(count), **SMALL)
    before = list(replays)
    assert len(before) == count
    assert document(sim.sweep("sd21", store=path, workers=1, **SMALL)) == uninterrupted
    assert len(replays) == len(set(replays)), "a point was replayed twice"


def test_a_point_is_in_the_store_before_anybody_is_told_that_it_is_done(tmp_path):
    path = tmp_path / "sd21.sqlite"

    def report(stage, done, _total):
        kind = {"bounding": "bounds", "simulating": "replay"}[stage]
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            (kept,) = other.execute("SELECT count(*) FROM answers WHERE kind = ?", (kind,)).fetchone()
        assert kept >= done

    sim.sweep("sd21", store=path, workers=1, report=report, **SMALL)


def test_a_complete_store_answers_all_without_a_replay(tmp_path, replays, uninterrupted):
    path = tmp_path / "sd21.sqlite"
    sim.sweep("sd21", store=path, workers=1, **SMALL)
    replays.clear()
    assert document(sim.sweep("sd21", store=path, workers=1, **SMALL)) == uninterrupted
    assert replays == []


@pytest.mark.parametrize("objective", ["memory", "pareto", "throughput"])
def test_what_other_questions_left_in_a_store_changes_no_byte(tmp_path, objective):
    """Limits differ with the objective and the top; whatever was cut off at one limit serves only where it holds."""
    path = tmp_path / "sd21.sqlite"
    for first, top in (("throughput", 1), ("memory", 3), ("throughput", 20)):
        sim.sweep("sd21", store=path, objective=first, top=top, workers=1, **SMALL)
    sim.sweep("sd21", store=path, exhaustive=True, workers=1, **SMALL)
    asked = {**SMALL, "objective": objective, "top": 2, "workers": 1}
    assert document(sim.sweep("sd21", store=path, **asked)) == document(sim.sweep("sd21", **asked))


def test_a_sampling_sweep_on_fewer_gpus_finds_its_points_in_the_store_of_more(tmp_path, replays):
    asked = {"strategy": ["ulysses", "distrifusion"], "steps": 4, "workers": 1, "exhaustive": True}
    path = tmp_path / "pixart.sqlite"
    sim.sweep("pixart", "a100-nvlink-8", 8, store=path, **asked)
    replays.clear()
    few = sim.sweep("pixart", "a100-nvlink-8", 4, store=path, **asked)
    assert replays == []
    assert document(few) == document(sim.sweep("pixart", "a100-nvlink-8", 4, **asked))


def test_two_extra_forwards_cut_off_at_any_limit_are_answered_as_a_replay_would():
    """A point of two iterations is known in steps; the answer of a whole replay tells each of them."""
    sweep = sim.sweep("sd21", gpus=2, batch_size=4, strategy="1f1b", self_conditioning=0.5, workers=1)
    asked = Asked(sweep.points[0].strategy, 2)
    whole = answer_of(asked, sweep.scenario, inf)
    assert len(whole.known_s) == 3
    for limit_s in (0.0, *whole.known_s, *(1.0001 * seconds for seconds in whole.known_s), inf):
        expected = run_within(asked.strategy, sweep.scenario, limit_s)
        assert whole.within(limit_s) == expected
        cut = answer_of(asked, sweep.scenario, limit_s)
        assert cut.within(min(limit_s, cut.holds_to_s)) == expected


# What belongs to what


def model_folder(tmp_path):
    return shutil.copytree(MODELS / "sd21", tmp_path / "mine")


def with_more_work(folder):
    """Let every layer of a model take longer."""
    for file in folder.rglob("*.csv"):
        if file.name == "kernels.csv":
            file.unlink()
    layers = folder / "layers.csv"
    head, *lines = layers.read_text().splitlines()
    column = head.split(",").index("saved_MB")
    cells = [line.split(",") for line in lines]
    for row in cells:
        row[column] = str(2 * float(row[column]))
    layers.write_text("\n".join([head, *map(",".join, cells)]) + "\n")


def test_inputs_that_change_while_a_sweep_runs_do_not_mix(tmp_path):
    folder, path = model_folder(tmp_path), tmp_path / "mine.sqlite"
    before = document(sim.sweep(str(folder), workers=1, **SMALL))
    changed = []

    def report(stage, done, _total):
        if not changed:
            changed.append(with_more_work(folder))

    during = sim.sweep(str(folder), store=path, workers=1, report=report, **SMALL)
    assert document(during) == before
    after = sim.sweep(str(folder), store=path, workers=1, **SMALL)
    assert document(after) == document(sim.sweep(str(folder), workers=1, **SMALL)) != before
    hashes = [{row["inputs"]["model"] for row in sweep.rows()} for sweep in (during, after)]
    assert [len(each) for each in hashes] == [1, 1]
    assert hashes[0] != hashes[1]


def test_a_model_is_found_again_wherever_its_folder_is(tmp_path, replays):
    path = tmp_path / "store"
    sim.sweep(str(model_folder(tmp_path)), store=path, workers=1, **SMALL)
    replays.clear()
    moved = str(shutil.move(tmp_path / "mine", tmp_path / "yours"))
    found = sim.sweep(moved, store=path, workers=1, **SMALL)
    assert replays == []
    assert {row["model"] for row in found.rows()} == {moved}


def test_the_hash_of_the_code_covers_every_module_that_an_answer_is_made_of():
    code = "import sys, sim.asking.arguments, sim.explore.keeping.store; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(sim.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = {name for name in done.stdout.split() if name.startswith("sim.")}
    assert {"sim.asking.scenarios", "sim.explore.answers", "sim.outcomes.parts", "sim.replay.engine"} <= ours
    rooms = {name.rpartition(".")[0] for name in ours - set(ENGINE)}
    assert rooms <= set(ENGINE)


def test_equal_values_have_equal_contents_and_others_do_not(make):
    one, two = (make.model(make.component("unet", [1.0, 2.0])) for _ in range(2))
    assert one is not two
    _ = one.order  # what is derived and kept is no content
    assert content_of(one) == content_of(two)
    assert content_of(one) != content_of(replace(one, title="Another"))
    assert content_of((1, 2)) != content_of(((1,), 2))
    assert content_of(({"a": 1, "b": [{"c": 2, "d": 3}]},)) == content_of(
        ({"b": [{"d": 3, "c": 2}], "a": 1},)
    )


def test_every_result_says_of_which_inputs_it_is(tmp_path):
    own = sim.run("sd21", "gpipe", gpus=2, batch_size=4).to_json()["inputs"]
    assert list(own) == ["model", "cluster", "device", "stack"]
    sweep = sim.sweep("sd21", gpus=2, batch_size=4, strategy=["gpipe", "spp"], workers=1)
    assert all(row["inputs"] == own for row in sweep.rows())
    other = sim.run("sd21", "gpipe", gpus=2, batch_size=4, stack="compiled").to_json()["inputs"]
    assert {name for name in own if own[name] != other[name]} == {"stack"}
    faster = sim.load_cluster("p4de").scaled(intra_node=2.0)
    other = sim.run("sd21", "gpipe", cluster=faster, gpus=2, batch_size=4).to_json()["inputs"]
    assert {name for name in own if own[name] != other[name]} == {"cluster"}


def test_a_measured_run_is_among_the_inputs():
    measured = sim.calibrate("sd21", "ddp", gpus=2, batch_size=4, measured={"step_s": 0.25})
    result = sim.run("sd21", "ddp", gpus=2, batch_size=4, measured_run=measured)
    assert "measured_run" in inputs_of(result.source.scenario)


# Files


def kept(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return set(connection.execute("SELECT question, point, kind, answer FROM answers"))


def test_answers_of_every_kind_come_back_as_they_were(tmp_path, make):
    scenario = sim.sweep("sd21", gpus=2, batch_size=4, strategy="ddp", workers=1).scenario
    points = [Asked(point.strategy, point.num_gpus) for point in find_points(scenario, ["ddp", "gpipe"])]
    result = answer_of(points[0], scenario, inf)
    told = [
        result, Answer((0.1, 0.30000000000000004), None), Answer((1.0,), InfeasibleError("needs 3 GiB", "memory")),
        Answer((), InfeasibleError("no")),
    ]  # fmt: skip
    bounds = [Bounds(0.1 + 0.2, 1e10 / 3), InfeasibleError("1 / 3", "a third")]
    rough = Bounds(0.1, 1e10 / 3, rough=True)
    with Store(tmp_path / "s", scenario) as store:
        store.keep(points[:4], told)
        store.keep(points[:2], bounds)
        store.keep(points[:1], [rough], rough=True)
    with Store(tmp_path / "s", scenario) as store:
        found = [store.answer(point) for point in points[:4]]
        assert store.answer(points[4]) is None
        kept_bounds = list(store.bounds(points, rough=False).values())
        assert store.bounds(points, rough=True) == {points[0]: rough}
    assert found[:2] == told[:2]
    reasons = (
        [*(answer.end for answer in each[2:]), bound]
        for each, bound in ((found, kept_bounds[1]), (told, bounds[1]))
    )
    first, second = ([(str(reason), reason.kind) for reason in each] for each in reasons)
    assert first == second
    assert kept_bounds[0] == bounds[0]


def test_the_answer_stays_that_says_more(tmp_path):
    scenario = sim.sweep("sd21", gpus=2, batch_size=4, strategy="ddp", workers=1).scenario
    point = Asked(find_points(scenario, ["ddp"])[0].strategy, 2)
    whole = answer_of(point, scenario, inf)
    with Store(tmp_path / "s", scenario) as store:
        for answer in (Answer((0.1,), None), Answer((0.1, 0.2), None), Answer((0.1,), None)):
            store.keep([point], [answer])
        assert store.answer(point).holds_to_s == 0.2
        store.keep([point], [whole])
        store.keep([point], [Answer((0.1,), None)])
        assert store.answer(point) == whole


def test_two_stores_merge_into_one_that_knows_what_both_do(tmp_path, replays, capsys):
    asked = dict(SMALL)
    for name, strategy in (("a", ["ddp", "gpipe"]), ("b", ["gpipe", "1f1b"])):
        sim.sweep(
            "sd21", store=tmp_path / name, workers=1, **{**asked, "strategy": strategy, "exhaustive": True}
        )
    assert main(["merge", str(tmp_path / "both"), str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert " answers from " in capsys.readouterr().err
    assert kept(tmp_path / "both") == kept(tmp_path / "a") | kept(tmp_path / "b")
    replays.clear()
    sim.sweep("sd21", store=tmp_path / "both", workers=1, **asked)
    assert replays == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("text", "cannot be used as a store: file is not a database"),
        ("other", "is a database, but no store of sweeps"),
        ("newer", "is a store of version 7, must be 1"),
        ("folder", "must be a file in a folder that exists"),
        ("nope/store", "must be a file in a folder that exists"),
    ],
)
def test_what_is_no_store_is_refused_in_one_line_that_names_it(tmp_path, name, problem):
    (tmp_path / "text").write_text("no database at all, and long enough to tell\n" * 100)
    with closing(sqlite3.connect(tmp_path / "other", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with StoreFile(tmp_path / "newer") as newer:
        newer.connection.execute("PRAGMA user_version = 7")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError) as refused:
        sim.sweep("sd21", store=tmp_path / name, **SMALL)
    assert str(tmp_path / name) in str(refused.value)
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("column", ["answer", "point", "holds_to_s", "checksum"])
@pytest.mark.parametrize("kind", ["bounds", "replay"])
def test_an_answer_that_was_changed_is_refused_or_found_again(tmp_path, uninterrupted, column, kind):
    path = tmp_path / "store"
    sim.sweep("sd21", store=path, workers=1, **SMALL)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        value = {"answer": "replace(answer, '1', '2')", "holds_to_s": "0.5"}.get(column, f"{column} || ' '")
        connection.execute(f"UPDATE answers SET {column} = {value} WHERE kind = ?", (kind,))
    if column == "point" and kind == "replay":  # one of a point that nobody asks about
        assert document(sim.sweep("sd21", store=path, workers=1, **SMALL)) == uninterrupted
        return
    with pytest.raises(
        InputError, match=r"store: is damaged: the (bounds|replay) of .* not as they were written$"
    ):
        sim.sweep("sd21", store=path, workers=1, **SMALL)


def test_a_store_cut_short_is_refused_in_one_line(tmp_path):
    path = tmp_path / "store"
    sim.sweep("sd21", store=path, workers=1, **SMALL)
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(InputError, match=f"^{path}: (cannot be used as a store|is damaged): "):
        sim.sweep("sd21", store=path, workers=1, **SMALL)


@pytest.mark.parametrize("seed", range(8))
def test_a_store_with_bytes_of_chance_gives_the_same_answers_or_is_refused_in_one_line(
    tmp_path, uninterrupted, seed
):
    path = tmp_path / "store"
    sim.sweep("sd21", store=path, workers=1, **SMALL)
    whole, draw = path.read_bytes(), random.Random(seed)
    for _ in range(25):
        content = bytearray(whole)
        for _ in range(draw.choice([1, 3, 30])):
            content[draw.randrange(len(content))] = draw.randrange(256)
        path.write_bytes(content)
        for extra in tmp_path.glob("store-*"):
            extra.unlink()
        try:
            (record,) = read_records(path)
            found = record.points[record.winner].seconds
            expected = json.loads(uninterrupted)[0]["iteration_s"]
            assert found == expected
        except InputError as error:
            assert str(error).startswith(f"{path}: ")
            assert "\n" not in str(error)


def test_a_store_that_is_read_is_left_as_it_is(tmp_path):
    path = tmp_path / "s?t#o%re"
    sim.sweep("sd21", store=path, workers=1, **SMALL)
    before = path.read_bytes()
    with StoreFile(path, reads=True) as store:
        store.check_whole()
        with pytest.raises(InputError, match="attempt to write a readonly database"), store.explained():
            store.connection.execute("DELETE FROM answers")
    assert read_records(path)
    assert path.read_bytes() == before


def test_nothing_is_left_beside_a_store_once_all_who_used_it_are_done(tmp_path):
    """By a sweep, by what reads it, and by a merge."""
    one, both = tmp_path / "one.db", tmp_path / "both.db"
    sim.sweep("sd21", gpus=2, batch_size=8, strategy="ddp", workers=1, store=one)
    assert main(["compare", str(one), str(one)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["one.db"]
    assert main(["merge", str(both), str(one)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.db", "one.db"]


def test_a_store_is_made_by_several_at_once(tmp_path):
    def opened(number):
        with StoreFile(tmp_path / "store") as store:
            return list(store.questions())

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(opened, range(64))) == [[]] * 64


def test_two_sweeps_share_a_store_without_harm(tmp_path, uninterrupted):
    """Each reports to the other: their points are written in turn."""
    path = tmp_path / "store"
    found = []

    def report(stage, done, _total):
        if stage == "simulating" and done == 3:
            found.append(document(sim.sweep("sd21", store=path, workers=1, **SMALL)))

    found.append(document(sim.sweep("sd21", store=path, workers=1, report=report, **SMALL)))
    assert found == [uninterrupted] * 2


# All points


def test_an_exhaustive_sweep_simulates_every_point_that_may_fit():
    sweep = sim.sweep("sd21", exhaustive=True, workers=1, **SMALL)
    assert {point.status for point in sweep.points} == {"simulated"}
    bounded = sim.sweep("sd21", workers=1, **SMALL)
    best = [point.result for point in bounded.ranked() if point.status == "simulated"][:20]
    assert [point.result for point in sweep.ranked()][:20] == best


def test_a_store_holds_nothing_but_what_can_be_read(tmp_path):
    """The file is plain SQLite: a point and its answer are JSON."""
    sim.sweep("sd21", store=tmp_path / "store", workers=1, **SMALL)
    for _, point, kind, answer in kept(tmp_path / "store"):
        assert json.loads(point).keys() == {"strategy", "num_gpus", "parameters"}
        assert json.loads(answer).keys() >= ({"known_s"} if kind == "replay" else {"bound_s"})
    assert Path(tmp_path / "store").stat().st_size < 1e6


def test_a_sweep_over_points_of_its_own_uses_a_store_too(tmp_path):
    scenario = sim.sweep("sd21", gpus=2, batch_size=4, strategy="ddp", workers=1).scenario
    documents = []
    for _ in range(2):
        twice = Sweep(scenario, points=[*find_points(scenario, ["ddp"]), *find_points(scenario, ["ddp"])])
        with Store(tmp_path / "store", scenario) as store:
            run_sweep(twice, workers=1, store=store)
        documents.append(document(twice))
    assert documents[0] == documents[1]
