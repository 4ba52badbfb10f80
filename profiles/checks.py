"""Rules that values keep however they are made; each refusal names the owner of the value, its field and the rule."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from math import inf, ulp
from numbers import Integral, Real
from os import PathLike, fspath
from sys import float_info
from typing import Annotated, Any, Final, get_args, get_origin

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


Count = Annotated[int, AT_LEAST_1]
Positive = Annotated[float, POSITIVE]
Proportion = Annotated[float, SHARE]
PositiveShare = Annotated[float, POSITIVE_SHARE]
"""Types of fields whose spans are declared with them; of texts, the choices are: ``Annotated[str, ("a", "b")]``."""


def check_fields(owner: str, made: object, **spans: Span) -> None:
    """Refuse fields of a dataclass that break the rules of their types; numbers without one are from 0, and finite."""
    kind: Any = type(made)
    for key, plain, optional, rule in types_of(kind):
        value = getattr(made, key)
        if optional and value is None:
            continue
        if plain in (int, float):
            check_number(owner, key, value, spans.get(key, rule), whole=plain is int)
        elif rule is not FINITE:
            check_choice(owner, key, value, rule)


@cache
def types_of(made: type[Any]) -> tuple[tuple[str, Any, bool, Any], ...]:
    """The fields of a dataclass: their names, types without rules and None, whether None may be, and rules."""
    types = list[tuple[str, Any, bool, Any]]()
    for field in fields(made):
        optional = type(None) in get_args(field.type)
        value_type = get_args(field.type)[0] if optional else field.type
        plain, rule = get_args(value_type) if get_origin(value_type) is Annotated else (value_type, FINITE)
        types.append((field.name, plain, optional, rule))
    return tuple(types)


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
