"""Counts: several numbers of GPUs, as words or as integers."""

import re
from collections.abc import Iterable
from typing import Final

from profiles.errors import InputError, shown

WORDS: Final = r"\s*\d{1,12}(-\d{1,12})?\s*(,\s*\d{1,12}(-\d{1,12})?\s*)*"
"""Numbers of GPUs, or two that others lie between, with commas."""


def gpus_in(text: str) -> int | tuple[int, ...]:
    """Return the only number of GPUs that words give, or all of several: between commas, or doublings up to another."""
    if not re.fullmatch(WORDS, text, re.ASCII):
        rule = "must be numbers of GPUs, such as 8, or 1,2,4, or 8-64, of which each doubles the one before"
        raise InputError(f"`gpus` is {shown(text)}, {rule}")
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        low, high = int(first), int(last or first)
        if not 1 <= low <= high:
            rule = "must lead from a positive number to one no smaller" if last else "must be positive"
            raise InputError(f"`gpus` is {shown(text)}, of which {part.strip()} {rule}")
        numbers |= {high, *(low * 2**n for n in range((high // low).bit_length()) if low * 2**n < high)}
    return tuple(sorted(numbers)) if len(numbers) > 1 else numbers.pop()


def counts(gpus: Iterable[int]) -> tuple[int, ...]:
    """Return numbers of GPUs, ascending, each once."""
    numbers = list(gpus)
    if not numbers or not all(isinstance(count, int) and not isinstance(count, bool) for count in numbers):
        raise InputError(f"`gpus` is {shown(numbers)}, must be integers, at least one")
    return tuple(sorted(set(numbers)))
