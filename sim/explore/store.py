"""The store: answers of points in an SQLite file, so that no sweep asks again what one before it knows.

An answer is found by the content of what was asked: model, cluster, device, stack, workload, point, and the code that
answers. Several sweeps may use one store at once; each answer is written as soon as it is there.
"""

import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from math import isnan
from pathlib import Path
from typing import Any, Final, Self

from profiles.errors import InfeasibleError, InputError, one_line
from profiles.files import check_regular, path_kind
from profiles.outputs import check_writable
from sim.explore.answers import Answer, Bounds, Told
from sim.explore.points import Asked
from sim.interrupts import postponed
from sim.outcomes.contents import content_of, engine, inputs_of
from sim.outcomes.measures import Measures
from sim.outcomes.results import Result
from sim.outcomes.runs import parameters_of, result_of
from strategies.strategy import AnyScenario

APPLICATION: Final = 0x64666673
"""Says in an SQLite file that it is a store."""
VERSION: Final = 2
PATIENCE_S: Final = 60.0
"""Seconds to wait while another sweep writes."""
TABLES: Final = """
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS questions (question TEXT PRIMARY KEY, code TEXT, asked TEXT, inputs TEXT);
CREATE TABLE IF NOT EXISTS answers (
    question TEXT, point TEXT, kind TEXT, holds_to_s REAL, answer TEXT, PRIMARY KEY (question, point, kind)
);
"""
KEEP: Final = """
INSERT INTO main.answers {} ON CONFLICT (question, point, kind) DO UPDATE
SET holds_to_s = excluded.holds_to_s, answer = excluded.answer WHERE excluded.holds_to_s > holds_to_s
"""
"""Of two answers to one question, keep the one that says more."""
ANSWERS: Final = "SELECT question, point, kind, holds_to_s, answer FROM"
BOUNDS, REPLAY = "bounds", "replay"
OURS: Final = frozenset({"profiles", "strategies", "sim", *sys.stdlib_module_names})
"""Packages whose code ``engine`` holds, or that come with Python."""


class StoreFile:
    """An open store; every failure is one line that names it."""

    def __init__(self, path: Path, *, reads: bool = False) -> None:
        """Open a store, or make one where there is none and it is not only read.

        Raises:
            InputError: it cannot be opened, or is none.
        """
        self.path = path
        if not reads:
            check_writable("`store`", path)
        elif path_kind(path) != "file":
            raise InputError(f"{path}: no such store")
        check_regular(path)
        with self.explained():
            self.connection = self._opened("rw" if reads else "rwc")
        try:
            with self.explained():
                if not reads:
                    self._make()
                self._check_version(reads=reads)
        except BaseException:
            self.connection.close()
            raise

    def _opened(self, mode: str) -> sqlite3.Connection:
        """Open the file; in a folder that cannot be written, where SQLite could make no log, as one that never changes.

        Opened to be written even where it is only read: else SQLite would leave its log behind.
        """
        where = f"{self.path.resolve().as_uri()}?mode={mode}"
        connection = sqlite3.connect(where, timeout=PATIENCE_S, isolation_level=None, uri=True)
        if mode == "rwc":
            return connection
        try:
            connection.execute("SELECT count(*) FROM sqlite_master")
            connection.execute("PRAGMA query_only = ON")
        except sqlite3.OperationalError:
            connection.close()
            log = self.path.with_name(f"{self.path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise InputError(f"{log}: has rows that cannot be read in a read-only folder") from None
            connection = sqlite3.connect(f"{where[:-2]}ro&immutable=1", isolation_level=None, uri=True)
        return connection

    def _make(self) -> None:
        """Make the tables of a new store, unless another sweep did just now."""
        with suppress(sqlite3.OperationalError):  # busy where another sweep does the same
            self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = NORMAL")
        if self._value("SELECT count(*) FROM sqlite_master") == self._value("PRAGMA application_id") == 0:
            identity = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};"
            self.connection.executescript(f"{TABLES}{identity}COMMIT")

    def _check_version(self, *, reads: bool) -> None:
        """Refuse a database that is no store; of an earlier version, questions and answers can be read.

        Raises:
            InputError: it is one.
        """
        made_by, version = self._value("PRAGMA application_id"), self._value("PRAGMA user_version")
        if made_by != APPLICATION:
            raise InputError(f"{self.path}: is a database, but no store of sweeps")
        if version not in ((1, VERSION) if reads else (VERSION,)):
            raise InputError(f"{self.path}: is a store of version {version}, must be {VERSION}")
        if self._value("SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index')"):
            raise self._damaged("it has triggers or views")

    def _value(self, statement: str) -> Any:  # noqa: ANN401
        return self.connection.execute(statement).fetchone()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Word errors of SQLite, and of content that no sweep writes, in one line.

        Raises:
            InputError: there is one.
        """
        try:
            yield
        except InputError:
            raise
        except sqlite3.Error as error:
            words = one_line(str(error), 200)
            raise InputError(f"{self.path}: cannot be used as a store: {words}") from None
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise self._damaged(f"it holds what no sweep writes ({one_line(str(error), 80)})") from None

    def _damaged(self, what: str) -> InputError:
        return InputError(f"{self.path}: is damaged: {what}")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write all or nothing, undisturbed by interrupts and by others who write."""
        with self.explained(), postponed():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self.connection.execute("COMMIT")
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    def questions(self) -> Iterator[tuple[str, str, dict[str, Any], dict[str, str]]]:
        """Yield the questions: key, hash of the code, what is asked by public keys, and hashes of inputs."""
        with self.explained():
            rows = self.connection.execute(
                "SELECT question, code, asked, inputs FROM questions ORDER BY rowid"
            )
            for question, code, asked, inputs in rows.fetchall():
                hashes = {key: _text(value) for key, value in _mapping(json.loads(inputs)).items()}
                yield _text(question), _text(code), _mapping(json.loads(asked)), hashes

    def answers(self, question: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the points of a question, each with the kind of answer and the answer: bounds, then replays."""
        select = "SELECT point, kind, answer FROM answers WHERE question = ? ORDER BY kind = 'replay', point"
        with self.explained():
            for point, kind, answer in self.connection.execute(select, (question,)).fetchall():
                yield _text(point), _text(kind), _mapping(json.loads(answer))

    def check(self) -> None:
        """Refuse a store that is damaged.

        Raises:
            InputError: it is.
        """
        with self.explained():
            if (words := str(self._value("PRAGMA integrity_check(1)"))) != "ok":
                raise self._damaged(one_line(words, 200))
        for question, *_ in self.questions():
            for _ in self.answers(question):
                pass

    def merge(self, other: Path) -> int:
        """Take over all that another store knows, and return the number of answers that it brings."""
        with self.explained():
            self.connection.execute("ATTACH ? AS other", (str(other),))
            with self.writing():
                columns = "question, code, asked, inputs"
                self.connection.execute(
                    f"INSERT OR IGNORE INTO main.questions SELECT {columns} FROM other.questions"
                )
                brought = self.connection.execute(KEEP.format(f"{ANSWERS} other.answers WHERE true")).rowcount
            self.connection.execute("DETACH other")
        return brought


class Store(StoreFile):
    """A store as one sweep sees it.

    Attributes:
        scenario: what all is asked about.
        question: its hash, whatever the number of GPUs, and the code's.
    """

    def __init__(self, path: Path, scenario: AnyScenario) -> None:
        super().__init__(path)
        self.scenario = scenario
        inputs = inputs_of(scenario)
        workload = {k: v for k, v in asdict(scenario.workload).items() if k != "num_gpus"}
        self.question = content_of((engine(), inputs, scenario.task, workload))
        asked = {
            "task": scenario.task,
            "model": scenario.model_name,
            "cluster": scenario.cluster_name,
            "stack": scenario.stack_name,
            "batch_size": scenario.workload.batch_size,
            **scenario.asked,
            **scenario.options,
            "memory_bytes": scenario.cluster.device.memory_bytes,
        }
        row = self.question, engine(), json.dumps(asked), json.dumps(inputs)
        try:
            with self.writing():
                self.connection.execute("INSERT OR IGNORE INTO questions VALUES (?, ?, ?, ?)", row)
            answers = self.answers(self.question)
            self._bounds = {point: answer for point, kind, answer in answers if kind == BOUNDS}
        except BaseException:
            self.connection.close()
            raise

    def bounds(self, points: Iterable[Asked]) -> dict[Asked, Bounds | InfeasibleError]:
        """Return the bounds of the points that are known."""
        named = ((point, self._bounds.get(text_of(point))) for point in points)
        with self.explained():
            return {point: bounds_from(answer) for point, answer in named if answer is not None}

    def answer(self, point: Asked) -> Answer | None:
        """Return the answer of a point's replay; None where it is not known."""
        select = "SELECT answer FROM answers WHERE question = ? AND point = ? AND kind = 'replay'"
        with self.explained():
            row = self.connection.execute(select, (self.question, text_of(point))).fetchone()
            return None if row is None else _answer_from(_mapping(json.loads(row[0])), point, self.scenario)

    def keep(self, answers: Mapping[Asked, Told]) -> None:
        """Write answers down; they are there whatever happens next."""
        rows = []
        for point, answer in answers.items():
            kind, holds_to_s = (REPLAY, answer.holds_to_s) if isinstance(answer, Answer) else (BOUNDS, 0.0)
            rows.append((self.question, text_of(point), kind, holds_to_s, json.dumps(_written(answer))))
        with self.writing():
            self.connection.executemany(KEEP.format("VALUES (?, ?, ?, ?, ?)"), rows)


def text_of(point: Asked) -> str:
    """Return a point as JSON."""
    again = {} if point.checkpointing is None else {"checkpointing": point.checkpointing}
    parameters = {**code_of(type(point.strategy)), "parameters": parameters_of(point.strategy)}
    return json.dumps({"strategy": point.strategy.name, "num_gpus": point.num_gpus, **again, **parameters})


@cache
def code_of(cls: type[Any]) -> dict[str, str]:
    """Return a hash of the code of a strategy of somebody else's: its modules, and the folders of those beside them.

    Raises:
        InputError: a class stands in no file, so that answers of its earlier code could not be told apart.
    """
    sources: dict[Path, bytes] = {}
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package in OURS:
            continue
        own = _file_of(sys.modules.get(base.__module__))
        if own is None:
            words = "stands in no file: a store must tell answers of its code from those of other code"
            raise InputError(f"strategy {base.__qualname__} {words}")
        home = own.parents[base.__module__.count(".")]
        for name, module in list(sys.modules.items()):
            file = _file_of(module)
            if file is None or file in sources or not file.is_relative_to(home):
                continue
            if "site-packages" not in file.parts or name.partition(".")[0] == package:
                sources |= {each: each.read_bytes() for each in file.parent.glob("*.py")}  # some load later
    return {"code": content_of(tuple(sorted(sources.values())))} if sources else {}


def _file_of(module: object) -> Path | None:
    """The file of a module that is written in Python; None where it stands in none."""
    file = Path(getattr(module, "__file__", None) or "")
    return file if file.suffix == ".py" and file.is_file() else None


def _written(answer: Told) -> dict[str, Any]:
    """Return an answer as JSON; of a result only what does not follow from what was asked."""
    if isinstance(answer, InfeasibleError):
        return {"reason": str(answer), "reason_kind": answer.kind}
    if isinstance(answer, Bounds):
        return asdict(answer)
    known: dict[str, Any] = {"known_s": answer.known_s}
    if isinstance(answer.end, Result):
        result = answer.end
        stages = [dict(stage) for stage in result.stages]
        known |= {"times": dict(result.times), "expected": asdict(result.expected), "stages": stages}
        return known | {"phases": dict(result.phases)}
    return known if answer.end is None else known | _written(answer.end)


def bounds_from(kept: Mapping[str, Any]) -> Bounds | InfeasibleError:
    """Return the bounds that were kept, or the reason for none."""
    if "reason" in kept:
        return InfeasibleError(_text(kept["reason"]), _text(kept["reason_kind"]))
    return Bounds(_number(kept["bound_s"]), _number(kept["least_memory_bytes"]))


def _answer_from(kept: Mapping[str, Any], point: Asked, scenario: AnyScenario) -> Answer:
    end: Result | InfeasibleError | None = None
    if "reason" in kept:
        end = InfeasibleError(_text(kept["reason"]), _text(kept["reason_kind"]))
    elif "times" in kept:
        end = result_of(
            point.strategy,
            point.at(scenario),
            times=_numbers(kept["times"]),
            expected=measures_from(kept),
            stages=[_stage(stage) for stage in kept["stages"]],
            phases=_numbers(kept["phases"]),
        )
    return Answer(tuple(map(_number, kept["known_s"])), end)


def measures_from(kept: Mapping[str, Any]) -> Measures:
    """Return the measures of a result that was kept."""
    return Measures(**_numbers(kept["expected"]))


def _stage(kept: object) -> dict[str, Any]:
    stage = _mapping(kept)
    numbers = {key: value for key, value in stage.items() if key != "devices" and not isinstance(value, str)}
    return {**stage, **_numbers(numbers), "devices": tuple(map(_number, stage["devices"]))}


def _numbers(kept: object) -> dict[str, float]:
    return {key: _number(value) for key, value in _mapping(kept).items()}


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or isnan(value) or value < 0:
        raise ValueError(f"{value!r} is no number of at least 0")
    return value


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no mapping")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
