"""Experiments: a whole question as a file, the flags of ``sim run`` or ``sim sweep`` as keys.

A file is TOML, or the result of ``sim run --json``, which asks for that result again; ``-`` is standard input.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final

from profiles.architectures.components import TASKS
from profiles.errors import InputError, flag_of, in_flags, shown
from profiles.files import MAX_BYTES, Table, read_json
from profiles.parsing import parse_json, parse_toml
from sim.inputs.measured_runs import flags_said
from sim.inputs.scenarios import truths
from strategies.registry import strategies_of

STDIN: Final = "-"
ASIDE: Final = ("dask", "gantt", "out", "plot", "report", "store", "trace")
"""Files to write and addresses to connect to: a file from elsewhere must name none."""


def load_experiment(path: str | PathLike[str]) -> dict[str, Any]:
    """The flags that a file holds, by names with underscores, as ``sim.run`` and ``sim.sweep`` take them.

    Raises:
        InputError: it cannot be read, or a key holds what no flag takes.
    """
    file, found = fspath(path), _values(fspath(path))
    if not found:
        where = "standard input" if file == STDIN else "the file"
        raise InputError(f"{file}: {where} is empty, must hold flags by name, or the result of a run")
    flags: dict[str, Any] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if "=" in name:  # on the command line its value would begin there
            raise InputError(f"{file}: {shown(key)} is no flag")
        if name in flags:
            raise InputError(f"{file}: {name} is given twice")
        if not _is_a_value(value):
            raise InputError(
                f"{file}: {shown(key)} is {shown(value)}, must be a word, a number or a list of them"
            )
        if name == "experiment":
            raise InputError(f"{file}: {key} is {shown(value)}, but an experiment names no other")
        if name in ASIDE:
            rule = "must be given on the command line: an experiment names no file to write and no address"
            raise InputError(f"{file}: {key} is {shown(value)}, {rule}")
        if value is not None:
            flags[name] = value
    return flags


def _values(path: str) -> Mapping[str, Any]:
    """The flags that a file, or standard input, gives, by their names there; JSON from there begins with a bracket.

    Raises:
        InputError: it cannot be read.
    """
    found: Any
    if path == STDIN:
        text = _standard_input(path)
        as_json = text.lstrip().startswith(("{", "["))
        try:
            found = parse_json(text) if as_json else parse_toml(text)
        except ValueError as error:
            raise InputError(f"{path}: standard input is neither JSON nor TOML: {error}") from None
    else:
        as_json = Path(path).suffix == ".json"
        found = read_json(Path(path)) if as_json else Table.read(Path(path)).values()
    if not isinstance(found, Mapping):
        raise InputError(f"{path}: is {shown(found)}, must be flags by name, or the result of a run")
    return flags_said(found, path) if as_json else found


def _standard_input(path: str) -> str:
    """The text that comes from there; none where it was closed.

    Raises:
        InputError: it is no text, or too long; it names the path that stands for it.
    """
    if sys.stdin is None:
        return ""
    try:
        text = sys.stdin.read(MAX_BYTES + 1)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8, must be text") from None
    if len(text) > MAX_BYTES:
        raise InputError(f"{path}: standard input is longer than {MAX_BYTES} characters, the most allowed")
    return text.removeprefix("\ufeff")


def _is_a_value(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str | int | float) for item in value)
    return value is None or isinstance(value, str | int | float)


def as_toml(flags: Mapping[str, Any]) -> str:
    """Flags by name as the TOML of an experiment; those without a value are left out."""
    given = {name: value for name, value in flags.items() if value is not None and value != ""}
    return "".join(f"{flag_of(name)[2:]} = {_toml(value)}\n" for name, value in given.items())


def _toml(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Experiment:
    """What a file adds to a command line; without a file nothing.

    Attributes:
        path: the file.
        flags: those that it gives, with dashes; the command line gives the others itself.
        words: of the command line that they amount to.
    """

    path: str = ""
    flags: frozenset[str] = field(default_factory=frozenset)
    words: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str, given: frozenset[str], alone: Mapping[str, bool]) -> "Experiment":
        """The experiment of a file, but for the flags that are given beside it.

        Args:
            path: of the file.
            given: flags of the command line.
            alone: whether a flag of the command stands alone, without a value.

        Raises:
            InputError: as of ``load_experiment``, or a flag that takes a value is false.
        """
        worded = truths(cls for task in TASKS for cls in strategies_of(task).values())
        found = {
            flag_of(name): _word(value) if name in worded else value
            for name, value in load_experiment(path).items()
        }
        own = {flag: value for flag, value in found.items() if flag not in given}
        for flag in [flag for flag, value in own.items() if value is False and flag in alone]:
            if not alone[flag]:
                rule = "takes a value: must be one, or be left out"
                raise InputError(f"{path}: {flag[2:]} is false, but {flag} {rule}")
            del own[flag]
        words = tuple(flag if value is True else f"{flag}={_word(value)}" for flag, value in own.items())
        return cls(path, frozenset(own), words)

    def gives(self, flag: str) -> bool:
        """Whether a flag is from the file."""
        return flag in self.flags

    def blamed(self, error: InputError) -> InputError:
        """The error, which names the file unless it is about flags that are not from there."""
        words = in_flags(error.message)
        said = words.partition("; ")[0]  # after it come flags that might have been meant
        about = {word.rstrip(",:;?") for word in said.split() if word.startswith("--")}
        if about and not about & self.flags:
            return error
        return InputError(words if words.startswith(self.path) else f"{self.path}: {words}")


def _word(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
