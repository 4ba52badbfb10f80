"""Accounts of published numbers: each has one, and README.md says what they amount to."""

import csv
from dataclasses import replace
from math import inf
from statistics import median

import pytest

from profiles.errors import InputError
from validate.__main__ import main
from validate.fitting.equations import OBSERVATIONS
from validate.published.accounts import (
    ABOUT,
    LATENCY,
    MEMORY,
    Account,
    Standing,
    anchored,
    sampling_accounts,
    source_name,
    source_names,
    training_accounts,
)
from validate.published.report import REASONS
from validate.published.rows import all_published
from validate.published.sampling_report import every_prediction
from validate.published.sampling_rows import sampling_rows
from validate.published.sampling_sections import judged
from validate.published.summary import (
    COLUMNS,
    by_source,
    by_source_and_method,
    judged_errors,
    kind,
    not_judged,
    write_accounts,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def predicted():
    return every_prediction()


@pytest.fixture(scope="module")
def accounts(predicted):
    return sampling_accounts(predicted)


def account(standing=Standing.JUDGED, predicted=1.1, **values):
    """One of DistriFusion's latencies."""
    about = dict.fromkeys(ABOUT, "") | {"method": "distrifusion", "num_gpus": "8"}
    usual = {
        "task": "sample",
        "source": "DistriFusion arXiv 2402.19481",
        "item": "Table1",
        "about": tuple(about.values()),
        "name": "DistriFusion, paper",
        "quantity": LATENCY,
        "published": 1.0,
        "predicted": predicted,
        "standing": standing,
        "reason": "" if standing is Standing.JUDGED else "because",
    }
    return Account(**(usual | values))


# Every row once.


def test_every_row_of_sampling_has_one_account(accounts):
    rows = sampling_rows()
    assert len(accounts) == len(rows) == 340
    assert [one.source for one in accounts] == [row["source"] for row in rows]
    for one, row in zip(accounts, rows, strict=True):
        said = [cell for cell in (row.latency_s, row.memory_gib) if cell is not None]
        assert one.published in said or (one.published == inf and row.out_of_memory)
        assert (one.standing is Standing.JUDGED) == (one.reason == "")
        assert (one.standing is Standing.UNCOVERED) == (one.predicted is None) == (one.provenance == "")
        assert one.standing is not Standing.JUDGED or one.error is not None


def test_latencies_on_several_gpus_are_judged_as_in_the_other_tables(accounts, predicted):
    errors = [
        one.error
        for one in accounts
        if one.standing is Standing.JUDGED and one.quantity == LATENCY and one.num_gpus != "1"
    ]
    assert sorted(errors) == pytest.approx(sorted(one.error for one in judged(predicted)))


def test_all_latencies_that_rates_or_times_were_fitted_to_are_said_to_be_fitted(accounts, predicted):
    """Of observations and anchors none is judged; FLUX.1-schnell and Stable Diffusion 2 were fitted to nowhere."""
    observed = [
        float(row["value"])
        for path in OBSERVATIONS.glob("*.csv")
        if path.name != "work.csv"
        for row in csv.DictReader(path.read_text().splitlines())
        if (row["quantity"], row["role"]) == ("latency_s", "fit")
    ]
    assert len(observed) > 25
    single = [one for one in accounts if one.num_gpus == "1" and one.quantity == LATENCY]
    fitted = {one.published for one in single if one.standing is Standing.FITTED}
    assert fitted.issuperset(observed)
    free = [one for one in single if one.standing is Standing.JUDGED]
    assert {one.about[0] for one in free} == {"FLUX.1-schnell", "SD-v2"}
    assert not any(anchored(one) for one in predicted if one.row.num_gpus != 1)


def test_memory_that_ran_out_bounds_and_second_printings_have_no_error(accounts):
    apart = [one for one in accounts if one.standing is Standing.APART]
    assert {one.reason for one in apart} == {"printed a second time", "memory runs out, as predicted"}
    assert all(one.error is None for one in apart)
    assert sum(one.published == inf for one in apart) == 12


def test_provenance_says_what_scales_the_estimates(accounts):
    said = {one.name: one.provenance for one in accounts if one.provenance}
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
    group = [account(), account(predicted=0.7), account(predicted=1.2)]
    others = [account(standing, 9.0) for standing in (Standing.FITTED, Standing.APART)]
    uncovered = account(Standing.UNCOVERED, None)
    (cells,) = by_source([*group, *others, uncovered]).rows
    assert cells == ["DistriFusion, paper", "6", "5", "3", "20.0%", "-30.0%", "1", "1", "1", "1"]
    (cells,) = by_source(others).rows
    assert cells[3:7] == ["0", "-", "-", "-"]


def test_sources_stand_in_their_order_and_methods_under_them():
    memory = account(quantity=MEMORY, name="PipeFusion, paper")
    section = by_source_and_method([memory, account(), account(), account(name="PULSE, Table III")])
    assert [row[:3] for row in section.rows] == [
        ["PULSE, Table III", "distrifusion", "1"],
        ["DistriFusion, paper", "distrifusion", "2"],
        ["PipeFusion, paper", "distrifusion, memory GiB", "1"],
    ]


def test_reasons_are_counted_without_the_thing_that_is_missing():
    missing = [
        account(Standing.UNCOVERED, None, reason=f"no model folder of {name}") for name in ("A", "B", "A")
    ]
    section = not_judged([*missing, account(), account(Standing.FITTED, reason="sets the links of x")])
    assert section.rows == [
        ["fitted", "sets the links of x", "1", "DistriFusion, paper"],
        ["not covered", "no model folder", "3", "A; B"],
    ]
    assert section.title == "Not judged: 4 of 5 numbers"
    assert kind("sets the links of x") == "sets the links of x"


def test_every_row_counts_once_in_every_table(accounts):
    for section, columns in ((by_source(accounts), 1), (by_source_and_method(accounts), 2)):
        numbers = [[int(cell) for cell in (*row[columns:][:3], *row[columns:][-3:])] for row in section.rows]
        assert sum(number[0] for number in numbers) == len(accounts)
        for total, covered, of_judged, fitted, apart, uncovered in numbers:
            assert total == covered + uncovered == of_judged + fitted + apart + uncovered
    left = sum(int(row[2]) for row in not_judged(accounts).rows)
    assert left + len(judged_errors(accounts)) == len(accounts)


def test_every_number_is_written_with_its_provenance(accounts, tmp_path):
    path = tmp_path / "numbers.csv"
    write_accounts([*accounts, *training_accounts([])], path)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 467
    for cells, one in zip(rows, accounts, strict=False):
        assert (cells["provenance"] == "") == (cells["predicted"] == "") == (one.predicted is None)
        assert cells["error"] == ("" if one.error is None else f"{one.error:.4f}")
        assert (cells["published"] == "OOM") == (one.published == inf)
    write_accounts(accounts, None)
    with pytest.raises(InputError, match="no-folder"):
        write_accounts(accounts, tmp_path / "no-folder" / "rows.csv")


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "no" / "x.csv"):
        assert main(["published", "--output", str(path)]) == 2
        assert "must be a file in a folder that exists" in capsys.readouterr().err


# README.md.


def test_the_readme_says_what_sampling_amounts_to(accounts, readme):
    """The lines of README's table by source are those that the command prints, and count every row of both files."""
    useful = next(row for row in all_published() if row.item == "3.3")
    of_both = replace(account(predicted=useful.value), name="PipeFusion, paper", published=useful.value)
    section = by_source([*accounts, of_both])
    header, *rows = readme.table("source")
    assert header == list(section.header)
    assert [row for row in rows if not row[0].startswith(("DiffusionPipe", "PULSE"))] == section.rows
    assert sum(int(row[1]) for row in rows) == len(sampling_rows()) + len(all_published())


def test_the_readme_says_how_many_rows_are_not_covered_and_why(accounts, readme):
    left = [one for one in training_accounts([]) if one.reason in REASONS.values()]
    rows = [row for row in not_judged([*accounts, *left]).rows if row[0] == "not covered"]
    assert f"Not covered are {sum(int(number) for _, _, number, _ in rows)}: " in readme.words
    for _, why, number, _ in rows:
        assert f"{why} ({number}" in readme.words


def test_the_readme_says_how_far_off_latencies_on_several_gpus_are(predicted, readme):
    errors = [abs(one.error) for one in judged(predicted)]
    near = sum(error <= 0.15 for error in errors)
    said = f"median {median(errors):.1%}, worst -{max(errors):.0%}, {near} within 15 %".replace("%", " %")
    assert f"several GPUs {len(errors)} are judged" in readme.words
    assert said.replace("  ", " ") in readme.words
