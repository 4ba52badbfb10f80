"""Mutations: something wrong in a command line, a text, a JSON value or a store, drawn from a seed."""

import json
import re
import sqlite3
from contextlib import closing, suppress
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

VALUES = (
    "", "0", "-1", "1", "2", "3.5", "-0.0", "1e308", "1e-308", "1e999", "1e18", "1e19", "nan", "inf", "-inf", "1_000",
    "0x10", "9" * 5000, "true", "false", "none", "[]", "{}", "[[]]", "''", '""', '"x"', "x", "sd21", "ddp", "ideal",
    "..", "/", "/dev/null", "\x1b[31m", '"\\u001b[31m"',
    "\x00", "\u202e", "\ud7ff", "é", "=1+2", "-", "--", "a,b", ",", "\n",
    "\r\n", "\t", " ", '"', "'", "x" * 300, "y" * 20_000, "1979-05-27", "12:00:00", "1x1", "0x0", "64x64", "99999x9",
    "inter=2x", "=", "40GiB", "step_s=1", "1,2,3", "1,,2", "%s", "{0}", "$HOME", "`id`", "\\", "#", "[reference]",
    "[[components]]", "4", "8", "16", "0.5", "1e-9", "1000000",
)  # fmt: skip
"""What stands in the place of values, words and lines."""


def mutated_words(random: Random, words: list[str]) -> list[str]:
    """A command line with a word or two dropped, doubled, moved, misspelt or replaced."""
    for _ in range(random.choice((1, 1, 2))):
        at = random.randrange(len(words))
        action = random.randrange(6)
        if action == 0:
            del words[at]
        elif action == 1:
            words.insert(at, words[at])
        elif action == 2:
            words.insert(random.randrange(len(words)), words.pop(at))
        elif action == 3:
            words[at] = mutated_line(random, words[at])
        else:
            words[at] = random.choice(VALUES)
        words = words or [random.choice(VALUES)]
    return words


def mutated_line(random: Random, line: str) -> str:
    """A line with a character dropped, doubled or replaced, or cut off."""
    at = random.randrange(len(line) + 1)
    return random.choice(
        (
            line[:at] + line[at + 1 :],
            line[:at] + random.choice(VALUES) + line[at:],
            line[:at],
            line[:at] + line[max(0, at - 1) :],
        )
    )


def mutated(random: Random, text: str) -> str:
    """A text with a value replaced, a line lost, doubled, moved or spoilt, a name changed, or its end cut off."""
    for _ in range(random.choice((1, 1, 1, 2))):
        lines = text.splitlines()
        at = random.randrange(len(lines))
        action = random.randrange(16)
        if action == 0:
            del lines[at]
        elif action == 1:
            lines.insert(at, lines[at])
        elif action == 2:
            lines.insert(random.randrange(len(lines)), lines.pop(at))
        elif action == 3:
            lines[at] = mutated_line(random, lines[at])
        elif action == 4:
            lines.insert(at, random.choice(VALUES))
        elif action == 5:
            return text[: random.randrange(len(text))]
        elif action == 6:
            lines[at] = _with_value(random, lines[at])
        else:
            at = random.choice([number for number, line in enumerate(lines) if NUMBER.search(line)] or [at])
            lines[at] = _with_number(random, lines[at])
        text = "\n".join([*lines, ""]) or "\n"
    return text


NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?![\w.-])")
FACTORS = (0, 1e-12, 1e-6, 1e-3, 0.5, 0.999, 1.001, 2, 3, 10, 1e3, 1e6, 1e9, 1e15, -1)


def _with_number(random: Random, line: str) -> str:
    """A line with one of its numbers multiplied, or moved by one."""
    found = list(NUMBER.finditer(line))
    if not found:
        return line
    match = random.choice(found)
    value = float(match[0])
    other = value + random.choice((-1, 1)) if random.randrange(3) == 0 else value * random.choice(FACTORS)
    whole = isfinite(other) and other == int(other)
    words = str(int(other)) if whole and random.randrange(8) else repr(other)
    return line[: match.start()] + words + line[match.end() :]


def _with_value(random: Random, line: str) -> str:
    """A line with one of its values, cells or keys replaced."""
    parts = re.split(r"([=,\[\]{}\s]+)", line)
    at = random.choice([number for number, part in enumerate(parts) if number % 2 == 0])
    parts[at] = random.choice(VALUES)
    return "".join(parts)


def spoil(random: Random, path: Path, text: str | None = None) -> None:
    """Write a mutated text, now and then as bytes that are none."""
    spoilt = mutated(random, path.read_text(encoding="utf-8") if text is None else text).encode(
        "utf-8", "surrogatepass"
    )
    if random.randrange(50) == 0:
        at = random.randrange(len(spoilt) + 1)
        spoilt = spoilt[:at] + bytes([random.randrange(128, 256)]) + spoilt[at:]
    path.write_bytes(spoilt)


def mutated_json(random: Random, value: Any) -> Any:
    """A JSON value in which one part is replaced, multiplied, lost, doubled or renamed."""
    holders = list(_holders(value))
    holder, key = random.choice(holders)
    action = random.randrange(8)
    part = holder[key]
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[mutated_line(random, key)] = holder.pop(key)
    elif action == 1:
        holder.append(part)
    elif action == 2:
        holder[key] = {"deep": [part]}
    elif action <= 4 and isinstance(part, int | float) and not isinstance(part, bool):
        holder[key] = part * random.choice(FACTORS)
    else:
        holder[key] = random.choice((None, True, [], {}, 0, -1, 1.5, 2**70, float("nan"), *VALUES))
    return value


def _holders(value: Any) -> Any:
    """Every dict and list in a value, with each of its keys or places."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _holders(value[key])


def spoil_json(random: Random, path: Path, text: str) -> None:
    """Write a JSON text with something wrong in what it says, or in how it is written."""
    if random.randrange(3) == 0:
        spoil(random, path, text)
    else:
        path.write_text(json.dumps(mutated_json(random, json.loads(text))), encoding="utf-8")


CELLS = {
    "questions": ("question", "code", "asked", "inputs"),
    "answers": ("question", "point", "kind", "holds_to_s", "answer"),
}


def spoil_store(random: Random, path: Path) -> bool:
    """Damage a store; True where what it says was not touched."""
    action = random.randrange(4)
    if action == 0:
        _spoil_bytes(random, path)
    elif action == 1:
        _spoil_tables(random, path)
    else:
        _spoil_cell(random, path)
    return action < 2


def _spoil_bytes(random: Random, path: Path) -> None:
    """Other bytes, a part of zeros, or an end that is missing."""
    data = bytearray(path.read_bytes())
    at = random.randrange(len(data))
    if random.randrange(4) == 0:
        del data[at:]
    elif random.randrange(3) == 0:
        data[at : at + 512] = bytes(len(data[at : at + 512]))
    else:
        for _ in range(random.choice((1, 1, 8, 64))):
            data[random.randrange(random.choice((100, len(data))))] = random.randrange(256)
    path.write_bytes(bytes(data))


def _spoil_tables(random: Random, path: Path) -> None:
    """Tables, versions and rows that are not as they are made."""
    table = random.choice(list(CELLS))
    column = random.choice(CELLS[table])
    statements = (
        f"DROP TABLE {table}", f"DELETE FROM {table}", f"ALTER TABLE {table} RENAME TO other",
        f"ALTER TABLE {table} RENAME COLUMN {column} TO other", f"ALTER TABLE {table} ADD COLUMN other TEXT",
        f"DELETE FROM {table} WHERE rowid % 2", "CREATE TABLE other (number)", "PRAGMA user_version = 2",
        "PRAGMA user_version = 0", "PRAGMA application_id = 0", f"CREATE VIEW other AS SELECT * FROM {table}",
        f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM {table}; END",
        f"CREATE UNIQUE INDEX other ON {table} (rowid)", f"UPDATE {table} SET {column} = rowid",
    )  # fmt: skip
    with closing(sqlite3.connect(path, isolation_level=None)) as connection, suppress(sqlite3.Error):
        connection.execute(random.choice(statements))


def _spoil_cell(random: Random, path: Path) -> None:
    """Something wrong in a cell."""
    table = random.choice(list(CELLS))
    names = CELLS[table]
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        rows = connection.execute(f"SELECT rowid, {', '.join(names)} FROM {table}").fetchall()
        number, *cells = random.choice(rows)
        at = random.randrange(len(names))
        cells[at] = _other_cell(random, cells[at])
        given = ", ".join(f"{name} = ?" for name in names)
        with suppress(
            sqlite3.Error, UnicodeEncodeError
        ):  # such a value cannot be written, such a row is there
            connection.execute(f"UPDATE {table} SET {given} WHERE rowid = ?", (*cells, number))


def _other_cell(random: Random, cell: object) -> object:
    if isinstance(cell, str) and cell.startswith("{") and random.randrange(4):
        return json.dumps(mutated_json(random, json.loads(cell)))
    if isinstance(cell, float):
        return cell * random.choice(FACTORS)
    return random.choice((None, -1, 1.5, b"\x00\xff", *VALUES, mutated_line(random, str(cell))))
