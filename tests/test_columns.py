"""A table fits the terminal: columns go by rank, and nothing that is printed is wider than there is room for."""

import pytest

from sim.report.blocks import Column, Command, Table, fitting, markdown


@pytest.fixture
def table():
    columns = [Column("#"), Column("strategy", words=True), Column("more", 2, words=True)]
    rows = [
        ["1", "ddp", "overlap buckets", "1.00", "x|y"],
        ["2 tie", "diffusionpipe", "fill partial", "0.98", "z"],
    ]
    return Table("a title", [*columns, Column("over\nddp", 1), Column("a|b", 9)], rows)


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_the_columns_of_the_highest_rank_go_first(table, monkeypatch, terminal):
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    names = ["#", "strategy", "over\nddp", "a|b"]
    for width, kept in {
        80: [*names[:2], "more", *names[2:]],
        41: names[:3],
        24: names[:2],
        3: names[:2],
    }.items():
        fitted = fitting(table, width)
        assert [column.name for column in fitted.columns] == kept
        assert {len(row) for row in fitted.rows} == {len(kept)}


def test_markdown_has_all_columns_and_takes_no_cell_for_its_own(table):
    text = markdown(table)
    assert text.splitlines() == [
        "a title",
        "",
        "| # | strategy | more | over ddp | a\\|b |",
        "| ---: | --- | --- | ---: | ---: |",
        "| 1 | ddp | overlap buckets | 1.00 | x\\|y |",
        "| 2 tie | diffusionpipe | fill partial | 0.98 | z |",
    ]


def test_markdown_says_what_a_command_gives():
    assert markdown(Command("on p5", "sim run")) == "on p5:\n\n```\nsim run\n```"
