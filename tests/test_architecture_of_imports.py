"""Modules import one another in one direction, by names that a reader can see, and functions fit on a screen.

Import-linter does not see imports inside functions; this does, and those under `TYPE_CHECKING` too.
"""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LONGEST_FUNCTION = 60


@cache
def trees():
    """The syntax of every module of the house, by its name."""
    files = (of for at in ("profiles", "strategies", "sim", "validate") for of in (ROOT / at).rglob("*.py"))
    parsed = {of.relative_to(ROOT).with_suffix(""): ast.parse(of.read_text("utf-8")) for of in sorted(files)}
    return {".".join(path.parts).removesuffix(".__init__"): tree for path, tree in parsed.items()}


def imports(name):
    """The modules of the house that a module imports, at its head, in functions and under `TYPE_CHECKING`."""
    for node in ast.walk(trees()[name]):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in trees() else node.module
                for alias in node.names
            ]
        yield from (found for found in names if found in trees() and found != name)


def reachable(start, edges):
    """The modules that one module imports, directly or through others."""
    seen, left = set(), [start]
    while left:
        fresh = edges[left.pop()] - seen
        seen |= fresh
        left += fresh
    return seen


def test_no_modules_import_one_another_in_a_circle():
    edges = {name: set(imports(name)) for name in trees()}
    reach = {name: reachable(name, edges) for name in trees()}
    circles = {frozenset(other for other in reach[name] if name in reach[other]) for name in trees()}
    assert [sorted(circle) for circle in circles if circle] == []


def test_only_the_registry_imports_by_name():
    by_name = {
        name
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if {"__import__", "import_module"}
        & {getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", "")}
    }
    assert by_name <= {"strategies.registry"}


def test_functions_fit_on_a_screen():
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    long = {
        f"{name}.{node.name}": node.end_lineno - node.lineno + 1
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, kinds) and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    }
    assert not long
