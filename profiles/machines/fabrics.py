"""Shares of their ports that collectives reach: curves by group size and by nodes, as a cluster file gives them."""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Final

import numpy as np

from profiles.checks import (
    FINITE,
    POSITIVE_SHARE,
    RATE,
    Proportion,
    Span,
    check_choice,
    check_fields,
    check_number,
)
from profiles.errors import InputError

OPERATIONS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
"""The last is one round of a ring: each member sends to the next, as nccl-tests' sendrecv does."""

GATHERS: Final = ("all_gather", "reduce_scatter")
"""Operations that pass each part once around a ring."""
RING: Final = "ring"
SWITCH: Final = "switch"
ALGORITHMS: Final = (RING, SWITCH)

Curve = tuple[tuple[float, float], ...]
Curves = tuple[tuple[str, Curve], ...]
FULL: Final[Curve] = ((1.0, 1.0),)
"""Efficiency of an operation that nothing slows."""
FULL_CURVES: Final[Curves] = tuple((operation, FULL) for operation in OPERATIONS)


@dataclass(frozen=True, slots=True)
class Between:
    """Shares of a node's port that groups over several nodes reach, by nodes spanned; others as of ``Collectives``.

    Attributes:
        efficiency: bus bandwidth of rings over the port's; for ``all_to_all``, bandwidth at which the members of a node
            send to other nodes over the port's.
        tree: what an all-reduce by trees reaches, up to its last point's nodes; beyond, and where it is empty, rings.
        step_s: seconds of a step between two nodes; None: the latency of the link.
        rank_s: seconds that each member adds to a gather or a scatter; empty where none was measured.
    """

    efficiency: Curves
    tree: Curve = ()
    middle: Curves = ()
    fixed_s: Curves = ()
    step_s: float | None = None
    middle_most: float = inf
    rank_s: Curves = ()

    def __post_init__(self) -> None:
        owner = "collectives.between"
        _check_laws(owner, self)
        if self.tree:
            _check_curve(owner, "tree", self.tree, POSITIVE_SHARE)
        _check_curves(owner, "rank_s", self.rank_s, RATE)
        for operation in dict(self.rank_s):
            if operation in dict(self.middle):
                raise InputError(
                    f"{owner}: middle has {operation}, must not stand beside rank_s, which replaces it"
                )

    def pipelines(self, operation: str) -> bool:
        """Return whether an operation's ring hides latency under the wire: a gather or scatter without a ``middle``."""
        return operation in GATHERS and operation not in dict(self.middle)


@dataclass(frozen=True, slots=True)
class Collectives:
    """Shares of their ports that collectives reach, by operation.

    Attributes:
        call_s: software, per call.
        efficiency: bus bandwidth over the slowest port's, by group size in a node.
        nodes: a further factor by nodes spanned, for groups over several nodes where there is no ``between``.
        middle: by operation and group size, how much of the geometric mean of latency and wire time comes on top.
        fixed_s: by operation and group size (nodes, in ``between``), seconds of a call beside its steps and software.
        step_s: seconds of a step from device to device; None: the latency of the link.
        middle_most: the most that the middle comes to, in latencies, as pieces have a largest size.
        all_reduce_by: ``ring``, or ``switch`` where a switch sums and each byte crosses a port only once each way.
        own_part: part of what a member of ``all_to_all`` keeps for itself that takes as long as if it were sent: 0
            where its copy hides behind what is sent, 1 where the same kernel copies it at the same rate.
        between: what groups over several nodes reach, instead of ``nodes``.
        across: of some operations, as ``efficiency`` of groups whose members in a node hang under several sockets.
    """

    call_s: float
    efficiency: Curves
    nodes: Curve
    middle: Curves = ()
    fixed_s: Curves = ()
    step_s: float | None = None
    middle_most: float = inf
    all_reduce_by: Annotated[str, ALGORITHMS] = RING
    own_part: Proportion = 0.0
    between: Between | None = None
    across: Curves = ()

    def __post_init__(self) -> None:
        _check_laws("collectives", self)
        _check_curve("collectives", "nodes", self.nodes, POSITIVE_SHARE)
        _check_curves("collectives", "across", self.across, POSITIVE_SHARE)

    def efficiency_of(
        self, operation: str, group_size: int, num_nodes: int = 1, *, across: bool = False
    ) -> float:
        """The share of the slowest port's bandwidth that an operation reaches, in (0, 1]."""
        share = interpolate(self._curve(operation, across=across), group_size)
        return share if num_nodes == 1 else share * interpolate(self.nodes, num_nodes)

    def _curve(self, operation: str, *, across: bool) -> Curve:
        """The shares of an operation by group size, of groups under one socket or across several."""
        return (dict(self.across) if across else {}).get(operation) or dict(self.efficiency)[operation]

    def load_of(self, operation: str, members: int, cards: int, *, across: bool = False) -> float:
        """Share that a group takes of what all cards under its switch or host reach together, in (0, 1].

        Groups that together fill the cards reach the efficiency of one group of all of them, not that of a group alone;
        but they take no longer beside one another than one after the other.
        """
        curve = self._curve(operation, across=across)
        return min(1.0, members * interpolate(curve, members) / (cards * interpolate(curve, cards)))


def at(curves: Curves, operation: str, argument: float) -> float:
    """The value of an operation's curve; 0 where it has none."""
    curve = dict(curves).get(operation)
    return interpolate(curve, argument) if curve else 0.0


def interpolate(curve: Curve, argument: float) -> float:
    """The value of a piecewise linear curve, constant beyond its ends."""
    arguments, values = zip(*curve, strict=True)
    return float(np.interp(argument, arguments, values))


def _check_laws(owner: str, laws: Between | Collectives) -> None:
    """Refuse numbers and curves that break a rule of both."""
    check_fields(owner, laws, middle_most=RATE)
    for key, span in (("efficiency", POSITIVE_SHARE), ("middle", FINITE), ("fixed_s", FINITE)):
        _check_curves(owner, key, getattr(laws, key), span)


def _check_curves(owner: str, key: str, curves: Curves, span: Span) -> None:
    """Refuse curves of no operation, without points, or with a value that is not in a span."""
    for operation, curve in curves:
        check_choice(owner, key, operation, OPERATIONS)
        _check_curve(owner, f"{key}.{operation}", curve, span)


def _check_curve(owner: str, key: str, curve: Curve, span: Span) -> None:
    if not curve:
        raise InputError(f"{owner}: {key} is (), must have at least one point")
    for argument, value in curve:
        check_number(owner, f"{key}[{argument:g}]", value, span)
