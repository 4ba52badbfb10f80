"""Differences: what changed between two stores, sweeps or results, and which of their inputs differ.

Questions asked in the same words are compared, or the only ones of both files.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.errors import InputError, counted, shown
from sim.explore.records import CODE, Key, NamedRows, Recorded, read_records

CHOOSE: Final = "choose with `question` KEY, or KEY,KEY for one of each file"


class Moved(NamedTuple):
    """A point that takes another time, with its seconds and ranks before and after."""

    key: Key
    before_s: float
    after_s: float
    ranks: tuple[int, int]

    @property
    def change(self) -> float:
        """Share by which it takes longer."""
        return self.after_s / self.before_s - 1 if self.before_s else 0.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two records of one question."""

    words: str
    before: Recorded
    after: Recorded

    @property
    def differing(self) -> dict[str, tuple[str | None, str | None]]:
        """What is asked in another way, and the inputs whose content differs: by key, before and after; a model first.

        Of a model at another resolution, or for another task, the content differs with what is asked.
        """
        found: dict[str, tuple[str | None, str | None]] = {}
        for name in ("asked", "inputs"):
            before, after = getattr(self.before, name), getattr(self.after, name)
            for key in before.keys() | after.keys() if name == "asked" else before.keys() & after.keys():
                if before.get(key) != after.get(key):
                    where = key if name == "asked" else f"content of {key}" if key != CODE else CODE
                    found[where] = before.get(key), after.get(key)
        if found.keys() & {"task", "resolution"}:
            found.pop("content of model", None)
        objectives = self.before.objective, self.after.objective
        if all(objectives) and objectives[0] != objectives[1]:
            found["objective"] = objectives
        found |= self._otherwise
        if self.before.stored == self.after.stored:  # rows list strategies without a point, too
            found |= self._tried
        return dict(sorted(found.items(), key=lambda item: (item[0] != "model", item[0])))

    @property
    def _otherwise(self) -> dict[str, tuple[str | None, str | None]]:
        """The parameters that differ between the only points of the two, where both are of one strategy."""
        if len(self.before.points) != 1 or len(self.after.points) != 1:
            return {}
        (one,), (other,) = self.before.points, self.after.points
        before, after = dict(one.parameters), dict(other.parameters)
        names = dict.fromkeys([*before, *after]) if one.strategy == other.strategy else {}
        return {
            name.replace("_", "-"): (before.get(name), after.get(name))
            for name in names
            if before.get(name) != after.get(name)
        }

    @property
    def _tried(self) -> dict[str, tuple[str | None, str | None]]:
        """The numbers of GPUs and the strategies that the points of the two are of, where they differ."""
        found: dict[str, tuple[str | None, str | None]] = {}
        for name, key in (("gpus", "num_gpus"), ("strategies", "strategy")):
            before, after = (
                sorted({getattr(of, key) for of in one.points}) for one in (self.before, self.after)
            )
            if before != after:
                found[name] = ", ".join(map(str, before)), ", ".join(map(str, after))
        return found

    @property
    def moved(self) -> list[Moved]:
        """The points simulated in both that take another time, the largest change first."""
        ranks = [_ranks(record) for record in (self.before, self.after)]
        both = ranks[0].keys() & ranks[1].keys()
        found = [
            Moved(key, before_s, after_s, (ranks[0][key], ranks[1][key]))
            for key in both
            if (before_s := self.before.points[key].seconds or 0.0)
            != (after_s := self.after.points[key].seconds or 0.0)
        ]
        return sorted(found, key=lambda moved: (-abs(moved.change), moved.key))

    @property
    def same(self) -> int:
        """Points simulated in both that take the same time."""
        return len(_ranks(self.before).keys() & _ranks(self.after).keys()) - len(self.moved)

    @property
    def turned(self) -> dict[str, int]:
        """Counts of points whose status changed, or which one of the two does not know; unlisted ones are left out."""
        left_out = self._unlisted
        keys = [
            key for key in dict.fromkeys([*self.before.points, *self.after.points]) if key not in left_out
        ]
        pairs = [(_status(self.before, key), _status(self.after, key)) for key in keys]
        counts = Counter(f"{before} -> {after}" for before, after in pairs if before != after)
        return dict(sorted(counts.items()))

    @property
    def unlisted(self) -> int:
        """Points of a store that the rows beside it do not list, as those with the result of another."""
        return len(self._unlisted)

    @property
    def _unlisted(self) -> set[Key]:
        one, other = self.before, self.after
        if one.stored == other.stored:
            return set()
        store, listed = (one, other) if one.stored else (other, one)
        return store.points.keys() - listed.points.keys()

    def to_json(self) -> dict[str, Any]:
        """The comparison under public keys."""
        return {
            "question": self.words,
            "differing": {key: list(pair) for key, pair in self.differing.items()},
            "winners": [_winner_json(record) for record in (self.before, self.after)],
            "same": self.same,
            "turned": self.turned,
            "unlisted": self.unlisted,
            "moved": [
                {**_key_json(m.key), "before_s": m.before_s, "after_s": m.after_s, "ranks": list(m.ranks)}
                for m in self.moved
            ],
        }


def _ranks(record: Recorded) -> dict[Key, int]:
    simulated = (key for key, found in record.points.items() if found.status == "simulated")
    return {key: rank for rank, key in enumerate(simulated, 1)}


def _status(record: Recorded, key: Key) -> str:
    return record.points[key].status if key in record.points else "not there"


def _key_json(key: Key) -> dict[str, Any]:
    return {"strategy": key.strategy, "num_gpus": key.num_gpus, "parameters": dict(key.parameters)}


def _winner_json(record: Recorded) -> dict[str, Any] | None:
    key = record.winner
    return None if key is None else {**_key_json(key), "seconds": record.points[key].seconds}


def compare(
    before: Path | NamedRows, after: Path | NamedRows, keys: Sequence[str] = ()
) -> tuple[list[Comparison], list[str], list[str]]:
    """Comparisons of the questions of two sources, and the questions that one of the two alone has.

    Args:
        before: a store, rows of a sweep or results: a file, or rows that none holds.
        after: another.
        keys: beginnings of the keys of the questions to look at; by default all.

    Raises:
        InputError: a file cannot be read, a key is empty, they have no question in common, or several are asked in the
            same words.
    """
    if "" in keys:
        raise InputError(
            f"`question` is {shown(','.join(keys))}, must be the beginnings of keys, with commas between"
        )
    one, other = (_chosen(source, keys) for source in (before, after))
    if len(one) == len(other) == 1:
        return [Comparison(one[0].words, one[0], other[0])], [], []
    asked = [record.asked for record in other]
    both = [record for record in one if record.asked in asked]
    if not both:
        counts = f"{before} holds {_listed(one)} and {after} {_listed(other)}"
        raise InputError(f"{counts}, but none of them is asked in both: {CHOOSE}")
    found = [Comparison(record.words, record, other[asked.index(record.asked)]) for record in both]
    mine = [record.asked for record in one]
    return (
        found,
        [record.words for record in one if record.asked not in asked],
        [record.words for record in other if record.asked not in mine],
    )


def _chosen(source: Path | NamedRows, keys: Sequence[str]) -> list[Recorded]:
    """The questions of a source that are to be looked at, no two of them asked in the same words.

    Raises:
        InputError: two are, or none is left.
    """
    there = read_records(source)
    found = [record for record in there if not keys or any(record.key.startswith(key) for key in keys)]
    if not found:
        raise InputError(f"`question` is {','.join(keys)}, but {source} holds {_listed(there)}")
    asked = [record.asked for record in found]
    twice = [record for record in found if asked.count(record.asked) > 1]
    if twice:
        raise InputError(f"{source} holds {_listed(twice)} in the same words, of other inputs: {CHOOSE}")
    return found


def _listed(records: Sequence[Recorded]) -> str:
    """Questions by their keys, each with what tells it from the others."""
    if len(records) == 1:
        return f"{counted(1, 'question')}: {records[0].key} ({records[0].words})"
    merged = [
        record.asked | {f"content of {key}": value for key, value in record.inputs.items()}
        for record in records
    ]
    differing = [key for key in merged[0] if len({one.get(key) for one in merged}) > 1]
    said = (
        f"{record.key} ({', '.join(f'{key} {one.get(key)}' for key in differing)})"
        for record, one in zip(records, merged, strict=True)
    )
    return f"{counted(len(records), 'question')}: {', '.join(said)}"
