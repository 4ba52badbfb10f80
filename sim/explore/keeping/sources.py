"""Sources: the code of strategies of somebody else's, by which a store tells their answers from those of other code."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, resolve_name
from inspect import getsource
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError
from sim.outcomes.contents import content_of

KNOWN: Final = frozenset({"profiles", "strategies", "sim", *sys.stdlib_module_names})
"""Packages whose code is no part of a strategy's: ``engine`` holds ours, and Python has its own."""
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of packages that were installed."""


@cache
def code_of(cls: type[Any]) -> dict[str, str]:
    """Hash of the code of a strategy of somebody else's; ``engine`` holds our own.

    It is of the modules of the class and of its bases, and of all that these import, loaded or not yet, as far as it is
    written in Python, and of the same package or not installed.

    Raises:
        InputError: a class stands in no file, so that answers of its earlier code could not be told apart.
    """
    sources = {
        base.__module__: _source_of_class(base)
        for base in cls.__mro__
        if _package_of(base.__module__) not in KNOWN
    }
    left = list(sources)
    while left:
        name = left.pop()
        for imported in _imported(sources[name], name):
            file = _file_of(imported)
            if imported not in sources and _is_followed(imported, file, _package_of(cls.__module__)):
                sources[imported] = file.read_bytes()
                left.append(imported)
    return {"code": content_of(tuple(sorted(sources.values())))} if sources else {}


def _source_of_class(cls: type[Any]) -> bytes:
    """The code of the module of a class.

    Raises:
        InputError: it stands in no file.
    """
    try:
        return getsource(sys.modules.get(cls.__module__, cls)).encode()
    except (OSError, TypeError):
        words = "stands in no file: a store must tell answers of its code from those of other code"
        raise InputError(f"strategy {cls.__qualname__} {words}") from None


def _imported(source: bytes, module: str) -> Iterator[str]:
    """What the code of a module imports, wherever in it: names of modules, and of what may be one."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (item.name for item in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), _parent_of(module))
            yield from (origin, *(f"{origin}.{item.name}" for item in node.names))


def _parent_of(name: str) -> str:
    """The package in which the relative imports of a module begin."""
    if name in sys.modules:
        return getattr(sys.modules[name], "__package__", None) or ""
    return getattr(_spec_of(name), "parent", "")


def _file_of(name: str) -> Path:
    """The file of a module; one without a name where there is none."""
    if name in sys.modules:
        return Path(getattr(sys.modules[name], "__file__", None) or "")
    return Path(getattr(_spec_of(name), "origin", None) or "")


def _spec_of(name: str) -> ModuleSpec | None:
    """Where a module is found; ``find_spec`` would load the packages that it is in."""
    parent = name.rpartition(".")[0]
    if not parent:
        try:
            return find_spec(name)
        except (ImportError, ValueError):  # it was made by hand
            return None
    folders = getattr(_spec_of(parent), "submodule_search_locations", None)
    return PathFinder.find_spec(name, folders) if folders else None


def _is_followed(name: str, file: Path, package: str) -> bool:
    """Whether a module's code is a strategy's that stands in a package."""
    own = _package_of(name)
    if own in KNOWN or file.suffix != ".py":
        return False
    return own == package or not INSTALLED.intersection(file.parts)


def _package_of(module: str) -> str:
    return module.partition(".")[0]
