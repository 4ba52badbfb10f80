"""Experiments: a whole question as a file, the flags of ``sim run`` or ``sim sweep`` as keys.

A file is TOML, or the result of ``sim run --json``, which asks for that result again; ``-`` is standard input.
"""

import json
import sys
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.errors import InputError, flag_of, flag_value, in_flags, shown
from profiles.files import parse_json, parse_toml, read_text
from sim.inputs.scenarios import OPTION_NAMES

STDIN: Final = "-"
ASIDE: Final = ("dask", "experiment", "gantt", "out", "plot", "report", "store", "trace")
"""Files to write, addresses to connect to, and more flags: a file from elsewhere must name none."""
SWITCHES: Final = ("capacity", "exhaustive", "json", "print_experiment", "quiet", "verbose")
"""Flags without a value: false leaves them out."""
BARE: Final = (*SWITCHES, "ema")
"""Flags that may stand without a value: so does true."""
RESULT: Final = ("num_gpus", "parameters", "options")
"""Keys that the result of a run has, and its flags have not."""


def read_flags(source: str, where: str) -> dict[str, Any]:
    """Return the flags that a file, standard input or JSON gives by name; of a result those that ask for it again.

    ``source`` is a path, ``-``, or JSON that begins with a brace; ``where`` is what messages call it.
    """
    if source == STDIN:
        text = "" if sys.stdin is None else sys.stdin.read().removeprefix("\ufeff")
    else:
        text = source if source.lstrip().startswith("{") else read_text(Path(source))
    as_json = source.endswith(".json") or text.lstrip().startswith(("{", "["))
    try:
        values: Any = parse_json(text) if as_json else parse_toml(text)
    except ValueError as error:
        kind = "JSON" if as_json else "TOML"
        rule = "must be flags in TOML, or the result of a run in JSON"
        raise InputError(f"{where}: is not valid {kind}, {rule}: {error}") from None
    if not isinstance(values, Mapping):
        raise InputError(f"{where}: is {shown(values)}, must be flags by name, or the result of a run")
    return flags_in(values, where)


def flags_in(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return flags by name; those of a result ask for it again, with its measured number."""
    if all(key in values for key in RESULT):
        options: dict[str, Any] = {}
        for key in ("parameters", "options"):
            if not isinstance(values[key], Mapping):
                raise InputError(f"{where}: {key} is {shown(values[key])}, must be a mapping")
            options |= {name: value for name, value in values[key].items() if value is not None}
        options.pop("measured_run", None)  # it was predicted from another run, and is measured now
        names = ("model", "cluster", "stack", "strategy", *OPTION_NAMES, "measured")
        return {key: values[key] for key in names if key in values} | {"gpus": values["num_gpus"]} | options
    flags: dict[str, Any] = {}
    for key, value in values.items():
        name = str(key).replace("-", "_")
        if name in flags:
            raise InputError(f"{where}: {name} is given twice")
        flags[name] = value
    return flags


def load_experiment(path: str | PathLike[str]) -> dict[str, Any]:
    """Return the flags that a file holds, by names with underscores, as ``sim.run`` and ``sim.sweep`` take them."""
    file = fspath(path)
    flags = read_flags(file, file)
    if not flags:
        raise InputError(f"{file}: is empty, must hold flags by name, or the result of a run")
    for name, value in flags.items():
        items = value if isinstance(value, list) else [value]
        if not all(item is None or isinstance(item, str | int | float) for item in items):
            rule = "must be a word, a number or a list of them"
            raise InputError(f"{file}: {shown(name)} is {shown(value)}, {rule}")
        if name in ASIDE:
            rule = "must be given on the command line: an experiment names no other, no file to write, no address"
            raise InputError(f"{file}: {name} is {shown(value)}, {rule}")
    return {name: value for name, value in flags.items() if value is not None}


def as_toml(flags: Mapping[str, Any]) -> str:
    """Return flags by name as the TOML of an experiment; those without a value are left out."""
    return "".join(  # tuples become lists
        f"{flag_of(name)[2:]} = {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in flags.items()
        if value not in (None, "")
    )


class Experiment(NamedTuple):
    """The words that a file adds to a command line.

    Attributes:
        words: of the command line, by the flags that it gives; the command line gives the others itself.
    """

    path: str
    words: Mapping[str, str]

    @classmethod
    def read(cls, path: str, before: frozenset[str]) -> "Experiment":
        """Return the experiment of a file, but for the flags that are given beside it."""
        words: dict[str, str] = {}
        for name, value in load_experiment(path).items():
            flag = flag_of(name)
            if flag not in before and not (value is False and name in SWITCHES):
                words[flag] = flag if value is True and name in BARE else f"{flag}={_word(value)}"
        return cls(path, words)

    def blamed(self, error: InputError) -> InputError:
        """Return the error, which names the file unless it is about flags that are not from there."""
        words = in_flags(error.message)
        before = words.partition("; ")[0]  # after it come flags that might have been meant
        about = {word.rstrip(",:;?") for word in before.split() if word.startswith("--")}
        if about and not about & self.words.keys():
            return error
        return InputError(words if words.startswith(self.path) else f"{self.path}: {words}")


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(flag_value(value))
