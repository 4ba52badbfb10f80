"""The benchmarks of an older commit are timed beside those of the present one."""

import subprocess
import sys
from pathlib import Path
from shutil import copy, which

import pytest

CONFTEST = Path(__file__).with_name("benchmarks") / "conftest.py"
BENCH = """\
from work import work


def test_work(benchmark):
    benchmark.pedantic(work, rounds=2)


"""
SETTINGS = """\
[tool.pytest.ini_options]
pythonpath = ["."]
python_files = ["bench_*.py"]
addopts = "--import-mode=importlib"
"""
SLOW, QUICK = (f"def work():\n    sum(range({number}))\n" for number in (2_000_000, 100_000))


def write(folder, **texts):
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_toml", ".toml")
        path = path if path.suffix else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.slow
@pytest.mark.skipif(which("git") is None, reason="commits are git's")
@pytest.mark.timed
def test_a_commit_that_took_longer_is_seen_to(tmp_path):
    def git(*words):
        author = ["-c", "user.name=one", "-c", "user.email=one@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    write(tmp_path, pyproject_toml=SETTINGS, work=SLOW, tests__benchmarks__bench_one=BENCH)
    copy(CONFTEST, tmp_path / "tests" / "benchmarks")
    git("add", "-A")
    git("commit", "-qm", "Old")
    more = f"{BENCH}def test_more(benchmark):\n    benchmark(work)\n"
    write(tmp_path, work=QUICK, tests__benchmarks__bench_one=more)

    def pytest_of(*words):
        command = [sys.executable, "-m", "pytest", "-n", "0", "tests/benchmarks", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    told = pytest_of("--against", "HEAD", "--turns", "1")
    lines = [line.split() for line in told.stdout.splitlines() if "bench_one.py::" in line]
    assert [line[-1] for line in lines] == ["bench_one.py::test_work", "bench_one.py::test_more"], (
        told.stdout + told.stderr
    )
    then_s, now_s, ratio = lines[0][:3]
    assert float(now_s) < float(then_s) and float(ratio.rstrip("x")) < 0.5
    assert lines[1][:3] == ["not", "in", "both"]
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 1
    refused = pytest_of("--against", "no-such-commit")
    assert refused.returncode == 4 and "--against is 'no-such-commit': " in refused.stderr
