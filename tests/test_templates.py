"""Templates: a strategy of one's own is one short file, found, offered, swept and tested like any other."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOY = ROOT / "tests" / "data" / "toy_pipeline.py"


@pytest.fixture
def installed(tmp_path):
    """Install the toy as a package would be; return what a command of the interpreter then prints."""
    folder = tmp_path / "toy_pipeline-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-pipeline\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[diffusim.strategies]\npairs = toy_pipeline:Pairs\n")
    (tmp_path / "toy_pipeline.py").write_text(TOY.read_text(encoding="utf-8"))

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_pipeline_of_ones_own_takes_25_lines_at_most():
    assert len(TOY.read_text(encoding="utf-8").splitlines()) <= 25


def test_a_pipeline_of_ones_own_is_found_and_offered(installed):
    listed = {row["name"]: row for row in json.loads(installed("sim", "strategies", "--json"))}
    assert listed["pairs"]["task"] == "train"
    assert listed["pairs"]["summary"] == "two forwards, then their two backwards, again and again"
    assert "pipeline_degree" in listed["pairs"]["parameters"]


def test_a_pipeline_of_ones_own_is_swept(installed, tmp_path):
    asked = ("--model", "sd21", "--gpus", "4", "--strategy", "pairs", "--json")
    rows = json.loads(installed("sim", "sweep", *asked, "--out", str(tmp_path / "rows.csv")))
    assert {(row["strategy"], row["parameters"]["pipeline_degree"]) for row in rows} >= {
        ("pairs", 2),
        ("pairs", 4),
    }
    best = next(row for row in rows if row["status"] == "simulated")
    assert best["samples_per_s"] > 0


@pytest.mark.slow
def test_a_pipeline_of_ones_own_passes_the_checks_of_every_strategy(installed):
    said = installed(
        "pytest", "tests/test_conformance.py", "-n", "0", "-p", "no:cacheprovider", "-k", "pairs"
    )
    assert "passed" in said
    assert "failed" not in said
