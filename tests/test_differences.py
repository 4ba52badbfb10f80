"""Comparisons of stores, rows and results: what changed, and which inputs differ."""

import itertools
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from making import refused

import sim
from profiles.errors import InputError
from profiles.machines.clusters import CLUSTERS
from sim.cli.main import main
from sim.explore.records import NamedRows, read_records
from sim.report.comparisons import compare
from sim.report.frames import write_rows

ASKED = {"gpus": 4, "batch_size": 16, "strategy": ["ddp", "gpipe", "1f1b"], "workers": 1}


def swept(folder, name, **asked):
    """A sweep with its rows as CSV and as JSON, and its store, all of one name."""
    sweep = sim.sweep("sd21", store=folder / f"{name}.sqlite", **ASKED | asked)
    write_rows(sweep, folder / f"{name}.csv")
    (folder / f"{name}.json").write_text(json.dumps(sweep.rows()))
    return sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three sweeps: one again, one on a cluster whose link was changed in its file, one of another batch."""
    folder = tmp_path_factory.mktemp("sweeps")
    file = folder / "mine.toml"
    shutil.copy(Path(CLUSTERS) / "p4de.toml", file)
    swept(folder, "before", cluster=file)
    lines = file.read_text().splitlines()
    file.write_text("\n".join(halved(of) if of.startswith("bandwidth_GB_per_s") else of for of in lines))
    swept(folder, "after", cluster=file)
    swept(folder, "batch", batch_size=32)
    return folder


def halved(line):
    key, _, value = line.partition("=")
    number, mark, comment = value.partition("#")
    return f"{key}= {float(number) / 2} {mark}{comment}"


@pytest.mark.parametrize("ending", ["csv", "sqlite"])
def test_a_changed_cluster_is_named_and_the_points_that_moved_with_it(folder, ending):
    (comparison,), *_ = compare(folder / f"before.{ending}", folder / f"after.{ending}")
    assert set(comparison.differing) == {"content of cluster"}
    sweeps = [json.loads((folder / f"{name}.json").read_text()) for name in ("before", "after")]
    times = [
        {
            (row["strategy"], str(row["parameters"])): row["iteration_s"]
            for row in rows
            if row["status"] == "simulated"
        }
        for rows in sweeps
    ]
    slower = {key for key in times[0].keys() & times[1].keys() if times[0][key] != times[1][key]}
    assert slower
    assert len(comparison.moved) == len(slower)
    assert all(moved.after_s > moved.before_s for moved in comparison.moved)
    changes = [abs(moved.change) for moved in comparison.moved]
    assert changes == sorted(changes, reverse=True)
    for record, rows in zip((comparison.before, comparison.after), sweeps, strict=True):
        assert record.points[record.winner()].seconds == rows[0]["iteration_s"]


def test_of_several_questions_those_asked_in_both_are_compared(folder, tmp_path):
    both = tmp_path / "both.sqlite"
    assert main(["merge", str(both), str(folder / "before.sqlite"), str(folder / "batch.sqlite")]) == 0
    (comparison,), before, after, _ = compare(both, folder / "before.sqlite")
    assert "batch_size 16" in comparison.before.words
    assert ["batch_size 32" in words for words in before] == [True]
    assert after == []
    other = tmp_path / "other.sqlite"
    sim.sweep("sd21", store=other, **ASKED | {"batch_size": 64})
    with refused(r"holds 2 questions: .* 1 question: .*, but none .* in both: choose with"):
        compare(both, other)


def test_a_sweep_is_one_question_however_many_gpus_of_a_point_divide_its_vae(tmp_path):
    asked = {"gpus": 4, "steps": 2, "include": "all", "strategy": "single,ulysses", "workers": 1}
    for name, count in (("two", 2), ("four", 4)):
        sweep = sim.sweep("pixart", store=tmp_path / f"{name}.sqlite", vae_parallel=count, **asked)
        write_rows(sweep, tmp_path / f"{name}.csv")
        (comparison,), *alone, _ = compare(tmp_path / f"{name}.sqlite", tmp_path / f"{name}.csv")
        assert (alone, comparison.differing, comparison.moved) == ([[], []], {}, [])
        assert comparison.same == sum(row["status"] == "simulated" for row in sweep.rows())
    (comparison,), *_ = compare(tmp_path / "two.sqlite", tmp_path / "four.sqlite")
    assert comparison.differing == {"vae_parallel": ("2", "4")}


def test_questions_in_the_same_words_of_other_inputs_are_chosen_by_key(folder, tmp_path, capsys):
    both, before = tmp_path / "both.sqlite", folder / "before.sqlite"
    assert main(["merge", str(both), str(before), str(folder / "after.sqlite")]) == 0
    keys = [record.key for record in read_records(both)]
    assert len(set(keys)) == 2
    assert main(["compare", str(both), str(before)]) == 2
    err = capsys.readouterr().err
    assert f"{both} holds 2 questions: {keys[0]} (content of cluster " in err
    assert "in the same words, of other inputs: choose with --question KEY" in err
    (same,), *_ = compare(both, before, question=keys[0])
    assert (same.differing, same.moved) == ({}, [])
    assert main(["compare", str(both), str(folder / "after.sqlite"), "--question", keys[1][:6]]) == 0
    assert "the same, of the same inputs" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"^question is 0z, but .*both.sqlite holds 2 questions: "):
        compare(both, before, question="0z")
    assert main(["compare", str(both), str(before), "--question", ""]) == 2
    assert (
        "--question is [''], must be the beginnings of keys, with commas between" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("nope.csv", None, "nope.csv: no such file"),
        ("a.json", "{", "a.json: is not valid JSON: "),
        ("a.json", "[1]", "a.json: row 0: is 1, must be a result"),
        ("a.csv", "a,b\n1,2,3\n", "a.csv:2: the row has more cells than there are columns"),
        ("a.csv", "", "a.csv: holds no question"),
        ("a.sqlite", "SQLite format 3\0and then nothing", "a.sqlite: cannot be used as a store: "),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(folder, tmp_path, capsys, name, content, problem):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["compare", str(tmp_path / name), str(folder / "before.csv")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"sim: error: {tmp_path}/")
    assert problem in err


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"status": "fine"}, "row 0: status is 'fine', must be one of simulated, bounded, infeasible"),
        ({"iteration_s": None}, "row 0: is simulated, but has no iteration_s or latency_s"),
        ({"inputs": "{"}, "row 0: inputs is '{', must be a mapping as JSON"),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused_with_where_it_stands(folder, tmp_path, change, problem):
    rows = json.loads((folder / "before.json").read_text())
    rows[0] |= change
    (tmp_path / "a.json").write_text(json.dumps(rows))
    with pytest.raises(InputError) as refused:
        read_records(tmp_path / "a.json")
    assert str(refused.value) == f"{tmp_path / 'a.json'}: {problem}"


@pytest.mark.parametrize(
    ("stores", "problem"),
    [
        (("there.sqlite", "before.sqlite"), "there.sqlite: is there already, must be a new file"),
        (("new.sqlite", "nope.sqlite"), "nope.sqlite: no such store"),
        (("new.sqlite", "."), ": is a folder, must be a file"),
    ],
)
def test_a_merge_that_cannot_be_is_refused_and_makes_nothing(folder, tmp_path, capsys, stores, problem):
    (tmp_path / "there.sqlite").touch()
    out = tmp_path / stores[0]
    others = [str(folder / name) for name in stores[1:]]
    assert main(["merge", str(out), *others]) == 2
    assert problem in capsys.readouterr().err
    assert out.exists() == (stores[0] == "there.sqlite")


def test_stores_and_rows_of_the_same_sweeps_compare_alike_though_stores_hold_points_of_one_result(folder):
    (record,) = read_records(folder / "before.sqlite")
    assert record.twins and not record.twins.keys() & record.points.keys()
    answers = []
    for first, second in itertools.product(("csv", "json", "sqlite"), repeat=2):
        (same,), *_ = compare(folder / f"before.{first}", folder / f"before.{second}")
        assert (same.turned, same.moved, same.differing) == ({}, [], {}) and same.same > 5
        assert same.winners[0] == same.winners[1]
        (changed,), *_ = compare(folder / f"before.{first}", folder / f"after.{second}")
        moved = sorted((of.key.strategy, of.before_s, of.after_s, of.ranks) for of in changed.moved)
        turned = {words for words in changed.turned if not ("bounded" in words and "simulated" in words)}
        answers.append((changed.same, turned, moved))  # of a store a bound is no change
    assert answers == answers[:1] * 9


def test_integers_that_pandas_wrote_as_floats_are_read_as_integers(folder, tmp_path):
    frame = pd.read_csv(folder / "before.csv")
    assert any(kind.kind == "f" for kind in frame.dtypes)
    frame.to_csv(tmp_path / "again.csv", index=False)
    (comparison,), *_ = compare(folder / "before.csv", tmp_path / "again.csv")
    assert (comparison.turned, comparison.differing) == ({}, {})


# From Python.


@pytest.fixture(scope="module")
def batches():
    """Two sweeps of other batches, as they are."""
    return [sim.sweep("sd21", **ASKED | {"batch_size": size}) for size in (16, 32)]


def test_a_sweep_a_result_and_a_file_are_compared_in_any_combination(batches, folder, tmp_path):
    sweep, best = batches[0], batches[0].best
    simulated = sum(point.status == "simulated" for point in sweep)
    assert sim.compare(sweep, folder / "before.csv").questions[0].same == simulated
    (one,) = sim.compare(best, sweep).questions
    assert (one.same, one.moved, one.differing.keys()) == (1, [], {"strategies"})
    with pytest.raises(InputError, match=r"^after is of type int, must be a sweep, a result, or a file$"):
        sim.compare(best, 3)
    with pytest.raises(InputError, match=r"^question is 0z, but before holds 1 question: "):
        sim.compare(best, sweep, question="0z")


@pytest.mark.long
def test_what_two_sweeps_rank_by_is_named_and_what_they_recompute_is_not_taken_for_asked():
    given = {"gpus": 8, "strategy": "ddp,gpipe", "workers": 1}
    found = sim.compare(*(sim.sweep("sd21", objective=one, **given) for one in ("throughput", "memory")))
    (question,) = found.to_json()["compared"]
    assert question["differing"] == {"objective": ["throughput", "memory"]}
    said = " ".join(str(found).replace("│", "").split())
    assert "objective throughput -> memory best of each ddp on 8 GPUs: " in said
    assert re.search(r"\([\d,]+\.\d ms\) -> gpipe .* \([\d,]+\.\d ms\) points ", said)
    same = sim.compare(*(sim.sweep("sd21", objective="memory", **given) for _ in range(2)))
    assert "objective" not in str(same) and " best " in str(same) and "gpipe on 8 GPUs: " in str(same)


def test_a_store_names_the_fastest_and_of_sweeps_what_they_hold_is_asked(tmp_path):
    given = {"gpus": 8, "batch_size": 256, "strategy": "1f1b,diffusionpipe", "workers": 1}
    sweeps = [
        sim.sweep("sd21", store=tmp_path / "s", **given),
        sim.sweep("sd21", optimizer="replicated", **given),
    ]
    (same,) = sim.compare(tmp_path / "s", sweeps[0]).questions
    assert sim.sweep("sd21", gpus=4, strategy="ddp,gpipe", group_size=4).held  # of DDP it is a property
    assert (same.turned, same.winners[0]) == ({}, same.winners[1]) and same.winners[
        0
    ].strategy == "diffusionpipe"
    assert sim.compare(*sweeps).questions[0].differing["optimizer"] == (None, "replicated")
    assert sim.compare(*sweeps).questions[0].winners[0].strategy == "1f1b"


@pytest.mark.parametrize("objective", ["throughput", "memory"])
def test_of_sweeps_over_several_numbers_of_gpus_the_recommended_one_is_named(objective, tmp_path):
    given = {"gpus": [8, 16], "batch_size": 256, "strategy": "zero3,fsdp", "workers": 1}
    scaling = sim.sweep("sd21", objective=objective, **given)
    write_rows(scaling, tmp_path / "rows.csv")
    for answer in (scaling, tmp_path / "rows.csv")[: 2 if objective == "throughput" else 1]:
        (question,) = sim.compare(answer, answer).questions
        assert question.before.points[question.winners[0]].seconds == scaling.best.iteration_s
    assert any(
        of.result and of.result.iteration_s < scaling.best.iteration_s for of in scaling.sweeps[1].points
    )


def test_of_a_point_in_several_sweeps_the_most_that_is_known_is_kept(folder):
    rows = json.loads((folder / "before.json").read_text())
    simulated = next(row for row in rows if row["status"] == "simulated")
    lacking = simulated | {"status": "infeasible"}
    bounded = {key: value for key, value in simulated.items() if key != "iteration_s"} | {"status": "bounded"}
    for several, kept in (([bounded, simulated, lacking], "simulated"), ([lacking, bounded], "infeasible")):
        for given in (several, several[::-1]):
            (record,) = read_records(NamedRows("rows", given))
            assert [known.status for known in record.points.values()] == [kept]
