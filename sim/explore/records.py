"""Records: what stores, sweeps' rows and results hold, question by question.

Questions differ by their options, and by the content of their inputs.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.errors import InputError, counted, flag_value, shown
from profiles.files import Row, read_json, read_text
from profiles.mappings import FrozenMapping
from profiles.software.reserved import room_bytes
from sim.explore.points import Bounds
from sim.explore.store import StoreFile
from sim.inputs.scenarios import OPTION_NAMES, fields_of
from sim.outcomes.contents import content_of
from sim.outcomes.measures import Measures
from sim.outcomes.tasks import TASKS
from strategies.registry import every_strategy
from strategies.strategy import is_seamless

SHARED: Final = ("task", "model", "cluster", "stack", "batch_size")
"""Keys of a question that every row has, beside those of its task in ``ASKED``."""
ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "train": ("resolution", "frozen"),
    "sample": ("resolution", "steps", "guidance"),
}
TIMES: Final = ("iteration_s", "latency_s")
MEMORY: Final = "peak_memory_bytes"
STATUSES: Final = ("simulated", "bounded", "infeasible")
LEARNED: Final = ("bounded", "infeasible", "simulated")
"""Statuses by how much is known of a point, the least first: a simulation can show that one does not fit."""
CODE: Final = "code"
"""Key of the hash of what simulated, beside those of inputs."""
RELIEF: Final = "relief"
"""Of a point that was tried again for want of memory: what is recomputed in it."""
RESULT: Final = "result"
"""Of a point of a store: all that was measured of it, by which points of one result are known."""
DIVIDED: Final = "vae_parallel"
"""The option that is at most the number of GPUs of a point."""
WHOLE: Final = re.compile(r"-?\d+\.0", re.ASCII)


class Key(NamedTuple):
    """The identity of a point within its question; parameters as their flags would take them."""

    strategy: str
    num_gpus: int
    parameters: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        asked = dict(self.parameters)
        asked |= {"checkpointing": asked.pop(RELIEF)} if RELIEF in asked else {}  # as its flag is called
        parameters = " ".join(f"{name.replace('_', '-')} {value}" for name, value in asked.items())
        return f"{self.strategy} on {counted(self.num_gpus, 'GPU')}{': ' if parameters else ''}{parameters}"


class Known(NamedTuple):
    """The status of a point, and its seconds and peak memory where it was simulated."""

    status: str
    seconds: float | None = None
    recommended: bool = True
    memory_bytes: float = 0.0


@dataclass
class Recorded:
    """A question with its points, best first.

    Attributes:
        asked: the question, by public keys.
        inputs: hashes of inputs, and, of a store, of the code.
        points: status and time of each point; of those of a strategy with one result, the first.
        twins: further points of a store with the result of one of these, and that one; rows of sweeps leave them out.
        objective: of the sweep; empty where it is not known. ``held``: the parameters that all its points keep to.
        heads: of rows of sweeps the first of each, which it recommends.
    """

    asked: dict[str, str]
    inputs: dict[str, str] = field(default_factory=dict)
    points: dict[Key, Known] = field(default_factory=dict)
    twins: dict[Key, Key] = field(default_factory=dict)
    objective: str = ""
    held: Mapping[str, str] = field(default_factory=dict)
    heads: list[Key] = field(default_factory=list)

    def under(self, other: "Recorded") -> "Recorded":
        """Return the record with its points under the names that another has for them, where twins have several."""
        pairs = [*other.twins.items(), *((key, twin) for twin, key in self.twins.items())]
        there, free = self.points.keys() - other.points, other.points.keys() - self.points
        first = {name: key for key, name in reversed(pairs) if key in there and name in free}
        names = {key: name for name, key in first.items()}
        points = {names.get(key, key): known for key, known in self.points.items()}
        return replace(self, points=points, heads=[names.get(key, key) for key in self.heads])

    @property
    def words(self) -> str:
        """The question in words."""
        return ", ".join(f"{key} {value}" for key, value in self.asked.items())

    @property
    def key(self) -> str:
        """A hash of the question and its inputs."""
        return content_of((self.asked, self.inputs))[:8]

    @cached_property
    def ranks(self) -> dict[Key, int]:
        """The simulated points with their ranks, which those of equal times share."""
        ranks: dict[Key, int] = {}
        before: tuple[float | None, int] = (None, 0)
        for key, known in self.points.items():
            if known.status == "simulated":
                rank = before[1] if before[0] == known.seconds else len(ranks) + 1
                before, ranks[key] = (known.seconds, rank), rank
        return ranks

    def winner(self, *, fastest: bool = False) -> Key | None:
        """Return the best of what sweeps recommend, else the first or fastest; None where none was simulated."""
        good = [key for key in self.ranks if self.points[key].recommended]
        heads = [key for key in self.heads if key in good and not fastest]

        def score(key: Key) -> float:
            point = self.points[key]
            costs = {"memory": point.memory_bytes, "cost": key.num_gpus * (point.seconds or 0.0)}
            return costs.get(self.objective, point.seconds or 0.0) if heads or fastest else 0.0

        return min(heads or good, key=score, default=None)


class NamedRows(NamedTuple):
    """Rows of a sweep, or results, with the word by which refusals call them, what it ranks by and holds fixed."""

    name: str
    rows: Sequence[object]
    objective: str = ""
    held: Mapping[str, str] = FrozenMapping()

    def __str__(self) -> str:
        return self.name


def read_records(source: Path | NamedRows) -> list[Recorded]:
    """Return the questions of a store, of a sweep's rows as CSV, of results as JSON, or of rows that no file holds."""
    if isinstance(source, NamedRows):
        rows = _result_rows(source.name, source.rows)
    elif source.suffix == ".csv":
        rows = _csv_rows(source)
    elif source.suffix == ".json":
        rows = _result_rows(str(source), read_json(source))
    else:
        rows = _stored_rows(source)
    records = _records(rows)
    if isinstance(source, NamedRows):
        for record in records:
            record.objective, record.held = source.objective, source.held
    if not records:
        raise InputError(f"{source}: holds no question")
    return records


class _Line(Row):
    """A row under public keys; values are texts."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        super().__init__(where, _cells(values))
        self.parameters, self.options, self.inputs = (
            self._mapping(key, values.get(key)) for key in ("parameters", "options", "inputs")
        )

    def _mapping(self, key: str, value: Any) -> dict[str, str]:  # noqa: ANN401
        try:
            return _cells(json.loads(value or "{}") if isinstance(value, str) else value or {})
        except (ValueError, RecursionError, AttributeError):
            raise self.fail(key, "must be a mapping as JSON") from None

    def flag(self, key: str) -> bool:
        """Return a truth value; true where the row does not have it."""
        return key not in self or self.choice(key, ("True", "False", "true", "false")) in ("True", "true")


def cell(value: object) -> str:
    """A value as a file of rows holds it; a column with gaps gives integers back as floats."""
    text = str(flag_value(value))
    return text.removesuffix(".0") if WHOLE.fullmatch(text) else text


def _cells(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: cell(value) for key, value in values.items() if value not in (None, "")}


def _csv_rows(path: Path) -> Iterator[_Line]:
    parameters = fields_of(every_strategy().values())
    options = {*OPTION_NAMES, "measured", "measured_run"} - {*SHARED}
    reader = csv.DictReader(read_text(path).splitlines(), strict=True)
    try:
        for values in reader:
            where = f"{path}:{reader.line_num}"
            if None in values:
                raise InputError(f"{where}: the row has more cells than there are columns")
            inner = {
                kind: {name: value for name, value in values.items() if name in names}
                for kind, names in (("parameters", parameters), ("options", options))
            }
            yield _Line(where, values | inner)
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: is not valid CSV: {error}") from None


def _result_rows(name: str, results: object) -> Iterator[_Line]:
    """Yield the rows of a list, or one that stands alone."""
    for number, item in enumerate(results if isinstance(results, list | tuple) else [results]):
        where = name if item is results else f"{name}: row {number}"
        if not isinstance(item, Mapping):
            raise InputError(f"{where}: is {shown(item)}, must be a result")
        yield _Line(where, item)


def _stored_rows(path: Path) -> Iterator[_Line]:
    """Yield the answers of a store; of a point bounds first."""
    seamless = {name: is_seamless(cls) for name, cls in every_strategy().items()}
    with StoreFile(path, reads=True) as store:
        for question, code, options, inputs in store.questions():
            memory_bytes = options.pop("memory_bytes")
            for point, answer in store.answers(question):
                status, seconds, room = "infeasible", 0.0, room_bytes(memory_bytes, point["num_gpus"]) or inf
                if isinstance(answer, Bounds) and answer.least_memory_bytes <= room:
                    status = "bounded"
                elif isinstance(answer, Measures):
                    status = "simulated" if answer.peak_memory_bytes <= room else "infeasible"
                    seconds = answer.duration_s
                row = {
                    **options,
                    **point,
                    "options": options,
                    "inputs": {**inputs, CODE: code},
                    "status": status,
                    RELIEF: point.get("checkpointing"),
                    "recommended": seamless.get(point["strategy"], True),
                    TIMES[0]: seconds,
                    RESULT: repr(answer) if status == "simulated" else None,
                }
                yield _Line(str(path), row)


def _records(rows: Iterable[_Line]) -> list[Recorded]:
    """Return the questions of rows; of a point in several sweeps the most that is known is kept."""
    records: dict[str, Recorded] = {}
    firsts: dict[tuple[object, ...], Key] = {}
    status = ""
    for row in rows:
        keys = (*SHARED, *ASKED[row.choice("task", tuple(TASKS))])
        asked, parameters = {key: row.text(key) for key in keys}, row.parameters
        asked |= {key: value for key, value in row.options.items() if key not in asked}
        if RELIEF in row:  # what is recomputed is of the point, not asked
            asked["checkpointing"], parameters[RELIEF] = "none", row.text(RELIEF)
        divided = asked.pop(DIVIDED, "") if "status" in row else ""  # the points of a sweep differ in it
        question = content_of((asked, row.inputs))
        record = records.setdefault(question, Recorded(asked, row.inputs))
        if divided:
            most = Row(row.where, row.options).integer(DIVIDED)
            record.asked[DIVIDED] = str(max(most, int(record.asked.get(DIVIDED, 0))))
        key = Key(row.text("strategy"), row.integer("num_gpus"), tuple(sorted(parameters.items())))
        if RESULT in row:
            result = question, key.strategy, key.num_gpus, row.text(RESULT)
            if (first := firsts.setdefault(result, key)) != key:
                record.twins[key] = first
                record.points.pop(key, None)  # its bound
                continue
        known = _known(row)
        if "status" in row and CODE not in row.inputs and known.status == "simulated" != status:
            record.heads.append(key)
        status = known.status
        before = record.points.get(key, known)
        if LEARNED.index(known.status) >= LEARNED.index(before.status):
            record.points[key] = known
    for record in records.values():
        places = [STATUSES.index(known.status) for known in record.points.values()]
        if CODE in record.inputs or places != sorted(places):  # of a store, or of several sweeps in turn
            record.points = dict(sorted(record.points.items(), key=_place))
    return list(records.values())


def _place(item: tuple[Key, Known]) -> tuple[int, float]:
    return STATUSES.index(item[1].status), item[1].seconds or 0.0


def _known(row: _Line) -> Known:
    fits = row.flag("fits_memory")
    status = row.choice("status", STATUSES) if "status" in row else "simulated" if fits else "infeasible"
    seconds = next((row.number(key) for key in TIMES if key in row), None)
    if status == "simulated" and seconds is None:
        raise InputError(f"{row.where}: is simulated, but has no {' or '.join(TIMES)}")
    held = row.number(MEMORY) if status == "simulated" and MEMORY in row else 0.0
    return Known(status, seconds, row.flag("recommended"), held)
