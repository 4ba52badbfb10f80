"""The exceptions of the project.

``DiffusimError`` is the root: everything a user can mend. ``InputError`` says that something the user gave is
wrong; ``InfeasibleError`` that a point of the design space cannot exist; ``DeadlockError`` that the order of a
plan can never be carried out.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Final
from warnings import warn

LONGEST: Final = 80
"""Characters of a value that a message shows; of longer ones beginning and end."""


SURE: Final = 0.8
"""Likeness of names from which on one is the other mistyped, so that nobody needs a list of all."""


BEGUN: Final = 4
"""Letters of a name from which on the only one that begins with them is meant."""


class DiffusimError(Exception):
    """Anything the user can mend; its text is one line.

    Attributes:
        flags: the text with flags of the command line, where it speaks of parameters.
    """

    flags: str | None = None


class DiffusimWarning(UserWarning):
    """Something that works, but perhaps not as the user thinks."""


class DiffusimNote(DiffusimWarning):
    """Something that was taken in another way than it was written, as other names are."""


OWN: Final = ("profiles", "strategies", "sim", "validate", "contextlib", "functools")
"""Packages whose lines a warning is not about: ours, and what our functions are wrapped in."""


def warn_caller(words: str, category: type[DiffusimWarning]) -> None:
    """Warn at the line of the first caller that is not of this project, as a user's script or notebook."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame, level = frame.f_back, level + 1
    warn(words, category, stacklevel=level)


class InputError(DiffusimError, ValueError):
    """A file, flag or argument breaks a rule; the text names it, its value and the rule."""


def wrong(name: str, problem: str, flag: str | None = None) -> InputError:
    """The error about a parameter; the command line calls it by its flag.

    Args:
        name: of the parameter or field.
        problem: its value and the rule.
        flag: without dashes in front, where it is not the name.
    """
    error = InputError(f"{name} {problem}")
    error.flags = f"--{(flag or name).replace('_', '-')} {problem}"
    return error


def shown(value: object) -> str:
    """A value as a message shows it: words in quotes, control characters escaped, the middle of long ones left out."""
    words = f"'{_escaped(value)}'" if isinstance(value, str) else _escaped(_repr(value))
    half = LONGEST // 2
    return words if len(words) <= LONGEST else f"{words[:half]} ... {words[-half:]}"


def _repr(value: object) -> str:
    """What Python shows of a value; whole numbers can be too long for it, and objects of a user's own can refuse."""
    try:
        return repr(value)
    except Exception:
        whole = isinstance(value, int)
        return (
            "an integer of more digits than are read" if whole else f"a {type(value).__name__} without a repr"
        )


def one_line(text: str, longest: int = 2000) -> str:
    """A message as one line that a terminal prints as it is; what is too long for one loses its middle."""
    line = _escaped(" ".join(text.split()))
    half = longest // 2
    return line if len(line) <= longest else f"{line[:half]} ... {line[-half:]}"


def _escaped(text: str) -> str:
    r"""A text with its control characters, and what else no terminal prints, as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def near(name: str, known: Iterable[str], least: float = 0.7) -> str:
    """The question whether one of the names known, or what it stands for in a mapping, was meant.

    It is empty where none is like the name: by ``least`` or more, of 1 for the same name, or as the only one that
    begins with it. Of names that are as like it, that is meant which begins with more of its letters.
    """
    from difflib import SequenceMatcher, get_close_matches  # takes long, and only errors need it

    names = list(dict.fromkeys(known))
    begun = [one for one in names if len(name) >= BEGUN and one.startswith(name)]
    said = name[:LONGEST]
    found = begun if len(begun) == 1 else get_close_matches(said, names, n=len(names) or 1, cutoff=least)
    if not found:
        return ""
    likeness = {one: (SequenceMatcher(None, one, said).ratio(), _begun_alike(one, said)) for one in found}
    nearest = max(found, key=lambda one: likeness[one])
    meant = known[nearest] if isinstance(known, Mapping) else nearest
    return f"did you mean {meant}? "


def _begun_alike(one: str, other: str) -> int:
    """The letters with which both names begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def near_or_all(name: str, known: Sequence[str]) -> str:
    """The question whether a name was meant that is very like one; of others the names to choose from, too."""
    sure = near(name, known, SURE).rstrip()
    return sure or f"{near(name, known)}choose from {', '.join(known)}"


def counted(number: int, thing: str, things: str = "") -> str:
    """A number of things in words: 1 GPU, 8 GPUs; ``things`` is the plural where it is not with an s."""
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"


def would_divide(number: int) -> str:
    """The values above 1 that divide a number, in words; the number of GPUs may rule some out."""
    *others, last = [str(value) for value in range(2, number + 1) if number % value == 0] or ["1"]
    return f"{', '.join(others)} and {last} divide {number}" if others else f"only {last} divides {number}"


class InfeasibleError(DiffusimError):
    """A strategy, degree or batch does not apply here; the text is the reason.

    Args:
        reason: the whole reason, with its numbers.
        kind: the reason without its numbers, by which a sweep counts points.
    """

    def __init__(self, reason: str, kind: str | None = None) -> None:
        super().__init__(reason)
        self.kind = kind or reason

    def __reduce__(self) -> tuple[type["InfeasibleError"], tuple[str, str]]:
        """Survive the way back from a worker process."""
        return (type(self), (str(self), self.kind))


class DeadlockError(DiffusimError):
    """The plan's order is cyclic or impossible; the text names what each device was waiting for."""
