"""Sharing: how long groups take at least whose collectives wait for one another's ports.

A collective, or a chunk of it, begins when all its ports are free, and holds each from then on. So two groups that
have a port in common are never on the wire at once for as long as they hold it; nor are several, of which each two have
some port in common, be it another one for each two.
"""

from collections.abc import Collection, Mapping, Sequence

from profiles.checks import sum_in_order

Held = Mapping[int, float]
"""Seconds for which a group holds each of its ports."""


def joined_by_others(groups: Collection[int], held: Sequence[Held]) -> tuple[int, ...]:
    """Groups that share a port, by their numbers, and others of which each shares some port with each before it.

    Args:
        groups: the numbers of those that share a port.
        held: of all groups.
    """
    found = list(groups)
    for number, own in enumerate(held):
        if number not in groups and not any(own.keys().isdisjoint(held[other]) for other in found):
            found.append(number)
    return tuple(sorted(found))


def in_turn_s(groups: Collection[int], held: Sequence[Held]) -> float:
    """Seconds that groups take at least, by their numbers, of which each two share some port."""
    return sum_in_order(
        min(_beside_s(held[number], held[other]) for other in groups if other != number) for number in groups
    )


def _beside_s(own: Held, other: Held) -> float:
    """Seconds for which a group keeps another waiting: those of the port that it holds longest of those they share."""
    return max((own[port] for port in own.keys() & other.keys()), default=0.0)
