"""Accounts of published numbers: each has one, and README.md says what they amount to."""

import csv
import json
from dataclasses import replace
from math import exp, inf, log
from pathlib import Path

import pytest

from profiles.architectures.models import load_model, model_names
from profiles.errors import InputError
from strategies.registry import all_samplers, all_strategies
from validate.__main__ import main
from validate.published.clusters import read_runs
from validate.published.contests import Contest
from validate.published.ledger import Ledger, independent_errors, training_ledger
from validate.published.records import (
    LATENCY,
    MEMORY,
    METHODS_OF_KIND,
    ONE_GPU,
    OTHER,
    SAMPLES_PER_S,
    Conditions,
    Published,
    Record,
    Standing,
    all_published,
    columns_of,
    entries,
    entry_of,
    kind_of,
    source_name,
    source_names,
)
from validate.published.report import MARKERS, write_between
from validate.published.sampling.rows import Uncovered, sampling_rows
from validate.published.sampling.runs import all_runs
from validate.published.sampling.tables import sampling_ledger
from validate.published.training.real_clusters import MARKERS as CLUSTERS
from validate.tables import Section, parts_around, write_tables

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def predicted():
    return all_runs()


@pytest.fixture(scope="module")
def ledger(predicted):
    return sampling_ledger(predicted)


SOURCE = ("DistriFusion arXiv 2402.19481", "Table1")


def record(
    standing=Standing.INDEPENDENT, predicted=1.1, published=1.0, reason="because", source=SOURCE, **values
):
    """One of DistriFusion's latencies."""
    about = {"model": "SDXL", "machine": "A100", "num_gpus": 8, "method": "distrifusion", "batch_size": 1}
    row = Published("sample", *source, **(about | {"quantity": LATENCY, "value": published} | values))
    return Record(row, predicted, standing, "" if standing is Standing.INDEPENDENT else reason)


def by_source(records):
    return Ledger(tuple(records)).by_source()


# Every row once.


def test_every_row_of_sampling_stands_in_the_ledger_once(ledger):
    rows = sampling_rows()
    assert len(ledger.records) == len(rows) == 380
    assert [one.row.source for one in ledger.records] == [row["source"] for row in rows]
    for one, row in zip(ledger.records, rows, strict=True):
        said = [cell for cell in (row.latency_s, row.memory_gib) if cell is not None]
        assert one.row.value in said or (one.row.value == inf and row.out_of_memory)
        assert (one.standing is Standing.INDEPENDENT) == (one.reason == "")
        assert (one.standing is Standing.UNCOVERED) == (one.predicted is None) == (one.provenance == "")
        assert one.standing is not Standing.INDEPENDENT or one.error is not None


def test_all_latencies_that_times_are_scaled_to_are_said_to_be_fitted(ledger, predicted):
    """Of anchors none is independent."""
    observed = [anchor.latency_s for name in model_names() for anchor in load_model(name).anchors]
    assert len(observed) > 40
    single = [one for one in ledger.records if one.row.num_gpus == 1 and one.row.quantity == LATENCY]
    fitted = {one.row.value for one in single if one.standing is Standing.FITTED}
    assert fitted.issuperset(observed)
    free = [one for one in single if one.standing is Standing.INDEPENDENT]
    assert "FLUX.1-schnell" in {one.row.model for one in free}
    assert not {one.row.value for one in free} & set(observed)
    assert not any(one.anchored for one in predicted if one.row.num_gpus != 1)


def test_memory_that_ran_out_bounds_and_second_printings_have_no_error(ledger):
    apart = ledger.of(Standing.APART)
    threshold = "the rounded threshold of a test, encoders and VAE in it: no measured time"
    assert {one.reason for one in apart} == {
        "printed a second time",
        "memory runs out, as predicted",
        threshold,
    }
    assert all(one.error is None for one in apart)
    assert sum(one.row.value == inf for one in apart) == 12


def test_provenance_says_what_scales_the_estimates(ledger):
    said = {one.row.group: one.provenance for one in ledger.records if one.provenance}
    assert said["ParaDiGMS, results table"] == "estimated"
    assert "from one GPU's latencies" in said["DistriFusion, paper"]


def test_every_source_has_a_name_and_every_name_a_source():
    found = {source_name(row.source, row.item) for row in all_published()}
    found |= {source_name(row["source"], row.figure) for row in sampling_rows()}
    found |= {source_name(run.source, run.name) for run in read_runs()}
    assert found == set(source_names())
    with pytest.raises(ValueError, match=r"sources\.csv has no name for source 'x', y"):
        source_name("x", "y")


# Tables.


def test_only_independent_numbers_enter_median_and_worst():
    group = [record(), record(predicted=0.7), record(predicted=1.2)]
    others = [record(standing, 9.0) for standing in list(Standing)[1:-1]]
    uncovered = record(Standing.UNCOVERED, None)
    cells, every = by_source([*group, *others, uncovered]).rows
    assert cells == ["DistriFusion, paper", "8", "7", "3", "20.0%", "-30.0%", "1", "1", "1", "1", "1", "1"]
    assert every == ["all", *cells[1:]]
    cells, _ = by_source(others).rows
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
    section = Ledger(
        (*missing, record(), record(Standing.FITTED, reason="sets the links of x"))
    ).not_independent()
    assert section.rows == [
        ["fitted", "sets the links of x", "1", "DistriFusion, paper"],
        ["not covered", "no model folder", "3", "A; B"],
    ]
    assert section.title == "Not independent: 4 of 5 numbers"


def test_every_row_counts_once_in_every_table(ledger):
    *sources, every = ledger.by_source().rows
    for rows, columns in ((sources, 1), (ledger.by_source_and_method().rows, 2)):
        numbers = [[int(cell) for cell in (*row[columns:][:3], *row[columns:][-5:])] for row in rows]
        assert sum(number[0] for number in numbers) == len(ledger.records) == int(every[1])
        for total, covered, *standings in numbers:
            assert total == covered + standings[-1] == sum(standings)
    left = sum(int(row[2]) for row in ledger.not_independent().rows)
    assert left + len(independent_errors(ledger.records)) == len(ledger.records)


def test_times_are_counted_by_device_stack_and_kind_of_method(ledger):
    numbers = [one for one in ledger.records if one.log_ratio is not None]
    assert len(numbers) == sum(int(row[3]) for row in ledger.by_conditions().rows)
    for one in numbers:
        assert one.conditions.kind in METHODS_OF_KIND
        assert exp(one.log_ratio) == pytest.approx(one.predicted / one.row.value)
        assert one.row.quantity == LATENCY


def test_more_images_per_second_than_published_are_less_time():
    values = {"quantity": SAMPLES_PER_S, "published": 2.0, "predicted": 4.0}
    one = replace(record(**values), conditions=Conditions("d", "eager", "one GPU"))
    assert one.log_ratio == pytest.approx(log(1 / 2))


def test_every_shipped_strategy_is_of_one_kind():
    names = [name for group in METHODS_OF_KIND.values() for name in group]
    assert sorted(names) == sorted([*all_strategies(), *all_samplers()])
    assert kind_of("ring", 8) == "sequence"
    assert kind_of("ddp", 1) == ONE_GPU
    assert kind_of("mine", 8) == OTHER


# Entries.


def test_every_entry_is_about_some_number():
    numbers = [columns_of(row) for row in all_published()]
    numbers += [
        columns_of(row.published, said(row, "model"), said(row, "cluster")) for row in sampling_rows()
    ]
    for entry in entries():
        assert any(entry_of(number) is entry for number in numbers), entry


def said(row, key):
    try:
        return getattr(row, key)
    except Uncovered:
        return ""


def test_every_number_is_written_with_its_provenance(ledger, tmp_path):
    path = tmp_path / "numbers.csv"
    both = ledger + training_ledger([])
    both.write(path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0]) == list(both.frame().columns)
    assert len(rows) == 380 + len(all_published())
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
    assert len(rows) == 380
    for cells, one in zip(rows, ledger.records, strict=True):
        assert (cells["quantity"], cells["unit"]) in (("latency_s", "s"), ("memory_GiB", "GiB"))
        assert cells["published"] == (None if one.row.value == inf else one.row.value)
        assert cells["standing"] == one.standing


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "no" / "x.csv"):
        assert main(["published", "--output", str(path)]) == 2
        assert "must be a file in a folder that exists" in capsys.readouterr().err


# The tables of the documents.


def test_the_accuracy_page_counts_every_number_once(readme):
    """Its table stands between the markers of the command that writes it; errors in it may only get better."""
    header, *rows = readme.table("source")
    assert header == list(Ledger(()).by_source().header)
    *sources, every = rows
    assert [row[0] for row in sources] == source_names()
    total = len(sampling_rows()) + len(all_published()) + len(read_runs())
    assert sum(int(row[1]) for row in sources) == int(every[1]) == total
    for row in rows:
        numbers = [int(cell) for cell in (*row[1:4], *row[-5:])]
        assert numbers[0] == numbers[1] + numbers[-1] == sum(numbers[2:])


def test_the_command_writes_its_tables_between_the_markers_of_a_text(tmp_path, capsys):
    path = tmp_path / "README.md"
    path.write_text("a\n" + "\nold\n".join(MARKERS) + "\nb\n")
    write_between(path, Ledger((record(),), (Contest("x", {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0}),)))
    text = path.read_text()
    assert text.startswith(f"a\n{MARKERS[0]}\n\n| source | numbers |")
    assert text.endswith(f"|\n\n{MARKERS[1]}\nb\n")
    assert "old" not in text
    path.write_text("nothing")
    assert main(["published", "--readme", str(path)]) == 2
    assert "must hold a line" in capsys.readouterr().err
    path.write_text("\n".join(MARKERS))
    assert main(["published", "--task", "train", "--readme", str(path)]) == 2
    assert "--readme is of both tasks" in capsys.readouterr().err


def test_tables_are_written_between_their_markers_alone(tmp_path):
    path, markers = tmp_path / "page.md", ("<!-- start -->", "<!-- end -->")
    path.write_text("a\n<!-- start -->\nold\n<!-- end -->\nb\n<!-- end -->\n")
    write_tables(path, markers, [Section("t", ["x"], [["1"]], "said"), Section("u", ["y"], [["2"]])])
    tables = "| x |\n| --- |\n| 1 |\n\n| y |\n| --- |\n| 2 |"
    assert path.read_text() == f"a\n<!-- start -->\n\n{tables}\n\n<!-- end -->\nb\n<!-- end -->\n"
    with pytest.raises(InputError, match=r"page.md', must hold a line '<!-- other -->' and then a line"):
        write_tables(path, ("<!-- other -->", "<!-- end -->"), [])


def test_markers_are_looked_up_as_they_are_written(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("a\n(1 + 1)\nold\n[end]\nb\n")
    assert parts_around(path, "(1 + 1)", "[end]") == ("a\n", "\nb\n")


def test_the_page_of_accuracy_holds_the_markers_of_the_commands_that_write_it():
    page = (Path(__file__).parents[1] / "docs/pages/accuracy.md").read_text(encoding="utf-8")
    assert all(marker in page for marker in (*MARKERS, *CLUSTERS))
