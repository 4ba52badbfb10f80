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

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from math import inf
from typing import Final, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from profiles.machines.clusters import Cluster
from profiles.machines.collectives import Group, bus_volume, collective_law
from profiles.machines.fabrics import GATHERS, OPERATIONS, Between, Collectives, Curves
from profiles.measuring.fitting.least_squares import Errors
from profiles.measuring.writing import Exact
from profiles.units import MICROSECOND, FloatArray

PING_PONG: Final = "ping_pong"
"""One message from one device to another: half a round trip."""
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
    """Measured times of one operation of one group, by bytes: ``ping_pong`` of a pair, or one of a cluster file."""

    operation: str
    group: Group
    sizes: FloatArray
    seconds: FloatArray

    @property
    def bus_bytes(self) -> FloatArray:
        """Bytes that each member sends, by size, as nccl-tests counts them for its bus bandwidth."""
        alone = self.operation == PING_PONG
        return self.sizes * (1.0 if alone else bus_volume(self.operation, self.group.size))


class Unknown(NamedTuple):
    """An unknown of a law.

    Attributes:
        prior: its value on other machines.
        spread: of the prior, as the logarithm of a ratio; infinite where nothing is known.
        start: where a fit starts.
        most: the largest that it can be.
    """

    prior: float
    spread: float
    start: float
    most: float = inf


SOFT: Final = 0.1
"""Relative residual beyond which rows count less than by their square."""
STEP: Final = Unknown(20.0, 2.0, 20.0)
"""Microseconds of a step between nodes: InfiniBand takes 8, EFA 30 to 80."""
STEP_INSIDE: Final = Unknown(1.0, 0.2, 1.0)
"""Microseconds of a step inside a node: five kinds of machines take 0.84 to 1.25; one group size alone cannot tell it
from the fixed time of a call."""
FIXED: Final = Unknown(7.0, inf, 7.0)
"""Fixed microseconds of a call inside a node."""
SERVED: Final = Unknown(50.0, 2.0, 50.0)
"""Fixed microseconds of an all-to-all between nodes."""
WIRE: Final = Unknown(0.9, 0.2, 0.9, 1.0)
"""Share of a node's port that large messages reach: 0.95 over 2 nodes of 8 x 200 Gbit/s InfiniBand, at most 0.82 in
all-gathers over 2 to 8 nodes of EFA."""
TREE: Final = WIRE._replace(start=0.5)
"""The same of a tree; above what the ports in a node let through it has no effect, so it starts low."""
REACHED: Final = Unknown(0.8, 0.2, 0.7, 1.0)
"""Share of a card's port that large messages reach: mostly 0.61 to 0.96 on boxes of A100, H100 and H200."""
PASSED: Final = Unknown(2.0, 0.7, 1.0)
"""Middle between nodes: 2 where pieces have the best size and take one path."""
PASSED_INSIDE: Final = Unknown(1.0, 0.4, 1.0)
"""Middle inside a node, where many paths run side by side: 0.6 to 1.6 on boxes of A100, H100 and H200."""
RANK: Final = Unknown(10.0, 2.0, 10.0)
"""Microseconds that each member adds to a gather between nodes: 11 on EFA."""
PIECES: Final = Unknown(5.0, 1.0, 5.0)
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
    """Seconds of a curve's sizes, where nothing disturbs."""
    if curve.operation == PING_PONG:  # a message that has all ports on its way to itself
        link = cluster.intra_node if curve.group.num_nodes == 1 else cluster.inter_node
        assert link is not None
        return link.latency_s + link.call_s + curve.sizes / link.bandwidth_bytes_per_s
    law = collective_law(cluster, curve.operation, curve.group)
    return np.array([law.time(size).total_s for size in curve.sizes.tolist()])


def errors_of(cluster: Cluster, curves: Sequence[MeasuredCurve]) -> Errors:
    """Errors of the predicted times on a cluster."""
    measured = np.concatenate([curve.seconds for curve in curves])
    return Errors(measured, np.concatenate([predict(cluster, curve) for curve in curves]))


def fit_inside(cluster: Cluster, curves: Sequence[MeasuredCurve]) -> Cluster:
    """Cluster with the law of groups in one node, fitted to times of one machine."""
    operations = measured_operations(curves)
    places = {(curve.operation, float(curve.group.size)) for curve in curves}
    keys = sorted(places, key=lambda key: (operations.index(key[0]), key[1]))

    def made(step: FloatArray, fixed: FloatArray, middles: FloatArray, shares: FloatArray) -> Cluster:
        law = replace(
            cluster.collectives,
            step_s=float(step[0]) * MICROSECOND,
            fixed_s=_completed(_flat(operations), fixed * MICROSECOND),
            middle=_completed(keys, middles),
            efficiency=_completed(keys, shares),
        )
        return replace(cluster, collectives=law)

    alone = len({size for _, size in keys}) == 1
    step = STEP_INSIDE if alone else STEP_INSIDE._replace(spread=inf)
    blocks = [step], [FIXED] * len(operations), [PASSED_INSIDE] * len(keys), [REACHED] * len(keys)
    return _fitted(made, curves, blocks)


def fit_between(cluster: Cluster, curves: Sequence[MeasuredCurve], known: Known = NOTHING) -> Cluster:
    """Cluster with the law of groups over several nodes, fitted to times of machines with its links.

    Values ``known`` from other machines with such a network are not fitted.
    """
    operations = measured_operations(curves)
    inside = {name: curve for name, curve in cluster.collectives.fixed_s if name not in GATHERS}
    rings = [operation for operation in operations if operation in GATHERS]
    passed = [operation for operation in operations if operation not in GATHERS]
    served = [operation for operation in passed if operation == ALL_TO_ALL or operation not in inside]

    def made(
        whole: FloatArray, fixed: FloatArray, middles: FloatArray, ranks: FloatArray, shares: FloatArray
    ) -> Cluster:
        step, most, tree = whole.tolist()
        calls = {name: ((1.0, us * MICROSECOND),) for name, us in zip(served, fixed.tolist(), strict=True)}
        between = Between(
            efficiency=known.efficiency or _completed(_flat(operations), shares, between=True),
            tree=((2.0, tree),) if known.tree else (),
            middle=_completed(_flat(passed), middles, PASSED_ON),
            fixed_s=tuple((inside | calls).items()),
            step_s=step * MICROSECOND if known.step_s is None else known.step_s,
            middle_most=most,
            rank_s=_completed(_flat(rings), ranks * MICROSECOND, GATHERS),
        )
        return replace(cluster, collectives=replace(cluster.collectives, between=between))

    middles = [PASSED._replace(spread=inf) if operation == ALL_TO_ALL else PASSED for operation in passed]
    blocks = (
        [STEP, PIECES, TREE],
        [SERVED] * len(served),
        middles,
        [RANK] * len(rings),
        [WIRE] * len(operations),
    )
    return _fitted(made, curves, blocks)


def measured_operations(curves: Iterable[MeasuredCurve]) -> list[str]:
    """Operations that were measured, in the order of ``OPERATIONS``."""
    return sorted({curve.operation for curve in curves}, key=OPERATIONS.index)


def _fitted(
    made: Callable[..., Cluster], curves: Sequence[MeasuredCurve], blocks: Sequence[Sequence[Unknown]]
) -> Cluster:
    """Cluster, made of blocks of unknowns, that predicts the curves best."""
    prior, spread, start, most = (np.array(column) for column in zip(*chain(*blocks), strict=True))
    measured, ends = np.concatenate([curve.seconds for curve in curves]), np.cumsum([*map(len, blocks)])[:-1]

    def cluster_of(logs: FloatArray) -> Cluster:
        return made(*np.split(np.exp(logs), ends))

    def residuals(logs: FloatArray) -> FloatArray:
        cluster = cluster_of(logs)
        predicted = np.concatenate([predict(cluster, curve) for curve in curves])
        return np.append(np.log(predicted / measured), SOFT * (logs - np.log(prior)) / spread)

    bounds = -np.inf, np.log(most)
    return cluster_of(least_squares(residuals, np.log(start), loss="soft_l1", f_scale=SOFT, bounds=bounds).x)


def stand_in_of(operation: str, measured: Collection[str], *, between: bool = False) -> str:
    """The operation whose curves one has: its own where it was measured.

    Between nodes gathers have a law of their own, and stand in for others last.
    """
    order = [other for other in (operation, *STAND_INS[operation]) if other in measured]
    return min(order, key=lambda other: between and other in GATHERS and operation not in GATHERS)


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
    stand_ins = {operation: stand_in_of(operation, curves, between=between) for operation in operations}
    return tuple((operation, tuple(curves[stand_in])) for operation, stand_in in stand_ins.items())


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
    for name, curve in sorted(curves, key=lambda item: OPERATIONS.index(item[0])):
        points = ", ".join(f"{at:.0f} = {value / unit:.{DIGITS}g}" for at, value in curve)
        values[name] = curve[0][1] / unit if len(curve) == 1 else Exact(f"{{ {points} }}")
    return values
