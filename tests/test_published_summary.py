"""Accounts of published numbers: each has one, and README.md says what they amount to."""

import csv
import json
from math import inf
from statistics import median

import pytest

from profiles.errors import InputError
from validate.__main__ import main
from validate.fitting.equations import OBSERVATIONS
from validate.published.ledger import Ledger, judged_errors, training_ledger
from validate.published.records import (
    LATENCY,
    MEMORY,
    Published,
    Record,
    Standing,
    all_published,
    source_name,
    source_names,
)
from validate.published.sampling.rows import sampling_rows
from validate.published.sampling.runs import all_runs, sampling_ledger

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def predicted():
    return all_runs()


@pytest.fixture(scope="module")
def ledger(predicted):
    return sampling_ledger(predicted)


def judged(found):
    """Runs on several GPUs whose latency is judged."""
    return [
        one
        for one in found
        if one.error is not None and one.row.num_gpus != 1 and one.record.standing is Standing.JUDGED
    ]


SOURCE = ("DistriFusion arXiv 2402.19481", "Table1")


def record(standing=Standing.JUDGED, predicted=1.1, published=1.0, reason="because", source=SOURCE, **values):
    """One of DistriFusion's latencies."""
    about = {"model": "SDXL", "machine": "A100", "num_gpus": 8, "method": "distrifusion", "batch_size": 1}
    row = Published("sample", *source, **(about | {"quantity": LATENCY, "value": published} | values))
    return Record(row, predicted, standing, "" if standing is Standing.JUDGED else reason)


def by_source(records):
    return Ledger(tuple(records)).by_source()


# Every row once.


def test_every_row_of_sampling_stands_in_the_ledger_once(ledger):
    rows = sampling_rows()
    assert len(ledger.records) == len(rows) == 340
    assert [one.row.source for one in ledger.records] == [row["source"] for row in rows]
    for one, row in zip(ledger.records, rows, strict=True):
        said = [cell for cell in (row.latency_s, row.memory_gib) if cell is not None]
        assert one.row.value in said or (one.row.value == inf and row.out_of_memory)
        assert (one.standing is Standing.JUDGED) == (one.reason == "")
        assert (one.standing is Standing.UNCOVERED) == (one.predicted is None) == (one.provenance == "")
        assert one.standing is not Standing.JUDGED or one.error is not None


def test_all_latencies_that_rates_or_times_were_fitted_to_are_said_to_be_fitted(ledger, predicted):
    """Of observations and anchors none is judged; FLUX.1-schnell and Stable Diffusion 2 were fitted to nowhere."""
    observed = [
        float(row["value"])
        for path in OBSERVATIONS.glob("*.csv")
        if path.name != "work.csv"
        for row in csv.DictReader(path.read_text().splitlines())
        if (row["quantity"], row["role"]) == ("latency_s", "fit")
    ]
    assert len(observed) > 25
    single = [one for one in ledger.records if one.row.num_gpus == 1 and one.row.quantity == LATENCY]
    fitted = {one.row.value for one in single if one.standing is Standing.FITTED}
    assert fitted.issuperset(observed)
    free = [one for one in single if one.standing is Standing.JUDGED]
    assert {one.row.model for one in free} == {"FLUX.1-schnell", "SD-v2"}
    assert not any(one.anchored for one in predicted if one.row.num_gpus != 1)


def test_memory_that_ran_out_bounds_and_second_printings_have_no_error(ledger):
    apart = ledger.of(Standing.APART)
    assert {one.reason for one in apart} == {"printed a second time", "memory runs out, as predicted"}
    assert all(one.error is None for one in apart)
    assert sum(one.row.value == inf for one in apart) == 12


def test_provenance_says_what_scales_the_estimates(ledger):
    said = {one.row.group: one.provenance for one in ledger.records if one.provenance}
    assert said["ParaDiGMS, results table"] == "estimated"
    assert "from one GPU's latencies" in said["DistriFusion, paper"]


def test_every_source_has_a_name_and_every_name_a_source():
    found = {source_name(row.source, row.item) for row in all_published()}
    found |= {source_name(row["source"], row.figure) for row in sampling_rows()}
    assert found == set(source_names())
    with pytest.raises(ValueError, match=r"sources\.csv has no name for source 'x', y"):
        source_name("x", "y")


# Tables.


def test_only_judged_numbers_enter_median_and_worst():
    group = [record(), record(predicted=0.7), record(predicted=1.2)]
    others = [record(standing, 9.0) for standing in (Standing.FITTED, Standing.APART)]
    uncovered = record(Standing.UNCOVERED, None)
    (cells,) = by_source([*group, *others, uncovered]).rows
    assert cells == ["DistriFusion, paper", "6", "5", "3", "20.0%", "-30.0%", "1", "1", "1", "1"]
    (cells,) = by_source(others).rows
    assert cells[3:7] == ["0", "-", "-", "-"]


def test_sources_stand_in_their_order_and_methods_under_them():
    memory = record(quantity=MEMORY, source=("PipeFusion arXiv", "x"))
    pulse = record(source=("PULSE", "Table III"))
    section = Ledger((memory, record(), record(), pulse)).by_source_and_method()
    assert [row[:3] for row in section.rows] == [
        ["PULSE, Table III", "distrifusion", "1"],
        ["DistriFusion, paper", "distrifusion", "2"],
        ["PipeFusion, paper", "distrifusion, memory GiB", "1"],
    ]


def test_reasons_are_counted_without_the_thing_that_is_missing():
    missing = [
        record(Standing.UNCOVERED, None, reason=f"no model folder of {name}") for name in ("A", "B", "A")
    ]
    section = Ledger((*missing, record(), record(Standing.FITTED, reason="sets the links of x"))).not_judged()
    assert section.rows == [
        ["fitted", "sets the links of x", "1", "DistriFusion, paper"],
        ["not covered", "no model folder", "3", "A; B"],
    ]
    assert section.title == "Not judged: 4 of 5 numbers"


def test_every_row_counts_once_in_every_table(ledger):
    for section, columns in ((ledger.by_source(), 1), (ledger.by_source_and_method(), 2)):
        numbers = [[int(cell) for cell in (*row[columns:][:3], *row[columns:][-3:])] for row in section.rows]
        assert sum(number[0] for number in numbers) == len(ledger.records)
        for total, covered, of_judged, fitted, apart, uncovered in numbers:
            assert total == covered + uncovered == of_judged + fitted + apart + uncovered
    left = sum(int(row[2]) for row in ledger.not_judged().rows)
    assert left + len(judged_errors(ledger.records)) == len(ledger.records)


def test_every_number_is_written_with_its_provenance(ledger, tmp_path):
    path = tmp_path / "numbers.csv"
    both = ledger + training_ledger([])
    both.write(path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0]) == list(both.frame().columns)
    assert len(rows) == 467
    for cells, one in zip(rows, both.records, strict=True):
        assert (cells["provenance"] == "") == (cells["predicted"] == "") == (one.predicted is None)
        assert cells["error"] == ("" if one.error is None else f"{one.error:.4f}")
        assert (cells["published"] == "OOM") == (one.row.value == inf)
    ledger.write(None)
    with pytest.raises(InputError, match="no-folder"):
        ledger.write(tmp_path / "no-folder" / "rows.csv")


def test_a_name_that_ends_in_json_gets_the_same_numbers_as_json(ledger, tmp_path):
    path = tmp_path / "numbers.json"
    ledger.write(path)
    rows = json.loads(path.read_text())
    assert len(rows) == 340
    for cells, one in zip(rows, ledger.records, strict=True):
        assert (cells["quantity"], cells["unit"]) in (("latency_s", "s"), ("memory_GiB", "GiB"))
        assert cells["published"] == (None if one.row.value == inf else one.row.value)
        assert cells["standing"] == one.standing


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "no" / "x.csv"):
        assert main(["published", "--output", str(path)]) == 2
        assert "must be a file in a folder that exists" in capsys.readouterr().err


# README.md.


def test_the_readme_says_what_sampling_amounts_to(ledger, readme):
    """The lines of README's table by source are those that the command prints, and count every row of both files."""
    useful = next(row for row in all_published() if row.item == "3.3")
    section = (ledger + Ledger((Record.of(useful, useful.value),))).by_source()
    header, *rows = readme.table("source")
    assert header == list(section.header)
    assert [row for row in rows if not row[0].startswith(("DiffusionPipe", "PULSE"))] == section.rows
    assert sum(int(row[1]) for row in rows) == len(sampling_rows()) + len(all_published())


def test_the_readme_says_how_many_rows_are_not_covered_and_why(ledger, readme):
    left = [one for one in training_ledger([]).records if "no frozen part" in one.reason]
    both = ledger + Ledger(tuple(left))
    rows = [row for row in both.not_judged().rows if row[0] == "not covered"]
    assert f"Not covered are {sum(int(number) for _, _, number, _ in rows)}: " in readme.words
    for _, why, number, _ in rows:
        assert f"{why} ({number}" in readme.words


def test_the_readme_says_how_far_off_latencies_on_several_gpus_are(predicted, readme):
    errors = [abs(one.error) for one in judged(predicted)]
    near = sum(error <= 0.15 for error in errors)
    said = f"median {median(errors):.1%}, worst -{max(errors):.0%}, {near} within 15 %".replace("%", " %")
    assert f"several GPUs {len(errors)} are judged" in readme.words
    assert said.replace("  ", " ") in readme.words
