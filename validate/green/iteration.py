"""Iterations: a plan enqueued on lanes by one thread, and when its ops, messages and collectives ran.

An event that nobody has recorded yet holds nobody up, so whatever an op, a message or a collective waits for must have
been enqueued before. Within a lane the order is the plan's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, median
from time import perf_counter
from typing import Final, NamedTuple

from profiles.errors import DeadlockError, InputError
from strategies.plans.network import Network
from strategies.plans.plan import Plan
from strategies.plans.wiring import Wiring, previous_collectives
from validate.green.lanes import Lanes, Mark
from validate.green.work import Work


class Launch(NamedTuple):
    """An op of a device, by its place in the device's list."""

    device: int
    place: int


class Message(NamedTuple):
    """A transfer, by its slot."""

    slot: int


class Reduction(NamedTuple):
    """A collective, by its number."""

    number: int


Step = Launch | Message | Reduction


@dataclass(frozen=True, slots=True)
class LaneMap:
    """Which lane does what.

    Ops of a device are on the lane of its number. Messages leave a device on two lanes: one copies, and one lets what
    was copied arrive. As what a device writes is written in the order of its list, messages on one such lane never
    wait for one that is written later.
    """

    devices: int

    def copies(self, source: int) -> int:
        """The lane that copies what a device sends."""
        return self.devices + source

    def wire(self, source: int) -> int:
        """The lane on which that arrives."""
        return 2 * self.devices + source

    def collectives(self, members: tuple[int, ...]) -> int:
        """The lane of the collectives of some devices; those that share a device keep their order anyway."""
        return 3 * self.devices + min(members)

    @property
    def gate(self) -> int:
        """The lane that holds all others back until an iteration is enqueued."""
        return 4 * self.devices

    @property
    def count(self) -> int:
        """All lanes."""
        return 4 * self.devices + 1


def enqueue_order(wiring: Wiring) -> list[Step]:
    """All steps of an iteration, each after those that it waits for."""
    steps: list[Step] = []
    there: set[int] = set()
    done = [0] * wiring.plan.num_devices
    reduced: set[int] = set()
    before = previous_collectives(wiring.plan.collectives)
    while True:
        length = len(steps)
        for device in range(wiring.plan.num_devices):
            _advance(wiring, device, done, there, steps)
        for number, waits in enumerate(wiring.collective_waits):
            if number not in reduced and there.issuperset(waits) and reduced.issuperset(before[number]):
                steps.append(Reduction(number))
                reduced.add(number)
                there.update(wiring.collective_sends[number])
        if len(steps) == length:
            break
    if any(done[device] < len(row) for device, row in enumerate(wiring.plan.ops)):
        raise DeadlockError(f"deadlock: {done} ops of the devices can be enqueued, and no more")
    return steps


def _advance(wiring: Wiring, device: int, done: list[int], there: set[int], steps: list[Step]) -> None:
    waits = wiring.waits[device]
    while done[device] < len(waits) and there.issuperset(waits[done[device]]):
        index = done[device]
        steps.append(Launch(device, index))
        for slot in written_slots(wiring, device, index):
            there.add(slot)
            if wiring.transfers[slot] is not None:
                steps.append(Message(slot))
        done[device] += 1


def written_slots(wiring: Wiring, device: int, index: int) -> list[int]:
    """The deliveries that an op makes; what it writes early is there at its end, too."""
    early = wiring.early[device].get(index, [])
    return [*wiring.sends[device][index], *(slot for _, slots in early for slot in slots)]


def check_plan(plan: Plan) -> None:
    """Refuse plans that lanes cannot carry out."""
    if plan.blocking or plan.posted_after:
        raise InputError(
            "messages that wait for their receiver cannot be enqueued ahead: give --p2p overlapped"
        )
    divided = sorted({c.operation for c in plan.collectives} - {"all_reduce"})
    if divided:
        raise InputError(f"green contexts carry out all_reduce alone, and the plan has {', '.join(divided)}")
    if plan.placement.num_gpus != plan.num_devices:
        raise InputError(
            f"the plan is for {plan.placement.num_gpus} GPUs, and {plan.num_devices} lie on green contexts:"
            " replicas are not carried out"
        )


Span = tuple[float, float]
Durations = list[list[float]]  # seconds of each op of each device's list
FIRST_GATE_S: Final = 0.05
GATE_ROOM: Final = 2.0
"""The gate opens so many times what it last took to enqueue an iteration after it was closed."""


@dataclass(slots=True)
class Record:
    """One iteration, in seconds since its gate opened, until all is done that it waits for.

    A message lasts from when it was written until it arrives, by slot; ``behind`` says that the gate opened before all
    was enqueued.
    """

    ops: list[list[Span]]
    messages: dict[int, Span] = field(default_factory=dict)
    collectives: list[Span] = field(default_factory=list)
    end_s: float = 0.0
    enqueue_s: float = 0.0
    behind: bool = False

    @property
    def bubble_ratio(self) -> float:
        """The share of the iteration in which a device, in the mean over devices, runs no op."""
        busy = mean(sum(end - start for start, end in row) for row in self.ops)
        return 1 - busy / self.end_s

    @property
    def durations(self) -> Durations:
        """Seconds of each op."""
        return [[end - start for start, end in row] for row in self.ops]


@dataclass(slots=True)
class _Marks:
    """Marks of one iteration."""

    ops: list[list[tuple[Mark, Mark]]]
    there: dict[int, Mark] = field(default_factory=dict)
    collectives: dict[int, tuple[Mark, Mark]] = field(default_factory=dict)


class Runner:
    """Carries a plan out on lanes."""

    def __init__(self, lanes: Lanes, wiring: Wiring, work: Work) -> None:
        check_plan(wiring.plan)
        self._lanes, self._wiring, self._work = lanes, wiring, work
        self._map = LaneMap(wiring.plan.num_devices)
        self._network = Network(wiring.plan.placement)
        self._steps = enqueue_order(wiring)
        self._before = previous_collectives(wiring.plan.collectives)
        self._gate_s = FIRST_GATE_S

    def run(self) -> Record:
        """Carry out one iteration."""
        lanes, devices = self._lanes, range(self._map.devices)
        self._work.reset()
        lanes.settle()
        began_s = perf_counter()
        opened = self._close_gate(range(self._map.gate))
        marks = _Marks([[] for _ in devices])
        for step in self._steps:
            if isinstance(step, Launch):
                self._launch(step, marks)
            elif isinstance(step, Message):
                self._send(step.slot, marks)
            else:
                self._reduce(step, marks)
        enqueue_s = perf_counter() - began_s
        lanes.settle()
        behind, self._gate_s = enqueue_s > self._gate_s, GATE_ROOM * enqueue_s
        return self._record(opened, marks, enqueue_s, behind=behind)

    def _close_gate(self, held: Iterable[int]) -> Mark:
        """Hold lanes back until all is enqueued; return the mark at which they begin."""
        gate = self._map.gate
        self._lanes.hold(gate, self._lanes.record(gate, stamped=True), self._gate_s)
        opened = self._lanes.record(gate)
        for lane in held:
            self._lanes.wait(lane, opened)
        return opened

    def _launch(self, step: Launch, marks: _Marks) -> None:
        device, index = step
        for slot in self._wiring.waits[device][index]:
            self._lanes.wait(device, marks.there[slot])
        marks.ops[device].append(self._timed_op(device, index))

    def _timed_op(self, device: int, index: int) -> tuple[Mark, Mark]:
        start = self._lanes.record(device)
        self._lanes.submit(device, lambda: self._work.op(device, index))
        return start, self._lanes.record(device, stamped=True)

    def _written(self, tensor: int, marks: _Marks) -> Mark:
        device, index = self._wiring.writers[tensor]
        return marks.ops[device][index][1]

    def _send(self, slot: int, marks: _Marks) -> None:
        """Copy what was written, and let it arrive when the link has taken its time since then."""
        transfer = self._wiring.transfers[slot]
        assert transfer is not None
        written = self._written(transfer.tensor, marks)
        copies, wire = self._map.copies(transfer.source), self._map.wire(transfer.source)
        self._lanes.wait(copies, written)
        self._lanes.submit(copies, lambda: self._work.message(slot))
        route = self._network.route(transfer.source, transfer.target)
        self._lanes.wait(wire, self._lanes.record(copies))
        self._lanes.hold(wire, written, transfer.size_bytes * route.wire_s_per_byte + route.delay_s)
        marks.there[slot] = self._lanes.record(wire)

    def _reduce(self, step: Reduction, marks: _Marks) -> None:
        """Sum up as soon as all members are ready, and let it last as long as the network says."""
        collective = self._wiring.plan.collectives[step.number]
        lane, route = self._map.collectives(collective.devices), self._network.collective(collective)
        for number in self._before[step.number]:
            self._lanes.wait(lane, marks.collectives[number][1])
        for tensor in collective.reads:
            self._lanes.wait(lane, self._written(tensor, marks))
        start = self._lanes.record(lane, stamped=True)
        self._lanes.submit(lane, lambda: self._work.reduce(step.number))
        self._lanes.hold(lane, start, route.fixed_s + route.wire_s)
        marks.collectives[step.number] = start, self._lanes.record(lane)
        for slot in self._wiring.collective_sends[step.number]:
            marks.there[slot] = marks.collectives[step.number][1]

    def _record(self, opened: Mark, marks: _Marks, enqueue_s: float, *, behind: bool) -> Record:
        def since(pair: tuple[Mark, Mark]) -> Span:
            return self._lanes.seconds(opened, pair[0]), self._lanes.seconds(opened, pair[1])

        wiring = self._wiring
        found = Record([[since(pair) for pair in row] for row in marks.ops])
        for slot, transfer in enumerate(wiring.transfers):
            if transfer is not None:
                found.messages[slot] = since((self._written(transfer.tensor, marks), marks.there[slot]))
        found.collectives = [since(marks.collectives[number]) for number in sorted(marks.collectives)]
        slots = (wiring.slots.get(key) for key in wiring.plan.kept)
        kept = [found.messages[slot][1] for slot in slots if slot in found.messages]
        ends = [row[-1][1] for row in found.ops if row] + [end for _, end in found.collectives] + kept
        found.end_s, found.enqueue_s, found.behind = max(ends), enqueue_s, behind
        return found

    def free_run(self, devices: Sequence[int], rounds: int) -> Durations:
        """Let devices run their lists over and over, waiting for nobody; return the median seconds of each op.

        What runs while one of the devices has run out of work does not count, nor does the first round.
        """
        self._gate_s *= rounds + 1
        opened = self._close_gate(devices)
        rows = self._wiring.plan.ops
        marks = {
            d: [self._timed_op(d, i) for _ in range(rounds + 1) for i in range(len(rows[d]))] for d in devices
        }
        self._lanes.settle()
        self._gate_s = FIRST_GATE_S
        seconds = self._lanes.seconds
        last_s = min(seconds(opened, own[-1][1]) for own in marks.values() if own)
        found: Durations = [[] for _ in rows]
        for device, own in marks.items():
            spans = [(seconds(start, end), seconds(opened, end) <= last_s) for start, end in own]
            count = len(rows[device])
            for index in range(count):
                later = spans[count + index :: count]
                found[device].append(median([s for s, counts in later if counts] or [s for s, _ in later]))
        return found
