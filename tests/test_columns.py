"""A table fits the terminal: columns go by rank, and nothing that is printed is wider than there is room for."""

import pytest

from sim.report.blocks import Column, Command, Table, fitting, markdown


@pytest.fixture
def columns():
    return [
        Column("#", ["1", "2 tie"]),
        Column("strategy", ["ddp", "diffusionpipe"], words=True),
        Column("more", ["overlap buckets", "fill partial"], 2, words=True),
        Column("over\nddp", ["1.00", "0.98"], 1),
    ]


@pytest.mark.parametrize("terminal", ["xterm", "dumb"])
def test_the_columns_of_the_highest_rank_go_first(columns, monkeypatch, terminal):
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert [column.name for column in fitting(columns, 80)] == ["#", "strategy", "more", "over\nddp"]
    assert [column.name for column in fitting(columns, 41)] == ["#", "strategy", "over\nddp"]
    assert [column.name for column in fitting(columns, 24)] == ["#", "strategy"]
    assert [column.name for column in fitting(columns, 3)] == ["#", "strategy"]


def test_markdown_has_all_columns_and_takes_no_cell_for_its_own(columns):
    text = markdown(Table("a title", [*columns, Column("a|b", ["x|y", "z"], 9)]))
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
