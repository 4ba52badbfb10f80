"""Comparisons of stores, sweeps and results in words and as a table."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from profiles.errors import InputError, counted, shown
from sim.explore.records import CODE, Key, NamedRows, Recorded, cell, read_records
from sim.explore.scaling import Scaling
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.outcomes.tasks import TASKS
from sim.report.blocks import Block, Column, Line, Panel, Table, html, text
from sim.report.frames import rows
from sim.report.words import timed

K = TypeVar("K")
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


def _pairs(before: Mapping[K, str], after: Mapping[K, str]) -> dict[K, tuple[str | None, str | None]]:
    """Return the values that differ between two mappings, before and after."""
    keys = before.keys() | after.keys()
    return {key: (before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)}


class Comparison(NamedTuple):
    """Two records of one question."""

    before: Recorded
    after: Recorded

    @property
    def differing(self) -> dict[str, tuple[str | None, str | None]]:
        """Options and contents of inputs that differ, by key.

        Of a model at another resolution, or for another task, the content differs with these.
        """
        one, other = self.before, self.after
        pairs = _pairs(one.asked, other.asked)
        for key, pair in _pairs(one.inputs, other.inputs).items():
            if None not in pair and not (key == "model" and pairs.keys() & {"task", "resolution"}):
                pairs[key if key == CODE else f"content of {key}"] = pair
        if one.objective and other.objective:
            pairs |= _pairs(
                {"objective": one.objective, **one.held}, {"objective": other.objective, **other.held}
            )
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
        both = []
        for key in self.before.ranks.keys() & self.after.ranks.keys():
            before_s, after_s = (side.points[key].seconds or 0.0 for side in self)
            both.append(Moved(key, before_s, after_s, (self.before.ranks[key], self.after.ranks[key])))
        moved = [one for one in both if one.before_s != one.after_s]
        return sorted(moved, key=lambda moved: (-abs(moved.change), moved.key))

    @property
    def same(self) -> int:
        """Points simulated in both that take the same time."""
        return len(self.before.ranks.keys() & self.after.ranks.keys()) - len(self.moved)

    @property
    def stored(self) -> bool:
        """Whether one of the two is of a store, which says all that any sweep asked, and of none what it chose."""
        return CODE in self.before.inputs.keys() | self.after.inputs.keys()

    @property
    def winners(self) -> list[Key | None]:
        """The recommended points, before and after; the fastest where a store does not say which."""
        return [side.winner(fastest=self.stored) for side in self]

    @property
    def turned(self) -> dict[str, int]:
        """Counts of points whose status changed; bounds that one alone knows, or a store's, are no change."""
        before, after = ({key: point.status for key, point in side.points.items()} for side in self)
        pairs = [(a or "not there", b or "not there") for a, b in _pairs(before, after).values()]
        less = {"bounded", "simulated" if self.stored else "not there", "not there"}
        turned = (pair for pair in pairs if "bounded" not in pair or not less.issuperset(pair))
        return dict(sorted(Counter(map(" -> ".join, turned)).items()))

    def to_json(self) -> dict[str, Any]:
        """The comparison under public keys."""
        return {
            "question": self.before.words,
            "differing": {key: list(pair) for key, pair in self.differing.items()},
            "winners": [
                key and {**_key_json(key), "seconds": side.points[key].seconds}
                for key, side in zip(self.winners, self, strict=True)
            ],
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
    return key._asdict() | {"parameters": dict(key.parameters)}


def _chosen(source: Path | NamedRows, keys: Sequence[str]) -> list[Recorded]:
    """The questions of a source that are to be looked at, no two of them asked in the same words."""
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
    values = [
        record.asked | {f"content of {key}": value for key, value in record.inputs.items()}
        for record in records
    ]
    differing = [key for key in values[0] if len({one.get(key) for one in values}) > 1]
    words = [
        f"{record.key} ({', '.join(f'{name} {entry.get(name)}' for name in differing) or record.words})"
        for record, entry in zip(records, values, strict=True)
    ]
    return f"{counted(len(records), 'question')}: {', '.join(words)}"


SHOWN: Final = 10

Comparable = str | PathLike[str] | Sweep | Scaling | Result
"""A file, or a result of ``sweep`` or ``run``."""


class Compared(NamedTuple):
    """Changes between two stores, sweeps or results; prints itself.

    Attributes:
        questions: comparisons of the questions that both hold; of two that hold one each, of these.
        only_before: questions that the first alone holds, in words; ``only_after`` those of the second.
    """

    questions: Sequence[Comparison]
    only_before: Sequence[str]
    only_after: Sequence[str]
    names: tuple[str, str] = ("before", "after")

    def __repr__(self) -> str:
        return text(*self.blocks)

    def _repr_html_(self) -> str:
        """Return the same, in a notebook."""
        return html(*self.blocks)

    @property
    def blocks(self) -> list[Block]:
        """The questions with their changes, then those that one of the two alone holds."""
        blocks = [block for one in self.questions for block in _blocks(one)]
        for name, alone in zip(self.names, (self.only_before, self.only_after), strict=True):
            blocks += [f"only in {name}: {words}" for words in alone]
        return blocks

    def to_json(self) -> dict[str, Any]:
        """Return the comparison under public keys, as ``sim compare --json`` prints it."""
        return {
            "compared": [one.to_json() for one in self.questions],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
        }


def compare(before: Comparable, after: Comparable, *, question: str | Sequence[str] = ()) -> Compared:
    """Return the changes between two answers: of the question, the winner and the points.

    Args:
        before: a sweep, a result, or a file: a store, rows of a sweep (.csv) or results (.json).
        after: another.
        question: of stores with several questions those to compare, by keys that a refusal lists.

    Raises:
        InputError: one is none of these, a file cannot be read, or they have no question in common.
    """
    keys = question.split(",") if isinstance(question, str) and question else question
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) and key for key in keys):
        raise InputError(
            f"`question` is {shown(question)}, must be the beginnings of keys, with commas between"
        )
    sources = _source("before", before), _source("after", after)
    names = str(sources[0]), str(sources[1])
    one, other = (_chosen(source, keys) for source in sources)
    if len(one) == len(other) == 1:
        return Compared([Comparison(one[0], other[0].under(one[0]))], [], [], names)
    pairs = [(record, twin) for record in one for twin in other if record.asked == twin.asked]
    if not pairs:
        counts = f"{names[0]} holds {_listed(one)} and {names[1]} {_listed(other)}"
        raise InputError(f"{counts}, but none of them is asked in both: {CHOOSE}")
    asked = [record.asked for record, _ in pairs]
    first, last = ([record.words for record in each if record.asked not in asked] for each in (one, other))
    questions = [Comparison(record, twin.under(record)) for record, twin in pairs]
    return Compared(questions, first, last, names)


def _source(name: str, answer: object) -> Path | NamedRows:
    """Return the file, or the rows, of an answer."""
    if isinstance(answer, str | PathLike):
        return Path(answer)
    if isinstance(answer, Result):
        return NamedRows(name, [answer.to_json()])
    if isinstance(answer, Sweep | Scaling):
        swept = answer.sweeps[0] if isinstance(answer, Scaling) else answer
        held = {key.replace("_", "-"): cell(value) for key, value in swept.held.items()}
        return NamedRows(name, rows(answer), swept.objective, held)
    raise InputError(f"{name} is of type {type(answer).__name__}, must be a sweep, a result, or a file")


def _blocks(one: Comparison) -> Iterator[Block]:
    """Yield the changes of a question, its winners, and the points that moved most."""
    best = (
        f"{key} ({_timed(side, side.points[key].seconds)})" if key else "none"
        for key, side in zip(one.winners, one, strict=True)
    )
    word = "best of each" if "objective" in one.differing else "fastest" if one.stored else "best"
    lines = [
        *_difference_lines(one),
        (word, " -> ".join(dict.fromkeys(best))),
        ("points", f"simulated in both: {one.same} as they were, {len(one.moved)} moved"),
    ]
    if turned := ", ".join(f"{count} {words}" for words, count in one.turned.items()):
        lines.append(("", f"others: {turned}"))
    yield Panel(one.before.words, lines)
    if largest := one.moved[:SHOWN]:
        columns = [Column("point", words=True), *map(Column, ("before", "after", "change", "rank"))]
        rows = [
            (
                str(moved.key),
                _timed(one.before, moved.before_s),
                _timed(one.after, moved.after_s),
                f"{moved.change:+.2%}",
                " -> ".join(map(str, dict.fromkeys(moved.ranks))),
            )
            for moved in largest
        ]
        yield Table(f"the {counted(len(largest), 'largest change')}", columns, rows)


def _difference_lines(one: Comparison) -> Sequence[Line]:
    """Return the differences between the two."""
    if one.differing:
        lines = [(key, f"{a or 'not asked'} -> {b or 'not asked'}") for key, (a, b) in one.differing.items()]
        return sorted(lines, key=lambda line: line[0] != "model")
    if not (one.before.inputs.keys() & one.after.inputs.keys()) - {CODE}:
        return [("asked", "the same; which inputs differ is not known: one of the two has no hashes of them")]
    return [("asked", f"the same, of the same inputs{': the code that simulated differs' * bool(one.moved)}")]


def _timed(record: Recorded, seconds: float | None) -> str:
    """Return seconds of a record in the unit in which panels tell them."""
    return timed(seconds or 0.0, TASKS[record.asked["task"]].unit)
