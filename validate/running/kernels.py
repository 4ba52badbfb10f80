"""Kernels: what an op of a plan does when it is carried out; here those that only sleep."""

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from strategies.plans.plan import Op
from validate.running.clock import now, sleep_until

SLEEP_NUMEL: Final = 128
"""Numbers in each message of a run whose kernels sleep (1 kB): the link's time is emulated whatever the size."""

Mark = Callable[[int], None]
"""Is told that a tensor has been written before the op ends."""


class Kernels(Protocol):
    """What carries out the ops of one device."""

    @property
    def sleeping(self) -> bool:
        """Whether ops take as long as planned."""
        ...

    def begin(self, iteration: int) -> None:
        """Prepare for an iteration."""
        ...

    def run(self, index: int, op: Op, mark: Mark) -> None:
        """Carry out an op of the device's list."""
        ...

    def room(self, tensor: int) -> Tensor:
        """Room for a tensor's message."""
        ...

    def pack(self, tensor: int) -> Tensor:
        """What a tensor's message brings."""
        ...

    def unpack(self, tensor: int, payload: Tensor) -> None:
        """Take what a tensor's message brought."""
        ...

    def start(self, collective: int, index: int) -> None:
        """Hand over what a collective takes, before the op of an index, if it was not ready to be taken by itself."""
        ...

    def communicate(self, collective: int, group: dist.ProcessGroup) -> None:
        """Do what a collective does, on the communication stream."""
        ...

    def land(self, collective: int) -> None:
        """Take the result of a collective; the next op reads it."""
        ...

    def end(self) -> None:
        """Finish an iteration."""
        ...

    def found(self) -> Any:  # noqa: ANN401  whatever can be sent to another process
        """What the iterations so far have brought, to be judged; all ranks ask at once."""
        ...


class SleepKernels:
    """Ops sleep for their duration; messages are real but short."""

    sleeping = True

    def begin(self, iteration: int) -> None:
        """Prepare nothing."""

    def run(self, index: int, op: Op, mark: Mark) -> None:
        """Sleep, and write on the way what the op writes early."""
        start = now()
        for offset_s, tensor in op.early:
            sleep_until(start + offset_s)
            mark(tensor)
        sleep_until(start + op.duration_s)

    def room(self, tensor: int) -> Tensor:
        """The same room for any message."""
        return torch.zeros(SLEEP_NUMEL, dtype=torch.float64)

    pack = room

    def unpack(self, tensor: int, payload: Tensor) -> None:
        """Take nothing."""

    def start(self, collective: int, index: int) -> None:
        """Hand over nothing."""

    def communicate(self, collective: int, group: dist.ProcessGroup) -> None:
        """Do nothing: collectives stand for their moments."""

    def land(self, collective: int) -> None:
        """Take nothing."""

    def end(self) -> None:
        """Finish nothing."""

    def found(self) -> None:
        """Nothing that could be judged."""
