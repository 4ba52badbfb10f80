"""Uneven teams: least seconds of what a team does whose groups of devices do not fare alike.

Where some groups lie across nodes and others do not, each device has clocks of its own: a collective begins when the
last of its members is there, and takes its own time. Groups that exchange at once may share a port, or each two of them
some port: some of them is not through before these have carried what all put on them, now and in their exchanges
before. Which one is not known, so only those devices are late that have exchanged with it since, whichever it is.

Compute that collectives slow down beside it, and messages, only delay.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from profiles.checks import sum_in_order
from profiles.costs.layers import FloatArray
from strategies.bounds.sharing import in_turn_s, joined_by_others
from strategies.patching.builder import GroupCollectives
from strategies.plans.actions import Action, PatchAction
from strategies.plans.network import CollectiveRoute, Network
from strategies.plans.plan import Collective

MOST_SHARED: Final = 2
"""Ports of a collective that are looked at: those that its groups hold longest in all."""
ANY: Final = -1
"""In place of a port: each two groups share some port."""

Groups = tuple[int, ...]


class _Sharing(NamedTuple):
    """Seconds for which groups, by their numbers, hold a port that they share, or any that each two of them share."""

    load_s: float
    groups: Groups
    port: int


class _Round(NamedTuple):
    """A collective of each group: its seconds before it is on the wire and on it, and the ports that groups share."""

    fixed_s: FloatArray
    wire_s: FloatArray
    shared: list[_Sharing]

    @classmethod
    def of(cls, routes: Sequence[CollectiveRoute]) -> "_Round":
        held: dict[int, dict[int, float]] = defaultdict(dict)
        for group, route in enumerate(routes):
            for port, hold_s in chain(route.ports, route.shared):
                held[port][group] = held[port].get(group, 0.0) + hold_s
        ports = [dict(route.ports) for route in routes]
        longest: dict[Groups, _Sharing] = {}
        for port, own in ((port, own) for port, own in held.items() if len(own) > 1):
            joined = joined_by_others(own, ports)
            for found in (
                _Sharing(sum_in_order(own.values()), tuple(own), port),
                _Sharing(in_turn_s(joined, ports), joined, ANY),
            ):
                longest[found.groups] = max(found, longest.get(found.groups, found))
        shared = sorted(longest.values(), reverse=True)
        fixed_s, wire_s = (
            np.array([getattr(route, name) for route in routes]) for name in ("fixed_s", "wire_s")
        )
        return cls(fixed_s, wire_s, shared[:MOST_SHARED])

    @property
    def least_s(self) -> float:
        """Seconds of the fastest."""
        return float((self.fixed_s + self.wire_s).min())


class _Crossing(NamedTuple):
    """An exchange among the devices of a team, by their places in it.

    Attributes:
        members: of each group; shape (groups, members).
        group_of: the group of each device.
        rounds: its collectives, one after the other.
    """

    members: NDArray[np.intp]
    group_of: NDArray[np.intp]
    rounds: list[_Round]

    def met(self, devices: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Those that have exchanged with some of the devices, and these; shape (..., devices)."""
        groups: NDArray[np.bool_] = np.logical_or.reduce(devices[:, self.members], axis=2)
        return devices | groups[:, self.group_of]


@dataclass(frozen=True)
class Crossings:
    """The exchanges of teams on a network, each found once."""

    network: Network
    known: dict[tuple[GroupCollectives, int], _Crossing] = field(default_factory=dict)

    def of(self, what: GroupCollectives, devices: Sequence[int]) -> _Crossing:
        """An exchange of some devices; members that are none of them are left out, as they only delay."""
        key = what, devices[0]
        if (found := self.known.get(key)) is None:
            found = self.known[key] = self._find(what, devices)
        return found

    def _find(self, what: GroupCollectives, devices: Sequence[int]) -> _Crossing:
        places = {device: place for place, device in enumerate(devices)}
        members = np.array([[places[device] for device in own if device in places] for own in what.groups])
        group_of = np.empty(len(devices), dtype=np.intp)
        group_of[members] = np.arange(len(members))[:, None]
        rounds = []
        for size in what.sizes_bytes:
            asked = (Collective(what.operation, own, size, None, (), (), what.calls) for own in what.groups)
            rounds.append(_Round.of(list(map(self.network.collective, asked))))
        return _Crossing(members, group_of, rounds)


@dataclass(slots=True)
class _Late:
    """Devices that are free no sooner than some time, of one of several groups; which of them is not known.

    Attributes:
        met: for each group those devices; shape (groups, devices).
        free_s: the time.
    """

    met: NDArray[np.bool_]
    free_s: float


class _Exchanged(NamedTuple):
    """What is known once an exchange is awaited: when it ends on each device, and who is late then."""

    ends_s: FloatArray
    late: list[tuple[_Late, NDArray[np.bool_], float]]
    fresh: list[_Late]


class TeamClocks:
    """Times before which the devices of a team are not done with what they are told to do.

    Args:
        crossings: their exchanges.
        devices: of the team.
        free_s: when each is free at first.

    Attributes:
        free_s: when the next op of each can start.
    """

    def __init__(self, crossings: Crossings, devices: Sequence[int], free_s: FloatArray) -> None:
        self.free_s = free_s
        self._crossings, self._devices = crossings, devices
        self._there_s = free_s
        self._late: list[_Late] = []
        self._through_s: dict[Hashable, float] = {}
        self._exchanged: list[_Exchanged] = []

    def compute_together(
        self, devices: Sequence[int], action: Action, duration_s: float, host_s: float = 0.0
    ) -> None:
        """Run an op on all devices."""
        self.free_s = self.free_s + duration_s
        self._there_s = np.maximum(self._there_s, self.free_s)
        for late in self._late:
            late.free_s += duration_s

    def exchange(self, what: GroupCollectives, action: PatchAction) -> Sequence[int]:
        """Run an exchange when the last op and the last collective have ended; its number, once for each group."""
        crossing = self._crossings.of(what, self._devices)
        ends_s, fresh = self._there_s[crossing.members].max(axis=1), list[_Late]()
        for each in crossing.rounds:
            begins_s = ends_s + each.fixed_s
            ends_s = begins_s + each.wire_s
            for sharing in each.shared:
                groups = sharing.groups
                through_s = self._hold(what.groups, sharing, float(begins_s[list(groups)].min()))
                if through_s > ends_s[list(groups)].max():
                    fresh.append(_Late(crossing.group_of == np.array(groups)[:, None], through_s))
        least_s = sum_in_order(each.least_s for each in crossing.rounds)
        late = [(late, crossing.met(late.met), late.free_s + least_s) for late in self._late]
        self._there_s = ends_s[crossing.group_of]
        self._exchanged.append(_Exchanged(self._there_s, late, fresh))
        number = len(self._exchanged) - 1
        if what.wait:
            self._await(self._exchanged[number])
        return [number] * len(what.groups)

    def _hold(self, whose: Hashable, sharing: _Sharing, begin_s: float) -> float:
        """Seconds before which some of the groups is not through, after all for which they held the same so far."""
        what = whose, sharing.groups, sharing.port
        through_s = max(self._through_s.get(what, begin_s), begin_s) + sharing.load_s
        self._through_s[what] = through_s
        return through_s

    def expect_each(self, groups: Sequence[tuple[int, ...]], results: Sequence[int]) -> None:
        """Let the next op of each device wait for an exchange."""
        self._await(self._exchanged[results[0]])

    def _await(self, what: _Exchanged) -> None:
        self.free_s = np.maximum(self.free_s, what.ends_s)
        for late, met, free_s in what.late:
            if (met == late.met).all():
                late.free_s = max(late.free_s, free_s)
            else:
                late.met, late.free_s = met, free_s
        self._late += what.fresh
        for late in self._late:
            surely_s = np.where(late.met.all(axis=0), late.free_s, -np.inf)
            self.free_s = np.maximum(self.free_s, surely_s)
            self._there_s = np.maximum(self._there_s, surely_s)
        self._late = [late for late in self._late if not late.met.all()]
