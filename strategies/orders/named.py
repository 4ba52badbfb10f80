"""Orders: GPipe, FIFO-1F1B, interleaved 1F1B, ZB-H1 and Chimera; and the check that any is whole.

Of a whole order every position has its passes, and every micro-batch passes each stage once there and once back.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from profiles.errors import InfeasibleError, InputError, shown
from strategies.plans.actions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    Rows,
    StageAction,
    passes_of,
)


def gpipe_order(degree: int, micro_batches: int) -> Rows:
    """Return all forwards, then all backwards. Source: GPipe, section 2.3."""
    numbers = range(micro_batches)
    return tuple(
        (*passes_of(position, FORWARD, numbers), *passes_of(position, BACKWARD, numbers))
        for position in range(degree)
    )


def one_forward_one_backward_order(degree: int, micro_batches: int) -> Rows:
    """Return the FIFO-1F1B order: fill the pipeline, alternate, drain it. Source: DiffusionPipe, Fig. 2."""
    rows = []
    for position in range(degree):
        ahead = min(degree - 1 - position, micro_batches)
        forwards, backwards = (
            passes_of(position, kind, range(micro_batches)) for kind in (FORWARD, BACKWARD)
        )
        pairs = chain.from_iterable(zip(forwards[ahead:], backwards, strict=False))
        rows.append((*forwards[:ahead], *pairs, *backwards[micro_batches - ahead :]))
    return tuple(rows)


def interleaved_order(degree: int, micro_batches: int, chunks: int) -> Rows:
    """Return the interleaved 1F1B order: chunk by chunk, each by as many micro-batches as there are positions.

    Source: Narayanan et al., Megatron-LM, 2021, section 2.2; torch's ``ScheduleInterleaved1F1B``.

    Raises:
        InfeasibleError: the micro-batches do not come in whole rounds.
    """
    check_rounds(degree, micro_batches)
    rounds = [range(first, first + degree) for first in range(0, micro_batches, degree)]
    rows = []
    for position in range(degree):
        stages = range(position, chunks * degree, degree)
        forwards, backwards = (
            [one for numbers in rounds for stage in visited for one in passes_of(stage, kind, numbers)]
            for kind, visited in ((FORWARD, stages), (BACKWARD, stages[::-1]))
        )
        ahead = min(micro_batches * chunks, 2 * (degree - 1 - position) + (chunks - 1) * degree)
        row = forwards[:ahead]
        for pair in zip(forwards[ahead:], backwards, strict=False):
            row += pair
        rows.append((*row, *backwards[len(backwards) - ahead :]))
    return tuple(rows)


def check_rounds(degree: int, micro_batches: int) -> None:
    """Refuse micro-batches that do not come in rounds of as many as there are positions."""
    if micro_batches % degree:
        raise InfeasibleError(
            f"`micro_batches({micro_batches})` / `pipeline_degree({degree})` = {micro_batches / degree:g}"
            " is not whole",
            "the micro-batches do not come in whole rounds",
        )


def zero_bubble_order(degree: int, micro_batches: int) -> Rows:
    """Return the ZB-H1 order: FIFO-1F1B, the weight part of position s behind by s micro-batches.

    So every position holds the activations of as many micro-batches as there are positions, and the later ones
    fill the end of the iteration with weight parts. With fewer micro-batches than positions, late positions run
    theirs all at the end.

    Source: Qi et al., 2023, section 2; torch's ``ScheduleInterleavedZeroBubble`` with one stage per rank.
    """
    rows = []
    for position in range(degree):
        ahead, behind = min(degree - 1 - position, micro_batches), min(position, micro_batches)
        forwards, inputs, weights = (
            passes_of(position, kind, range(micro_batches))
            for kind in (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
        )
        row = forwards[:ahead]
        for m in range(micro_batches):
            if m + ahead < micro_batches:
                row.append(forwards[m + ahead])
            row.append(inputs[m])
            if m >= behind:
                row.append(weights[m - behind])
        rows.append((*row, *weights[micro_batches - behind :]))
    return tuple(rows)


def chimera_order(degree: int, micro_batches: int) -> Rows:
    """Return Chimera's order of one backbone in two directions; stages 0 to P - 1 go down, P to 2P - 1 up.

    Units of as many micro-batches as positions follow one another, half of each unit down and half up; the last may be
    smaller. Were forwards and backwards one slot long, the i-th of a unit in its direction would be on stage s in slot
    s + 2i, and back there in slot 2P - 1 - s + 2i: never two on one position, each input ready in the slot before, and
    room for the next unit 2P slots later.

    Source: Li and Hoefler, Chimera, 2021, sections 3.1 and 3.5 (direct concatenation).

    Raises:
        InfeasibleError: the degree or the number of micro-batches is odd.
    """
    check_halves(degree, micro_batches)
    half, unit = micro_batches // 2, degree // 2
    shifts = [2 * (i // unit * degree + i % unit) for i in range(half)]
    slots: list[list[tuple[int, StageAction]]] = [[] for _ in range(degree)]
    for number in range(2 * degree):
        way, stage = divmod(number, degree)
        row = slots[degree - 1 - stage if way else stage]
        numbers = range(way * half, way * half + half)
        for kind, slot in ((FORWARD, stage), (BACKWARD, 2 * degree - 1 - stage)):
            row += zip([slot + shift for shift in shifts], passes_of(number, kind, numbers), strict=True)
    return tuple(tuple(action for _, action in sorted(row)) for row in slots)


def check_halves(degree: int, micro_batches: int) -> None:
    """Refuse what two directions of one backbone cannot share."""
    for name, value in (("pipeline_degree", degree), ("micro_batches", micro_batches)):
        if value % 2:
            raise InfeasibleError(
                f"{name}({value}) / 2 directions of one backbone = {value / 2:g} is not whole",
                f"an odd {name} in two directions",
            )


WHOLE: Final = (FORWARD, BACKWARD)
SPLIT: Final = (FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT)
"""Kinds of passes; split, a backward comes in two parts."""


def placed(whose: str, positions: Sequence[Any], degree: int) -> tuple[int, ...]:
    """The position of each stage, checked; numbers of NumPy become what they equal. Messages say ``whose`` they are."""
    known = {at: at for at in range(degree)}
    for stage, entry in enumerate(positions):
        if entry not in known:
            rule = f"must be from 0 to {degree - 1}: there are `pipeline_degree({degree})` positions"
            raise InputError(f"{whose}, entry {stage} is {shown(entry)}, {rule}")
    if lacking := known.keys() - set(positions):
        rule = f"each of `pipeline_degree({degree})` positions must have a stage"
        raise InputError(f"{whose} has no entry {min(lacking)}, {rule}")
    return tuple(known[entry] for entry in positions)


def order_of(strategy: Any) -> Rows:  # noqa: ANN401  whatever has an order
    """The order of a strategy, checked where it knows how."""
    order: Rows = getattr(strategy, "checked_order", strategy.order)()
    return order


def whole(
    whose: str,
    order: Any,  # noqa: ANN401  whatever a strategy gives
    positions: Sequence[int],
    micro_batches: int,
    kinds: tuple[str, ...],
) -> Rows:
    """An order whose positions have all passes of their stages, each once; ``positions`` are of each stage."""
    degree = max(positions) + 1
    _check_listed(whose, order, f"rows, one for each of `pipeline_degree({degree})`", degree)
    rows = []
    for position, row in enumerate(order):
        where, stages = (
            f"{whose}, position {position}",
            [s for s, at in enumerate(positions) if at == position],
        )
        each = (passes_of(stage, kind, range(micro_batches)) for stage in stages for kind in kinds)
        passes = {one: one for one in chain.from_iterable(each)}
        _check_listed(where, row, "passes")
        times = Counter(row)
        if times != Counter(passes.keys()):
            odd = next(one for one in (*row, *passes) if times[one] != (one in passes))
            verb = ("repeats" if times[odd] else "lacks") if odd in passes else "has"
            rule = f"must have {' and '.join(kinds)} of each of its stages {stages} once for each micro-batch"
            split = "; a strategy whose backwards come in two parts, I and W, says split = True"
            said = passes.get(odd, shown(odd))
            raise InputError(
                f"{where} {verb} {said}, {rule} (0 to {micro_batches - 1}){split * (kinds == WHOLE)}"
            )
        rows.append(tuple([passes[entry] for entry in row]))  # plain tuples become what they equal
    return tuple(rows)


def _check_listed(where: str, rows: Any, what: str, count: int | None = None) -> None:  # noqa: ANN401
    if not isinstance(rows, list | tuple) or len(rows) != (count or len(rows)):
        raise InputError(f"{where} is {shown(rows)}, must be a tuple of {what}")
