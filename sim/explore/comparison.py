"""Comparisons: what changed between two stores, sweeps or results, and which of their inputs differ.

A file may hold several questions, told apart by what was asked; those asked in the same words are compared, or the
only ones of both files.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.components import TASKS
from profiles.errors import InputError
from profiles.files import parse_number, read_text
from sim.explore.store import StoreFile
from sim.scenarios import OPTIONS, fields_of
from strategies.registry import strategies_of
from strategies.strategy import is_seamless

SHARED: Final = ("task", "model", "cluster", "stack", "batch_size")
"""Keys of what is asked that every row has, beside those of its task in ``ASKED``."""
ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("resolution", "frozen"),
    "sample": ("resolution", "steps", "guidance"),
}
TIMES: Final = ("iteration_s", "latency_s")
STATUSES: Final = ("simulated", "bounded", "infeasible")
CODE: Final = "code"
"""Key of the hash of what simulated, beside those of inputs."""
SQLITE: Final = b"SQLite format 3\0"


class Key(NamedTuple):
    """What tells a point from the others of its question; parameters as their flags would take them."""

    strategy: str
    num_gpus: int
    parameters: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        given = " ".join(f"{name.replace('_', '-')} {value}" for name, value in self.parameters)
        return f"{self.strategy} on {self.num_gpus} GPUs{': ' if given else ''}{given}"


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a point: its status, seconds and bytes where it was simulated, the reason where it cannot be."""

    status: str
    seconds: float | None = None
    peak_memory_bytes: float | None = None
    reason: str = ""
    recommended: bool = True


@dataclass(slots=True)
class Record:
    """A question with what is known of its points, best first.

    Attributes:
        asked: what is asked, by public keys.
        inputs: hashes of what was read, and, of a store, of the code.
        points: what is known of each point.
    """

    asked: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)
    points: dict[Key, Found] = field(default_factory=dict)

    @property
    def winner(self) -> Key | None:
        """The best recommended point; None where none was simulated."""
        ranked = (
            key for key, found in self.points.items() if found.status == "simulated" and found.recommended
        )
        return next(ranked, None)


def read_records(path: Path) -> dict[str, Record]:
    """The questions of a store, of a sweep's rows as CSV, or of results as JSON, by what they ask in words.

    Raises:
        InputError: it is none of these, or damaged.
    """
    try:
        with path.open("rb") as file:
            start = file.read(len(SQLITE))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    if start == SQLITE:
        records = dict(_of_store(path))  # of those asked in the same words the last
    else:
        records = _of_rows(_csv_rows(path) if path.suffix == ".csv" else _json_rows(path))
    if not records:
        raise InputError(f"{path}: holds no {'question' if start == SQLITE else 'row'}")
    return records


class Row:
    """A row of a file under public keys, flat, with where it stands."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = {key: value for key, value in values.items() if value not in (None, "")}

    def text(self, key: str) -> str:
        """The value of a key as text.

        Raises:
            InputError: there is none.
        """
        if key not in self.values:
            raise InputError(f"{self.where}: {key} is missing: must be a row of a sweep, or a result")
        return cell(self.values[key])

    def number(self, key: str) -> float | None:
        """A number; None where there is none."""
        return None if key not in self.values else parse_number(self.where, key, cell(self.values[key]))

    def flag(self, key: str) -> bool:
        """Whether something holds; it does where the row does not speak of it.

        Raises:
            InputError: the value is neither true nor false.
        """
        said = cell(self.values.get(key, True))
        if said.lower() not in ("true", "false"):
            raise InputError(f"{self.where}: {key} is '{said[:40]}', must be True or False")
        return said.lower() == "true"


def cell(value: object) -> str:
    """A value as a file of rows holds it."""
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _csv_rows(path: Path) -> Iterator[Row]:
    reader = csv.DictReader(read_text(path).splitlines(), strict=True)
    try:
        for values in reader:
            where = f"{path}:{reader.line_num}"
            if None in values:
                raise InputError(f"{where}: the row has more cells than there are columns")
            yield Row(where, values)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is not valid CSV: {error}") from None


def _json_rows(path: Path) -> Iterator[Row]:
    try:
        found = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split()).lower()
        raise InputError(f"{path}: is no store, no .csv, and not valid JSON: {reason}") from None
    for number, item in enumerate(found if isinstance(found, list) else [found]):
        where = f"{path}: row {number}" if isinstance(found, list) else str(path)
        if not isinstance(item, dict):
            raise InputError(f"{where}: is {str(item)[:40]!r}, must be a result")
        flat = dict(item)
        for key in ("parameters", "options"):
            inner = flat.pop(key, {})
            if not isinstance(inner, dict):
                raise InputError(f"{where}: {key} is {str(inner)[:40]!r}, must be a mapping")
            flat = inner | flat
        yield Row(where, flat)


def _of_rows(rows: Iterable[Row]) -> dict[str, Record]:
    """The questions that rows are of."""
    records: dict[str, Record] = {}
    for row in rows:
        task = row.text("task")
        if task not in TASKS:
            raise InputError(f"{row.where}: task is '{task[:40]}', must be one of {', '.join(TASKS)}")
        asked = {key: row.text(key) for key in (*SHARED, *ASKED[task])}
        record = records.setdefault(_words(asked), Record(asked))
        options = [key for key in OPTIONS[task] if key in row.values]
        record.asked |= {key: row.text(key) for key in options}
        record.inputs |= _inputs(row)
        record.points[_key(row, task)] = _found(row)
    return records


def _words(asked: Mapping[str, str]) -> str:
    """What is asked, in words that are the same wherever it is read from."""
    keys = (*SHARED, *ASKED.get(asked.get("task", ""), ()))
    return ", ".join(f"{key} {asked[key]}" for key in keys if key in asked)


def _inputs(row: Row) -> dict[str, str]:
    """The hashes of a row; none of one that an older version wrote."""
    inputs = row.values.get("inputs", {})
    if isinstance(inputs, str):
        try:
            inputs = json.loads(inputs)
        except (ValueError, RecursionError):
            inputs = None
    if not isinstance(inputs, dict):
        raise InputError(
            f"{row.where}: inputs is {str(row.values['inputs'])[:40]!r}, must be a mapping as JSON"
        )
    return {str(name): str(value) for name, value in inputs.items()}


def _key(row: Row, task: str) -> Key:
    known = fields_of(strategies_of(task).values())
    given = sorted((name, cell(value)) for name, value in row.values.items() if name in known)
    gpus = row.number("num_gpus")
    if gpus is None:
        raise InputError(f"{row.where}: num_gpus is missing: must be a row of a sweep, or a result")
    return Key(row.text("strategy"), int(gpus), tuple(given))


def _found(row: Row) -> Found:
    fits = row.flag("fits_memory")
    status = cell(row.values.get("status", "simulated" if fits else "infeasible"))
    if status not in STATUSES:
        raise InputError(f"{row.where}: status is '{status[:40]}', must be one of {', '.join(STATUSES)}")
    seconds = next((value for key in TIMES if (value := row.number(key)) is not None), None)
    if status == "simulated" and seconds is None:
        raise InputError(f"{row.where}: is simulated, but has no {' or '.join(TIMES)}")
    recommended = row.flag("recommended")
    reason = cell(row.values.get("reason", ""))
    return Found(status, seconds, row.number("peak_memory_bytes"), reason, recommended)


def _of_store(path: Path) -> Iterator[tuple[str, Record]]:
    """The questions of a store, their points by time."""
    with StoreFile(path, reads=True) as store:
        store.check_whole()
        for question, code, asked, inputs in store.questions():
            known = {key: cell(value) for key, value in asked.items() if key != "memory_bytes"}
            points = {_stored_key(text): answer for text, answer in _stored(store, question, asked)}
            ranked = sorted(
                points, key=lambda key: (STATUSES.index(points[key].status), points[key].seconds or 0.0)
            )
            record = Record(known, {**inputs, CODE: code}, {key: points[key] for key in ranked})
            yield _words(known), record


def _stored_key(text: str) -> Key:
    point = json.loads(text)
    given = sorted((name, cell(value)) for name, value in point["parameters"].items() if value is not None)
    return Key(point["strategy"], point["num_gpus"], tuple(given))


def _stored(store: StoreFile, question: str, asked: Mapping[str, Any]) -> Iterator[tuple[str, Found]]:
    """What a store knows of the points of a question: bounds, then whatever was simulated."""
    there = asked.get("memory_bytes")
    for text, kept in store.answers(question, "bounds"):
        lacking = there is not None and kept.get("least_memory_bytes", 0.0) > there
        status = "infeasible" if lacking or "reason" in kept else "bounded"
        yield text, Found(status, reason=kept.get("reason", "out of memory" if lacking else ""))
    seamless = {name: is_seamless(cls) for task in TASKS for name, cls in strategies_of(task).items()}
    for text, kept in store.answers(question, "replay"):
        name = json.loads(text)["strategy"]
        if "expected" in kept:
            peak, seconds = kept["expected"]["peak_memory_bytes"], kept["expected"]["duration_s"]
            fits = there is None or peak <= there
            status, reason = ("simulated", "") if fits else ("infeasible", "out of memory")
            yield text, Found(status, seconds, peak, reason, seamless.get(name, True))
        elif "reason" in kept:
            yield text, Found("infeasible", reason=kept["reason"])


class Moved(NamedTuple):
    """A point that takes another time, with its seconds and ranks before and after."""

    key: Key
    before_s: float
    after_s: float
    ranks: tuple[int, int]

    @property
    def change(self) -> float:
        """Share by which it takes longer."""
        return self.after_s / self.before_s - 1 if self.before_s else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two records of one question."""

    words: str
    before: Record
    after: Record

    @property
    def differing(self) -> dict[str, tuple[str | None, str | None]]:
        """What is asked in another way, and the inputs whose content differs: by key, before and after.

        Of a model at another resolution, or for another task, the content differs with what is asked.
        """
        found: dict[str, tuple[str | None, str | None]] = {}
        for name in ("asked", "inputs"):
            before, after = getattr(self.before, name), getattr(self.after, name)
            for key in before.keys() | after.keys() if name == "asked" else before.keys() & after.keys():
                if before.get(key) != after.get(key):
                    where = key if name == "asked" else f"content of {key}" if key != CODE else CODE
                    found[where] = before.get(key), after.get(key)
        if found.keys() & {"task", "resolution"}:
            found.pop("content of model", None)
        return dict(sorted(found.items()))

    @property
    def moved(self) -> list[Moved]:
        """The points simulated in both that take another time, the largest change first."""
        ranks = [_ranks(record) for record in (self.before, self.after)]
        both = ranks[0].keys() & ranks[1].keys()
        found = [
            Moved(key, before_s, after_s, (ranks[0][key], ranks[1][key]))
            for key in both
            if (before_s := self.before.points[key].seconds or 0.0)
            != (after_s := self.after.points[key].seconds or 0.0)
        ]
        return sorted(found, key=lambda moved: (-abs(moved.change), moved.key))

    @property
    def same(self) -> int:
        """Points simulated in both that take the same time."""
        return len(_ranks(self.before).keys() & _ranks(self.after).keys()) - len(self.moved)

    @property
    def turned(self) -> dict[str, int]:
        """Counts of points whose status is another one, or which one of the two does not know."""
        keys = list(dict.fromkeys([*self.before.points, *self.after.points]))
        pairs = [(_status(self.before, key), _status(self.after, key)) for key in keys]
        counts = Counter(f"{before} -> {after}" for before, after in pairs if before != after)
        return dict(sorted(counts.items()))

    def to_json(self) -> dict[str, Any]:
        """The comparison under public keys."""
        return {
            "question": self.words,
            "differing": {key: list(pair) for key, pair in self.differing.items()},
            "winners": [_winner_json(record) for record in (self.before, self.after)],
            "same": self.same,
            "turned": self.turned,
            "moved": [
                {**_key_json(m.key), "before_s": m.before_s, "after_s": m.after_s, "ranks": list(m.ranks)}
                for m in self.moved
            ],
        }


def _ranks(record: Record) -> dict[Key, int]:
    simulated = (key for key, found in record.points.items() if found.status == "simulated")
    return {key: rank for rank, key in enumerate(simulated, 1)}


def _status(record: Record, key: Key) -> str:
    return record.points[key].status if key in record.points else "not there"


def _key_json(key: Key) -> dict[str, Any]:
    return {"strategy": key.strategy, "num_gpus": key.num_gpus, "parameters": dict(key.parameters)}


def _winner_json(record: Record) -> dict[str, Any] | None:
    key = record.winner
    return None if key is None else {**_key_json(key), "seconds": record.points[key].seconds}


def compare(before: Path, after: Path) -> tuple[list[Comparison], list[str], list[str]]:
    """Comparisons of the questions of two files, and the questions that one of the two alone has.

    Raises:
        InputError: a file cannot be read, or they have no question in common.
    """
    one, other = read_records(before), read_records(after)
    if len(one) == len(other) == 1:
        (words, first), (_, second) = *one.items(), *other.items()
        return [Comparison(words, first, second)], [], []
    both = [words for words in one if words in other]
    if not both:
        counts = f"{before} holds {len(one)} questions and {after} {len(other)}"
        raise InputError(f"{counts}, but none of them is asked in both")
    found = [Comparison(words, one[words], other[words]) for words in both]
    return (
        found,
        [words for words in one if words not in both],
        [words for words in other if words not in both],
    )
