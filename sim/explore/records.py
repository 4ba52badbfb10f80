"""Records: what stores, sweeps' rows and results hold, question by question.

Questions are told apart by all that was asked, and by the content of what was read for them.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.architectures.components import TASKS
from profiles.errors import InfeasibleError, InputError, counted
from profiles.files import check_regular, parse_number, read_text
from profiles.machines.whatifs import WHAT_IFS
from profiles.parsing import parse_json
from sim.explore.answers import Bounds
from sim.explore.store import REPLAY, StoreFile, bounds_from, measures_from
from sim.inputs.scenarios import OPTIONS, fields_of
from sim.outcomes.contents import content_of
from sim.outcomes.measures import Measures
from sim.outcomes.phrases import OUT_OF_MEMORY
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
NO_CHECKPOINTING: Final = "none"
"""What is recomputed in a point before any is tried again for want of memory."""
RELIEF: Final = "relief"
"""Of a point that was tried again for want of memory: what is recomputed in it."""
DIVIDED: Final = "vae_parallel"
"""The option of which a point has no more than it has GPUs, however much was asked for."""
SQLITE: Final = b"SQLite format 3\0"
PARQUET: Final = b"PAR1"
WHOLE: Final = re.compile(r"-?\d+\.0", re.ASCII)


class Key(NamedTuple):
    """What tells a point from the others of its question; parameters as their flags would take them."""

    strategy: str
    num_gpus: int
    parameters: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        given = " ".join(f"{name.replace('_', '-')} {value}" for name, value in self.parameters)
        return f"{self.strategy} on {counted(self.num_gpus, 'GPU')}{': ' if given else ''}{given}"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a point: its status, seconds and bytes where it was simulated, the reason where it cannot be."""

    status: str
    seconds: float | None = None
    peak_memory_bytes: float | None = None
    reason: str = ""
    recommended: bool = True


@dataclass(slots=True)
class Recorded:
    """A question with what is known of its points, best first.

    Attributes:
        asked: what is asked, by public keys.
        inputs: hashes of what was read, and, of a store, of the code.
        points: what is known of each point.
        objective: what a sweep ranks by; empty where that is not known.
    """

    asked: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)
    points: dict[Key, Known] = field(default_factory=dict)
    objective: str = ""

    @property
    def words(self) -> str:
        """All that is asked, in words that are the same wherever it is read from."""
        first = (*SHARED, *ASKED.get(self.asked.get("task", ""), ()))
        keys = sorted(self.asked, key=lambda key: (first.index(key) if key in first else len(first), key))
        return ", ".join(f"{key} {self.asked[key]}" for key in keys)

    @property
    def key(self) -> str:
        """What tells the question from all others, by content."""
        return content_of((self.asked, self.inputs))[:8]

    @property
    def stored(self) -> bool:
        """Whether it is of a store, which holds points with the result of another, and all that was tried."""
        return CODE in self.inputs

    @property
    def winner(self) -> Key | None:
        """The best recommended point; None where none was simulated."""
        ranked = (
            key for key, found in self.points.items() if found.status == "simulated" and found.recommended
        )
        return next(ranked, None)


@dataclass(frozen=True, slots=True)
class NamedRows:
    """Rows of a sweep, or results, under their public keys, with the word by which refusals call them.

    ``objective`` is what the sweep ranks by; empty of results.
    """

    name: str
    rows: Sequence[object]
    objective: str = ""

    def __str__(self) -> str:
        return self.name


def read_records(source: Path | NamedRows) -> list[Recorded]:
    """The questions of a store, of a sweep's rows as CSV, of results as JSON, or of rows that no file holds.

    Raises:
        InputError: it is none of these, or damaged.
    """
    start = b"" if isinstance(source, NamedRows) else _start_of(source)
    if isinstance(source, NamedRows):
        records = _of_rows(_flat_rows(source.name, source.rows))
        for record in records:
            record.objective = source.objective
    elif start == SQLITE:
        records = list(_of_store(source))
    elif start.startswith(PARQUET):
        raise InputError(
            f"{source}: is Parquet, must be a store, rows of a sweep as .csv or results as .json"
        )
    else:
        records = _of_rows(_csv_rows(source) if source.suffix == ".csv" else _json_rows(source))
    if not records:
        raise InputError(f"{source}: holds no {'question' if start == SQLITE else 'row'}")
    return records


def _start_of(path: Path) -> bytes:
    """The first bytes of a file, which say what it is."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            return file.read(len(SQLITE))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None


class FileRow:
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
    """A value as a file of rows holds it; a column with gaps gives integers back as floats."""
    said = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return said.removesuffix(".0") if WHOLE.fullmatch(said) else said


def _csv_rows(path: Path) -> Iterator[FileRow]:
    reader = csv.DictReader(read_text(path).splitlines(), strict=True)
    try:
        for values in reader:
            where = f"{path}:{reader.line_num}"
            if None in values:
                raise InputError(f"{where}: the row has more cells than there are columns")
            yield FileRow(where, values)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is not valid CSV: {error}") from None


def _json_rows(path: Path) -> Iterator[FileRow]:
    text = read_text(path)
    try:
        found = parse_json(text)
    except ValueError as error:
        raise InputError(f"{path}: is no store, no .csv, and not valid JSON: {error}") from None
    return _flat_rows(str(path), found)


def _flat_rows(name: str, found: object) -> Iterator[FileRow]:
    """The rows of a list, or one that stands alone, without the mappings within."""
    several = isinstance(found, list | tuple)
    for number, item in enumerate(found if isinstance(found, list | tuple) else [found]):
        where = f"{name}: row {number}" if several else name
        if not isinstance(item, dict):
            raise InputError(f"{where}: is {str(item)[:40]!r}, must be a result")
        flat = dict(item)
        for key in ("parameters", "options"):
            inner = flat.pop(key, {})
            if not isinstance(inner, dict):
                raise InputError(f"{where}: {key} is {str(inner)[:40]!r}, must be a mapping")
            flat = inner | flat
        yield FileRow(where, flat)


def _of_rows(rows: Iterable[FileRow]) -> list[Recorded]:
    """The questions that rows are of."""
    records: list[Recorded] = []
    for row in rows:
        task = row.text("task")
        if task not in TASKS:
            raise InputError(f"{row.where}: task is '{task[:40]}', must be one of {', '.join(TASKS)}")
        shared = {key: row.text(key) for key in (*SHARED, *ASKED[task])}
        names = (*OPTIONS[task], *WHAT_IFS, "measured", "measured_run")
        own = {key: row.text(key) for key in names if key in row.values and key not in shared}
        row.number(DIVIDED)  # refuses what is none
        relieved = bool(own) and bool(cell(row.values.get(RELIEF, "")))  # which is of the point, not asked
        options = own | {"checkpointing": NO_CHECKPOINTING} if relieved else own
        key = _key(row, task)
        record = _question_of(records, shared, options, _inputs(row), key.num_gpus)
        _note(record, key, _known(row))
    for record in records:
        order = [STATUSES.index(known.status) for known in record.points.values()]
        if order != sorted(order):  # several sweeps, one after the other
            record.points = _by_time(record.points)
    return records


def _note(record: Recorded, key: Key, known: Known) -> None:
    """Note what a row knows of a point, unless the sweep on another number of GPUs knows more of it."""
    before = record.points.get(key)
    if before is None or STATUSES.index(known.status) <= STATUSES.index(before.status):
        record.points[key] = known


def _by_time(points: Mapping[Key, Known]) -> dict[Key, Known]:
    """Points with the fastest first."""
    ranked = sorted(points, key=lambda key: (STATUSES.index(points[key].status), points[key].seconds or 0.0))
    return {key: points[key] for key in ranked}


def _question_of(
    records: list[Recorded],
    shared: Mapping[str, str],
    options: Mapping[str, str],
    inputs: Mapping[str, str],
    num_gpus: int,
) -> Recorded:
    """The question of a row; one without a result has no options, and is of the last that is else the same."""
    for record in reversed(records):
        own = {key: value for key, value in record.asked.items() if key not in shared}
        same = record.inputs == inputs and shared.items() <= record.asked.items()
        if same and (not options or not own or _alike(own, record.points, options, num_gpus)):
            record.asked |= options if _divided(options) >= _divided(own) else own
            return record
    records.append(Recorded({**shared, **options}, dict(inputs)))
    return records[-1]


def _alike(
    own: Mapping[str, str], points: Mapping[Key, Known], options: Mapping[str, str], num_gpus: int
) -> bool:
    """Whether the options of a question, as its points have them, and those of a point may be of one question."""
    wider = max(options, own, key=_divided)
    told = (key.num_gpus for key, known in points.items() if known.seconds is not None)
    return _at(wider, num_gpus) == _at(options, num_gpus) and (
        wider == own or all(_at(wider, there) == _at(own, there) for there in told)
    )


def _at(options: Mapping[str, str], num_gpus: int) -> dict[str, str | float]:
    """Options as a point on so many GPUs has them, no more of which divide a decoder than there are."""
    return {**options, DIVIDED: min(_divided(options), num_gpus)}


def _divided(options: Mapping[str, str]) -> float:
    return float(options.get(DIVIDED, 1))


def _inputs(row: FileRow) -> dict[str, str]:
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


def _key(row: FileRow, task: str) -> Key:
    known = fields_of(strategies_of(task).values())
    known = {*known, RELIEF}
    given = sorted(
        (name, said) for name, value in row.values.items() if name in known and (said := cell(value))
    )
    gpus = row.number("num_gpus")
    if gpus is None:
        raise InputError(f"{row.where}: num_gpus is missing: must be a row of a sweep, or a result")
    return Key(row.text("strategy"), int(gpus), tuple(given))


def _known(row: FileRow) -> Known:
    fits = row.flag("fits_memory")
    status = cell(row.values.get("status", "simulated" if fits else "infeasible"))
    if status not in STATUSES:
        raise InputError(f"{row.where}: status is '{status[:40]}', must be one of {', '.join(STATUSES)}")
    seconds = next((value for key in TIMES if (value := row.number(key)) is not None), None)
    if status == "simulated" and seconds is None:
        raise InputError(f"{row.where}: is simulated, but has no {' or '.join(TIMES)}")
    recommended = row.flag("recommended")
    reason = cell(row.values.get("reason", ""))
    return Known(status, seconds, row.number("peak_memory_bytes"), reason, recommended)


def _of_store(path: Path) -> Iterator[Recorded]:
    """The questions of a store, their points by time."""
    with StoreFile(path, reads=True) as store:
        store.check()
        for question, code, asked, inputs in store.questions():
            said = {key: cell(value) for key, value in asked.items() if value not in (None, "")}
            there = said.pop("memory_bytes", None)
            with store.explained():
                points = dict(_stored(store, question, None if there is None else float(there)))
            yield Recorded(said, {**inputs, CODE: code}, _by_time(points))


def _stored_key(text: str) -> Key:
    point = json.loads(text)
    own = dict(point["parameters"]) | {RELIEF: point.get("checkpointing")}
    given = sorted((name, cell(value)) for name, value in own.items() if value is not None)
    return Key(str(point["strategy"]), int(point["num_gpus"]), tuple(given))


def _stored(store: StoreFile, question: str, memory_bytes: float | None) -> Iterator[tuple[Key, Known]]:
    """What a store knows of the points of a question: bounds, then whatever was simulated."""
    seamless = {name: is_seamless(cls) for task in TASKS for name, cls in strategies_of(task).items()}
    for text, kind, kept in store.answers(question):
        key = _stored_key(text)
        if kind != REPLAY:
            yield key, _bounded(bounds_from(kept), memory_bytes)
        elif "expected" in kept:
            yield key, _replayed(measures_from(kept), memory_bytes, seamless.get(key.strategy, True))
        elif "reason" in kept:
            yield key, Known("infeasible", reason=str(kept["reason"]))


def _bounded(bounds: Bounds | InfeasibleError, memory_bytes: float | None) -> Known:
    if isinstance(bounds, InfeasibleError):
        return Known("infeasible", reason=str(bounds))
    if memory_bytes is not None and bounds.least_memory_bytes > memory_bytes:
        return Known("infeasible", reason=OUT_OF_MEMORY)
    return Known("bounded")


def _replayed(expected: Measures, memory_bytes: float | None, seamless: bool) -> Known:
    fits = memory_bytes is None or expected.peak_memory_bytes <= memory_bytes
    status, reason = ("simulated", "") if fits else ("infeasible", OUT_OF_MEMORY)
    return Known(status, expected.duration_s, expected.peak_memory_bytes, reason, seamless)
