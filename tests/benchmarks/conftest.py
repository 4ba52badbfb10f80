"""Old against new: `python -m pytest -n 0 tests/benchmarks --against REF` times a commit beside the present one.

Each benchmark that both have, each in its own form, runs in turn in a temporary worktree of the commit and here, in a
process of its own; of several turns the shortest counts, as other programs only delay. Seconds are those of the
processor, of the process and those that it starts.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

CLOCK = "import os\n\n\ndef seconds():\n    return sum(os.times()[:4])\n"
"""A module with the clock: processor seconds of a process and of its children that have ended."""
FOUND = pytest.StashKey[list[tuple[str, float | None, float | None]]]()


def pytest_addoption(parser):
    parser.addoption(
        "--against", metavar="REF", help="time this commit's benchmarks beside those that are here"
    )
    parser.addoption("--turns", type=int, default=3, metavar="N", help="of each of the two (default: 3)")


def pytest_runtestloop(session):
    """Compare in place of running, where a commit is named."""
    ref = session.config.getoption("--against")
    if ref is None or session.testsfailed or session.config.option.collectonly:
        return None
    if session.config.getoption("numprocesses", None):
        raise pytest.UsageError("--against times one thing at a time: give -n 0")
    here, turns = session.config.rootpath, session.config.getoption("--turns")
    with TemporaryDirectory() as folder, _worktree(here, ref, Path(folder) / "then") as there:
        (Path(folder) / "processor_clock.py").write_text(CLOCK)
        session.config.stash[FOUND] = [
            (item.nodeid, *_compare(item.nodeid, (there, here), Path(folder), turns))
            for item in session.items
        ]
    return True


@contextmanager
def _worktree(here: Path, ref: str, folder: Path) -> Iterator[Path]:
    """A worktree of a commit, which is gone afterwards."""
    made = subprocess.run(
        ["git", "worktree", "add", "--detach", folder, ref],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        raise pytest.UsageError(f"--against is '{ref}': {made.stderr.strip().splitlines()[-1]}")
    try:
        yield folder
    finally:
        subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=here, check=True)


def _compare(name: str, trees: tuple[Path, Path], folder: Path, turns: int) -> list[float | None]:
    """The shortest seconds of a benchmark in each tree, which take turns; None where one does not run it."""
    shortest: list[float | None] = [None, None]
    for _ in range(turns):
        for at, tree in enumerate(trees):
            taken = _seconds(name, tree, folder)
            if taken is None:
                return shortest
            shortest[at] = min(taken, shortest[at] or taken)
    return shortest


def _seconds(name: str, tree: Path, folder: Path) -> float | None:
    """Processor seconds of one round of a benchmark in a tree."""
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    options = ["-n", "0", "--benchmark-timer=processor_clock.seconds", f"--benchmark-json={result}"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, name],
        cwd=tree, env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{tree}"}, capture_output=True, check=False,
    )  # fmt: skip
    found = json.loads(result.read_text())["benchmarks"] if result.exists() and result.stat().st_size else []
    return found[0]["stats"]["min"] if found else None


def pytest_terminal_summary(terminalreporter, config):
    """The table of what was compared."""
    found = config.stash.get(FOUND, None)
    if found is None:
        return
    terminalreporter.section(f"{config.getoption('--against')} against here, processor seconds")
    for name, then_s, now_s in found:
        words = "not in both"
        if then_s is not None and now_s is not None:
            words = f"{then_s:9.4g} {now_s:9.4g} {now_s / then_s:6.2f}x"
        terminalreporter.line(f"{words:>28}  {name.rpartition('/')[2]}")
