"""Notebooks are thin: prose and calls, at most fifteen cells, nothing defined, no outputs committed."""

import ast
import json
import re
from pathlib import Path

import pytest

import sim

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def cells(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def code_of(path):
    return [cell for cell in cells(path) if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_a_title_and_at_most_fifteen_cells(path):
    assert cells(path)[0]["cell_type"] == "markdown"
    assert "".join(cells(path)[0]["source"]).startswith("# ")
    assert len(cells(path)) <= 15


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_only_calls_what_the_packages_define(path):
    defining = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for cell in code_of(path):
        nodes = ast.walk(ast.parse("".join(cell["source"])))
        assert not [node for node in nodes if isinstance(node, defining)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_the_face_and_little_else(path):
    imports = [
        node
        for cell in code_of(path)
        for node in ast.walk(ast.parse("".join(cell["source"])))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    names = [name.name for node in imports if isinstance(node, ast.Import) for name in node.names]
    assert len(names) == len(imports) <= 3
    assert "sim" in names
    assert set(names) <= {"sim", "pandas", *(["validate"] if path.stem.startswith("04") else [])}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path):
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code_of(path))


def test_what_a_notebook_calls_data_parallel_is_every_strategy_without_a_pipeline():
    (path,) = (path for path in NOTEBOOKS if path.stem.startswith("02"))
    code = "".join(line for cell in code_of(path) for line in cell["source"])
    named = re.search(r"DATA_PARALLEL = (\[.*\])", code)
    listed = sim.strategies().query("task == 'train'").set_index("name")["parameters"]
    assert set(ast.literal_eval(named[1])) == {
        name for name, known in listed.items() if "pipeline_degree" not in known
    }
