"""Rules that values keep however they are made; each refusal names the owner of the value, its field and the rule."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from math import inf, ulp
from numbers import Integral, Real
from os import PathLike, fspath
from sys import float_info
from typing import Any, Final

from profiles.errors import InputError, shown

Span = tuple[float, float]
"""The least and the largest that a number may be."""
FINITE: Final[Span] = (0.0, float_info.max)
AT_LEAST_1: Final[Span] = (1.0, float_info.max)
POSITIVE: Final[Span] = (ulp(0.0), float_info.max)
RATE: Final[Span] = (ulp(0.0), inf)
"""Positive; infinite where something is free."""
SHARE: Final[Span] = (0.0, 1.0)
POSITIVE_SHARE: Final[Span] = (ulp(0.0), 1.0)


def check_fields(owner: str, made: object, **spans: Span) -> None:
    """Refuse integers and numbers of a dataclass that are not in their span: from 0, and finite, if none is given."""
    kind: Any = type(made)
    for key, whole, optional in _numbers_of(kind):
        value = getattr(made, key)
        if not (optional and value is None):
            check_number(owner, key, value, spans.get(key, FINITE), whole=whole)


@cache
def _numbers_of(made: type[Any]) -> tuple[tuple[str, bool, bool], ...]:
    """The numbers among the fields of a dataclass: their names, and whether they are integers and may be None."""
    kinds: dict[Any, tuple[bool, bool]] = {
        float: (False, False), float | None: (False, True), int: (True, False), int | None: (True, True),
    }  # fmt: skip
    return tuple((field.name, *kinds[field.type]) for field in fields(made) if field.type in kinds)


def check_number(owner: str, key: str, value: float, span: Span = FINITE, *, whole: bool = False) -> None:
    """Refuse anything but a number in a span, or an integer."""
    least, most = span
    plain = type(value) is int or (type(value) is float and not whole)  # abstract classes are slow to ask
    if not plain and not (is_number(value) and (isinstance(value, Integral) or not whole)):
        raise InputError(f"{owner}: {key} is {shown(value)}, must be {'an integer' if whole else 'a number'}")
    if least <= value <= most:
        return
    if value > most:
        rule = f"be at most {most:g}" if most < float_info.max else "be finite"
    elif least:
        rule = f"be at least {least:g}" if least >= 1 else "be positive"
    else:
        rule = "not be negative" if value < 0 else "be finite"
    raise InputError(f"{owner}: {key} is {value}, must {rule}")


def is_number(value: object) -> bool:
    """Return whether a value is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_counts(owner: str, **values: int) -> None:
    """Refuse anything but integers of at least 1."""
    for key, value in values.items():
        check_number(owner, key, value, (1, inf), whole=True)


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
        raise InputError(f"`{owner}` is {shown(name)}, must be a name or a path")
    if not str(name).isprintable():
        raise InputError(f"{owner} is {shown(name)}, must hold no control characters")


def plain_value(value: Any) -> Any:  # noqa: ANN401
    """A value as parameters take it: numbers and arrays of numpy as Python's, lists as tuples, paths as names."""
    if isinstance(value, list | tuple):
        return tuple(map(plain_value, value))
    value = fspath(value) if isinstance(value, PathLike) else value
    return plain_value(value.tolist()) if hasattr(value, "dtype") and hasattr(value, "tolist") else value


BELOW_SUM: Final = 1e-9
"""Share that a bound stays below what it adds up to: sums in another order differ in their last digits."""
