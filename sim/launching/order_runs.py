"""Orders as code: rows of passes written as runs, which repeat with one micro-batch after another.

A row of hundreds of passes is a line of a dozen runs; what it writes is the compute-only CSV of
``torch.distributed.pipelining``.
"""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import indent, wrap
from typing import Final

from strategies.plans.actions import StageAction, parse_action

HARD_SPACE: Final = "\u00a0"
"""Where no line ends."""
WIDTH: Final = 100
"""Letters of a line."""
TOGETHER: Final = 10
"""Passes that do not repeat and are written together."""


def list_code(name: str, values: Iterable[object]) -> str:
    """A list as an assignment in lines that can be read."""
    words = ", ".join(str(value).replace(" ", HARD_SPACE) for value in values)
    lines = wrap(f"{name} = [{words}]", WIDTH, subsequent_indent="    ")
    return "\n".join(lines).replace(HARD_SPACE, " ")


def order_code(text: str) -> str:
    """The rows of a compute-only CSV as calls of ``row``, indented and one after the other."""
    rows = (map(parse_action, line.split(",")) for line in text.splitlines())
    return "".join(_row_code([one for one in row if isinstance(one, StageAction)]) for row in rows)


def _row_code(row: Sequence[StageAction]) -> str:
    runs = (f'({times},{HARD_SPACE}"{",".join(map(str, passes))}")' for times, passes in runs_of(row))
    first, *more = wrap(", ".join(runs), WIDTH)
    inner = "\n".join(["", *(f"    {line}" for line in (first, *more)), ""]) if more else first
    return indent(f"row({inner}),\n", "    ").replace(HARD_SPACE, " ")


def runs_of(row: Sequence[StageAction]) -> Iterator[tuple[int, Sequence[StageAction]]]:
    """The runs of a row: how often some passes come, and those of its first micro-batch.

    Of the runs that begin at a pass the one that spares most passes is taken.
    """
    longest = len({(one.stage, one.kind) for one in row})
    at, loose = 0, list[StageAction]()
    while at < len(row):
        times = {length: _times(row, at, length) for length in range(1, longest + 1)}
        length = max(times, key=lambda one: ((times[one] - 1) * one, -one))
        if loose and (times[length] > 1 or len(loose) == TOGETHER):
            yield 1, loose
            loose = []
        if times[length] > 1:
            yield times[length], row[at : at + length]
        else:
            loose.append(row[at])
        at += times[length] * length
    if loose:
        yield 1, loose


def _times(row: Sequence[StageAction], at: int, length: int) -> int:
    """How often the passes from a place on come, each time of the next micro-batch."""
    first, times = row[at : at + length], 1
    while row[at + times * length : at + (times + 1) * length] == [
        one._replace(micro_batch=one.micro_batch + times) for one in first
    ]:
        times += 1
    return times
