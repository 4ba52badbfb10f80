"""The registry: one name, one strategy; installed packages bring their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOY = """
from dataclasses import dataclass
from typing import ClassVar

from strategies import parameters
from strategies.strategy import Strategy
from strategies.training.linear import GPipe


@dataclass(frozen=True, slots=True)
class Toy(Strategy):
    name: ClassVar[str] = "NAME"
    summary: ClassVar[str] = "a stranger"

    pieces: int = parameters.parameter(1, "micro-batches")

    def plan(self, scenario):
        return GPipe(1, self.pieces).plan(scenario)

    def bound(self, scenario):
        return GPipe(1, self.pieces).bound(scenario)

    @classmethod
    def candidates(cls, scenario):
        yield cls()
"""


@pytest.fixture
def installed(tmp_path):
    """Install a package: its modules, and the lines of its entry points; return what a command line then gives."""

    def install(package, entries, modules):
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(line + "\n" for line in entries)
        (folder / "entry_points.txt").write_text("[diffusim.strategies]\n" + lines)
        for name, text in modules.items():
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "sim", *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    run.install = install
    return run


@pytest.mark.parametrize("value", ["toys.toy:Toy", "toys"])
def test_an_installed_package_brings_strategies_as_a_class_a_module_or_a_package(installed, tmp_path, value):
    modules = {"toys/__init__.py": "from toys.toy import Toy\n", "toys/toy.py": TOY.replace("NAME", "toy")}
    installed.install("toys", [f"toy = {value}"], modules)
    sweep = ("sweep", "--model", "sd21", "--gpus", "2", "--strategy", "toy", "--pieces", "4", "--json")
    swept = installed(*sweep, "--out", str(tmp_path / "rows.csv"))
    assert swept.returncode == 0, swept.stderr
    (row,) = json.loads(swept.stdout)
    assert (row["status"], row["strategy"], row["parameters"]) == ("simulated", "toy", {"pieces": 4})
    refused = installed("run", "--model", "sd21", "--gpus", "2", "--strategy", "toy", "--pieces", "0")
    assert refused.returncode == 2
    assert refused.stderr == "sim: error: --pieces is 0, must be at least 1\n"


def test_two_strategies_of_one_name_are_refused_by_the_names_of_both(installed):
    installed.install("doubles", ["toy = double:Toy"], {"double.py": TOY.replace("NAME", "gpipe")})
    listed = installed("strategies")
    assert listed.returncode == 2
    assert (
        listed.stderr
        == "sim: error: two strategies are named gpipe: strategies.training.linear.GPipe and double.Toy\n"
    )


@pytest.mark.parametrize(
    ("value", "text", "problem"),
    [
        ("broken:Toy", "", "does not load: AttributeError: module 'broken' has no attribute 'Toy'"),
        ("broken", "1 / 0", "does not load: ZeroDivisionError: division by zero"),
        ("broken", "", "must be a strategy or a module with one: a dataclass, and a Strategy or Sampler"),
    ],
)
def test_a_broken_entry_point_is_named_in_one_line(installed, value, text, problem):
    installed.install("toys", [f"toy = {value}"], {"broken.py": text})
    listed = installed("strategies")
    assert listed.returncode == 2
    assert listed.stderr == f"sim: error: entry point toy = {value} of toys {problem}\n"
