"""Rules that values keep however they are made; each refusal names the value's owner, its field and the rule.

One more rule: a sum of floats is the same on every Python (``sum_in_order``).
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import reduce
from math import inf, isfinite
from numbers import Integral, Real
from operator import add
from os import PathLike

from profiles.errors import InputError, shown


def check_numbers(owner: str, **values: float) -> None:
    """Refuse what is no finite number that is at least 0.

    Raises:
        InputError: a value is not.
    """
    for key, value in values.items():
        _check_real(owner, key, value)
        if not isfinite(value):
            raise InputError(f"{owner}: {key} is {value}, must be finite")
        if value < 0:
            raise InputError(f"{owner}: {key} is {value}, must not be negative")


def check_positive(owner: str, *, most: float = inf, **values: float) -> None:
    """Refuse what is no number above 0; infinity passes where there is no ``most``.

    Raises:
        InputError: a value is not.
    """
    for key, value in values.items():
        _check_real(owner, key, value)
        if not value > 0:
            raise InputError(f"{owner}: {key} is {value}, must be positive")
        if value > most:
            raise InputError(f"{owner}: {key} is {value}, must be at most {most:g}")


def _check_real(owner: str, key: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{owner}: {key} is {shown(value)}, must be a number")


def check_counts(owner: str, *, least: int = 0, **values: int) -> None:
    """Refuse what is no integer of at least ``least``.

    Raises:
        InputError: a value is not.
    """
    for key, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InputError(f"{owner}: {key} is {shown(value)}, must be an integer")
        if value < least:
            raise InputError(f"{owner}: {key} is {value}, must be at least {least}")


def is_one_of(value: object, *words: str) -> bool:
    """Whether a value is one of some words; arrays, which compare with each word at once, are none."""
    return isinstance(value, str) and value in words


def check_choice(owner: str, key: str, value: str, choices: Sequence[str]) -> None:
    """Refuse what is none of the choices.

    Raises:
        InputError: it is not.
    """
    if not is_one_of(value, *choices):
        raise InputError(f"{owner}: {key} is {shown(value)}, must be one of {', '.join(choices)}")


def check_index(owner: str, key: str, value: int, count: int, of: str) -> None:
    """Refuse what is no index into ``count`` things.

    Raises:
        InputError: it is not.
    """
    check_counts(owner, **{key: value})
    if value >= count:
        raise InputError(f"{owner}: {key} is {value}, must be below {count}, the {of}")


def check_tuples(owner: str, **values: object) -> None:
    """Refuse what could change inside a frozen value.

    Raises:
        InputError: it is no tuple.
    """
    for key, value in values.items():
        if not isinstance(value, tuple):
            raise InputError(f"{owner}: {key} is a {type(value).__name__}, must be a tuple")


def check_distinct(owner: str, key: str, values: Iterable[Hashable]) -> None:
    """Refuse what stands twice.

    Raises:
        InputError: something does.
    """
    seen: set[Hashable] = set()
    for value in values:
        if value in seen:
            raise InputError(f"{owner}: {key} names {value} twice")
        seen.add(value)


def check_name(owner: str, name: object) -> None:
    """Refuse what is neither a name nor a path.

    Raises:
        InputError: it is something else, empty, or holds control characters, which would reach every table.
    """
    if not isinstance(name, str | PathLike) or not str(name):
        raise InputError(f"{owner} is {shown(name)}, must be a name or a path")
    if not str(name).isprintable():
        raise InputError(f"{owner} is {shown(name)}, must hold no control characters")


def sum_in_order(values: Iterable[float]) -> float:
    """The sum from left to right, each step rounded; 0 of nothing.

    The builtin's last digits depend on the version: since Python 3.12 it carries what rounding drops along.
    """
    return reduce(add, values, 0)
