"""The stopwatch: least seconds that a team of devices takes for what a sampler's builder would write.

It is told what a builder is told, and keeps two clocks: of the compute stream, and of the communication stream, which
runs one collective after the other. Once its collectives are awaited, no device is done sooner. One of two things is
counted, each of which only delays:

- that collectives slow down the compute beside them, on ports of their own; or
- that groups which exchange at once share ports, those of a node's card or of a switch. When such a port is through, it
  has carried what all of them put on it, and some group is not done before: which one is not known, so until every
  device has exchanged with it, directly or through others, the late have clocks of their own.

Not both: a collective that begins late slows down nothing until then, so what is computed beside it may end sooner
than beside one that begins at once. Without slowdown, whatever begins later also ends later.
"""

from collections import Counter
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import NamedTuple

from profiles.machines.hosts import NO_CALLS, Calls
from strategies.patching.builder import GroupCollectives
from strategies.plans.actions import Action, PatchAction
from strategies.plans.network import Network
from strategies.plans.plan import Collective

Members = tuple[int, ...]
Late = frozenset[frozenset[int]]
"""The sets of devices of which one is late."""


class Course(NamedTuple):
    """An exchange of some groups.

    Attributes:
        times_s: of each collective of the first group the seconds before it is on the wire, and on the wire.
        even: whether they are those of every group.
        port: of the ports that the groups share the one that they hold longest; None where they share none.
        load_s: seconds for which they hold it in all.
    """

    times_s: tuple[tuple[float, float], ...]
    even: bool
    port: int | None
    load_s: float


class Courses:
    """The courses of exchanges on a network, each found once.

    Attributes:
        network: the network.
        shared: whether ports are that groups share; else only the first group is looked at, and the slowdown counts.
    """

    def __init__(self, network: Network, *, shared: bool = True) -> None:
        self.network, self.shared = network, shared
        self._known: dict[GroupCollectives, Course] = {}
        self._last: tuple[GroupCollectives | None, Course] = None, Course((), True, None, 0.0)

    def __getitem__(self, what: GroupCollectives) -> Course:
        asked, course = self._last
        if asked is what:  # as in all rounds of a ring: no need to look at all its groups again
            return course
        if (known := self._known.get(what)) is None:
            known = self._known[what] = self._course(what)
        self._last = what, known
        return known

    def _course(self, what: GroupCollectives) -> Course:
        times: dict[tuple[tuple[float, float], ...], None] = {}
        users: Counter[int] = Counter()
        loads_s: dict[int, float] = {}
        for group in what.groups if self.shared else what.groups[:1]:
            routes = [self.network.collective(asked) for asked in _collectives(what, group)]
            times[tuple((route.fixed_s, route.wire_s) for route in routes)] = None
            held = [pair for route in routes for pair in (*route.ports, *route.shared)]
            users.update({port for port, _ in held})
            for port, hold_s in held:
                loads_s[port] = loads_s.get(port, 0.0) + hold_s
        common = (port for port, count in users.items() if count > 1)
        load_s, busiest = max(((loads_s[port], port) for port in common), default=(0.0, None))
        return Course(next(iter(times)), len(times) == 1, busiest, load_s)


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
        self._through_s: dict[int, float] = {}
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
        """Hold the port that groups share; where that takes longest, one of them is late."""
        if course.port is None or self._behind:
            return
        through_s = max(self._through_s.get(course.port, 0.0), begin_s) + course.load_s
        self._through_s[course.port] = through_s
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
