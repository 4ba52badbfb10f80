"""Ports: seconds for which the messages of a pipeline hold the ports that they share.

A port carries one message after the other. Where the positions of a pipeline lie in different nodes, each node's port
carries the messages of many hops, and of all replicas: no pipeline is faster than its busiest port.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

from strategies.pipelining.layout import Layout
from strategies.pipelining.pipeline import Pipeline

Traffic = tuple[int, int, float]
"""The position that sends, the one that receives, and bytes of all messages of one iteration."""


def chain_traffic(layout: Layout, cut: int) -> Iterator[Traffic]:
    """The messages between the stages of one chain; skips that stay local send none."""
    chain, count = layout.chain(cut), len(layout.micro_batches(cut))
    first, last = layout.stages[chain[0]], layout.stages[chain[-1]]
    component, extra = layout.component(first), layout.scenario.workload.extra_forward
    carried = component.carried_bytes * layout.local_batch
    for number, following in pairwise(chain):
        source, target = layout.stages[number].position, layout.stages[following].position
        size = layout.handovers_bytes[number]
        yield source, target, (2 if extra else 1) * count * (size + carried)
        yield target, source, count * size
    if extra:
        fed_back_bytes = component.layers[last.last_layer].output_bytes * layout.local_batch
        yield last.position, first.position, count * fed_back_bytes


def busiest_port_s(pipeline: Pipeline, traffic: Iterable[Traffic]) -> float:
    """Seconds for which the busiest port is held."""
    held_s: dict[int, float] = {}
    for source, target, size in traffic:
        if source != target:
            for port, s_per_byte in pipeline.network.route(source, target).ports:
                held_s[port] = held_s.get(port, 0.0) + size * s_per_byte
    return max(held_s.values(), default=0.0)
