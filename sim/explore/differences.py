"""Differences: what changed between two stores, sweeps or results, and which of their inputs differ.

Questions asked in the same words are compared, or the only ones of both files.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
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


Pairs = dict[str, tuple[str | None, str | None]]
"""Values that differ, before and after."""


def _pairs(before: Mapping[str, str], after: Mapping[str, str]) -> Pairs:
    """The values that differ between two mappings."""
    keys = before.keys() | after.keys()
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two records of one question."""

    words: str
    before: Recorded
    after: Recorded

    @property
    def differing(self) -> Pairs:
        """Options and contents of inputs that differ, by key.

        Of a model at another resolution, or for another task, the content differs with these.
        """
        one, other = self.before, self.after
        pairs = _pairs(one.asked, other.asked)
        for key, pair in _pairs(one.inputs, other.inputs).items():
            if None not in pair and not (key == "model" and pairs.keys() & {"task", "resolution"}):
                pairs[key if key == CODE else f"content of {key}"] = pair
        if one.objective and other.objective:
            pairs |= _pairs({"objective": one.objective}, {"objective": other.objective})
        if len(one.points) == len(other.points) == 1:
            (point,), (twin,) = one.points, other.points
            if point.strategy == twin.strategy:
                parameters = _pairs(dict(point.parameters), dict(twin.parameters))
                pairs |= {name.replace("_", "-"): pair for name, pair in parameters.items()}
        pairs |= _pairs(_tried(one), _tried(other))
        return dict(sorted(pairs.items()))

    @property
    def moved(self) -> list[Moved]:
        """The points simulated in both that take another time, the largest change first."""
        before, after = self.before, self.after
        moved = [
            Moved(key, before_s, after_s, (before.ranks[key], after.ranks[key]))
            for key in before.ranks.keys() & after.ranks.keys()
            if (before_s := before.points[key].seconds or 0.0)
            != (after_s := after.points[key].seconds or 0.0)
        ]
        return sorted(moved, key=lambda moved: (-abs(moved.change), moved.key))

    @property
    def same(self) -> int:
        """Points simulated in both that take the same time."""
        return len(self.before.ranks.keys() & self.after.ranks.keys()) - len(self.moved)

    @property
    def turned(self) -> dict[str, int]:
        """Counts of points whose status changed, or which one of the two does not know."""
        one, other = (
            {key: known.status for key, known in of.points.items()} for of in (self.before, self.after)
        )
        pairs = (
            (one.get(key, "not there"), other.get(key, "not there")) for key in one.keys() | other.keys()
        )
        return dict(sorted(Counter(" -> ".join(pair) for pair in pairs if pair[0] != pair[1]).items()))

    def to_json(self) -> dict[str, Any]:
        """The comparison under public keys."""
        return {
            "question": self.words,
            "differing": {key: list(pair) for key, pair in self.differing.items()},
            "winners": [_winner_json(record) for record in (self.before, self.after)],
            "same": self.same,
            "turned": self.turned,
            "moved": [
                {**_key_json(m.key), "before_s": m.before_s, "after_s": m.after_s, "ranks": list(m.ranks)}
                for m in self.moved
            ],
        }


def _tried(record: Recorded) -> dict[str, str]:
    """The numbers of GPUs and the strategies that simulated points are of."""
    gpus, strategies = {key.num_gpus for key in record.ranks}, {key.strategy for key in record.ranks}
    tried = {"gpus": map(str, sorted(gpus)), "strategies": sorted(strategies)}
    return {name: ", ".join(values) or "none simulated" for name, values in tried.items()}


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
        InputError: a file cannot be read, a key is empty, they have no question in common, or several are
            asked in the same words.
    """
    if "" in keys:
        rule = "must be the beginnings of keys, with commas between"
        raise InputError(f"`question` is {shown(','.join(keys))}, {rule}")
    one, other = (_chosen(source, keys) for source in (before, after))
    if len(one) == len(other) == 1:
        return [Comparison(one[0].words, one[0], other[0])], [], []
    pairs = [(record, twin) for record in one for twin in other if record.asked == twin.asked]
    if not pairs:
        counts = f"{before} holds {_listed(one)} and {after} {_listed(other)}"
        raise InputError(f"{counts}, but none of them is asked in both: {CHOOSE}")
    both = [record.asked for record, _ in pairs]
    first, last = ([of.words for of in each if of.asked not in both] for each in (one, other))
    return [Comparison(record.words, record, twin) for record, twin in pairs], first, last


def _chosen(source: Path | NamedRows, keys: Sequence[str]) -> list[Recorded]:
    """The questions of a source that are to be looked at, no two of them asked in the same words.

    Raises:
        InputError: two are, or none is left.
    """
    there = read_records(source)
    chosen = [record for record in there if not keys or record.key.startswith(tuple(keys))]
    if not chosen:
        raise InputError(f"`question` is {','.join(keys)}, but {source} holds {_listed(there)}")
    questions = [record.asked for record in chosen]
    twice = [record for record in chosen if questions.count(record.asked) > 1]
    if twice:
        raise InputError(f"{source} holds {_listed(twice)} in the same words, of other inputs: {CHOOSE}")
    return chosen


def _listed(records: Sequence[Recorded]) -> str:
    """Questions by their keys, each with what tells it from the others."""
    values = [of.asked | {f"content of {key}": value for key, value in of.inputs.items()} for of in records]
    differing = [key for key in values[0] if len({one.get(key) for one in values}) > 1]
    words = [
        f"{record.key} ({', '.join(f'{name} {of.get(name)}' for name in differing) or record.words})"
        for record, of in zip(records, values, strict=True)
    ]
    return f"{counted(len(records), 'question')}: {', '.join(words)}"
