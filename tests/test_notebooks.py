"""Notebooks are thin: prose and calls, at most fifteen cells, nothing defined, no outputs committed."""

import ast
import json
import re
from pathlib import Path

import pytest

import sim

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
EVERY = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_of(path):
    return ["".join(cell["source"]) for cell in cells(path) if cell["cell_type"] == "code"]


def nodes_of(path):
    return [node for code in code_of(path) for node in ast.walk(ast.parse(code))]


@EVERY
def test_a_notebook_is_short_and_committed_without_outputs(path):
    first, *others = cells(path)
    assert first["cell_type"] == "markdown"
    assert "".join(first["source"]).startswith("# ")
    assert len(others) < 15
    code = [cell for cell in others if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


@EVERY
def test_a_notebook_calls_what_the_packages_define(path):
    """That on what-ifs turns a run, that on calibration measures into a folder, that on serving has its own policy."""
    defined = [node.name for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert defined == {"05": ["turn"], "06": ["HopefulFirst", "start"]}.get(path.stem[:2], [])
    imports = [name.name for node in nodes_of(path) if isinstance(node, ast.Import) for name in node.names]
    assert "sim" in imports
    rooms = {node.module.split(".")[0] for node in nodes_of(path) if isinstance(node, ast.ImportFrom)}
    more = {
        "04": {"profiles", "validate", "torch", "pathlib", "tempfile"},
        "05": {"ipywidgets"},
        "06": {"strategies", "dataclasses", "pathlib", "tempfile"},
    }
    assert {*imports, *rooms} <= {"sim", "pandas"} | more.get(path.stem[:2], set())


def test_what_a_notebook_calls_data_parallel_is_every_strategy_without_a_pipeline():
    (path,) = (path for path in NOTEBOOKS if path.stem.startswith("02"))
    named = re.search(r"DATA_PARALLEL = (\[.*\])", "".join(code_of(path)))
    listed = sim.strategies().query("task == 'train'").set_index("name")["parameters"]
    assert set(ast.literal_eval(named[1])) == {n for n, of in listed.items() if "pipeline_degree" not in of}
