"""The stopwatch: least seconds that a team of devices takes for what a sampler's builder would write.

It is told what a builder is told, and keeps two clocks: of the compute stream, and of the communication stream, which
runs one collective after the other. Once its collectives are awaited, no device is done sooner. One of two things is
counted, each of which only delays:

- that collectives slow down the compute beside them, on ports of their own; or
- that groups which exchange at once share a port, that of a node's card or of a switch, or each two of them some port.
  One of them is not done before what they share has carried what all of them put on it. Which one is not known, so
  until every device has exchanged with it, directly or through others, the late have clocks of their own.

Not both: a collective that begins late slows down nothing until then, so what is computed beside it may end sooner
than beside one that begins at once. Without slowdown, whatever begins later also ends later.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from profiles.checks import sum_in_order
from profiles.machines.hosts import NO_CALLS, Calls
from strategies.bounds.sharing import in_turn_s, joined_by_others
from strategies.patching.builder import GroupCollectives
from strategies.plans.actions import Action, PatchAction
from strategies.plans.network import CollectiveRoute, Network
from strategies.plans.plan import Collective

SAME: Final = 1e-12
"""Share of the time by which delays may differ that count as equal."""

Members = tuple[int, ...]
Late = frozenset[frozenset[int]]
"""The sets of devices of which one is late."""


class Course(NamedTuple):
    """An exchange of some groups.

    Attributes:
        times_s: of each collective of the first group the seconds before it is on the wire, and on the wire.
        even: whether they are those of every group.
        loads_s: what some groups share, and the seconds, above 0, for which they hold it in all: the port that they
            hold longest and, by the groups, any ports that each two of them share.
    """

    times_s: tuple[tuple[float, float], ...]
    even: bool
    loads_s: tuple[tuple[Hashable, float], ...]


class Courses:
    """The courses of exchanges on a network, each found once.

    Attributes:
        network: the network.
        shared: whether ports are that groups share; else only the first group is looked at, and the slowdown counts.
    """

    def __init__(self, network: Network, *, shared: bool = True) -> None:
        self.network, self.shared = network, shared
        self._known: dict[GroupCollectives, Course] = {}
        self._last: tuple[GroupCollectives | None, Course] = None, Course((), True, ())

    def __getitem__(self, what: GroupCollectives) -> Course:
        asked, course = self._last
        if asked is what:  # as in all rounds of a ring: no need to look at all its groups again
            return course
        if (known := self._known.get(what)) is None:
            known = self._known[what] = self._course(what)
        self._last = what, known
        return known

    def _course(self, what: GroupCollectives) -> Course:
        groups = what.groups if self.shared else what.groups[:1]
        routes = [[self.network.collective(asked) for asked in _collectives(what, group)] for group in groups]
        times = dict.fromkeys(tuple((route.fixed_s, route.wire_s) for route in own) for own in routes)
        loads = tuple(_loads(what.groups, routes)) if self.shared else ()
        return Course(next(iter(times)), len(times) == 1, loads)


def _loads(
    groups: Sequence[Members], routes: Sequence[Sequence[CollectiveRoute]]
) -> Iterator[tuple[Hashable, float]]:
    """What some of the groups share, whose collectives take these routes, and the seconds for which they hold it."""
    held: dict[int, dict[int, float]] = defaultdict(dict)
    for number, own in enumerate(routes):
        for port, hold_s in chain.from_iterable((*route.ports, *route.shared) for route in own):
            held[port][number] = held[port].get(number, 0.0) + hold_s
    loads_s = {port: sum_in_order(users.values()) for port, users in held.items() if len(users) > 1}
    if loads_s:
        load_s, busiest = max((load_s, port) for port, load_s in loads_s.items())
        yield busiest, load_s
        each = [[dict(route.ports) for route in calls] for calls in zip(*routes, strict=True)]
        joined = joined_by_others(held[busiest], each[0])
        if turns_s := sum_in_order(in_turn_s(joined, ports) for ports in each):
            yield (groups, joined), turns_s


def _collectives(what: GroupCollectives, group: Members) -> list[Collective]:
    return [Collective(what.operation, group, size, None, (), (), what.calls) for size in what.sizes_bytes]


class _Clocks:
    """The clocks of devices.

    Attributes:
        ended_s: when their last op ends.
        free_s: when their next op can start: all that it waits for is there.
        stream_s: when their last collective ends.
        done_s: for the number of each exchange that is not waited for when it ends.
    """

    __slots__ = ("done_s", "ended_s", "free_s", "stream_s")

    def __init__(self, begin_s: float = 0.0) -> None:
        self.ended_s = self.free_s = begin_s
        self.stream_s = 0.0
        self.done_s: dict[int, float] = {}

    def late(self, stream_s: float) -> "_Clocks":
        """The same but for the last collective, which ends later."""
        clocks = copy(self)
        clocks.stream_s, clocks.done_s = stream_s, dict(self.done_s)
        return clocks

    def compute(self, duration_s: float, slowdown: float) -> None:
        """Run an op; beside a collective it takes longer."""
        beside_s = min(duration_s * slowdown, max(0.0, self.stream_s - self.free_s))
        self.ended_s = self.free_s + beside_s + max(0.0, duration_s - beside_s / slowdown)
        self.free_s = self.ended_s

    def exchange(self, times_s: Sequence[tuple[float, float]]) -> None:
        """Run collectives when the last op has ended and the last collective is done."""
        for fixed_s, wire_s in times_s:
            self.stream_s = max(self.ended_s, self.stream_s) + fixed_s + wire_s

    def wait(self) -> None:
        """Let the next op wait for the last collective."""
        self.free_s = max(self.free_s, self.stream_s)


class _State(NamedTuple):
    """Who is late, all clocks, and when what is shared is through."""

    late: Late
    clocks: list[float]
    through_s: dict[Hashable, float]


class Stopwatch:
    """The clocks of a team of devices.

    Args:
        courses: of their exchanges.
        devices: of the team.
        calls: what these cost the host.
        behind_s: seconds by which one of them begins behind the others, which one is not known; ports that groups
            share are left out then.

    Attributes:
        host_s: what the host of each has dispatched and called for it.
        even: whether all exchanges took every group as long as the first.
    """

    def __init__(
        self,
        courses: Courses,
        devices: Sequence[int],
        calls: Calls = NO_CALLS,
        behind_s: float = 0.0,
    ) -> None:
        self.courses, self.devices, self.calls = courses, frozenset(devices), calls
        self.host_s, self.even = 0.0, True
        self._slowdown = 1.0 if courses.shared else courses.network.placement.cluster.overlap_slowdown
        self._all, self._last = _Clocks(), _Clocks(behind_s)
        self._behind = behind_s > 0
        self._late: Late = frozenset(map(frozenset, zip(devices))) if self._behind else frozenset()
        self._through_s: dict[Hashable, float] = {}
        self._told = 0

    @property
    def ended_s(self) -> float:
        """Seconds until the last op of each device ends."""
        return self._all.ended_s

    @property
    def free_s(self) -> float:
        """Seconds until the next op of each device can start: all that it waits for is there."""
        return self._all.free_s

    @property
    def _clocks(self) -> list[_Clocks]:
        return [self._all, self._last] if self._late else [self._all]

    def repeat(self, times: int, run: Callable[[], object]) -> None:
        """Do the same several times; once all clocks are delayed equally, each further time delays them as much."""
        for left in reversed(range(times)):
            before, host_s = self._state() if left else None, self.host_s
            run()
            lag_s = None if before is None else self._lag_s(before)
            if before is not None and lag_s is not None:
                self._put_off(left * lag_s, before.through_s)
                self.host_s += left * (self.host_s - host_s)
                return

    def _state(self) -> _State:
        clocks = [(each.ended_s, each.free_s, each.stream_s) for each in self._clocks]
        return _State(self._late, [*chain.from_iterable(clocks)], dict(self._through_s))

    def _lag_s(self, before: _State) -> float | None:
        """Seconds by which all clocks, and the ends of all that was held since, are later; None where these differ."""
        now, through_s = self._state(), before.through_s
        if (now.late, now.through_s.keys()) != (before.late, through_s.keys()):
            return None
        lags = [one - other for one, other in zip(now.clocks, before.clocks, strict=True)]
        lags += [at - through_s[what] for what, at in now.through_s.items() if at != through_s[what]]
        return min(lags) if max(lags) - min(lags) <= SAME * max(now.clocks) else None

    def _put_off(self, seconds: float, through_s: Mapping[Hashable, float]) -> None:
        """Let all clocks be later, and so all that was held since; ``through_s`` tells when it was through before."""
        for clocks in self._clocks:
            clocks.ended_s, clocks.free_s = clocks.ended_s + seconds, clocks.free_s + seconds
            clocks.stream_s += seconds
        for what, at in self._through_s.items():
            if at != through_s[what]:
                self._through_s[what] = at + seconds

    def compute_together(
        self, devices: Sequence[int], action: Action, duration_s: float, host_s: float = 0.0
    ) -> None:
        """Run an op on all devices."""
        self.host_s += host_s
        for clocks in self._clocks:
            clocks.compute(duration_s, self._slowdown)

    def exchange(self, what: GroupCollectives, action: PatchAction) -> Sequence[int]:
        """Run an exchange; its number, once for each group."""
        course = self.courses[what]
        self.even = self.even and course.even
        for _ in what.sizes_bytes:
            self.host_s += self.calls.collective_s(what.dispatched_as or what.operation, what.calls)
        begin_s = max(self._all.ended_s, self._all.stream_s) + course.times_s[0][0]
        for clocks in self._clocks:
            clocks.exchange(course.times_s)
        self._hold(course, begin_s, what.groups)
        self._spread(what.groups)
        for clocks in self._clocks:
            clocks.wait() if what.wait else clocks.done_s.update({self._told: clocks.stream_s})
        self._told += 1
        return [self._told - 1] * len(what.groups)

    def _hold(self, course: Course, begin_s: float, groups: Sequence[Members]) -> None:
        """Hold what groups share; where that takes longest, one of them is late."""
        for shared, load_s in () if self._behind else course.loads_s:
            through_s = max(self._through_s.get(shared, 0.0), begin_s) + load_s
            self._through_s[shared] = through_s
            if through_s > max(clocks.stream_s for clocks in self._clocks):
                self._last, self._late = self._all.late(through_s), frozenset(map(frozenset, groups))

    def _spread(self, groups: Sequence[Members]) -> None:
        """Let those be late too who exchange with somebody late: their collective is, and not what they computed."""
        if not self._late:
            return
        before, self._late = self._late, _spread(self._late, tuple(groups))
        if all(self.devices <= late for late in self._late):
            self._all.stream_s, self._late = max(self._all.stream_s, self._last.stream_s), frozenset()
        elif self._late != before:
            self._last = self._all.late(self._last.stream_s)

    def expect_each(self, groups: Sequence[Members], results: Sequence[int]) -> None:
        """Let the next op of each device wait for an exchange."""
        for clocks in self._clocks:
            clocks.free_s = max(clocks.free_s, clocks.done_s[results[0]])


@lru_cache(maxsize=4096)
def _spread(late: Late, groups: tuple[Members, ...]) -> Late:
    """Who is late after an exchange, for each set of those who may be before."""
    return frozenset(
        devices.union(*(group for group in groups if not devices.isdisjoint(group))) for devices in late
    )
