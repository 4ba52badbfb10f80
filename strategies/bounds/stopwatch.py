"""The stopwatch: how long what a sampler's builder would write takes one device at least, on ports of its own.

It is told what a builder is told and keeps the clocks of one device: its compute stream, and its communication
stream, which runs one collective after the other. Others that are late, and ports that others hold, only delay.
"""

from collections.abc import Sequence

from profiles.machines.hosts import NO_CALLS, Calls
from strategies.plans.actions import Action
from strategies.plans.network import Network
from strategies.plans.plan import Collective


class Stopwatch:
    """The clocks of one device.

    Attributes:
        ended_s: when its last op ends.
        free_s: when its next op can start: all that it waits for is there.
        host_s: what the host has dispatched and called for it.
    """

    def __init__(self, network: Network, device: int, calls: Calls = NO_CALLS) -> None:
        self.network, self.device, self.calls = network, device, calls
        self.host_s = 0.0
        self.slowdown = network.placement.cluster.overlap_slowdown
        self.ended_s = self.free_s = 0.0
        self._stream_s = 0.0
        self._done_s: list[float] = []

    def compute(self, device: int, action: Action, duration_s: float, host_s: float = 0.0) -> None:
        """Run an op; beside a collective it takes longer."""
        if device != self.device:
            return
        self.host_s += host_s
        beside_s = min(duration_s * self.slowdown, max(0.0, self._stream_s - self.free_s))
        self.ended_s = self.free_s + beside_s + max(0.0, duration_s - beside_s / self.slowdown)
        self.free_s = self.ended_s

    def compute_together(
        self, devices: Sequence[int], action: Action, duration_s: float, host_s: float = 0.0
    ) -> None:
        """Run an op that several devices run, if this is one of them."""
        if self.device in devices:
            self.compute(self.device, action, duration_s, host_s)

    def collective(
        self,
        operation: str,
        devices: Sequence[int],
        size_bytes: float,
        *,
        stage: int = 0,
        number: int = 0,
        calls: int = 1,
        held_bytes: float = 0.0,
        wait: bool = True,
        dispatched_as: str = "",
    ) -> int:
        """Run a collective when the last op has ended and the last collective is done; return its result."""
        if self.device in devices:
            self.host_s += (
                self.calls.collective_s(dispatched_as or operation, calls) if len(devices) > 1 else 0.0
            )
            route = self.network.collective(
                Collective(operation, tuple(devices), size_bytes, None, (), (), calls)
            )
            self._stream_s = max(self.ended_s, self._stream_s) + route.fixed_s + route.wire_s
        self._done_s.append(self._stream_s)
        if wait:
            self.expect(self.device, len(self._done_s) - 1)
        return len(self._done_s) - 1

    def expect(self, device: int, tensor: int) -> None:
        """Let the next op wait for a collective's result."""
        if device == self.device:
            self.free_s = max(self.free_s, self._done_s[tensor])
