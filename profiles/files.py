"""Strict readers for JSON, TOML and CSV: every refusal names file, line or key, value and rule."""

import csv
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from profiles.checks import check_number, types_of
from profiles.errors import InputError, near, one_line, shown
from profiles.units import keys_of

T = TypeVar("T")

_REQUIRED: Any = object()

MAX_NUMBER: Final = 1e18
"""No number of a file is larger, so that sums and products of times and bytes stay finite."""
MIN_POSITIVE: Final = 1e-9
"""No rate or share is smaller, so that quotients by it stay finite."""
MAX_BYTES: Final = 2**25
"""No file is longer, so that what it holds can be read in seconds."""
MAX_LINE: Final = 200
"""Most characters of a name or a path in messages."""


def parse_json(text: str) -> Any:
    """The value that a JSON text holds."""
    return _parsed(json.loads, text)


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
    except ValueError as error:  # also of the int and datetime constructors
        raise ValueError(one_line(str(error).lower())) from None


def read_text(path: Path) -> str:
    """The UTF-8 text of a file."""
    try:
        check_regular(path)
        if path.is_file() and (size := path.stat().st_size) > MAX_BYTES:
            raise InputError(f"{path}: has {size} bytes, must have at most {MAX_BYTES}")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8, must be a text file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    return text


def check_regular(path: Path) -> None:
    """Refuse a pipe or a device, as opening it may block, and a text that cannot be a path."""
    if "\0" in str(path):
        raise InputError(f"{shown(str(path))} holds a NUL character, which no path does")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{path}: is not a regular file")


def read_json(path: Path) -> Any:
    """The value that a JSON file holds."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f"{path}: is not valid JSON: {error}") from None


def path_kind(path: Path) -> str:
    """The kind of thing a path names: ``file``, ``folder`` or ``nothing``."""
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "nothing"
    except OSError as error:
        where, problem = one_line(str(path), MAX_LINE), (error.strerror or str(error)).lower()
        raise InputError(f"{where}: cannot be read: {problem}") from None


def parse_number(where: str, key: str, value: object, *, minimum: float = 0.0, whole: bool = False) -> float:
    """A number between ``minimum`` and ``MAX_NUMBER``, of TOML or of the text of a CSV cell.

    ``where`` is the file and line for the message, which names the ``key``.
    """
    kind, original = "an integer" if whole else "a number", value
    if isinstance(value, str):
        try:
            if not value.isascii() or "_" in value:
                raise ValueError
            value = int(value) if whole else float(value)
        except ValueError:
            raise InputError(f"{where}: {key} is {shown(value)}, must be {kind}") from None
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise InputError(f"{where}: {key} is {shown(value)}, must be {kind}")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}: {key} is {original}, must be finite")
    if value > MAX_NUMBER:
        raise InputError(f"{where}: {key} is larger than {MAX_NUMBER:g}, the largest number allowed")
    if value < minimum:
        rule = "must not be negative" if minimum == 0 else f"must be at least {minimum:g}"
        raise InputError(f"{where}: {key} is {original}, {rule}")
    return float(value)


READERS: Final[dict[Any, str]] = {str: "text", bool: "flag", int: "integer", float: "number"}
"""Methods that read the fields of a dataclass, by their types."""


class _Values:
    """Values by key; each rule that one breaks is refused with where it stands."""

    _of_texts = False

    def __init__(self, where: str, values: Mapping[str, Any], prefix: str = "") -> None:
        self.where, self._values, self._prefix = where, values, prefix
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def values(self) -> Mapping[str, Any]:
        """All values by key, unchecked."""
        return self._values

    def fail(self, key: str, rule: str) -> InputError:
        """The error that says which key breaks which rule."""
        return InputError(f"{self.where}: {self._prefix}{key} is {shown(self._values.get(key))}, {rule}")

    def _get(self, key: str, default: Any) -> Any:
        self._asked.add(key)
        value = self._values.get(key, default)
        if value is _REQUIRED:
            raise InputError(f"{self.where}: {self._prefix}{key} is missing")
        return value

    def text(self, key: str, default: str = _REQUIRED) -> str:
        """A string that can be printed; several lines become one."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, "must be a string")
        line = value if value.isprintable() else " ".join(value.split())
        if not line.strip():
            raise self.fail(key, "must not be empty")
        if not line.isprintable():
            raise self.fail(key, "must hold no control characters")
        return line

    def choice(self, key: str, choices: Sequence[str]) -> str:
        """A string out of a list of choices."""
        value = self._get(key, _REQUIRED) if self._of_texts else self.text(key)
        if value not in choices:
            raise self.fail(key, f"must be one of {', '.join(choices)}")
        return str(value)

    def number(
        self,
        key: str,
        default: float = _REQUIRED,
        *,
        minimum: float = 0.0,
        maximum: float = math.inf,
        whole: bool = False,
    ) -> float:
        """A finite number between ``minimum`` and ``maximum``."""
        value = self._get(key, default)
        if isinstance(value, str) and not self._of_texts:
            raise self.fail(key, f"must be {'an integer' if whole else 'a number'}")
        number = parse_number(self.where, self._prefix + key, value, minimum=minimum, whole=whole)
        if number > maximum:
            raise self.fail(key, f"must be at most {maximum:g}")
        return number

    def positive(self, key: str, default: float = _REQUIRED, *, maximum: float = math.inf) -> float:
        """A finite number greater than zero."""
        value = self.number(key, default, maximum=maximum)
        if value < MIN_POSITIVE:
            rule = f"must be at least {MIN_POSITIVE:g}" if value else "must be positive"
            raise self.fail(key, rule)
        return value

    def integer(self, key: str, default: int = _REQUIRED, *, minimum: int = 0) -> int:
        """An integer that is at least ``minimum``."""
        return int(self.number(key, default, minimum=minimum, whole=True))

    def flag(self, key: str) -> bool:
        """A boolean."""
        value = self._get(key, _REQUIRED)
        if not isinstance(value, bool):
            raise self.fail(key, "must be true or false")
        return value

    def fields_of(self, kind: type[Any]) -> dict[str, Any]:
        """The texts, numbers and flags of a dataclass that stand here, by the names of its fields, in SI units."""
        values, make = dict[str, Any](), cast("Any", kind)
        for name, plain, _, rule in types_of(make):
            if read := READERS.get(plain):
                keys = keys_of(name)
                self._asked.add(keys[0][0])
                for key, factor in keys:
                    if key in self:
                        value = getattr(self, read)(key)
                        if plain in (int, float):
                            said = value if self._of_texts else self._values[key]
                            check_number(self.where, self._prefix + key, said, rule, whole=plain is int)
                        values[name] = value * factor if read == "number" else value
        return values

    def made(self, kind: type[T], /, **given: Any) -> T:
        """A dataclass of what stands here, and of what is given for the rest."""
        values, make = given | self.fields_of(kind), cast("Any", kind)
        for field in fields(make):
            if field.name not in values and field.default is field.default_factory is MISSING:
                self._get(keys_of(field.name)[0][0], _REQUIRED)
        try:
            return kind(**values)
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None


class Row(_Values):
    """One row of a CSV file, with the line it stands on."""

    _of_texts = True

    def cells(self, keys: Sequence[str]) -> tuple[str, ...]:
        """The texts of some cells, empty or not."""
        return tuple(map(self._values.__getitem__, keys))


class Table(_Values):
    """One TOML table, read key by key; ``finish`` refuses whatever was not asked for."""

    def __init__(self, path: Path, values: Mapping[str, Any], prefix: str = "") -> None:
        super().__init__(str(path), values, prefix)
        self.path = path

    @classmethod
    def read(cls, path: Path) -> "Table":
        """Read a TOML file."""
        text = read_text(path)
        try:
            return cls(path, parse_toml(text))
        except ValueError as error:
            raise InputError(f"{path}: is not valid TOML: {error}") from None

    def texts(self, key: str, default: Sequence[str] = _REQUIRED) -> tuple[str, ...]:
        """A list of strings."""
        value = self._get(key, default)
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.fail(key, "must be a list of strings")
        return tuple(value)

    def table(self, key: str, default: Mapping[str, Any] = _REQUIRED) -> "Table":
        """The table under a key."""
        value = self._get(key, default)
        if not isinstance(value, Mapping):
            raise self.fail(key, "must be a table")
        return Table(self.path, value, f"{self._prefix}{key}.")

    def tables(self, key: str) -> Iterator["Table"]:
        """The tables of an array of tables; none when the key is missing."""
        value = self._get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise self.fail(key, "must be an array of tables")
        for number, item in enumerate(value):
            yield Table(self.path, item, f"{self._prefix}{key}[{number}].")

    def curve(self, key: str, default: float = _REQUIRED) -> tuple[tuple[float, float], ...]:
        """A number, or a table from integers to numbers, as sorted (argument, value) pairs."""
        if not isinstance(self._get(key, default), Mapping):
            return ((1.0, self.number(key, default)),)
        inner, points = self.table(key), dict[float, float]()
        for argument in inner.values():
            at = parse_number(self.where, f"{self._prefix}{key} key", argument, minimum=1, whole=True)
            points[at] = inner.number(argument)
        return tuple(sorted(points.items()))

    def finish(self) -> None:
        """Refuse keys that nobody asked for."""
        for key in self._values:
            if key not in self._asked:
                name, known = one_line(self._prefix + key, MAX_LINE), ", ".join(sorted(self._asked))
                raise InputError(
                    f"{self.path}: unknown key {name}; {near(key, self._asked)}known here: {known}"
                )


def read_rows(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> list[Row]:
    """The rows of a CSV file with these columns, in any order, and perhaps some of the optional ones."""
    reader = csv.reader(read_text(path).splitlines(), strict=True)
    try:
        header = next(reader, [])
        if missing := [column for column in columns if column not in header]:
            raise InputError(f"{path}:1: column {missing[0]} is missing")
        known, rows = (*columns, *optional), list[Row]()
        for at, column in enumerate(header):
            if column not in known or column in header[:at]:
                problem = (
                    f"unknown column {shown(column)}; {near(column, known)}known here: {', '.join(known)}"
                )
                raise InputError(f"{path}:1: {problem}")
        for cells in reader:
            if len(cells) != len(header):
                where = f"{path}:{reader.line_num}"
                raise InputError(f"{where}: the row has {len(cells)} cells, must have {len(header)}")
            values = dict(zip(header, cells, strict=True))
            rows.append(Row(f"{path}:{reader.line_num}", values))
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is not valid CSV: {error}") from None
    return rows
