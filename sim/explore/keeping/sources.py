"""Sources: the code of strategies of somebody else's, by which a store tells their answers from those of other code."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import resolve_name
from inspect import getsource
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from profiles.errors import InputError
from sim.outcomes.contents import content_of

KNOWN: Final = frozenset({"profiles", "strategies", "sim", *sys.stdlib_module_names})
"""Packages whose code is no part of a strategy's: ``engine`` holds ours, and Python has its own."""
INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of packages that were installed."""


@cache
def source_of(cls: type[Any]) -> dict[str, str]:
    """Hash of the code of a strategy of somebody else's; ``engine`` holds our own.

    It is of the modules of the class and of its bases, and of all that these import, as far as it is loaded, written in
    Python, and of the same package or not installed.

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
        for module in _imported(sources[name], sys.modules.get(name)):
            if module.__name__ not in sources and _is_followed(module, _package_of(cls.__module__)):
                sources[module.__name__] = Path(str(module.__file__)).read_bytes()
                left.append(module.__name__)
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


def _imported(source: bytes, module: ModuleType | None) -> Iterator[ModuleType]:
    """The loaded modules that the code of a module imports, wherever in it."""
    package = getattr(module, "__package__", None) or ""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            names = [origin, *(f"{origin}.{item.name}" for item in node.names)]
        yield from (sys.modules[name] for name in names if name in sys.modules)


def _is_followed(module: ModuleType, package: str) -> bool:
    """Whether a module's code is a strategy's that stands in a package."""
    own, file = _package_of(module.__name__), Path(getattr(module, "__file__", None) or "")
    if own in KNOWN or file.suffix != ".py":
        return False
    return own == package or not INSTALLED.intersection(file.parts)


def _package_of(module: str) -> str:
    return module.partition(".")[0]
