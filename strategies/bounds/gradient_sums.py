"""Sums of gradients: the earliest end of them all, given the end of each stage's backwards.

A device sums the gradients of one stage after the other, and the devices of a node share its port.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from profiles.checks import sum_in_order
from strategies.orders.list_scheduling import one_machine_s
from strategies.pipelining.layout import Layout


@dataclass(frozen=True, slots=True)
class _Reduction:
    """The sum of the gradients of stages that hold the same layers.

    Attributes:
        release_s: when it can be on the wire at the earliest.
        positions: where the stages lie.
        fixed_s: seconds it takes before it is on the wire.
        wire_s: seconds on the wire.
        node_port_s: seconds on the port of each node.
        step_s: the optimizer step of each stage.
        gathered_s: seconds after it until all replicas have the weights.
    """

    release_s: float
    positions: tuple[int, ...]
    fixed_s: float
    wire_s: float
    node_port_s: float
    step_s: float
    gathered_s: float


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
    scenario, stages = layout.scenario, layout.stages
    recipe = scenario.workload.recipe
    twins: dict[tuple[int, int, int], list[int]] = {}
    for number, stage in enumerate(stages):
        twins.setdefault((stage.component, stage.first_layer, stage.last_layer), []).append(number)
    for numbers in twins.values():
        trained = layout.trained_parameters[numbers[0]]
        if not trained:
            continue
        positions = tuple(stages[number].position for number in numbers)
        time = layout.reduction(positions).time(trained * recipe.gradient_bytes)
        yield _Reduction(
            release_s=max(complete_s[number] for number in numbers) + time.fixed_s,
            positions=positions,
            fixed_s=time.fixed_s,
            wire_s=time.wire_s,
            node_port_s=time.node_port_s,
            step_s=layout.step_s(trained),
            gathered_s=layout.gathered_s(trained),
        )


def _device_s(free_s: float, own: Sequence[_Reduction]) -> float:
    """Earliest seconds at which a device has taken all its optimizer steps, in whatever order it sums.

    What is released first at the earliest need not come first: the rows decide, and they may not be known.
    """
    jobs = [(of.release_s - of.fixed_s, of.fixed_s + of.wire_s, of.step_s + of.gathered_s) for of in own]
    return max(free_s + sum_in_order(of.step_s for of in own), one_machine_s(jobs))


def _node_s(own: Sequence[_Reduction]) -> float:
    """Earliest seconds at which a node's port has carried all sums and an optimizer step has followed.

    What is released last goes last: whatever comes from some moment on has the port for itself at best.
    """
    carried_s, step_s, end_s = 0.0, inf, 0.0
    for reduction in reversed(own):
        carried_s += reduction.node_port_s
        step_s = min(step_s, reduction.step_s + reduction.gathered_s)
        end_s = max(end_s, reduction.release_s + carried_s + step_s)
    return end_s
