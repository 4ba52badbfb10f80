"""The distribution depends on what its packages import, and on nothing else."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = ("sim", "strategies", "profiles")
LOADED_BY_OTHERS = {"highspy"}
"""The solver that pulp looks for."""
MEASURING = dict.fromkeys(("torch", "diffusers", "transformers", "scipy", "peft", "accelerate"), "measure")
OPTIONAL = MEASURING | {"shtab": "completion", "plotly": "report", "distributed": "dask"}
OPTIONAL["ipywidgets"] = "notebooks"
"""What is imported only by who asks for it, and the extra that brings it."""


def imported(packages):
    """The foreign top-level modules that the files of some packages import."""
    found = set()
    for path in (path for package in packages for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found |= {name.partition(".")[0] for name in names}
    return found - set(sys.stdlib_module_names) - {*SHIPPED, "validate", ""}


def declared(requirements):
    return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}


def test_the_distribution_depends_on_just_what_its_packages_import():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert declared(project["dependencies"]) == (imported(SHIPPED) - set(OPTIONAL)) | LOADED_BY_OTHERS
    for package, extra in OPTIONAL.items():
        assert package in declared(project["optional-dependencies"][extra])


def test_what_validation_imports_beyond_that_is_in_its_extra_and_in_that_of_the_tests():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, known = project["optional-dependencies"], declared(project["dependencies"])
    needed = imported(("validate",)) - known - {"cuda"}  # of the extra gpu, imported where there is a GPU
    assert needed <= declared(extras["validate"])
    assert needed <= declared(extras["test"])
