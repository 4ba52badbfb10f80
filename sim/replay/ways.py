"""Ways: the ports that collectives and messages of a replay hold, and the seconds."""

from collections.abc import Sequence
from math import ceil
from typing import Final, NamedTuple

from strategies.plans.network import CollectiveRoute, Ports
from strategies.plans.plan import Collective

CHUNK_S: Final = 1e-3
"""Collectives move in chunks of at most this long, so that point-to-point traffic gets its turn."""
MAX_CHUNKS: Final = 64
"""More chunks than this are not worth their events; longer collectives move in larger ones."""

Leg = tuple[tuple[tuple[int, float], ...], float]
"""(port, seconds held) pairs of a delivery, and the seconds for which it travels."""


class InChunks(NamedTuple):
    """The way of a collective: its chunks, the seconds of each, and the (port, seconds) pairs that each chunk holds."""

    chunks: int
    chunk_s: float
    ports: Ports
    shared: Ports


def ways_of(
    collectives: Sequence[Collective], routes: Sequence[CollectiveRoute], legs: Sequence[Leg]
) -> dict[int, InChunks]:
    """Return the way of each route, by its id, over only those ports whose clocks are needed.

    Ports that no message holds, and only collectives that follow one another on a stream, delay nobody and need no
    clock. Of ports that the same collectives hold for equally long, and no message, one stands for all.
    """
    if not routes:
        return {}
    distinct = {id(route): route for route in routes}
    uses: dict[int, list[tuple[int, bool, float]]] = {}
    for key, route in distinct.items():
        for ports, shared in ((route.ports, False), (route.shared, True)):
            for port, hold in ports:
                uses.setdefault(port, []).append((key, shared, hold))
    alone = {port for leg in set(legs) for port, _ in leg[0]}
    needed = uses.keys() - (_in_turn(collectives, routes) - alone)
    first: dict[tuple[tuple[int, bool, float], ...], int] = {}
    kept = {
        port
        for port, of_port in uses.items()
        if port in alone or (port in needed and first.setdefault(tuple(of_port), port) == port)
    }
    return {key: _way(route, kept) for key, route in distinct.items()}


def _in_turn(collectives: Sequence[Collective], routes: Sequence[CollectiveRoute]) -> set[int]:
    """Return the ports whose collectives all run on one and the same stream, one after the other."""
    streams: dict[int, set[tuple[int, int]]] = {}
    pairs = zip(collectives, routes, strict=True)
    for collective, route in {(id(route), of.stream): (of, route) for of, route in pairs}.values():
        its_streams = {(device, collective.stream) for device in collective.devices}
        for port, _ in (*route.ports, *route.shared):
            streams[port] = streams.get(port, its_streams) & its_streams
    return {port for port, common in streams.items() if common}


def _way(route: CollectiveRoute, kept: set[int]) -> InChunks:
    """Return the way of a route in chunks over the ports in ``kept``; all at once where it has none of them."""
    ports, shared = (tuple([pair for pair in of if pair[0] in kept]) for of in (route.ports, route.shared))
    chunks = min(MAX_CHUNKS, ceil(route.wire_s / CHUNK_S)) if ports or shared else 0
    each = max(chunks, 1)
    held = (tuple([(port, hold / each) for port, hold in of]) for of in (ports, shared))
    return InChunks(chunks, route.wire_s / each, *held)
