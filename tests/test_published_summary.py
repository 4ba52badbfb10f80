"""Accounts of published numbers: each has one, and README.md says what they amount to."""

import csv
from math import inf

import pytest

from profiles.architectures.models import load_model, model_names
from profiles.errors import InputError
from strategies.registry import strategies_of
from validate.fitting import boxes
from validate.fitting.boxes import host_rows
from validate.fitting.boxes import rows as link_rows
from validate.published.clusters import read_runs
from validate.published.ledger import COLUMNS, Ledger, all_training
from validate.published.records import (
    LATENCY,
    METHODS_OF_KIND,
    ONE_GPU,
    Published,
    Record,
    Standing,
    all_published,
    kind_of,
    source_name,
    source_names,
)
from validate.published.runs import sampling_records, sampling_rows
from validate.serving import mlperf, systems

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ledger():
    return Ledger(tuple(sampling_records()))


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
        numbers = [cell for cell in (row.latency_s, row.number("memory_GB")) if cell is not None]
        assert one.row.value in numbers or (one.row.value == inf and row.out_of_memory)
        assert (one.standing is Standing.INDEPENDENT) == (one.reason == "")
        assert (one.standing is Standing.UNCOVERED) == (one.predicted is None) == (one.provenance == "")
        assert one.standing is not Standing.INDEPENDENT or one.error is not None


def test_all_latencies_that_times_are_scaled_to_are_said_to_be_fitted(ledger):
    """Of anchors none is independent."""
    observed = [anchor.latency_s for name in model_names() for anchor in load_model(name).anchors]
    assert len(observed) > 40
    single = [one for one in ledger.records if one.row.num_gpus == 1 and one.row.quantity == LATENCY]
    fitted = {one.row.value for one in single if one.standing is Standing.FITTED}
    assert fitted.issuperset(observed)
    free = [one for one in single if one.standing is Standing.INDEPENDENT]
    assert "FLUX.1-schnell" in {one.row.model for one in free}
    assert not {one.row.value for one in free} & set(observed)
    fitted_to = {id(row) for row in (*link_rows(), *(one.row for one in host_rows("a100-nvlink-8")))}
    for one, row in zip(ledger.records, sampling_rows(), strict=True):
        judged = boxes.USES.get(row["method"]) == boxes.CHECK
        assert id(row) not in fitted_to or judged or one.standing is Standing.FITTED, row


def test_every_source_has_a_name_and_every_name_a_source():
    names = {source_name(row.source, row.item) for row in all_published()}
    names |= {source_name(row["source"], row["table_or_figure"]) for row in sampling_rows()}
    names |= {source_name(run.source, run.name) for run in read_runs()}
    names |= {of.published.group for of in systems.served()} | {source_name("MLPerf Inference v4.1", "")}
    assert names == set(source_names())
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


def test_every_shipped_strategy_is_of_one_kind():
    names = [name for group in METHODS_OF_KIND.values() for name in group]
    assert sorted(names) == sorted([*strategies_of("train"), *strategies_of("sample")])
    assert kind_of("ring", 8) == "sequence"
    assert kind_of("ddp", 1) == ONE_GPU


def test_every_number_is_written_with_its_provenance(ledger, tmp_path):
    path = tmp_path / "numbers.csv"
    both = Ledger((*ledger.records, *all_training([])))
    both.write(path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 380 + len(all_published())
    for cells, one in zip(rows, both.records, strict=True):
        assert (cells["provenance"] == "") == (cells["predicted"] == "") == (one.predicted is None)
        assert cells["error"] == ("" if one.error is None else f"{one.error:.6g}")
        assert float(cells["published"]) == pytest.approx(one.row.value, rel=1e-5)
    with pytest.raises(InputError, match="no-folder"):
        ledger.write(tmp_path / "no-folder" / "rows.csv")


# The tables of the documents.


def test_the_accuracy_page_counts_every_number_once(readme):
    """Its table stands between the markers of the command that writes it; errors in it may only get better."""
    header, *rows = readme.table("source")
    assert header == list(Ledger(()).by_source().header)
    *sources, every = rows
    assert [row[0] for row in sources] == source_names()
    total = len(sampling_rows()) + len(all_published()) + len(read_runs())
    total += len(systems.served()) + 3 * len(list(mlperf.read_runs()))
    assert sum(int(row[1]) for row in sources) == int(every[1]) == total
    for row in rows:
        numbers = [int(cell) for cell in (*row[1:4], *row[-5:])]
        assert numbers[0] == numbers[1] + numbers[-1] == sum(numbers[2:])
