"""First come, first served."""

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.policy import Fleet, Job, Policy, Replica, Run


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed(Policy):
    """Source: the order of diffusers' and xDiT 0.4's servers: one request at a time."""

    name = "fcfs"
    summary = "first come, first served, one request at a time"

    def start(self, queue: Sequence[Job], replica: Replica, fleet: Fleet) -> Run:
        """The request that came first, to its end."""
        first = queue[0]
        return Run((first,), first.steps_left)
