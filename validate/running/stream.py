"""The communication stream of one rank: a thread that runs its collectives in the order of the plan.

Every collective is real: an all-reduce of the moments at which its members were ready, then what they sum, scatter or
gather; its end is that of the last member plus what its messages take around the ring.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import distributed as dist

from strategies.plans.wiring import Wiring
from validate.ranks import LostRankError
from validate.running.clock import Instant, sleep_until


class CollectiveStream:
    """Runs the collectives of one device during one iteration, each in its group and seconds."""

    def __init__(
        self,
        wiring: Wiring,
        device: int,
        groups: Mapping[int, dist.ProcessGroup],
        costs_s: Sequence[float],
        communicate: Callable[[int, dist.ProcessGroup], None],
    ) -> None:
        self._plan, self._device = wiring.plan, device
        self._groups, self._costs_s, self._communicate = groups, costs_s, communicate
        self._own = {
            number: [t for t in collective.reads if wiring.writers[t][0] == device]
            for number, collective in enumerate(self._plan.collectives)
            if device in collective.devices
        }

    def open(self, start: Instant) -> None:
        """Begin an iteration."""
        self._written: dict[int, Instant] = {}
        self._done: dict[int, Instant] = {}
        self.last = self._begin = start
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if self._own:
            self._thread.start()

    def write(self, tensors: Iterable[int], at: Instant) -> None:
        """Note that tensors were written at a moment."""
        if self._own:
            with self._changed:
                self._written.update(dict.fromkeys(tensors, at))
                self._changed.notify_all()

    def arrival(self, tensor: int) -> Instant:
        """Wait for what a collective writes; return when it is there."""
        with self._changed:
            self._changed.wait_for(lambda: tensor in self._done or self._error is not None)
        if self._error is not None:
            raise self._error
        return self._done[tensor]

    def close(self) -> Instant:
        """Wait for all collectives; return when the last one was done."""
        if self._own:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self.last

    def _run(self) -> None:
        for number in self._own:
            with self._changed:
                self._changed.wait_for(lambda n=number: all(t in self._written for t in self._own[n]))  # type: ignore[misc]
            try:
                self._carry_out(number)
            except Exception as error:  # the other thread waits for this one
                lost = isinstance(error, RuntimeError)
                with self._changed:
                    self._error = LostRankError(-1) if lost else error
                    self._changed.notify_all()
                return

    def _carry_out(self, number: int) -> None:
        ready = self.last
        for tensor in self._own[number]:
            ready = ready.later(self._written[tensor])
        group = self._groups[number]
        latest = torch.tensor(ready, dtype=torch.float64)
        dist.all_reduce(latest, dist.ReduceOp.MAX, group=group)
        self._communicate(number, group)
        self.last = Instant(*latest.tolist()).after(self._costs_s[number])
        sleep_until(self.last.wall)
        with self._changed:
            self._done.update(dict.fromkeys(self._plan.collectives[number].writes, self.last))
            self._changed.notify_all()
