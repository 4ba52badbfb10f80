"""The numbers of README and of the accuracy page: one command writes both, and they say the same."""

from pathlib import Path

import pytest

from profiles.errors import InputError
from validate.published.ledger import Contest, Ledger
from validate.published.records import LATENCY, SAMPLES_PER_S, Published, Record, Standing
from validate.published.report import TABLES as COMMANDS
from validate.published.report import commands_in, in_short
from validate.tables import parts_around, write_tables

ROOT = Path(__file__).parents[1]
README, ACCURACY = ROOT / "README.md", ROOT / "docs/pages/accuracy.md"
TABLES = ROOT / "docs/pages/accuracy_tables.md"
MOSAIC = ("mosaicml/diffusion@49282fd:README.md", "README")
DISTRI = ("DistriFusion arXiv 2402.19481", "Table1")
PAPER = ("DiffusionPipe", "6.1")


def number(predicted, source, task="sample", standing=Standing.INDEPENDENT, gpus=8, **about):
    """A published number, which is 1."""
    row = {"model": "sd21", "machine": "A100", "method": "ddp", "batch_size": 1, "quantity": LATENCY, **about}
    published = Published(task, *source, num_gpus=gpus, value=1.0, **row)
    return Record(published, predicted, standing, "" if standing is Standing.INDEPENDENT else "why")


@pytest.fixture(scope="module")
def ledger():
    real = {"task": "train", "quantity": SAMPLES_PER_S}
    records = (
        number(0.9, MOSAIC, gpus=64, **real),
        number(1.05, MOSAIC, gpus=64, batch_size=2, **real),
        number(3.0, MOSAIC, gpus=64, standing=Standing.FITTED, **real),
        number(1.2, DISTRI),
        number(9.0, DISTRI, gpus=1),
        number(1.3, PAPER, task="train", method="diffusionpipe/ddp", quantity="speedup"),
        number(1.4, PAPER, task="train", method="diffusionpipe/ddp", quantity="speedup", gpus=16),
        number(1.4, ("DiffusionPipe", "Fig. 4"), task="train", quantity="bubble_ratio"),
    )
    seconds = {"a": 1.0, "b": 2.0}
    lost = Contest("x", seconds, {"a": 2.0, "b": 1.0})
    return Ledger(records, (Contest("x", seconds, seconds), lost))


def test_the_numbers_in_short_are_those_of_the_ledger(ledger):
    (short,) = in_short(ledger)
    assert [row[1] for row in short.rows] == [
        "median 30.0%",
        "-10.0% to +5.0%",
        "median 20.0%",
        "right winner in 1 of 2, mean loss by a wrong pick 50.0%",
    ]
    assert short.rows[0][0].endswith("(7 of 8)")
    assert "2 runs" in short.rows[1][0]
    assert "1 independent latencies" in short.rows[2][0]


def test_a_text_gets_the_tables_whose_markers_it_holds(ledger, tmp_path):
    page = tmp_path / "page.md"
    end, commands = "<!-- end -->", ["published --readme: in short", "published --readme: today's models"]
    short, today = (f"<!-- python -m validate {command} -->" for command in commands)
    page.write_text("\n".join(["a", short, end, "b", today, end, "c", ""]))
    assert commands_in(page) == commands
    for command in commands:
        write_tables(page, command, COMMANDS[command](ledger))
    text = page.read_text()
    assert text.index("| compared with | error |") < text.index("\nb\n") < text.index("| model | run |")
    assert "| source |" not in text
    page.write_text("nothing")
    with pytest.raises(InputError, match="must hold a line"):
        commands_in(page)


def test_readme_and_the_accuracy_page_say_the_same_in_short():
    command = "published --readme: in short"
    assert parts_around(README, command)[1] == parts_around(ACCURACY, command)[1]
    assert commands_in(ACCURACY) == [command]
    assert commands_in(TABLES) == [other for other in COMMANDS if other != command]
