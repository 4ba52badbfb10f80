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

from profiles.errors import InfeasibleError, InputError, counted, shown
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
    if isinstance(source, NamedRows):
        records = _of_rows(_flat_rows(source.name, source.rows))
        for record in records:
            record.objective = source.objective
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
    several = isinstance(results, list | tuple)
    for number, item in enumerate(results if isinstance(results, list | tuple) else [results]):
        where = f"{name}: row {number}" if several else name
        try:
            values = dict(item)
            inner = {**values.pop("parameters", {}), **values.pop("options", {})}
        except (TypeError, ValueError):
            raise InputError(f"{where}: is {shown(item)}, must be a result") from None
        yield _Line(where, inner | values)


class _Group(NamedTuple):
    """Rows of one question, as they are read, with the division of a decoder by numbers of GPUs."""

    record: Recorded
    shared: dict[str, str]
    options: dict[str, str]
    divided: dict[int, float]

    def holds(self, other: "_Group") -> bool:
        """Return whether a row is of this question; one without a result has no options, and is of the last like it."""
        if (self.record.inputs, self.shared) != (other.record.inputs, other.shared):
            return False
        both = [*self.divided.items(), *other.divided.items()]
        most = max((value for _, value in both), default=1.0)
        alike = self.options == other.options and all(value == min(most, gpus) for gpus, value in both)
        return alike or not (self.options and other.options)


def _of_rows(rows: Iterable[_Line]) -> list[Recorded]:
    """Return the questions of rows; of a point in several sweeps the most that is known is kept."""
    groups: list[_Group] = []
    for row in rows:
        task = row.choice("task", tuple(TASKS))
        shared = {key: row.text(key) for key in (*SHARED, *ASKED[task])}
        names = {*TASKS[task].options, *WHAT_IFS, "measured", "measured_run"} - shared.keys() - {DIVIDED}
        options = {key: value for key, value in row.values().items() if key in names}
        if options and RELIEF in row:  # what is recomputed is of the point, not asked
            options["checkpointing"] = "none"
        names = {*fields_of(strategies_of(task).values()), RELIEF}
        parameters = sorted((name, value) for name, value in row.values().items() if name in names)
        key = Key(row.text("strategy"), row.integer("num_gpus"), tuple(parameters))
        divided = {key.num_gpus: row.number(DIVIDED, 1.0)} if options else {}
        fresh, known = _Group(Recorded({}, row.inputs), shared, options, divided), _known(row)
        group = next((group for group in reversed(groups) if group.holds(fresh)), None)
        if group is None:
            groups.append(group := fresh)
        group.options.update(options)
        group.divided.update(divided)
        before = group.record.points.get(key)
        if before is None or known.order <= before.order:
            group.record.points[key] = known
    for record, shared, options, divided in groups:
        most = max(divided.values(), default=1.0)
        record.asked = {**shared, **options, **({DIVIDED: cell(most)} if most > 1 else {})}
        order = [known.order for known in record.points.values()]
        if order != sorted(order):  # several sweeps, one after the other
            record.sort()
    return [group.record for group in groups]


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
        for number, code, options, inputs in store.questions():
            question = {name: cell(value) for name, value in options.items() if value not in (None, "")}
            record = Recorded(question, {**inputs, CODE: code})
            memory_bytes = float(question.pop("memory_bytes", "inf"))
            for point, answer in store.answers(number):
                values = dict(point["parameters"]) | {RELIEF: point.get("checkpointing")}
                texts = sorted((name, cell(value)) for name, value in values.items() if value is not None)
                key = Key(point["strategy"], point["num_gpus"], tuple(texts))
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
