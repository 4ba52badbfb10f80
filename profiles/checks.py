"""Rules that values keep however they are made; each refusal names the value's owner, its field and the rule.

``sum_in_order`` is here too: a sum of floats that is the same on every Python.
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import reduce
from math import isfinite
from numbers import Integral, Real
from operator import add
from os import PathLike

from profiles.errors import InputError, shown


def check_numbers(owner: str, **values: float) -> None:
    """Refuse anything but finite numbers of at least 0."""
    for key, value in values.items():
        if not is_number(value):
            raise InputError(f"{owner}: {key} is {shown(value)}, must be a number")
        if not isfinite(value):
            raise InputError(f"{owner}: {key} is {value}, must be finite")
        if value < 0:
            raise InputError(f"{owner}: {key} is {value}, must not be negative")


def is_number(value: object) -> bool:
    """Return whether a value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_counts(owner: str, *, least: int = 0, **values: int) -> None:
    """Refuse anything but integers of at least ``least``."""
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InputError(f"{owner}: {key} is {shown(value)}, must be an integer")
        if value < least:
            raise InputError(f"{owner}: {key} is {value}, must be at least {least}")


def is_one_of(value: object, *words: str) -> bool:
    """Return whether a value is one of some words; anything but a string is not (an array would compare by element)."""
    return isinstance(value, str) and value in words


def check_choice(owner: str, key: str, value: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices."""
    if not is_one_of(value, *choices):
        raise InputError(f"{owner}: {key} is {shown(value)}, must be one of {', '.join(choices)}")


def check_distinct(owner: str, key: str, values: Iterable[Hashable]) -> None:
    """Refuse values that are not distinct."""
    seen: set[Hashable] = set()
    for value in values:
        if value in seen:
            raise InputError(f"{owner}: {key} names {value} twice")
        seen.add(value)


def check_name(owner: str, name: object) -> None:
    """Refuse anything but a name or a path."""
    if not isinstance(name, str | PathLike) or not str(name):
        raise InputError(f"{owner} is {shown(name)}, must be a name or a path")
    if not str(name).isprintable():
        raise InputError(f"{owner} is {shown(name)}, must hold no control characters")


def sum_in_order(values: Iterable[float]) -> float:
    """The sum from left to right, each step rounded; 0 for no values.

    The last digits of the builtin ``sum`` depend on the version: since Python 3.12 it compensates for rounding.
    """
    return reduce(add, values, 0)
