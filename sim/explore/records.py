"""Records: what stores, sweeps' rows and results hold, question by question.

Questions differ by their options, and by the content of their inputs.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.errors import InputError, counted, shown
from profiles.files import Row, read_json, read_text
from profiles.machines.whatifs import WHAT_IFS
from sim.explore.answers import Bounds
from sim.explore.store import StoreFile
from sim.inputs.scenarios import fields_of
from sim.outcomes.contents import content_of
from sim.outcomes.measures import Measures
from sim.outcomes.tasks import TASKS
from strategies.registry import strategies_of
from strategies.strategy import is_seamless

SHARED: Final = ("task", "model", "cluster", "stack", "batch_size")
"""Keys of a question that every row has, beside those of its task in ``ASKED``."""
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
"""The option that is at most the number of GPUs of a point."""
WHOLE: Final = re.compile(r"-?\d+\.0", re.ASCII)


class Key(NamedTuple):
    """The identity of a point within its question; parameters as their flags would take them."""

    strategy: str
    num_gpus: int
    parameters: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        parameters = " ".join(f"{name.replace('_', '-')} {value}" for name, value in self.parameters)
        return f"{self.strategy} on {counted(self.num_gpus, 'GPU')}{': ' if parameters else ''}{parameters}"


class Known(NamedTuple):
    """The status of a point, and its seconds where it was simulated."""

    status: str
    seconds: float | None = None
    recommended: bool = True

    @property
    def order(self) -> int:
        """The place of its status."""
        return STATUSES.index(self.status)


@dataclass(slots=True)
class Recorded:
    """A question with its points, best first.

    Attributes:
        asked: the question, by public keys.
        inputs: hashes of inputs, and, of a store, of the code.
        points: status and time of each point.
        objective: of the sweep; empty where it is not known.
    """

    asked: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)
    points: dict[Key, Known] = field(default_factory=dict)
    objective: str = ""

    @property
    def words(self) -> str:
        """The question in words that are the same wherever it is read from."""
        first = (*SHARED, *ASKED.get(self.asked.get("task", ""), ()))
        keys = sorted(self.asked, key=lambda key: (first.index(key) if key in first else len(first), key))
        return ", ".join(f"{key} {self.asked[key]}" for key in keys)

    @property
    def key(self) -> str:
        """A hash of the question and its inputs."""
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


class NamedRows(NamedTuple):
    """Rows of a sweep, or results, with the word by which refusals call them, and what the sweep ranks by."""

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
    if isinstance(source, NamedRows):
        records = _of_rows(_flat_rows(source.name, source.rows), source.objective)
    elif source.suffix == ".csv":
        records = _of_rows(_csv_rows(source))
    elif source.suffix == ".json":
        records = _of_rows(_flat_rows(str(source), read_json(source)))
    else:
        records = list(_of_store(source))
    if not records:
        raise InputError(f"{source}: holds no question")
    return records


class _Line(Row):
    """A row under public keys, flat, with the hashes of inputs; values are texts."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        cells = {key: cell(value) for key, value in values.items() if value not in (None, "")}
        super().__init__(where, cells)
        inputs = values.get("inputs") or {}
        try:
            inputs = json.loads(inputs) if isinstance(inputs, str) else inputs
            self.inputs = {str(name): str(value) for name, value in inputs.items()}
        except (ValueError, RecursionError, AttributeError):
            raise self.fail("inputs", "must be a mapping as JSON") from None

    def flag(self, key: str) -> bool:
        """Return a truth value; true where the row does not have it."""
        return key not in self or self.choice(key, ("True", "False", "true", "false")) in ("True", "true")


def cell(value: object) -> str:
    """A value as a file of rows holds it; a column with gaps gives integers back as floats."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text.removesuffix(".0") if WHOLE.fullmatch(text) else text


def _csv_rows(path: Path) -> Iterator[_Line]:
    reader = csv.DictReader(read_text(path).splitlines(), strict=True)
    try:
        for values in reader:
            if None in values:
                raise InputError(f"{path}:{reader.line_num}: the row has more cells than there are columns")
            yield _Line(f"{path}:{reader.line_num}", values)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is not valid CSV: {error}") from None


def _flat_rows(name: str, results: object) -> Iterator[_Line]:
    """The rows of a list, or one that stands alone, without the mappings within."""
    for number, item in enumerate(results if isinstance(results, list | tuple) else [results]):
        where = name if item is results else f"{name}: row {number}"
        try:
            values = dict(item)
            inner = {**values.pop("parameters", {}), **values.pop("options", {})}
        except (TypeError, ValueError):
            raise InputError(f"{where}: is {shown(item)}, must be a result") from None
        yield _Line(where, inner | values)


def _of_rows(rows: Iterable[_Line], objective: str = "") -> list[Recorded]:
    """Return the questions of rows; of a point in several sweeps the most that is known is kept.

    A row without a result has no options, and is of the last question like it.
    """
    records: list[tuple[tuple[object, ...], dict[str, str], set[tuple[int, float]], Recorded]] = []
    for row in rows:
        task, values = row.choice("task", tuple(TASKS)), row.values()
        shared = {key: row.text(key) for key in (*SHARED, *ASKED[task])}
        names = {*TASKS[task].options, *WHAT_IFS, "measured", "measured_run"} - shared.keys() - {DIVIDED}
        options = {key: value for key, value in values.items() if key in names}
        if options and RELIEF in row:  # what is recomputed is of the point, not asked
            options["checkpointing"] = "none"
        names = {*fields_of(strategies_of(task).values()), RELIEF}
        parameters = sorted((name, value) for name, value in values.items() if name in names)
        key = Key(row.text("strategy"), row.integer("num_gpus"), tuple(parameters))
        like = shared, row.inputs
        divided = {(key.num_gpus, row.number(DIVIDED, 1.0))} if options else set()
        alike = (of for of in reversed(records) if of[0] == like and (not options or of[1] in ({}, options)))
        if (entry := next((of for of in alike if _divided_alike(of[2] | divided)), None)) is None:
            entry = like, {}, set(), Recorded(shared.copy(), row.inputs, objective=objective)
            records.append(entry)
        _, known_options, known_divided, record = entry
        known_options.update(options)
        known_divided.update(divided)
        record.asked.update(options)
        if options and row.number(DIVIDED, 1.0) > float(record.asked.get(DIVIDED, 1)):
            record.asked[DIVIDED] = values[DIVIDED]
        known = _known(row)
        before = record.points.get(key)
        if before is None or known.order <= before.order:
            record.points[key] = known
    for *_, record in records:
        order = [known.order for known in record.points.values()]
        if order != sorted(order):  # several sweeps, one after the other
            record.sort()
    return [record for *_, record in records]


def _divided_alike(divided: set[tuple[int, float]]) -> bool:
    """Return whether numbers of GPUs divide a decoder by one option, of which each takes at most all of its own."""
    most = max((value for _, value in divided), default=1.0)
    return all(value == min(most, gpus) for gpus, value in divided)


def _known(row: _Line) -> Known:
    fits = row.flag("fits_memory")
    status = row.choice("status", STATUSES) if "status" in row else "simulated" if fits else "infeasible"
    seconds = next((row.number(key) for key in TIMES if key in row), None)
    if status == "simulated" and seconds is None:
        raise InputError(f"{row.where}: is simulated, but has no {' or '.join(TIMES)}")
    return Known(status, seconds, row.flag("recommended"))


def _of_store(path: Path) -> Iterator[Recorded]:
    """The questions of a store, their points by time."""
    seamless = {name: is_seamless(cls) for task in TASKS for name, cls in strategies_of(task).items()}
    with StoreFile(path, reads=True) as store:
        store.check()
        for question, code, options, inputs in store.questions():
            asked = {name: cell(value) for name, value in options.items() if value not in (None, "")}
            record = Recorded(asked, {**inputs, CODE: code})
            memory_bytes = float(asked.pop("memory_bytes", "inf"))
            for point, answer in store.answers(question):
                values = dict(point["parameters"]) | {RELIEF: point.get("checkpointing")}
                texts = sorted((name, cell(value)) for name, value in values.items() if value is not None)
                key = Key(point["strategy"], point["num_gpus"], tuple(texts))
                known = Known("infeasible")
                if isinstance(answer, Bounds) and answer.least_memory_bytes <= memory_bytes:
                    known = Known("bounded")
                elif isinstance(answer, Measures):
                    status = "simulated" if answer.peak_memory_bytes <= memory_bytes else "infeasible"
                    known = Known(status, answer.duration_s, seamless.get(key.strategy, True))
                record.points[key] = known
            record.sort()
            yield record
