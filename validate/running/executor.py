"""The executor: walks one device's list of a plan, as the engine does, but with real kernels and messages.

Each of its communication streams is a thread that runs its collectives in the order of the plan. Every collective is
real: an all-reduce of the moments at which its members were ready, then the operation itself; it ends when the last
member was ready plus the time of its messages around the ring.

A message passes through the store of the ranks and arrives a fixed time after it was sent; its reader waits until then.
So the delay is known to the microsecond however busy the machine is, as long as the real message takes no longer.
"""

import gc
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count, filterfalse, product
from typing import Any, Final, NamedTuple

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import Store

from profiles.measuring.writing import grouped
from strategies.plans.placement import Placement
from strategies.plans.plan import Collective, Op
from strategies.plans.wiring import Wiring

SPIN_S: Final = 2e-4  # the end of a wait is spun away: a sleep oversleeps by about 0.1 ms
ALWAYS: Final = float("-inf")
Groups = Mapping[int, dist.ProcessGroup]  # of collectives, by number
Mark = Callable[[int], None]  # is told that a tensor has been written before the op ends
now = time.perf_counter
"""Seconds on a clock that all processes of a machine share (Linux: CLOCK_MONOTONIC)."""


def sleep_until(at: float) -> None:
    """Wait until a moment."""
    if (left := at - now() - SPIN_S) > 0:
        time.sleep(left)
    while now() < at:
        pass


class RankSeat(NamedTuple):
    """The place of one rank: its group, its device (a position of the pipeline), and which replica of it it is."""

    placement: Placement
    group: int
    device: int
    replica: int

    def peer(self, device: int) -> int:
        """The rank that carries out another device of the same group and replica."""
        return self.placement.rank(self.group, device, self.replica)

    def members(self, collective: Collective) -> tuple[int, ...]:
        """The ranks that take part in a collective with this one."""
        if collective.group is None:
            return tuple(sorted(self.peer(device) for device in collective.devices))
        groups = self.placement.groups((), collective.group, collective.subgroup)
        return tuple(sorted(next((group for group in groups if self.peer(self.device) in group), groups[0])))


def seats(placement: Placement) -> list[RankSeat]:
    """The seat of each rank."""
    axes = (placement.num_groups, placement.num_positions, placement.replicas)
    every = [RankSeat(placement, *place) for place in product(*map(range, axes))]
    return sorted(every, key=lambda seat: seat.peer(seat.device))


class Kernels:
    """Carries out the ops of one device; these kernels sleep, and their messages are real but empty."""

    def begin(self, iteration: int) -> None:
        """Prepare for an iteration."""

    def run(self, index: int, op: Op, mark: Mark) -> None:
        """Carry out an op of the device's list; ``mark`` is told of each tensor that it writes early."""
        start = now()
        for offset_s, tensor in op.early:
            sleep_until(start + offset_s)
            mark(tensor)
        sleep_until(start + op.duration_s)

    def pack(self, tensor: int) -> Any:  # noqa: ANN401  whatever can be pickled
        """The payload of a tensor's message."""

    def unpack(self, tensor: int, payload: Any) -> None:  # noqa: ANN401  as above
        """Take the payload of a tensor's message."""

    def start(self, collective: int, index: int) -> None:
        """Hand over the input of a collective before the op of an index, if the collective cannot take it itself."""

    def communicate(self, collective: int, group: dist.ProcessGroup) -> None:
        """Carry out a collective's operation, on the communication stream."""

    def land(self, collective: int) -> None:
        """Take the result of a collective; the next op reads it."""

    def end(self) -> None:
        """Finish an iteration."""

    def result(self) -> Any:  # noqa: ANN401  as above
        """The results of all iterations, to be judged; all ranks ask at once."""


ROUNDS: Final = count()
"""Iterations of all jobs, which all ranks carry out in the same order."""


class Mailbox:
    """Sends and receives the deliveries of one device."""

    def __init__(self, wiring: Wiring, seat: RankSeat, store: Store, link_s: float) -> None:
        self._wiring, self._seat, self._store, self._link_s = wiring, seat, store, link_s

    def open(self) -> None:
        """Begin an iteration."""
        self._prefix = f"{next(ROUNDS)}/{self._seat.group}/{self._seat.replica}"
        self._sent: dict[int, float] = {}
        self._posted: dict[int, float] = {}
        self._arrived: dict[int, float] = {}

    def send(self, slot: int, at: float, payload: object) -> None:
        """Send a delivery that was written at a moment."""
        self._sent[slot] = at
        self._tell(f"{slot} sent", (at, payload))

    def post(self, slot: int, at: float) -> None:
        """Note that a receive was posted at a moment; the sender may wait for it."""
        self._posted[slot] = at
        self._tell(f"{slot} posted", at)

    def arrival(self, slot: int) -> tuple[float, Any]:
        """Wait for a delivery: the moment at which it arrives, and its payload, None for its own sender."""
        payload = None
        if slot not in self._arrived:
            if slot in self._sent:
                written = self._sent[slot]
                posted = self._take(f"{slot} posted") if self._wiring.posted[slot] else ALWAYS
            else:
                (written, payload), posted = self._take(f"{slot} sent"), self._posted.get(slot, ALWAYS)
            self._arrived[slot] = max(written, posted) + self._link_s
        return self._arrived[slot], payload

    def _tell(self, key: str, message: object) -> None:
        self._store.set(f"{self._prefix}/{key}", pickle.dumps(message))  # type: ignore[arg-type]  # bytes do

    def _take(self, key: str) -> Any:  # noqa: ANN401  any message
        message = pickle.loads(self._store.get(f"{self._prefix}/{key}"))
        self._store.delete_key(f"{self._prefix}/{key}")
        return message


class CollectiveStream:
    """Runs the collectives of one device during one iteration: a thread for each stream, each in its process group."""

    def __init__(
        self, wiring: Wiring, seat: RankSeat, kernels: Kernels, groups: Groups, link_s: float
    ) -> None:
        self._collectives, self._kernels, self._groups = wiring.plan.collectives, kernels, groups
        here = {
            n: collective
            for n, collective in enumerate(self._collectives)
            if seat.device in collective.devices
        }
        self._costs_s: dict[int, float] = {}  # of messages around the ring (nccl-tests, doc/PERFORMANCE.md)
        self._reads: dict[int, list[int]] = {}
        for number, collective in here.items():
            turns = (1 + (collective.operation == "all_reduce")) * (len(seat.members(collective)) - 1)
            self._costs_s[number] = link_s * (1 if collective.operation == "send_recv" else turns)
            self._reads[number] = [
                t for t in collective.reads if wiring.writers.get(t, (None,))[0] == seat.device
            ]
        results = {tensor: number for number, collective in here.items() for tensor in collective.writes}
        self._follows = {
            n: [results[t] for t in collective.reads if t in results] for n, collective in here.items()
        }

    def open(self, start: float) -> None:
        """Begin an iteration."""
        self._start = start
        self._written = {tensor: Future[float]() for reads in self._reads.values() for tensor in reads}
        self._done = {number: Future[float]() for number in self._reads}
        for numbers in grouped(self._reads, lambda number: self._collectives[number].stream).values():
            threading.Thread(target=self._run, args=(numbers,), daemon=True).start()

    def write(self, tensors: Iterable[int], at: float) -> None:
        """Note that tensors were written at a moment."""
        for tensor in tensors:
            if tensor in self._written:
                self._written[tensor].set_result(at)

    def arrival(self, number: int) -> float:
        """Wait for a collective; return when it was done."""
        return self._done[number].result()

    def close(self) -> float:
        """Wait for all collectives; return when the last one was done."""
        return max([self._start, *(done.result() for done in self._done.values())])

    def _run(self, numbers: Sequence[int]) -> None:
        last = self._start
        for number in numbers:
            try:
                last = self._carry_out(number, last)
            except Exception as error:  # the other thread waits for this one
                for done in filterfalse(Future.done, self._done.values()):
                    done.set_exception(error)
                return
            self._done[number].set_result(last)

    def _carry_out(self, number: int, last: float) -> float:
        written = (self._written[tensor].result() for tensor in self._reads[number])
        ready = max([last, *written, *(self._done[other].result() for other in self._follows[number])])
        latest = torch.tensor(ready, dtype=torch.float64)
        dist.all_reduce(latest, dist.ReduceOp.MAX, group=self._groups[number])
        self._kernels.communicate(number, self._groups[number])
        end = latest.item() + self._costs_s[number]
        sleep_until(end)
        return end


class OpTimes(NamedTuple):
    """Seconds of one op since the iteration began; it ends when its messages are handed over.

    ``late_s`` is the delay from when it could have started, ``early`` the times of writes before its end.
    """

    start: float
    written: float
    end: float
    late_s: float
    early: tuple[float, ...]


class RankIteration(NamedTuple):
    """Times of one rank in one iteration: of its ops, and the end of its last op, collective and kept tensor."""

    ops: list[OpTimes]
    end: float

    @property
    def late_s(self) -> float:
        """Total seconds by which its ops started late."""
        return sum(op.late_s for op in self.ops)

    @property
    def busy_s(self) -> float:
        """Total seconds of its ops."""
        return sum(op.end - op.start for op in self.ops)


class Executor:
    """Carries out one device's part of a plan; every message takes ``link_s``."""

    def __init__(
        self, wiring: Wiring, seat: RankSeat, kernels: Kernels, groups: Groups, *, store: Store, link_s: float
    ) -> None:
        self._wiring, self._device, self._kernels = wiring, seat.device, kernels
        self._ops = wiring.plan.ops[seat.device]
        self._tensor_of = {slot: tensor for (tensor, _), slot in wiring.slots.items()}
        self._mailbox = Mailbox(wiring, seat, store, link_s)
        self._stream = CollectiveStream(wiring, seat, kernels, groups, link_s)
        self._results = {t: n for n, c in enumerate(wiring.plan.collectives) for t in c.writes}
        self._due, index = defaultdict[int, list[int]](list), 0
        """Collectives by the first op before which all that they, and those before them, read is written."""
        for number, collective in enumerate(wiring.plan.collectives):
            if seat.device in collective.devices:
                writers = (wiring.writers.get(tensor, (None, 0)) for tensor in collective.reads)
                index = max([index, *(op + 1 for writer, op in writers if writer == seat.device)])
                self._due[index].append(number)

    def run(self, iteration: int, synchronize: Callable[[], float]) -> RankIteration:
        """Carry out one iteration from the moment that ``synchronize`` gives."""
        self._kernels.begin(iteration)
        self._mailbox.open()
        self._zero = self._ended = synchronize()
        self._stream.open(self._zero)
        gc.disable()
        sleep_until(self._zero)
        try:
            ops = [self._carry_out(index, op) for index, op in enumerate(self._ops)]
            slots = self._wiring.slots
            kept = [slots[k] for k in self._wiring.plan.kept if k[1] == self._device and k in slots]
            last = max(self._await(len(self._ops), kept), self._stream.close())
            sleep_until(last)
            self._kernels.end()
        finally:
            gc.enable()
        return RankIteration(ops, max([last - self._zero, *(op.end for op in ops[-1:])]))

    def _carry_out(self, index: int, op: Op) -> OpTimes:
        ready = self._await(index, self._wiring.waits[self._device][index])
        sleep_until(ready)
        zero, early = self._zero, list[float]()

        def mark(tensor: int) -> None:
            at = now()
            early.append(at - zero)
            self._stream.write((tensor,), at)

        start = now()
        late_s = start - max(ready, self._ended)
        self._kernels.run(index, op, mark)
        slots = [s for s in self._wiring.sends[self._device][index] if self._wiring.sources[s] is not None]
        messages = [(slot, self._kernels.pack(self._tensor_of[slot])) for slot in slots]
        written = now()
        for slot, payload in messages:
            self._mailbox.send(slot, written, payload)
        self._stream.write(op.writes, written)
        for slot in self._wiring.receives[self._device].get(index, ()):
            self._mailbox.post(slot, written)
        self._ended = now()
        return OpTimes(start - zero, written - zero, self._ended - zero, late_s, tuple(early))

    def _await(self, index: int, slots: Sequence[int]) -> float:
        """Wait for deliveries, before the op of an index or after the last one; return when the last one arrives.

        Inputs of collectives are handed over, and results taken, in the order of the plan: one may pass on the result
        of another.
        """
        latest = ALWAYS
        results: set[int] = set()
        for slot in slots:
            tensor = self._tensor_of[slot]
            if self._wiring.sources[slot] is None:
                results.add(self._results[tensor])
                continue
            arrived, payload = self._mailbox.arrival(slot)
            if payload is not None:
                self._kernels.unpack(tensor, payload)
            latest = max(latest, arrived)
        due = self._due[index]
        for number in sorted({*due, *results}):
            if number in due:
                self._kernels.start(number, index)
            if number in results:
                latest = max(latest, self._stream.arrival(number))
                self._kernels.land(number)
        return latest
