"""Kernels: what an op of a plan does when it is carried out; here those that only sleep."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

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

    def numel(self, tensor: int) -> int:
        """Return how many numbers a tensor's message holds."""
        ...

    def pack(self, tensor: int) -> Sequence[Tensor]:
        """Return what a tensor's message holds."""
        ...

    def unpack(self, tensor: int, payload: Tensor) -> None:
        """Take what a tensor's message held."""
        ...

    def communicate(self, collective: int, group: dist.ProcessGroup) -> None:
        """Do what a collective does, all its members at once."""
        ...


class SleepKernels:
    """Ops sleep for their duration; messages are real but short."""

    sleeping = True

    def __init__(self) -> None:
        self._payload = torch.zeros(SLEEP_NUMEL, dtype=torch.float64)

    def begin(self, iteration: int) -> None:
        """Prepare nothing."""

    def run(self, index: int, op: Op, mark: Mark) -> None:
        """Sleep, and write on the way what the op writes early."""
        start = now()
        for offset_s, tensor in op.early:
            sleep_until(start + offset_s)
            mark(tensor)
        sleep_until(start + op.duration_s)

    def numel(self, tensor: int) -> int:
        """Return the length of any message."""
        return SLEEP_NUMEL

    def pack(self, tensor: int) -> Sequence[Tensor]:
        """Return the same few numbers for every tensor."""
        return (self._payload,)

    def unpack(self, tensor: int, payload: Tensor) -> None:
        """Take nothing."""

    def communicate(self, collective: int, group: dist.ProcessGroup) -> None:
        """Do nothing: collectives stand for their moments."""
