"""A sampler of an installed package, in one file of a few lines, is found, offered, swept and tested."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOY = ROOT / "tests" / "data" / "toy_sampler.py"
SCENARIO = ("--model", "pixart", "--cluster", "l20-pcie-8", "--gpus", "8", "--resolution", "1024")


@pytest.fixture
def run(tmp_path):
    """Return what a module's command line gives where the toy's package is installed."""
    folder = tmp_path / "toys-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[diffusim.strategies]\nring-of-pairs = toy_sampler\n")
    shutil.copy(TOY, tmp_path)

    def called(*arguments):
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    return called


def test_it_is_found_swept_beside_the_others_and_is_the_hybrid_that_it_says(run, tmp_path):
    listed = run("sim", "strategies", "--json")
    assert listed.returncode == 0, listed.stderr
    (row,) = [row for row in json.loads(listed.stdout) if row["name"] == "ring-of-pairs"]
    assert row["summary"] == "tensor parallelism in pairs, a ring of pairs"
    table = ("--json", "--out", str(tmp_path / "rows.csv"))
    swept = run("sim", "sweep", *SCENARIO, "--strategy", "ring-of-pairs", *table)
    assert swept.returncode == 0, swept.stderr
    rows = {row["num_gpus"]: row for row in json.loads(swept.stdout) if row["status"] == "simulated"}
    assert rows[8]["seamless"]
    degrees = ("--guidance-degree", "1", "--ring-degree", "4", "--tensor-degree", "2")
    hybrid = run("sim", "run", *SCENARIO, "--strategy", "hybrid", *degrees, "--json")
    assert rows[8]["latency_s"] == json.loads(hybrid.stdout)["latency_s"]


def test_it_passes_the_conformance_suite_of_samplers(run):
    suite = ("-n", "0", "tests/test_sampling_conformance.py", "-k", "ring-of-pairs", "-p", "no:cacheprovider")
    tested = run("pytest", *suite)
    assert tested.returncode == 0, tested.stdout
    assert " passed" in tested.stdout
