"""The law of collectives, ``profiles.machines.collectives.collective_law``, fitted to measured times.

Residuals are logarithmic and robust (soft L1), as measured curves have steps where NCCL changes its protocol. The
software of a call is not told apart from its fixed time.

Inside a node the unknowns are one step time, one fixed time for each operation, and by operation and group size a
middle and a share of the port. Between nodes they are the step time, a fixed time of all-to-all and of what was not
measured inside a node, the most of the middle, and by operation a middle and one share of the port for any number of
nodes, for gathers and scatters the seconds of each member instead of the middle; all-reduces over two nodes may use
trees, which have a share of their own, as those over 4 and 8 nodes do not come near it. Shares of ports have priors at
what other machines reach (``REACHED``, ``WIRE``), and middles at what pieces of the best size would take (``PASSED``,
``PASSED_INSIDE``): where the measured sizes end early they cannot be told apart, and the fit would end at a bound.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from profiles.machines.clusters import Cluster
from profiles.machines.collectives import Group, collective_law
from profiles.machines.fabrics import GATHERS, OPERATIONS, Between, Collectives, Curves
from profiles.measuring.writing import Exact
from profiles.units import MICROSECOND, FloatArray

ALL_TO_ALL: Final = "all_to_all"
PASSED_ON: Final = tuple(operation for operation in OPERATIONS if operation not in GATHERS)
"""Operations that have a middle between nodes."""
DIGITS: Final = 3
STAND_INS: Final = {
    "all_reduce": ("all_gather", "reduce_scatter", "send_recv", "all_to_all"),
    "all_gather": ("all_reduce", "reduce_scatter", "send_recv", "all_to_all"),
    "reduce_scatter": ("all_gather", "all_reduce", "send_recv", "all_to_all"),
    "all_to_all": ("all_reduce", "all_gather", "reduce_scatter", "send_recv"),
    "send_recv": ("all_gather", "all_reduce", "reduce_scatter", "all_to_all"),
}
"""Operations whose curves stand in for those of one that was not measured, the best first."""


class MeasuredCurve(NamedTuple):
    """Measured times of one operation of one group, by bytes."""

    operation: str
    group: Group
    sizes: Sequence[float]
    seconds: FloatArray


class Belief(NamedTuple):
    """The prior of an unknown: a value, and its spread as the logarithm of a ratio."""

    value: float
    spread: float


STEP: Final = Belief(20.0, 2.0)
"""Microseconds of a step between nodes: InfiniBand takes 8, EFA 30 to 80."""
STEP_INSIDE: Final = Belief(1.0, 0.2)
"""Microseconds of a step inside a node: five kinds of machines take 0.84 to 1.25; one group size alone cannot tell it
from the fixed time of a call."""
SERVED: Final = Belief(50.0, 2.0)
"""Fixed microseconds of an all-to-all between nodes."""
SOFT: Final = 0.1
"""Relative residual beyond which rows count less than by their square."""
STEP_US, FIXED_US, MIDDLE, SHARE, TREE = 1.0, 7.0, 1.0, 0.7, 0.5
"""Start values; that of a tree is low, as above what the ports in a node let through its share has no effect."""
WIRE: Final = Belief(0.9, 0.2)
"""Share of a node's port that large messages reach: 0.95 over 2 nodes of 8 x 200 Gbit/s InfiniBand, at most 0.82 in
all-gathers over 2 to 8 nodes of EFA."""
REACHED: Final = Belief(0.8, 0.2)
"""Share of a card's port that large messages reach: mostly 0.61 to 0.96 on boxes of A100, H100 and H200."""
PASSED: Final = Belief(2.0, 0.7)
"""Middle between nodes: 2 where pieces have the best size and take one path."""
PASSED_INSIDE: Final = Belief(1.0, 0.4)
"""Middle inside a node, where many paths run side by side: 0.6 to 1.6 on boxes of A100, H100 and H200."""
RANK: Final = Belief(10.0, 2.0)
"""Microseconds that each member adds to a gather between nodes: 11 on EFA."""
PIECES: Final = Belief(5.0, 1.0)
"""The most of a middle, in latencies: 3 on one network, 7 on another."""


class Known(NamedTuple):
    """Values of a network that are known before its rows are fitted.

    Attributes:
        tree: whether all-reduces over two nodes may use trees, in which the nodes exchange each byte only once.
        efficiency: shares of the port on another machine with this network; fitted where empty.
        step_s: seconds of a step there; fitted where None.
    """

    tree: bool = True
    efficiency: Curves = ()
    step_s: float | None = None


NOTHING: Final = Known()


def predict(cluster: Cluster, curve: MeasuredCurve) -> FloatArray:
    """Seconds of a curve's sizes."""
    law = collective_law(cluster, curve.operation, curve.group)
    return np.array([law.time(size).total_s for size in curve.sizes])


def fit_inside(cluster: Cluster, curves: Sequence[MeasuredCurve]) -> Cluster:
    """Cluster with the law of groups in one node, fitted to times of one machine."""
    operations = measured_operations(curves)
    places = {(curve.operation, float(curve.group.size)) for curve in curves}
    keys = sorted(places, key=lambda key: (operations.index(key[0]), key[1]))
    flat = _flat(operations)
    first, count = 1 + len(operations), len(keys)

    def made(logs: FloatArray) -> Cluster:
        values = np.exp(logs)
        fixed, (middles, shares) = values[1:first] * MICROSECOND, values[first:].reshape(2, count)
        law = replace(
            cluster.collectives,
            step_s=float(values[0]) * MICROSECOND,
            fixed_s=_completed(flat, fixed),
            middle=_completed(keys, middles),
            efficiency=_completed(keys, shares),
        )
        return replace(cluster, collectives=law)

    start = [STEP_US, *[FIXED_US] * len(operations), *[MIDDLE] * count, *[SHARE] * count]
    most = [np.inf] * (len(start) - count) + [1.0] * count
    beliefs = {0: STEP_INSIDE} if len({size for _, size in keys}) == 1 else {}
    middles, shares = range(first, first + count), range(first + count, first + 2 * count)
    beliefs |= dict.fromkeys(middles, PASSED_INSIDE) | dict.fromkeys(shares, REACHED)
    return made(_fitted(made, curves, start, most, beliefs))


def fit_between(cluster: Cluster, curves: Sequence[MeasuredCurve], known: Known = NOTHING) -> Cluster:
    """Cluster with the law of groups over several nodes, fitted to times of machines with its links.

    Values ``known`` from other machines with such a network are not fitted.
    """
    operations = measured_operations(curves)
    inside = {of: curve for of, curve in cluster.collectives.fixed_s if of not in GATHERS}
    rings = [operation for operation in operations if operation in GATHERS]
    passed = [operation for operation in operations if operation not in GATHERS]
    served = [operation for operation in passed if operation == ALL_TO_ALL or operation not in inside]
    sizes = [3, len(served), len(passed), len(rings), len(operations)]

    def made(logs: FloatArray) -> Cluster:
        (step, most, tree), fixed, middles, ranks, shares = np.split(np.exp(logs), np.cumsum(sizes)[:-1])
        own = {of: ((1.0, us * MICROSECOND),) for of, us in zip(served, fixed.tolist(), strict=True)}
        between = Between(
            efficiency=known.efficiency or _completed(_flat(operations), shares, between=True),
            tree=((2.0, float(tree)),) if known.tree else (),
            middle=_completed(_flat(passed), middles, PASSED_ON),
            fixed_s=tuple((inside | own).items()),
            step_s=float(step) * MICROSECOND if known.step_s is None else known.step_s,
            middle_most=float(most),
            rank_s=_completed(_flat(rings), ranks * MICROSECOND, GATHERS),
        )
        return replace(cluster, collectives=replace(cluster.collectives, between=between))

    priors = [STEP, PIECES, WIRE, *[SERVED] * len(served), *[PASSED] * len(passed)]
    priors += [*[RANK] * len(rings), *[WIRE] * len(operations)]
    beliefs = dict(enumerate(priors))
    if ALL_TO_ALL in passed:
        del beliefs[3 + len(served) + passed.index(ALL_TO_ALL)]
    start = [STEP.value, PIECES.value, TREE, *[SERVED.value] * len(served), *[MIDDLE] * len(passed)]
    start += [*[RANK.value] * len(rings), *[WIRE.value] * len(operations)]
    most = [np.inf, np.inf, 1.0, *[np.inf] * sum(sizes[1:4]), *[1.0] * len(operations)]
    return made(_fitted(made, curves, start, most, beliefs))


def measured_operations(curves: Iterable[MeasuredCurve]) -> list[str]:
    """Operations that were measured, in the order of ``OPERATIONS``."""
    return sorted({curve.operation for curve in curves}, key=OPERATIONS.index)


def _fitted(
    made: Callable[[FloatArray], Cluster],
    curves: Sequence[MeasuredCurve],
    start: Sequence[float],
    most: Sequence[float],
    beliefs: Mapping[int, Belief] = MappingProxyType({}),
) -> FloatArray:
    """Logarithms of the values that predict the curves best, given priors of some."""
    measured = np.concatenate([curve.seconds for curve in curves])

    def residuals(logs: FloatArray) -> FloatArray:
        cluster = made(logs)
        predicted = np.concatenate([predict(cluster, curve) for curve in curves])
        held = [SOFT * (logs[at] - np.log(belief.value)) / belief.spread for at, belief in beliefs.items()]
        return np.append(np.log(predicted / measured), held)

    bounds = -np.inf, np.log(np.asarray(most, dtype=float))
    begin = np.log(np.asarray(start))
    return np.asarray(least_squares(residuals, begin, loss="soft_l1", f_scale=SOFT, bounds=bounds).x)


def stand_in_of(operation: str, measured: Collection[str], *, between: bool = False) -> str:
    """The operation whose curves one has: its own where it was measured.

    Between nodes gathers have a law of their own, and stand in for others last.
    """
    order = [of for of in (operation, *STAND_INS[operation]) if of in measured]
    return min(order, key=lambda of: between and of in GATHERS and operation not in GATHERS)


def _flat(operations: Iterable[str]) -> list[tuple[str, float]]:
    """Keys of curves of a single point."""
    return [(operation, 1.0) for operation in operations]


def _completed(
    keys: Sequence[tuple[str, float]],
    values: FloatArray,
    operations: Iterable[str] = OPERATIONS,
    *,
    between: bool = False,
) -> Curves:
    """Curves of all operations, or of some, from values by operation and argument."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for (operation, at), value in zip(keys, values.tolist(), strict=True):
        curves.setdefault(operation, []).append((at, value))
    if not curves:
        return ()
    stand_ins = {of: stand_in_of(of, curves, between=between) for of in operations}
    return tuple((operation, tuple(curves[of])) for operation, of in stand_ins.items())


def law_values(law: Collectives | Between) -> dict[str, object]:
    """The values of a law by their names in cluster files, with those of its law between nodes."""
    values: dict[str, object] = {} if law.step_s is None else {"step_us": law.step_s / MICROSECOND}
    if isinstance(law, Between):
        values["middle_most"] = law.middle_most
    values |= curve_values(law.efficiency)
    if isinstance(law, Between) and law.tree:
        values["tree"] = Exact(f"{{ 2 = {law.tree[0][1]:.{DIGITS}g} }}")
    values |= {"fixed_us": curve_values(law.fixed_s, MICROSECOND), "middle": curve_values(law.middle)}
    if isinstance(law, Between) and law.rank_s:
        values["rank_us"] = curve_values(law.rank_s, MICROSECOND)
    between = law.between if isinstance(law, Collectives) else None
    return values | ({"between": law_values(between)} if between else {})


def curve_values(curves: Curves, unit: float = 1.0) -> dict[str, object]:
    """The curves of operations as the values of a TOML file; one of a single point is that point's value."""
    values: dict[str, object] = {}
    for name, curve in sorted(curves, key=lambda of: OPERATIONS.index(of[0])):
        points = ", ".join(f"{at:.0f} = {value / unit:.{DIGITS}g}" for at, value in curve)
        values[name] = curve[0][1] / unit if len(curve) == 1 else Exact(f"{{ {points} }}")
    return values
