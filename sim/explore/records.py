"""Records: what stores, sweeps' rows and results hold, question by question.

Questions are told apart by all that was asked, and by the content of what was read for them.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.architectures.components import TASKS
from profiles.errors import InfeasibleError, InputError, counted
from profiles.files import check_regular, parse_number, read_text
from profiles.machines.whatifs import WHAT_IFS
from profiles.parsing import parse_json
from sim.explore.answers import Bounds
from sim.explore.store import StoreFile
from sim.inputs.scenarios import OPTIONS, fields_of
from sim.outcomes.contents import content_of
from sim.outcomes.measures import Measures
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


class Known(NamedTuple):
    """What is known of a point: its status, and seconds where it was simulated."""

    status: str
    seconds: float | None = None
    recommended: bool = True

    @property
    def order(self) -> int:
        """The place of its status."""
        return STATUSES.index(self.status)


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
    def ranks(self) -> dict[Key, int]:
        """The simulated points with their ranks."""
        simulated = (key for key, known in self.points.items() if known.status == "simulated")
        return {key: rank for rank, key in enumerate(simulated, 1)}

    @property
    def winner(self) -> Key | None:
        """The best recommended point; None where none was simulated."""
        return next((key for key in self.ranks if self.points[key].recommended), None)

    def sort(self) -> None:
        """Sort the points, the fastest first."""
        order = sorted(self.points.items(), key=lambda item: (item[1].order, item[1].seconds or 0.0))
        self.points = dict(order)


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
    """Return the questions of a store, of a sweep's rows as CSV, of results as JSON, or of rows that no file holds.

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
    """A row under public keys, flat, with where it stands; ``cells`` are its values as text."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self.cells = {key: cell(value) for key, value in values.items() if value not in (None, "")}
        inputs = values.get("inputs") or {}
        try:
            inputs = json.loads(inputs) if isinstance(inputs, str) else inputs
            self.inputs = {str(name): str(value) for name, value in inputs.items()}
        except (ValueError, RecursionError, AttributeError):
            raise self.fail("inputs", "must be a mapping as JSON") from None

    def fail(self, key: str, rule: str) -> InputError:
        """The error that says which value breaks which rule."""
        return InputError(f"{self.where}: {key} is '{self.cells[key][:40]}', {rule}")

    def text(self, key: str) -> str:
        """The value of a key.

        Raises:
            InputError: there is none.
        """
        if key not in self.cells:
            raise InputError(f"{self.where}: {key} is missing: must be a row of a sweep, or a result")
        return self.cells[key]

    def choice(self, key: str, default: str, *choices: str) -> str:
        """A value out of a list of choices.

        Raises:
            InputError: it is none of them.
        """
        if (value := self.cells.get(key, default)) not in choices:
            raise self.fail(key, f"must be one of {', '.join(choices)}")
        return value

    def number(self, key: str) -> float | None:
        """A number; None where there is none."""
        return None if key not in self.cells else parse_number(self.where, key, self.cells[key])

    def flag(self, key: str) -> bool:
        """Whether something holds; it does where the row does not speak of it."""
        return self.choice(key, "True", "True", "False", "true", "false") in ("True", "true")


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


class _Group(NamedTuple):
    """Rows of one question, as they are read: what is asked, and what divides a decoder by numbers of GPUs."""

    record: Recorded
    shared: dict[str, str]
    options: dict[str, str]
    divided: dict[int, float]


def _of_rows(rows: Iterable[FileRow]) -> list[Recorded]:
    """The questions that rows are of; a point that several sweeps look at has what the one knows that knows most."""
    groups: list[_Group] = []
    for row in rows:
        task = row.choice("task", "", *TASKS) if "task" in row.cells else row.text("task")
        shared = {key: row.text(key) for key in (*SHARED, *ASKED[task])}
        names = {*OPTIONS[task], *WHAT_IFS, "measured", "measured_run"} - shared.keys() - {DIVIDED}
        options = {key: value for key, value in row.cells.items() if key in names}
        if options and RELIEF in row.cells:  # what is recomputed is of the point, not asked
            options["checkpointing"] = "none"
        key, known, divided = _key(row, task), _known(row), row.number(DIVIDED) or 1.0
        alike = partial(_is_of, row.inputs, shared, options, {key.num_gpus: divided})
        group = next((group for group in reversed(groups) if alike(group)), None)
        if group is None:
            group = _Group(Recorded({}, row.inputs), shared, {}, {})
            groups.append(group)
        group.options.update(options)
        if options:
            group.divided[key.num_gpus] = divided
        before = group.record.points.get(key)
        if before is None or known.order <= before.order:
            group.record.points[key] = known
    for record, shared, options, each in groups:
        most = max(each.values(), default=1.0)
        record.asked = {**shared, **options, **({DIVIDED: cell(most)} if most > 1 else {})}
        order = [known.order for known in record.points.values()]
        if order != sorted(order):  # several sweeps, one after the other
            record.sort()
    return [group.record for group in groups]


def _is_of(
    inputs: Mapping[str, str],
    shared: Mapping[str, str],
    options: Mapping[str, str],
    divided: Mapping[int, float],
    group: _Group,
) -> bool:
    """Whether a row is of a group's question; one without a result has no options, and is of the last else the same."""
    if (group.record.inputs, group.shared) != (inputs, shared):
        return False
    both = group.divided | dict(divided)
    most = max(both.values())
    fits = all(value == min(most, gpus) for gpus, value in [*group.divided.items(), *divided.items()])
    return not options or not group.options or (group.options == options and fits)


def _key(row: FileRow, task: str) -> Key:
    names = {*fields_of(strategies_of(task).values()), RELIEF}
    row.text("num_gpus")
    parameters = sorted((name, value) for name, value in row.cells.items() if name in names)
    return Key(row.text("strategy"), int(row.number("num_gpus") or 0), tuple(parameters))


def _known(row: FileRow) -> Known:
    status = row.choice("status", "simulated" if row.flag("fits_memory") else "infeasible", *STATUSES)
    seconds = next((value for key in TIMES if (value := row.number(key)) is not None), None)
    if status == "simulated" and seconds is None:
        raise InputError(f"{row.where}: is simulated, but has no {' or '.join(TIMES)}")
    return Known(status, seconds, row.flag("recommended"))


def _of_store(path: Path) -> Iterator[Recorded]:
    """The questions of a store, their points by time."""
    seamless = {name: is_seamless(cls) for task in TASKS for name, cls in strategies_of(task).items()}
    with StoreFile(path, reads=True) as store:
        store.check()
        for question, code, asked, inputs in store.questions():
            said = {key: cell(value) for key, value in asked.items() if value not in (None, "")}
            record = Recorded(said, {**inputs, CODE: code})
            memory_bytes = float(said.pop("memory_bytes", "inf"))
            for point, answer in store.answers(question):
                own = dict(point["parameters"]) | {RELIEF: point.get("checkpointing")}
                given = sorted((name, cell(value)) for name, value in own.items() if value is not None)
                key = Key(point["strategy"], point["num_gpus"], tuple(given))
                record.points[key] = _stored(answer, memory_bytes, seamless.get(key.strategy, True))
            record.sort()
            yield record


def _stored(answer: Bounds | Measures | InfeasibleError, memory_bytes: float, seamless: bool) -> Known:
    if isinstance(answer, InfeasibleError):
        return Known("infeasible")
    if isinstance(answer, Bounds):
        return Known("infeasible" if answer.least_memory_bytes > memory_bytes else "bounded")
    fits = answer.peak_memory_bytes <= memory_bytes
    return Known("simulated" if fits else "infeasible", answer.duration_s, seamless)
