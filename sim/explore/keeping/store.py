"""Stores: answers of points in an SQLite file, so that no sweep asks again what one before it knows.

An answer is found by what was asked, by content: model, cluster, device, stack and workload, the point, and the code
that answers. Several sweeps may use one store at once; each answer is written as soon as it is there.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final, Self

from profiles.errors import InfeasibleError, InputError, one_line
from profiles.files import check_regular, path_kind
from profiles.outputs import check_writable
from sim.explore.answers import Answer, Bounds, Told
from sim.explore.keeping.kept import answer_from, bounds_from, mapping_of, texts_in, written
from sim.explore.keeping.sources import code_of
from sim.explore.points import Asked
from sim.interrupts import held
from sim.outcomes.contents import content_of, engine, inputs_of
from sim.outcomes.runs import parameters_of
from strategies.strategy import AnyScenario

APPLICATION: Final = 0x64666673
"""Says in an SQLite file that it is a store."""
VERSION: Final = 1
RETRY_S: Final = 0.02
"""Seconds between two tries of what SQLite does not wait for."""
PATIENCE_S: Final = 60.0
"""Seconds to wait while another sweep writes."""
STATEMENTS: Final = {
    "questions": """CREATE TABLE questions (
    question TEXT PRIMARY KEY, code TEXT NOT NULL, asked TEXT NOT NULL, inputs TEXT NOT NULL, checksum TEXT NOT NULL
)""",
    "answers": """CREATE TABLE answers (
    question TEXT NOT NULL, point TEXT NOT NULL, kind TEXT NOT NULL, holds_to_s REAL NOT NULL, answer TEXT NOT NULL,
    checksum TEXT NOT NULL, PRIMARY KEY (question, point, kind)
)""",
}
"""What makes each table."""
KEEP: Final = """
INSERT INTO main.answers {} ON CONFLICT (question, point, kind) DO UPDATE
SET holds_to_s = excluded.holds_to_s, answer = excluded.answer, checksum = excluded.checksum
WHERE excluded.holds_to_s > holds_to_s
"""
"""Of two answers to one question the one stays that says more."""


KINDS: Final = ("bounds", "full bounds", "replay")
"""What answers are of, each saying more than the one before."""


class StoreFile:
    """An SQLite file with answers, open; every failure is one line that names it."""

    def __init__(self, path: Path, *, reads: bool = False) -> None:
        """Open a store; make one where there is none, unless it is only read.

        Raises:
            InputError: it cannot be opened, or is none.
        """
        self.path = path
        if not reads:
            check_writable("--store", path)
        elif path_kind(path) != "file":
            raise InputError(f"{path}: no such store")
        check_regular(path)
        where = f"{path.resolve().as_uri()}?mode={'rw' if reads else 'rwc'}"  # ro would leave its log behind
        with self.explained():
            self.connection = sqlite3.connect(where, timeout=PATIENCE_S, isolation_level=None, uri=True)
        with self._closed_where_it_fails():
            if reads:
                with self.explained():
                    self.connection.execute("PRAGMA query_only = ON")
            else:
                self._make()
            self._check_version()

    @contextmanager
    def _closed_where_it_fails(self) -> Iterator[None]:
        """Close what was opened where nobody gets it who would."""
        try:
            yield
        except BaseException:
            self.connection.close()
            raise

    def _make(self) -> None:
        """Make the tables of a new store, unless another sweep did just now."""
        with self.explained():
            self._write_ahead()
            self.connection.execute("PRAGMA synchronous = NORMAL")
        with self.writing():
            if self._told("SELECT count(*) FROM sqlite_master") == self._told("PRAGMA application_id") == 0:
                for statement in STATEMENTS.values():
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA application_id = {APPLICATION}")
                self.connection.execute(f"PRAGMA user_version = {VERSION}")

    def _write_ahead(self) -> None:
        """Keep a log beside the file; SQLite does not wait by itself where two turn to one at once."""
        until_s = monotonic() + PATIENCE_S
        while True:
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() > until_s:
                    raise
            sleep(RETRY_S)

    def _check_version(self) -> None:
        """Refuse a database that is no store, or one of another version.

        Raises:
            InputError: it is one.
        """
        with self.explained():
            made_by, version = self._told("PRAGMA application_id"), self._told("PRAGMA user_version")
        if made_by != APPLICATION:
            raise InputError(f"{self.path}: is a database, but no store of sweeps")
        if version != VERSION:
            raise InputError(f"{self.path}: is a store of version {version}, must be {VERSION}")
        self._check_tables()

    def _check_tables(self) -> None:
        """Refuse tables with other columns, and whatever else a store does not have, such as triggers.

        Raises:
            InputError: there is something.
        """
        with self.explained():
            made = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
            found = dict(self.connection.execute(made))
        for name in found.keys() | STATEMENTS.keys():
            if found.get(name) != STATEMENTS.get(name):
                raise self.damaged(f"{one_line(name, 40)} is not as a store is made")

    def _told(self, statement: str) -> object:
        """The only value that a statement gives."""
        return self.connection.execute(statement).fetchone()[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say in one line what is wrong with the file.

        Raises:
            InputError: something is.
        """
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter of messages that quote the damage
            words = str(error) if isinstance(error, sqlite3.Error) else "it holds what is no text"
            raise InputError(f"{self.path}: cannot be used as a store: {one_line(words, 200)}") from None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write all or nothing, undisturbed by interrupts and by others who write."""
        with self.explained(), held():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def questions(self) -> Iterator[tuple[str, str, dict[str, Any], dict[str, str]]]:
        """The questions of the store: key, hash of the code, what is asked by public keys, and hashes of inputs."""
        with self.explained():
            rows = self.connection.execute(
                "SELECT question, code, asked, inputs, checksum FROM questions ORDER BY rowid"
            ).fetchall()
        for question, code, asked, inputs, checksum in rows:
            what = f"the question {one_line(str(question), 40)}"
            if checksum != checksum_of(question, code, asked, inputs):
                raise self.damaged(f"{what} is not as it was written")
            with self.as_written(what):
                found = mapping_of(asked), texts_in(inputs)
            yield question, code, *found

    def damaged(self, what: str) -> InputError:
        """The error about content that nobody wrote so."""
        return InputError(f"{self.path}: is damaged: {what}")

    @contextmanager
    def as_written(self, what: str) -> Iterator[None]:
        """Say of content, whose checksum is right, that no sweep writes it so.

        Raises:
            InputError: something in it is missing, or of another kind.
        """
        try:
            yield
        except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            if str(error).startswith(str(self.path)):
                raise
            raise self.damaged(f"{what} holds what no sweep writes ({one_line(str(error), 80)})") from None

    def answers(self, question: str, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The points of a question, with their answers of a kind."""
        columns = "SELECT question, point, kind, holds_to_s, answer, checksum FROM answers"
        with self.explained():
            rows = self.connection.execute(
                f"{columns} WHERE question = ? AND kind = ? ORDER BY point", (question, kind)
            ).fetchall()
        return ((row[1], self.checked(row)) for row in rows)

    def checked(self, row: Sequence[Any]) -> dict[str, Any]:
        """The answer of a row.

        Raises:
            InputError: it is not as it was written.
        """
        *cells, checksum = row
        if checksum != checksum_of(*cells):
            raise self.damaged(f"the {row[2]} of {one_line(str(row[1]), 200)} are not as they were written")
        with self.as_written(f"the {row[2]} of {one_line(str(row[1]), 200)}"):
            return mapping_of(row[4])

    def check_whole(self) -> None:
        """Refuse a store that is not as it was written, or lacks some of it.

        Raises:
            InputError: it is not.
        """
        with self.explained():
            found = str(self._told("PRAGMA integrity_check(1)"))
        if found != "ok":
            raise self.damaged(" ".join(found.split()))
        for question, *_ in self.questions():
            for kind in KINDS:
                for _ in self.answers(question, kind):
                    pass

    def merge(self, other: Path) -> int:
        """Take over all that another store knows.

        Returns:
            Points that it brings.
        """
        with self.explained():
            self.connection.execute("ATTACH ? AS other", (str(other),))
        with self.writing():
            self.connection.execute("INSERT OR IGNORE INTO main.questions SELECT * FROM other.questions")
            written = self.connection.execute(KEEP.format("SELECT * FROM other.answers WHERE true"))
        with self.explained():
            self.connection.execute("DETACH other")
        return written.rowcount


def checksum_of(*cells: object) -> str:
    """Hash of a row, by which one that was changed is told."""
    return blake2b(repr(cells).encode(errors="surrogatepass"), digest_size=8).hexdigest()


class Store(StoreFile):
    """A store as one sweep sees it.

    Attributes:
        scenario: what all is asked about.
        question: hash of it, whatever the number of GPUs, and of the code.
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
        with self._closed_where_it_fails():
            with self.writing():
                self.connection.execute(
                    "INSERT OR IGNORE INTO questions VALUES (?, ?, ?, ?, ?)", (*row, checksum_of(*row))
                )
            self._bounds = {kind: dict(self.answers(self.question, kind)) for kind in KINDS[:-1]}

    def bounds(self, points: Iterable[Asked], *, rough: bool) -> dict[Asked, Bounds | InfeasibleError]:
        """Bounds of the points that are known, as they were asked for: an answer is not another with a store."""
        own = self._bounds[_kind_of_bounds(rough=rough)]
        named = ((point, own.get(text_of(point))) for point in points)
        with self.as_written("the bounds"):
            return {point: bounds_from(answer) for point, answer in named if answer is not None}

    def answer(self, point: Asked) -> Answer | None:
        """The answer of a point's replay; None where it is not known."""
        with self.explained():
            row = self.connection.execute(
                "SELECT question, point, kind, holds_to_s, answer, checksum FROM answers"
                " WHERE question = ? AND point = ? AND kind = 'replay'",
                (self.question, text_of(point)),
            ).fetchone()
        if row is None:
            return None
        kept = self.checked(row)
        with self.as_written(f"the replay of {one_line(row[1], 200)}"):
            return answer_from(kept, point, self.scenario)

    def keep(self, points: Sequence[Asked], answers: Sequence[Told], *, rough: bool = False) -> None:
        """Write answers down, bounds as they were asked for; they are there whatever happens next."""
        rows = []
        for point, answer in zip(points, answers, strict=True):
            kind = KINDS[-1] if isinstance(answer, Answer) else _kind_of_bounds(rough=rough)
            holds_to_s = answer.holds_to_s if isinstance(answer, Answer) else 0.0
            row = self.question, text_of(point), kind, holds_to_s, json.dumps(written(answer))
            rows.append((*row, checksum_of(*row)))
        with self.writing():
            self.connection.executemany(KEEP.format("VALUES (?, ?, ?, ?, ?, ?)"), rows)


def _kind_of_bounds(*, rough: bool) -> str:
    """The kind of bounds of which rough ones are enough, or that must be in full."""
    return KINDS[0] if rough else KINDS[1]


def text_of(point: Asked) -> str:
    """A point as JSON: what it is named, and asked."""
    own = code_of(type(point.strategy))
    parameters = parameters_of(point.strategy)
    again = {} if point.checkpointing is None else {"checkpointing": point.checkpointing}
    return json.dumps(
        {
            "strategy": point.strategy.name,
            "num_gpus": point.num_gpus,
            **again,
            **own,
            "parameters": parameters,
        }
    )
