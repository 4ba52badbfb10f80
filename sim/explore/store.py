"""The store: answers of points in an SQLite file, so that no sweep asks again what one before it knows.

An answer is found by the content of its question: model, cluster, device, stack, workload, point, and the code that
answers. Several sweeps may use one store at once; each answer is written as soon as it is there.
"""

import json
import os
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from profiles.errors import InfeasibleError, InputError, one_line
from profiles.files import check_regular, path_kind
from profiles.outputs import check_writable
from sim.explore.points import Answer, Answers, Bounds, Candidate
from sim.interrupts import postponed
from sim.outcomes.contents import content_of, engine, inputs_of
from sim.outcomes.measures import Measures
from sim.outcomes.runs import parameters_of, result_of
from strategies.strategy import AnyScenario

APPLICATION: Final = 0x64666673
"""Says in an SQLite file that it is a store."""
VERSION: Final = 3
PATIENCE_S: Final = 60.0
"""Seconds to wait while another sweep writes."""
TABLES: Final = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS questions (question TEXT PRIMARY KEY, code TEXT, asked TEXT, inputs TEXT);
CREATE TABLE IF NOT EXISTS answers (
    question TEXT, point TEXT, kind TEXT, answer TEXT, PRIMARY KEY (question, point, kind)
);
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
COMMIT;
"""
OURS: Final = frozenset({"profiles", "strategies", "sim", *sys.stdlib_module_names})
"""Packages whose code ``engine`` holds, or that come with Python."""


class StoreFile:
    """An open store; every failure is one line that names it."""

    def __init__(self, path: Path, *, reads: bool = False) -> None:
        """Open a store, or make one where there is none and it is not only read."""
        self.path = path
        if not reads:
            check_writable("`store`", path)
        elif (kind := path_kind(path)) != "file":
            problem = "no such store" if kind == "nothing" else "is a folder, must be a file"
            raise InputError(f"{path}: {problem}")
        check_regular(path)
        with self.explained():
            where = _uri(path) if reads else f"{path.resolve().as_uri()}?mode=rwc"
            self.connection = sqlite3.connect(where, timeout=PATIENCE_S, isolation_level=None, uri=True)
            try:
                self._check_version(new=not reads)
            except BaseException:
                self.connection.close()
                raise

    def _check_version(self, *, new: bool) -> None:
        """Make the tables of a new store; refuse a database that is none, or of another version."""
        if new:
            if self._value("SELECT count(*) FROM sqlite_master") == self._value("PRAGMA application_id") == 0:
                with suppress(sqlite3.OperationalError):  # busy where another sweep does the same
                    self.connection.execute("PRAGMA journal_mode = WAL")
                self.connection.executescript(TABLES)
            self.connection.execute("PRAGMA synchronous = NORMAL")
        made_by, version = self._value("PRAGMA application_id"), self._value("PRAGMA user_version")
        if made_by != APPLICATION:
            raise InputError(f"{self.path}: is a database, but no store of sweeps")
        if version != VERSION:
            raise InputError(f"{self.path}: is a store of version {version}, must be {VERSION}")

    def _value(self, statement: str) -> Any:  # noqa: ANN401
        return self.connection.execute(statement).fetchone()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Word errors of SQLite, and of content that no sweep writes, in one line."""
        try:
            yield
        except InputError:
            raise
        except sqlite3.Error as error:
            words = one_line(str(error), 200)
            raise InputError(f"{self.path}: cannot be used as a store: {words}") from None
        except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            words = f"it holds what no sweep writes ({one_line(str(error), 80)})"
            raise InputError(f"{self.path}: is damaged: {words}") from None

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

    def questions(self) -> list[tuple[str, str, dict[str, Any], dict[str, str]]]:
        """Return the questions: key, hash of the code, values by public keys, and hashes of inputs."""
        select = "SELECT question, code, asked, inputs FROM questions ORDER BY rowid"
        with self.explained():
            rows = self.connection.execute(select).fetchall()
            return [
                (key, code, dict(json.loads(asked)), dict(json.loads(inputs)))
                for key, code, asked, inputs in rows
            ]

    def answers(self, question: str) -> list[tuple[dict[str, Any], Bounds | Measures | InfeasibleError]]:
        """Return the points of a question with their answers: bounds, those in their order, then outcomes."""
        select = "SELECT point, answer FROM answers WHERE question = ? ORDER BY kind, point"
        with self.explained():
            rows = self.connection.execute(select, (question,)).fetchall()
            return [(dict(json.loads(point)), _summary(json.loads(answer))) for point, answer in rows]

    def check(self) -> None:
        """Refuse a store with an answer that no sweep writes."""
        for question, *_ in self.questions():
            self.answers(question)

    def merge(self, other: Path) -> int:
        """Take over all that another store knows, and return the number of answers that it brings."""
        with self.explained():
            self.connection.execute("ATTACH ? AS other", (_uri(other),))
            with self.writing():
                for table in ("questions", "answers"):
                    insert = f"INSERT OR IGNORE INTO main.{table} SELECT * FROM other.{table}"
                    brought = self.connection.execute(insert).rowcount
            self.connection.execute("DETACH other")
        return brought


class Store(StoreFile):
    """A store as one sweep sees it.

    Attributes:
        question: its hash, whatever the number of GPUs, and the code's.
    """

    def __init__(self, path: Path, scenario: AnyScenario) -> None:
        super().__init__(path)
        self.scenario = scenario
        inputs = inputs_of(scenario)
        workload = {k: v for k, v in asdict(scenario.workload).items() if k != "num_gpus"}
        self.question = content_of((engine(), inputs, scenario.task, workload))
        values = {
            "task": scenario.task,
            "model": scenario.model_name,
            "cluster": scenario.cluster_name,
            "stack": scenario.stack_name,
            "batch_size": scenario.workload.batch_size,
            **scenario.asked,
            **scenario.options,
            "memory_bytes": scenario.cluster.device.memory_bytes,
        }
        row = self.question, engine(), json.dumps(values), json.dumps(inputs)
        with self.writing():
            self.connection.execute("INSERT OR IGNORE INTO questions VALUES (?, ?, ?, ?)", row)

    def answer(self, kind: str, point: Candidate) -> Answer | None:
        """Return an answer about a point; None where it is not known."""
        select = "SELECT answer FROM answers WHERE question = ? AND point = ? AND kind = ?"
        with self.explained():
            row = self.connection.execute(select, (self.question, text_of(point), kind)).fetchone()
            return None if row is None else _answer_from(json.loads(row[0]), point, self.scenario)

    def keep(self, answers: Answers) -> None:
        """Write answers down; they are there whatever happens next."""
        rows = [
            (self.question, text_of(point), kind, json.dumps(_written(answer)))
            for (kind, point), answer in answers.items()
        ]
        with self.writing():
            self.connection.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", rows)


def _uri(path: Path) -> str:
    """Return how SQLite opens a store to read: one that may not be written, and has no log, as it lies there."""
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        mode = "rw"  # a connection that may only read leaves its log behind
    else:
        mode = "ro" if Path(f"{path}-wal").exists() else "ro&immutable=1"
    return f"{path.resolve().as_uri()}?mode={mode}"


def text_of(point: Candidate) -> str:
    """Return a point as JSON."""
    again = {} if point.checkpointing is None else {"checkpointing": point.checkpointing}
    parameters = {**code_of(type(point.strategy)), "parameters": parameters_of(point.strategy)}
    return json.dumps({"strategy": point.strategy.name, "num_gpus": point.num_gpus, **again, **parameters})


@cache
def code_of(cls: type[Any]) -> dict[str, str]:
    """Return a hash of the code of another's strategy: of the modules of its classes and those beside them."""
    sources: dict[Path, bytes] = {}
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] in OURS:
            continue
        file = Path(getattr(sys.modules.get(base.__module__), "__file__", None) or "")
        if not file.is_file():
            words = "stands in no file: a store must tell answers of its code from those of other code"
            raise InputError(f"strategy {base.__qualname__} {words}")
        sources |= {each: each.read_bytes() for each in file.parent.glob("*.py")}
    return {"code": content_of(tuple(sorted(sources.values())))} if sources else {}


def _written(answer: Answer) -> dict[str, Any]:
    """Return an answer as JSON; of a result only the values that do not follow from the question."""
    if isinstance(answer, InfeasibleError):
        return {"reason": str(answer), "reason_kind": answer.kind}
    if isinstance(answer, Bounds):
        return asdict(answer)
    known = {"times": dict(answer.times), "expected": asdict(answer.expected), "phases": dict(answer.phases)}
    return {**known, "stages": [dict(stage) for stage in answer.stages]}


def _answer_from(kept: Mapping[str, Any], point: Candidate, scenario: AnyScenario) -> Answer:
    summary = _summary(kept)
    if not isinstance(summary, Measures):
        return summary
    stages = [{**stage, "devices": tuple(stage["devices"])} for stage in kept["stages"]]
    times, phases = kept["times"], kept["phases"]
    return result_of(
        point.strategy, point.at(scenario), times=times, expected=summary, stages=tuple(stages), phases=phases
    )


def _summary(kept: Mapping[str, Any]) -> Bounds | Measures | InfeasibleError:
    """Return an answer that was kept: bounds, the measures of a result, or the reason for neither."""
    if "reason" in kept:
        return InfeasibleError(kept["reason"], kept["reason_kind"])
    if "expected" in kept:
        return Measures(**kept["expected"])
    return Bounds(kept["bound_s"] + 0.0, kept["least_memory_bytes"] + 0.0)
