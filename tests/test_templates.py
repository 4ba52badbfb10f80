"""Strategies of one's own: each is one short file, found, offered, swept and tested like any other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOYS = {"toy_pipeline": "pairs = toy_pipeline:Pairs", "toy_sampler": "ring-of-pairs = toy_sampler"}
SUITES = ("tests/test_conformance.py", "tests/test_sampling_conformance.py")
SCENARIO = ("--model", "pixart", "--cluster", "l20-pcie-8", "--gpus", "8", "--resolution", "1024")


def text_of(toy):
    return (ROOT / "tests" / "data" / f"{toy}.py").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def installed(install):
    """Install the toys as a package would be."""
    install("toys", [*TOYS.values()], {f"{toy}.py": text_of(toy) for toy in TOYS})


def test_a_pipeline_of_ones_own_takes_25_lines_at_most():
    assert len(text_of("toy_pipeline").splitlines()) <= 25


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


def test_a_sampler_of_ones_own_is_found_swept_and_is_the_hybrid_that_it_says(ask):
    (row,) = (row for row in ask("strategies") if row["name"] == "ring-of-pairs")
    assert row["summary"] == "tensor parallelism in pairs, a ring of pairs"
    swept = ask("sweep", *SCENARIO, "--strategy", "ring-of-pairs")
    rows = {row["num_gpus"]: row for row in swept if row["status"] == "simulated"}
    assert rows[8]["seamless"]
    degrees = ("--guidance-degree", 1, "--ring-degree", 4, "--tensor-degree", 2)
    assert rows[8]["latency_s"] == ask("run", *SCENARIO, "--strategy", "hybrid", *degrees)["latency_s"]


@pytest.mark.slow
def test_a_strategy_of_ones_own_passes_the_checks_of_every_other(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *SUITES, "-n", "0", "-p", "no:cacheprovider", "-k", "pairs", "-rp"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"PASSED {suite}::" in done.stdout for suite in SUITES)
