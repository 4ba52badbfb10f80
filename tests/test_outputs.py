"""Outputs: what cannot be written is refused before the work, and what is written is never half there."""

import os
import sys
from io import BytesIO, TextIOWrapper

import pytest

from sim.cli.main import main

RUN = ("run", "--model", "sd21", "--strategy", "ddp", "--gpus", "2", "--batch-size", "4")
SWEEP = ("sweep", "--model", "sd21", "--strategy", "ddp", "--gpus", "2", "--batch-size", "4")


@pytest.fixture
def places(tmp_path):
    """A folder with all that cannot be written, each by a name that says what it is."""
    for ending in ("csv", "png", "json", "sqlite"):
        (tmp_path / f"folder.{ending}").mkdir()
        (tmp_path / f"loop.{ending}").symlink_to(tmp_path / f"loop.{ending}")
        (tmp_path / f"nowhere.{ending}").symlink_to(tmp_path / "nope" / "file")
        os.mkfifo(tmp_path / f"pipe.{ending}")
    return tmp_path


RULES = {
    "folder": "must be a file in a folder that exists",
    "nowhere": "must be a file in a folder that exists",
    "pipe": "must be a file in a folder that exists",
    "loop": "which cannot be written: ",
}


@pytest.mark.parametrize(
    ("command", "flag", "ending", "place"),
    [
        *((SWEEP, "--out", "csv", place) for place in RULES),
        (SWEEP, "--store", "sqlite", "pipe"), (SWEEP, "--plot", "png", "folder"), (RUN, "--gantt", "png", "nowhere"),
        (RUN, "--trace", "json", "folder"),
    ],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_refused_by_name_before_the_work(
    places, capsys, monkeypatch, command, flag, ending, place
):
    monkeypatch.setattr("sim.api.run", lambda **_: pytest.fail("worked"))
    monkeypatch.setattr("sim.api.start_sweep", lambda **_: pytest.fail("worked"))
    path = places / f"{place}.{ending}"
    assert main([*command, flag, str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"sim: error: {flag} is '{path}', {RULES[place]}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", [RUN, (*SWEEP, "--format", "markdown")])
def test_a_stream_that_lacks_characters_is_written_without_them(monkeypatch, command):
    stream = TextIOWrapper(BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(command) == 0
    written = stream.buffer.getvalue().decode("ascii")
    assert "####" in written
    assert "??" not in written
