"""The exceptions of the project.

``DiffusimError`` is the root: everything a user can mend. ``InputError`` says that something the user gave is
wrong; ``InfeasibleError`` that a point of the design space cannot exist; ``DeadlockError`` that the order of a
plan can never be carried out. Readers and checks of what a user gave raise InputError; their docstrings leave it out.
"""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from warnings import warn

LONGEST: Final = 80
"""Most characters of a value that a message shows; of a longer one, its beginning and its end."""


SURE: Final = 0.8
"""Similarity (1: equal) from which one name counts as the other mistyped, so that no list of all is needed."""


BEGUN: Final = 4
"""Fewest letters that stand for the one name that begins with them."""


NAME: Final = re.compile(r"`([a-z][a-zA-Z0-9_]*)(?:\(([^`]*)\))?`")
"""A parameter as messages mark it, alone or with its value."""


class DiffusimError(Exception):
    """Anything the user can mend; its text is one line.

    A message marks the parameters that it names by backquotes, alone or with a value, as in ``"`gpus(6)` is no multiple
    of `group_size(4)`"``. ``str`` leaves the marks out; the command line words the names as flags (``in_flags``).
    """

    @property
    def message(self) -> str:
        """The text with its marks, of which other messages can be made."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return one_line(unmarked(self.message))


def unmarked(message: str) -> str:
    """Return a message as Python words it: `gpus(6)` is gpus(6)."""
    return NAME.sub(lambda name: name[0][1:-1], message)


def in_flags(message: str) -> str:
    """Return a message as the command line words it: `gpus(6)` is --gpus 6."""
    return NAME.sub(lambda name: flag_of(name[1]) + (f" {name[2]}" if name[2] else ""), message)


def flag_of(name: str) -> str:
    """Return the flag of a parameter."""
    return "--" + name.replace("_", "-")


def flag_value(value: Any) -> Any:  # noqa: ANN401
    """Return a value as its flag would take it."""
    return ",".join(map(str, value)) if isinstance(value, tuple | list) else value


class DiffusimWarning(UserWarning):
    """Something that works, but perhaps not as the user thinks."""


class DiffusimNote(DiffusimWarning):
    """Input that was taken for something else than was written, such as an alias."""


OWN: Final = ("profiles", "strategies", "sim", "validate", "contextlib", "functools")
"""Packages at whose lines no warning points: ours, and those that wrap our functions."""


def warn_caller(words: str, category: type[DiffusimWarning]) -> None:
    """Warn at the line of the first caller outside this project, such as a user's script or notebook."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN:
        frame, level = frame.f_back, level + 1
    warn(words, category, stacklevel=level)


class InputError(DiffusimError, ValueError):
    """A file, flag or argument breaks a rule; the text names it, its value and the rule."""


def wrong(name: str, problem: str) -> InputError:
    """Return the error about a parameter: its name, then its value and the rule."""
    return InputError(f"`{name}` {problem}")


def shown(value: object) -> str:
    """A value as a message shows it: text in quotes, control characters escaped, the middle of a long one left out."""
    words = f"'{_escaped(value)}'" if isinstance(value, str) else _escaped(_repr(value))
    half = LONGEST // 2
    return words if len(words) <= LONGEST else f"{words[:half]} ... {words[-half:]}"


def _repr(value: object) -> str:
    """The repr of a value, or what it is: an integer can be too long for Python, and a user's object can raise."""
    try:
        return repr(value)
    except Exception:
        whole = isinstance(value, int)
        return (
            "an integer of more digits than are read" if whole else f"a {type(value).__name__} without a repr"
        )


def one_line(text: str, longest: int = 2000) -> str:
    """A message as one line of printable characters; its middle is left out beyond ``longest``."""
    line = _escaped(" ".join(text.split()))
    half = longest // 2
    return line if len(line) <= longest else f"{line[:half]} ... {line[-half:]}"


def _escaped(text: str) -> str:
    r"""A text whose unprintable characters are escaped, as ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def near(name: str, known: Iterable[str], least: float = 0.7) -> str:
    """The question whether a known name was meant; empty where none is similar.

    A known name is similar by ``least`` or more (1: equal), or if it alone begins with ``name``. Of a mapping, the
    question names the value.
    """
    from difflib import get_close_matches  # takes long, and only errors need it

    names = list(dict.fromkeys(known))
    begun = [one for one in names if len(name) >= BEGUN and one.startswith(name)]
    similar = begun if len(begun) == 1 else get_close_matches(name[:LONGEST], names, n=1, cutoff=least)
    if not similar:
        return ""
    meant = known[similar[0]] if isinstance(known, Mapping) else similar[0]
    return f"did you mean {meant}? "


def near_or_all(name: str, known: Sequence[str]) -> str:
    """The question whether a known name was meant, and all names to choose from where none is very similar."""
    sure = near(name, known, SURE).rstrip()
    return sure or f"{near(name, known)}choose from {', '.join(known)}"


def counted(number: int, thing: str, things: str = "") -> str:
    """A number of things in words: 1 GPU, 8 GPUs; ``things`` is the plural where that is not formed with an s."""
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
        self.kind = kind or unmarked(reason)

    def __reduce__(self) -> tuple[type["InfeasibleError"], tuple[str, str]]:
        """Survive the way back from a worker process."""
        return (type(self), (self.message, self.kind))


class DeadlockError(DiffusimError):
    """The plan's order is cyclic or impossible; the text names what each device was waiting for."""
