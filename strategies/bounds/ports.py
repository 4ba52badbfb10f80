"""Ports: how long the messages of a pipeline hold the ports that they share.

A port carries one message after the other. Where the positions of a pipeline lie in different nodes, each node's port
carries the messages of many hops, and of all replicas: no pipeline is faster than its busiest port.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from strategies.pipelining.stages import Shape, handover_bytes
from strategies.plans.network import network_of
from strategies.plans.plan import Stage
from strategies.scenario import Scenario

Traffic = tuple[int, int, float]
"""The position that sends, the one that receives, and bytes of all messages of one iteration."""


def chain_traffic(
    scenario: Scenario, shape: Shape, stages: Sequence[Stage], count: int, skip_route: str
) -> Iterator[Traffic]:
    """The messages between the stages of one chain; skips that stay local send none.

    Args:
        scenario: model and workload.
        shape: the integers of the pipeline.
        stages: the chain, in order.
        count: micro-batches that pass through it.
        skip_route: how skips travel.
    """
    component, batch = scenario.model.components[stages[0].component], shape.local_batch(scenario)
    extra, carried = scenario.workload.extra_forward, component.carried_bytes * batch
    for stage, following in pairwise(stages):
        size = handover_bytes(scenario, stage, batch, skip_route)
        yield stage.position, following.position, (2 if extra else 1) * count * (size + carried)
        yield following.position, stage.position, count * size
    if extra:
        fed_back_bytes = component.layers[stages[-1].last_layer].output_bytes * batch
        yield stages[-1].position, stages[0].position, count * fed_back_bytes


def busiest_port_s(scenario: Scenario, shape: Shape, traffic: Iterable[Traffic]) -> float:
    """Seconds for which the busiest port is held."""
    network = network_of(scenario, shape.placement(scenario))
    held_s: dict[int, float] = {}
    for source, target, size in traffic:
        if source != target:
            for port, s_per_byte in network.route(source, target).ports:
                held_s[port] = held_s.get(port, 0.0) + size * s_per_byte
    return max(held_s.values(), default=0.0)
