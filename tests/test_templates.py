"""Templates: a strategy of one's own is one short file, found, offered, swept and tested like any other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOY = ROOT / "tests" / "data" / "toy_pipeline.py"


@pytest.fixture
def installed(install):
    """Install the toy as a package would be."""
    install(
        "toy_pipeline", ["pairs = toy_pipeline:Pairs"], {"toy_pipeline.py": TOY.read_text(encoding="utf-8")}
    )


def test_a_pipeline_of_ones_own_takes_25_lines_at_most():
    assert len(TOY.read_text(encoding="utf-8").splitlines()) <= 25


@pytest.mark.usefixtures("installed")
def test_a_pipeline_of_ones_own_is_found_offered_and_swept(ask):
    (listed,) = (row for row in ask("strategies") if row["name"] == "pairs")
    assert listed["task"] == "train"
    assert listed["summary"] == "two forwards, then their two backwards, again and again"
    assert "pipeline_degree" in listed["parameters"]
    rows = ask("sweep", "--model", "sd21", "--gpus", 4, "--strategy", "pairs")
    degrees = {(row["strategy"], row["parameters"]["pipeline_degree"]) for row in rows}
    assert degrees >= {("pairs", 2), ("pairs", 4)}
    best = next(row for row in rows if row["status"] == "simulated")
    assert best["samples_per_s"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_pipeline_of_ones_own_passes_the_checks_of_every_strategy(tmp_path):
    suite = ("tests/test_conformance.py", "-n", "0", "-p", "no:cacheprovider", "-k", "pairs")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *suite],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout
