"""Files are written whole or not at all."""

from pathlib import Path

import pytest

from profiles.errors import InputError
from profiles.outputs import whole_file, write_files


def test_a_file_that_cannot_be_written_leaves_no_other(tmp_path):
    (tmp_path / "times").write_text("not a folder", encoding="utf-8")
    texts = {Path("quantiles") / "a.csv": "whole", Path("times") / "a.csv": "never"}
    with pytest.raises(InputError, match=r"cannot be written: "):
        write_files(tmp_path, texts)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["times"]


def test_an_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "old.txt"
    write_files(tmp_path, {Path("old.txt"): "old"})
    with pytest.raises(KeyboardInterrupt), whole_file(path) as draft:
        draft.write_text("half", encoding="utf-8")
        assert path.read_text(encoding="utf-8") == "old"
        raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.txt"]
    with whole_file(path) as draft:
        draft.write_text("new", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["old.txt"]
