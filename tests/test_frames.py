"""Rows of a sweep: under public keys, and in files that give every number back."""

import csv
import json

import pandas as pd
import pytest
from making import swept

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from profiles.machines.whatifs import changed
from sim.explore.legality import starters
from sim.report.frames import frame_of, rows, write_rows
from strategies.plans.workloads import TrainingWorkload
from strategies.scenario import Scenario


@pytest.fixture(scope="module")
def sweep():
    """A sweep with rows of all three kinds, and with points that are out of memory."""
    workload = TrainingWorkload(8, 8 * 64)
    scenario = Scenario(load_model("sd21"), changed(load_cluster("p4de"), {"memory": "91GiB"}), workload)
    sweep = swept(scenario)
    assert {point.status for point in sweep.points} == {"simulated", "bounded", "infeasible"}
    return sweep


def first(sweep, condition):
    return next(item for item, point in zip(rows(sweep), ranked(sweep), strict=True) if condition(point))


def ranked(sweep):
    """The points as rows stand: the recommended one, then the others, best first."""
    best = sweep.best_point()
    return [best, *(point for point in sweep.ranked() if point is not best)]


def test_a_row_has_its_status_and_what_is_known_of_its_point(sweep):
    alone = Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(1, 8))
    keys, (refused,) = list(sweep.best_point().result.to_json()), rows(swept(alone, names=["spp"]))
    simulated = first(sweep, lambda p: p.status == "simulated")
    lacking = first(sweep, lambda p: p.kind == "out of memory" and p.result is not None)
    assert list(simulated) == ["status", *keys, "inputs", "tie", "runs_in"]
    assert list(lacking) == ["status", *keys, "inputs", "reason", "runs_in"]
    assert list(refused) == ["status", *keys[: keys.index("options") + 1], "inputs", "reason", "runs_in"]
    assert (simulated["status"], simulated["fits_memory"]) == ("simulated", True)
    assert (lacking["status"], lacking["fits_memory"]) == ("infeasible", False)
    assert lacking["reason"].endswith("GiB too much") and refused["parameters"] == {}


def test_ties_are_the_first_row_and_those_that_neither_it_nor_the_best_of_their_strategy_surely_beats():
    sweep = swept(Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 32)))
    simulated = [point for point in ranked(sweep) if point.status == "simulated"]
    marked = [item["tie"] for item in rows(sweep) if item["status"] == "simulated"]
    best, others = simulated[0], simulated[1:]
    own = {(of.name, bool(starters(of, sweep.scenario))): of for of in reversed(simulated)}
    both = [(of, own[of.name, bool(starters(of, sweep.scenario))]) for of in others]
    close = [[of is one or of.tied(one, sweep.objective) for one in (best, first)] for of, first in both]
    assert marked == [True, *map(all, close)]
    assert [True, True] in close and [True, False] in close and [False, True] in close
    assert all("tie" not in item for item in rows(sweep) if item["status"] != "simulated")


def flat_rows(sweep):
    """Every row as a file holds it: parameters and options in columns of their own, stages as JSON."""
    for item in rows(sweep):
        flat = {**item, **item.pop("parameters"), **item.pop("options", {})}
        for nested in ("parameters", "options"):
            flat.pop(nested, None)
        for nested in ("stages", "inputs"):
            if nested in flat:
                flat[nested] = json.dumps(flat[nested])
        yield flat | {"runs_in": ",".join(flat["runs_in"]) or "none known"}


def read_cell(cell, like):
    return cell == "True" if isinstance(like, bool) else type(like)(cell)


def test_a_csv_file_gives_back_every_number_of_every_row(sweep, tmp_path):
    write_rows(sweep, tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for line, flat in zip(lines, flat_rows(sweep), strict=True):
        found = {key: read_cell(cell, flat[key]) for key, cell in line.items() if cell != ""}
        assert found == {key: value for key, value in flat.items() if value is not None}


def test_a_column_of_whole_numbers_and_gaps_has_no_decimals():
    frame = frame_of(
        {"parameters": {"shard_size": size, "reshard": of}} for size, of in ((None, None), (8, True))
    )
    assert frame.to_csv(index=False).split() == ["shard_size,reshard", ",", "8,True"]


def test_a_parquet_file_gives_back_every_number_of_every_row(sweep, tmp_path):
    write_rows(sweep, tmp_path / "rows.parquet")
    frame = pd.read_parquet(tmp_path / "rows.parquet")
    for (_, line), flat in zip(frame.iterrows(), flat_rows(sweep), strict=True):
        assert line.dropna().to_dict() == {key: value for key, value in flat.items() if value is not None}
