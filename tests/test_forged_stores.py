"""Stores that nobody wrote so: other tables, and content whose checksum is right but that no sweep writes."""

import json
import sqlite3
from contextlib import closing
from shutil import copyfile

import pytest
from mutations import CELLS

import sim
from sim.explore.keeping.store import checksum_of

ASKED = {"gpus": 2, "batch_size": 8, "strategy": ["ddp"], "workers": 1}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "kept.db"
    sim.sweep("uvit-h", store=path, **ASKED)
    return path


@pytest.fixture
def store(elsewhere, kept):
    copyfile(kept, elsewhere / "other.db")
    return copyfile(kept, elsewhere / "store.db")


def forge(path, table, column, value, where="1"):
    """Write another value, with the checksum that belongs to it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for number, *cells in connection.execute(
            f"SELECT rowid, * FROM {table} WHERE {where} LIMIT 1"
        ).fetchall():
            cells[CELLS[table].index(column)] = value(cells[CELLS[table].index(column)])
            cells[-1] = checksum_of(*cells[:-1])
            given = ", ".join(f"{name} = ?" for name in CELLS[table])
            connection.execute(f"UPDATE {table} SET {given} WHERE rowid = ?", (*cells, number))


def within(key, value):
    """A change of a JSON mapping: a key with another value, or without one."""

    def change(text):
        found = json.loads(text)
        if value is None:
            del found[key]
        else:
            found[key] = value
        return json.dumps(found)

    return change


FORGED = [
    ("answers", "answer", "kind = 'bounds'", lambda _: "{"),
    ("answers", "answer", "kind = 'bounds'", lambda _: "7"),
    ("answers", "answer", "kind = 'bounds'", within("least_memory_bytes", "much")),
    ("answers", "answer", "kind = 'bounds'", within("bound_s", {"deep": 1})),
    ("answers", "answer", "kind = 'bounds'", within("bound_s", float("nan"))),
    ("answers", "answer", "kind = 'replay'", within("known_s", None)),
    ("answers", "answer", "kind = 'replay'", within("times", ["x"])),
    ("answers", "answer", "kind = 'replay'", within("expected", {"duration_s": 1.0})),
    ("answers", "answer", "kind = 'replay'", within("stages", [{"devices": "x"}])),
]


@pytest.mark.parametrize("number", range(len(FORGED)))
def test_content_that_no_sweep_writes_is_refused_by_a_sweep(tell, store, number):
    table, column, where, value = FORGED[number]
    forge(store, table, column, value, where)
    asked = "--model uvit-h --gpus 2 --batch-size 8 --strategy ddp"
    words = ["sweep", *asked.split(), "--json", "--store", "store.db"]
    code, out, err = tell(*words)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "store.db: is damaged: " in err and " holds what no sweep writes (" in err


@pytest.mark.parametrize(
    ("table", "column", "where", "value"),
    [
        *FORGED[:6],
        ("answers", "point", "kind = 'replay'", lambda _: "1.5"),
        ("answers", "point", "kind = 'replay'", within("strategy", None)),
        ("answers", "point", "kind = 'bounds'", within("num_gpus", ["x"])),
        ("questions", "asked", "1", lambda _: "[]"),
        ("questions", "inputs", "1", lambda _: '{"model": 3}'),
    ],
)
def test_content_that_no_sweep_writes_is_refused_by_a_comparison(tell, store, table, column, where, value):
    forge(store, table, column, value, where)
    code, out, err = tell("compare", "other.db", "store.db")
    if value is FORGED[5][3]:  # what a comparison does not read
        assert code == 0
        return
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "store.db: is damaged: " in err and " holds what no sweep writes (" in err


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE answers ADD COLUMN other TEXT",
        "ALTER TABLE questions ADD COLUMN other TEXT",
        "ALTER TABLE answers RENAME COLUMN answer TO other",
        "DROP TABLE questions",
        "CREATE TRIGGER t AFTER INSERT ON answers BEGIN DELETE FROM answers; END",
    ],
)
@pytest.mark.parametrize("command", ["merge out.db other.db store.db", "compare other.db store.db"])
def test_tables_that_no_store_has_are_refused_by_the_right_name(tell, elsewhere, store, statement, command):
    with closing(sqlite3.connect(store, isolation_level=None)) as connection:
        connection.execute(statement)
    code, out, err = tell(*command.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("sim: error: store.db: is damaged: ") and err.endswith(
        " is not as a store is made\n"
    )
    assert not (elsewhere / "out.db").exists()
