"""First come, first served."""

from dataclasses import dataclass

from strategies.policy import Policy


@dataclass(frozen=True, slots=True)
class FirstComeFirstServed(Policy):
    """Source: the order of diffusers' and xDiT 0.4's servers: one request at a time."""

    name = "fcfs"
    summary = "first come, first served, one request at a time"
