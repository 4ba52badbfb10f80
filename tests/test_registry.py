"""The registry: one name, one strategy; installed packages bring their own."""

import pytest

TOY = """
from dataclasses import dataclass

from strategies import parameters
from strategies.strategy import Strategy
from strategies.training.linear import GPipe


@dataclass(frozen=True, slots=True)
class Toy(Strategy):
    name = "NAME"
    summary = "a stranger"

    pieces: int = parameters.parameter(1, "micro-batches")

    def plan(self, scenario):
        return GPipe(1, self.pieces).plan(scenario)

    def bound(self, scenario):
        return GPipe(1, self.pieces).bound(scenario)

    @classmethod
    def candidates(cls, scenario):
        yield cls()
"""


@pytest.mark.parametrize("value", ["toys.toy:Toy", "toys"])
def test_an_installed_package_brings_strategies_as_a_class_a_module_or_a_package(install, ask, tell, value):
    modules = {"toys/__init__.py": "from toys.toy import Toy\n", "toys/toy.py": TOY.replace("NAME", "toy")}
    install("toys", [f"toy = {value}"], modules)
    asked = ("--model", "sd21", "--gpus", 2, "--strategy", "toy")
    (row,) = ask("sweep", *asked, "--pieces", 4)
    assert (row["status"], row["strategy"], row["parameters"]) == ("simulated", "toy", {"pieces": 4})
    assert tell("run", *asked, "--pieces", 0) == (2, "", "sim: error: --pieces is 0, must be at least 1\n")


def test_two_strategies_of_one_name_are_refused_by_the_names_of_both(install, tell):
    install("doubles", ["toy = double:Toy"], {"double.py": TOY.replace("NAME", "gpipe")})
    both = "strategies.training.linear.GPipe and double.Toy"
    assert tell("strategies") == (2, "", f"sim: error: two strategies are named gpipe: {both}\n")


def test_a_field_that_is_no_parameter_is_refused_by_its_name(install, tell):
    install(
        "plain",
        ["toy = plain:Toy"],
        {"plain.py": TOY.replace('parameters.parameter(1, "micro-batches")', "1")},
    )
    code, _, said = tell("strategies")
    assert (code, 'Toy: declare pieces: int = parameter(1, "help"), from strategies.parameters' in said) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("value", "text", "problem"),
    [
        ("broken:Toy", "", "does not load: AttributeError: module 'broken' has no attribute 'Toy'"),
        ("broken", "raise SystemExit(0)", "does not load: SystemExit: 0"),
        ("broken", "1 / 0", "does not load: ZeroDivisionError: division by zero"),
        ("broken", "", "must be a strategy or a module with one: a dataclass, and a Strategy or Sampler"),
    ],
)
def test_a_broken_entry_point_is_named_in_one_line(install, tell, value, text, problem):
    install("toys", [f"toy = {value}"], {"broken.py": text})
    assert tell("strategies") == (2, "", f"sim: error: entry point toy = {value} of toys {problem}\n")
