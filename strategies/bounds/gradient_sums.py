"""Sums of gradients: the earliest end of them all, given the end of each stage's backwards.

A device sums the gradients of one stage after the other, and the devices of a node share its port.
"""

from collections.abc import Iterator, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple

from profiles.checks import sum_in_order
from strategies.orders.list_scheduling import one_machine_s
from strategies.pipelining.layout import Layout, Update


class _Reduction(NamedTuple):
    """The sum of the gradients of stages that hold the same layers.

    Attributes:
        release_s: when it can be on the wire at the earliest.
        positions: where the stages lie.
        update: how long it takes, and what follows.
    """

    release_s: float
    positions: tuple[int, ...]
    update: Update


def sums_end_s(layout: Layout, free_s: Sequence[float], complete_s: Sequence[float]) -> float:
    """Earliest seconds at which all gradients are summed and all optimizer steps taken.

    Args:
        layout: the stages.
        free_s: for each position when its last pass has ended.
        complete_s: for each stage when its last backward has ended.
    """
    placement = layout.placement
    nodes = [placement.node(placement.rank(0, position, 0)) for position in range(layout.shape.degree)]
    of_device: list[list[_Reduction]] = [[] for _ in nodes]
    of_node: dict[int, list[_Reduction]] = {}
    for reduction in sorted(_reductions(layout, complete_s), key=attrgetter("release_s")):
        for position in reduction.positions:
            of_device[position].append(reduction)
        for node in {nodes[position] for position in reduction.positions}:
            of_node.setdefault(node, []).append(reduction)
    return max([*map(_device_s, free_s, of_device), *map(_node_s, of_node.values())])


def _reductions(layout: Layout, complete_s: Sequence[float]) -> Iterator[_Reduction]:
    """The sums of gradients of all trained stages, stages of equal layers together."""
    for numbers in layout.twins:
        if layout.summed_parameters[numbers[0]]:
            positions = tuple([layout.stages[number].position for number in numbers])
            update = layout.update(numbers[0], positions)
            release_s = max([complete_s[number] for number in numbers]) + update.fixed_s
            yield _Reduction(release_s, positions, update)


def _device_s(free_s: float, reductions: Sequence[_Reduction]) -> float:
    """Earliest seconds at which a device has taken all its optimizer steps, in whatever order it sums.

    What is released first at the earliest need not come first: the rows decide, and they may not be known.
    """
    jobs = [
        (release_s - update.fixed_s, update.fixed_s + update.wire_s, update.step_s + update.gathered_s)
        for release_s, _, update in reductions
    ]
    return max(free_s + sum_in_order(of.update.step_s for of in reductions), one_machine_s(jobs))


def _node_s(reductions: Sequence[_Reduction]) -> float:
    """Earliest seconds at which a node's port has carried all sums and an optimizer step has followed.

    What is released last goes last: whatever comes from some moment on has the port for itself at best.
    """
    carried_s, step_s, end_s = 0.0, inf, 0.0
    for release_s, _, update in reversed(reductions):
        carried_s += update.node_port_s
        step_s = min(step_s, update.step_s + update.gathered_s)
        end_s = max(end_s, release_s + carried_s + step_s)
    return end_s
