"""Outputs: what cannot be written is refused before the work, and what is written is never half there."""

import errno
import os
import shlex
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from threading import Thread

import pytest

from profiles import outputs
from profiles.errors import InputError
from profiles.outputs import check_writable, whole_file
from sim.cli.main import main

RUN = ("run", "--model", "sd21", "--strategy", "ddp", "--gpus", "2", "--batch-size", "4")
SWEEP = ("sweep", "--model", "sd21", "--strategy", "ddp", "--gpus", "2", "--batch-size", "4")


@pytest.fixture
def places(tmp_path):
    """A folder with all that cannot be written, each by a name that says what it is."""
    for ending in ("csv", "png", "json", "sqlite"):
        (tmp_path / f"folder.{ending}").mkdir()
        (tmp_path / f"loop.{ending}").symlink_to(tmp_path / f"loop.{ending}")
        (tmp_path / f"full.{ending}").symlink_to("/dev/full")
        (tmp_path / f"nowhere.{ending}").symlink_to(tmp_path / "nope" / "file")
        os.mkfifo(tmp_path / f"pipe.{ending}")
    return tmp_path


RULES = {
    "folder": "must be a file in a folder that exists",
    "nowhere": "must be a file in a folder that exists",
    "full": "which is a device, must be a file",
    "pipe": "a pipe that nobody reads",
    "loop": "which cannot be written: ",
}


@pytest.mark.parametrize("place", RULES)
@pytest.mark.parametrize(
    ("command", "flag", "ending"),
    [
        (SWEEP, "--out", "csv"), (SWEEP, "--store", "sqlite"), (SWEEP, "--plot", "png"), (RUN, "--gantt", "png"),
        (RUN, "--trace", "json"),
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


def test_a_pipe_that_somebody_reads_can_be_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    told = []
    reader = Thread(target=lambda: told.append((tmp_path / "pipe").read_text()))
    reader.start()
    while True:  # until the reader is there
        try:
            check_writable("--out", tmp_path / "pipe")
            break
        except InputError:
            continue
    with whole_file(tmp_path / "pipe") as file:
        file.write_text("rows")
    os.close(outputs._kept_open.pop())  # the end is told when the last writer leaves
    reader.join(timeout=60)
    assert told == ["rows"]


def test_the_null_device_can_be_written():
    check_writable("--trace", Path(os.devnull))
    with whole_file(Path(os.devnull)) as file:
        file.write_text("gone")
    assert not Path(os.devnull).is_file()


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as file:
        file.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    with whole_file(path) as file:
        file.write_text("after")
        assert path.read_text() == "before"
    assert path.read_text() == "after"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link_to_what_is_written(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with whole_file(tmp_path / "link") as file:
        file.write_text("rows")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "rows"


def test_a_file_of_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("a" * 251 + ".csv")
    check_writable("--out", path)
    with whole_file(path) as file:
        file.write_text("rows")
    assert path.read_text() == "rows"


@pytest.mark.skipif(
    not Path("/proc/self").exists(), reason="a folder of the kernel's, in which nobody makes files"
)
@pytest.mark.parametrize(
    "command",
    ["sweep --model sd21 --out /proc/x.csv", "run --strategy ddp --model sd21 --trace /proc/x.json"],
)
def test_a_folder_in_which_no_file_can_be_made_is_refused_before_the_work(command, capsys, monkeypatch):
    monkeypatch.setattr("sim.api.start_sweep", lambda **_: pytest.fail("it began to work"))
    monkeypatch.setattr("sim.api.run", lambda **_: pytest.fail("it began to work"))
    flag, path = command.split()[-2:]
    assert main(command.split()) == 2
    assert capsys.readouterr().err.startswith(f"sim: error: {flag} is '{path}', which cannot be written: ")


def test_a_file_that_cannot_be_written_after_all_is_named_as_it_was_asked(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    refused = pytest.raises(InputError, match=r"gone/rows\.csv: cannot be written: no such file")
    with refused, whole_file(gone / "rows.csv") as file:
        gone.rmdir()
        file.write_text("", encoding="utf-8")


@pytest.mark.parametrize(
    "words",
    [
        "compare pipe pipe",
        "merge new.db pipe",
        "run --experiment pipe",
        "launch --result pipe",
    ],
)
def test_a_pipe_is_no_input_and_nobody_waits_for_it(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    assert main(words.split()) == 2
    assert capsys.readouterr().err == "sim: error: pipe: is not a regular file\n"


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_a_refusal_that_nobody_can_read_keeps_its_exit_code(stderr):
    command = f"{shlex.quote(sys.executable)} -m sim run --model nope {stderr}"
    refused = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2> >(exec true)"])
def test_notes_that_nobody_can_read_cost_no_answer(tmp_path, stderr):
    """A sweep says on stderr what it wrote, and then prints its answer."""
    rows = (
        "import time; time.sleep(0.3); from sim.__main__ import main; main()"  # until nobody reads its pipe
    )
    command = [sys.executable, "-c", rows, *SWEEP, "--out", "rows.csv", "--trace", "best.json"]
    answered = subprocess.run(
        ["bash", "-c", f"{shlex.join(command)} {stderr}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert answered.returncode == 0
    assert "best" in answered.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.json", "rows.csv"]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("command", [RUN, (*SWEEP, "--format", "markdown")])
def test_a_stream_that_lacks_characters_is_written_without_them(monkeypatch, command, encoding):
    stream = TextIOWrapper(BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(command) == 0
    assert "?????" in stream.buffer.getvalue().decode(encoding)


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "rows.csv"
    with (
        pytest.raises(InputError, match=f"^{path}: cannot be written: no space left on device$"),
        whole_file(path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []
