"""A sampler of an installed package, in one file of a few lines, is found, offered, swept and tested."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOY = ROOT / "tests" / "data" / "toy_sampler.py"
SCENARIO = ("--model", "pixart", "--cluster", "l20-pcie-8", "--gpus", "8", "--resolution", "1024")


@pytest.fixture
def installed(install):
    """Install the toy as a package would be."""
    install("toys", ["ring-of-pairs = toy_sampler"], {"toy_sampler.py": TOY.read_text(encoding="utf-8")})


@pytest.mark.usefixtures("installed")
def test_it_is_found_swept_beside_the_others_and_is_the_hybrid_that_it_says(ask):
    (row,) = (row for row in ask("strategies") if row["name"] == "ring-of-pairs")
    assert row["summary"] == "tensor parallelism in pairs, a ring of pairs"
    swept = ask("sweep", *SCENARIO, "--strategy", "ring-of-pairs")
    rows = {row["num_gpus"]: row for row in swept if row["status"] == "simulated"}
    assert rows[8]["seamless"]
    degrees = ("--guidance-degree", 1, "--ring-degree", 4, "--tensor-degree", 2)
    assert rows[8]["latency_s"] == ask("run", *SCENARIO, "--strategy", "hybrid", *degrees)["latency_s"]


@pytest.mark.usefixtures("installed")
def test_it_passes_the_conformance_suite_of_samplers(tmp_path):
    suite = ("-n", "0", "tests/test_sampling_conformance.py", "-k", "ring-of-pairs", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *suite],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
