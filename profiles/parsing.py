"""Texts of JSON and TOML as values; a text that is refused is so for a reason in one line."""

import json
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from profiles.errors import one_line

T = TypeVar("T")


class _RuleError(ValueError):
    """A rule that a text breaks, in words of this project, with names as they stand there."""


def parse_json(text: str) -> Any:
    """The value that a JSON text holds."""
    return _parsed(partial(json.loads, object_pairs_hook=_once), text)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise _RuleError(f"{key} stands twice")
        values[key] = value
    return values


def load_toml(path: Path) -> dict[str, Any]:
    """The table of a TOML file that comes with the package."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def parse_toml(text: str) -> dict[str, Any]:
    """The table that a TOML text holds."""
    return _parsed(tomllib.loads, text)


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except _RuleError as error:
        raise ValueError(one_line(str(error))) from None
    except ValueError as error:  # also of the int and datetime constructors
        raise ValueError(one_line(str(error).lower())) from None
