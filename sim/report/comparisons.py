"""Comparisons of stores, sweeps and results in words, as a table and as a frame."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profiles.errors import InputError, counted, shown
from sim.explore.differences import Comparison
from sim.explore.differences import compare as compared
from sim.explore.records import CODE, NamedRows, Recorded
from sim.explore.scaling import Scaling
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.report.blocks import WIDEST, Block, Column, Table, html, text
from sim.report.frames import frame_of, rows

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN: Final = 10
"""Points that are listed of those that moved."""
NOT_ASKED: Final = "not asked"
"""Stands for a value that one of the two lacks."""

Comparable = str | PathLike[str] | Sweep | Scaling | Result
"""A file, or a result of ``sweep`` or ``run``."""


@dataclass(frozen=True, slots=True, repr=False)
class Compared:
    """Changes between two stores, sweeps or results; prints itself.

    Attributes:
        questions: comparisons of the questions that both hold; of two that hold one each, of these.
        only_before: questions that the first alone holds, in words.
        only_after: questions that the second alone holds.
        names: of the two, as the lines call them.
    """

    questions: tuple[Comparison, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    names: tuple[str, str] = ("before", "after")

    def __str__(self) -> str:
        return text(*self.blocks, width=WIDEST, wrap=False)

    def __repr__(self) -> str:
        moved = sum(len(one.moved) for one in self.questions)
        same = sum(one.same for one in self.questions)
        questions = counted(len(self.questions), "question")
        return f"<Compared: {questions}, {counted(same, 'point')} as before, {moved} moved>"

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

    def frame(self) -> "DataFrame":
        """The points that moved, the largest change of each question first; parameters have columns of their own.

        ``before_s`` and ``after_s`` are seconds of an iteration, or of a run of the sampler; ``change`` is the share by
        which it takes longer, 0.1 for 10 %; ranks count from 1.
        """
        return frame_of(
            {
                "question": one.words,
                **row,
                "change": moved.change,
                "rank_before": ranks[0],
                "rank_after": ranks[1],
            }
            for one in self.questions
            for moved, row in zip(one.moved, one.to_json()["moved"], strict=True)
            for ranks in [row.pop("ranks")]
        )

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
    keys = question.split(",") if isinstance(question, str) else question
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        raise InputError(f"`question` is {shown(question)}, must be the beginnings of keys")
    one, other = _source("before", before), _source("after", after)
    questions, only_before, only_after = compared(one, other, keys)
    return Compared(tuple(questions), tuple(only_before), tuple(only_after), (str(one), str(other)))


def _source(name: str, answer: object) -> Path | NamedRows:
    """Return the file, or the rows, of an answer."""
    if isinstance(answer, str | PathLike):
        return Path(answer)
    if isinstance(answer, Result):
        return NamedRows(name, [answer.to_json()])
    if isinstance(answer, Sweep | Scaling):
        swept = answer.sweeps[0] if isinstance(answer, Scaling) else answer
        return NamedRows(name, rows(answer), swept.objective)
    raise InputError(f"{name} is of type {type(answer).__name__}, must be a sweep, a result, or a file")


def _blocks(one: Comparison) -> Iterator[Block]:
    """Yield the changes of a question, its winners, and the points that moved most."""
    yield one.words
    yield from (f"  {line}" for line in _reasons(one))
    winners = " -> ".join(dict.fromkeys(map(_best, (one.before, one.after))))
    yield f"  {'best of each' if 'objective' in one.differing else 'best'}: {winners}"
    turned = ", ".join(f"{count} {words}" for words, count in one.turned.items())
    moved = f"points simulated in both: {one.same} as they were, {len(one.moved)} moved"
    yield f"  {moved}; others: {turned}" if turned else f"  {moved}"
    if largest := one.moved[:SHOWN]:
        columns = [
            Column("point", [str(of.key) for of in largest], words=True),
            Column("before", [f"{of.before_s:.6g} s" for of in largest]),
            Column("after", [f"{of.after_s:.6g} s" for of in largest]),
            Column("change", [f"{of.change:+.2%}" for of in largest]),
            Column("rank", [" -> ".join(map(str, dict.fromkeys(of.ranks))) for of in largest]),
        ]
        yield Table(f"the {counted(len(largest), 'largest change')}", columns)


def _reasons(one: Comparison) -> Sequence[str]:
    """Return the differences between the two, in words."""
    lines = {key: f"{key}: {a or NOT_ASKED} -> {b or NOT_ASKED}" for key, (a, b) in one.differing.items()}
    if models := lines.pop("model", ""):
        return [f"two models are compared: {models.removeprefix('model: ')}", *lines.values()]
    if lines:
        return list(lines.values())
    if not (one.before.inputs.keys() & one.after.inputs.keys()) - {CODE}:
        return ["asked the same; which inputs differ is not known: one of the two has no hashes of them"]
    same = "the same is asked, of the same inputs"
    return [f"{same}: the code that simulated differs" if one.moved else same]


def _best(record: Recorded) -> str:
    key = record.winner
    return "none" if key is None else f"{key} ({record.points[key].seconds:.6g} s)"
