"""Modules import one another in one direction, by names that a reader can see, and functions fit on a screen.

Import-linter does not see imports inside functions; this does, and those under `TYPE_CHECKING` too.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(
    file for room in ("profiles", "strategies", "sim", "validate") for file in (ROOT / room).rglob("*.py")
)
TREES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts): ast.parse(file.read_text("utf-8"))
    for file in FILES
}
TREES = {name.removesuffix(".__init__"): tree for name, tree in TREES.items()}
LONGEST_FUNCTION = 60


def imports(name):
    """The modules of the house that a module imports anywhere; of a package, the modules that it hands names on from."""
    for node in ast.walk(TREES[name]):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in TREES else node.module
                for alias in node.names
            ]
        yield from (found for found in names if found in TREES and found != name)


def test_no_modules_import_one_another_in_a_circle():
    try:
        TopologicalSorter({name: set(imports(name)) for name in TREES}).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_only_the_registry_imports_by_name():
    nodes = ((name, node) for name, tree in TREES.items() for node in ast.walk(tree))
    by_name = {
        name
        for name, node in nodes
        if (isinstance(node, ast.Name) and node.id == "__import__")
        or (
            isinstance(node, ast.Import)
            and any(alias.name.split(".")[0] == "importlib" for alias in node.names)
        )
        or (isinstance(node, ast.ImportFrom) and (node.module or "") in ("importlib", "importlib.util"))
    }
    assert by_name <= {"strategies.registry"}


def test_functions_fit_on_a_screen():
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    long = {
        f"{name}.{node.name}": node.end_lineno - node.lineno + 1
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    }
    assert not long
