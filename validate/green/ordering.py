"""Ordering: in which order one thread enqueues a whole iteration.

An event that nobody has recorded yet holds nobody up, so whatever an op, a message or a collective waits for must have
been enqueued before. Within a lane the order is the plan's.
"""

from dataclasses import dataclass
from typing import NamedTuple

from profiles.errors import DeadlockError, InputError
from strategies.plans.plan import Plan
from strategies.plans.wiring import Wiring, previous_collectives


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
    """Enqueue the next ops of a device, as far as what they read is on its way, and what they send."""
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
