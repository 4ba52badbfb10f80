"""PULSE's own equations for memory and time, to be seen beside what is replayed.

Eq. 14 charges 14 bytes per parameter and the activations of P micro-batches on the innermost pair of stages.
Eq. 15 takes every stage for as long as the longest one: it is an estimate, no bound.
"""

from profiles.checks import sum_in_order
from profiles.software.recipes import RECIPES
from strategies.pipelining.footprint import saved_bytes
from strategies.pipelining.layout import Layout
from strategies.plans.placement import Placement
from strategies.scenario import Scenario


def peak_memory_bytes(scenario: Scenario, layout: Layout) -> float:
    """The peak memory of a device in bytes, one wave, M = P. Source: PULSE, Eq. 14."""
    degree = layout.shape.degree
    inner = layout.stages[degree - 1 : degree + 1]
    state = RECIPES["pulse"].parameter_bytes * sum(stage.parameters for stage in inner)
    activations = degree * sum_in_order(saved_bytes(layout, stage) for stage in inner)
    return state + activations + degree * layout.handovers_bytes[max(degree - 2, 0)]


def schedule_s(scenario: Scenario, layout: Layout) -> float:
    """The estimated seconds of an iteration, one wave, M = P. Source: PULSE, Eq. 15."""
    degree = layout.shape.degree
    forward_s = max(stage.forward_s for stage in layout.stages)
    size = max(layout.handovers_bytes)
    routes = [layout.network.route(p, p + 1) for p in range(degree - 1)]
    message_s = max((route.delay_s + size * route.wire_s_per_byte for route in routes), default=0.0)
    steps = max(10 * degree - 12, 0)
    return (10 * degree - 4) * forward_s + steps * message_s + all_reduce_s(scenario, layout)


def all_reduce_s(scenario: Scenario, layout: Layout) -> float:
    """The estimated seconds of the gradient reduction of the largest stage. Source: PULSE, Eq. 16."""
    placement = layout.placement
    copies = placement.copies
    if copies == 1:
        return 0.0
    size = 2 * max(stage.parameters for stage in layout.stages)
    link = _link_of_copies(scenario, placement)
    return link[0] + 2 * (copies - 1) / copies * size / link[1]


def _link_of_copies(scenario: Scenario, placement: Placement) -> tuple[float, float]:
    """Latency and bandwidth between the devices that hold one position."""
    within = placement.group(0).num_nodes == 1
    cluster = scenario.cluster
    link = cluster.intra_node if within else cluster.inter_node or cluster.intra_node
    return link.latency_s, link.bandwidth_bytes_per_s
