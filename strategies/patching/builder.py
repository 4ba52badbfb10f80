"""The sampling builder: device lists written op by op, and the collectives and messages between them.

A device's next op waits for whatever was announced to it since its last one, so a blocking collective is one call
after the ops that feed it. Bytes of a collective's result count in memory until the op that waits for it ends.
"""

from collections.abc import Sequence

from profiles.machines.hosts import NO_CALLS, Calls
from profiles.mappings import FrozenMapping
from strategies.plans.actions import Action
from strategies.plans.placement import Placement, Subgroup
from strategies.plans.plan import Buffer, Collective, Draft, Plan, Stage, Tensor


class SamplingBuilder:
    """Writes the plan of some steps of a sampler; ``calls`` are their costs for the host."""

    def __init__(self, placement: Placement, calls: Calls = NO_CALLS) -> None:
        self.placement, self.calls = placement, calls
        count = placement.num_positions
        self._ops: list[list[Draft]] = [[] for _ in range(count)]
        self._awaited: list[list[int]] = [[] for _ in range(count)]
        self._tensors: list[Tensor] = []
        self._collectives: list[Collective] = []
        self.given: list[tuple[int, int]] = []
        self.kept: list[tuple[int, int]] = []
        self.posted_after: dict[tuple[int, int], int] = {}
        """As of ``Plan``."""

    def tensor(self, role: str, stage: int, number: int, size_bytes: float) -> int:
        """A new tensor."""
        self._tensors.append(Tensor(role, stage, number, size_bytes))
        return len(self._tensors) - 1

    def compute(self, device: int, action: Action, duration_s: float, host_s: float = 0.0) -> None:
        """Append an op; it waits for all that was announced to its device."""
        reads, self._awaited[device] = [*dict.fromkeys(self._awaited[device])], []
        self._ops[device].append(Draft(action, duration_s, reads, host_s=host_s))

    def compute_together(
        self, devices: Sequence[int], action: Action, duration_s: float, host_s: float = 0.0
    ) -> None:
        """Append the same op to several devices."""
        for device in devices:
            self.compute(device, action, duration_s, host_s)

    def last(self, device: int) -> int:
        """The index of a device's last op; -1 where it has none."""
        return len(self._ops[device]) - 1

    def expect(self, device: int, tensor: int) -> None:
        """Let a device's next op wait for a tensor."""
        self._awaited[device].append(tensor)

    def send(self, device: int, tensor: int) -> None:
        """Let a device hand over a tensor once its last op has ended and all that was announced to it is there."""
        if self._awaited[device]:
            self.compute(device, self._ops[device][-1].action, 0.0)
        self._ops[device][-1].writes.append(tensor)
        self.call(device, self.calls.message_s)

    def receive(self, device: int, tensor: int) -> None:
        """Let a device's next op wait for a message, whose receive the host has to post."""
        self.expect(device, tensor)
        self.call(device, self.calls.message_s)

    def call(self, device: int, seconds: float) -> None:
        """Let a device's host be busy for some seconds once it has dispatched the last op."""
        if self._ops[device]:
            self._ops[device][-1].host_s += seconds

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
        subgroup: Subgroup | None = None,
    ) -> int:
        """Start a collective when the last op of each of its devices has ended; return its result.

        With ``wait`` the next op of each device waits for it; until such an op has ended ``held_bytes`` lie on the
        device. Its calls take the host's seconds of ``dispatched_as``, by default of its operation. ``subgroup`` is of
        the GPUs that its devices stand for, where others than they take part; else one device alone does nothing.
        """
        reads, ready = [], Tensor("ready", stage, number, 0.0)
        alone = len(devices) == 1 and subgroup is None
        host_s = 0.0 if alone else self.calls.collective_s(dispatched_as or operation, calls)
        for device in devices:
            if self._ops[device]:
                last = self._ops[device][-1]
                last.host_s += host_s
                last.writes.append(len(self._tensors))
                reads.append(len(self._tensors))
                self._tensors.append(ready)
        result = self.tensor(operation, stage, number, held_bytes)
        group = tuple(devices) if subgroup else None
        self._collectives.append(
            Collective(operation, tuple(devices), size_bytes, group, tuple(reads), (result,), calls, subgroup)
        )
        if wait:
            for device in devices:
                self.expect(device, result)
        return result

    def build(self, stages: Sequence[Stage], resident: Sequence[tuple[Buffer, ...]]) -> Plan:
        """The plan; tensors still announced to a device must lie there at the end."""
        kept = self.kept + [(t, device) for device, awaited in enumerate(self._awaited) for t in awaited]
        return Plan(
            ops=tuple(tuple(draft.finish() for draft in row) for row in self._ops),
            tensors=tuple(self._tensors),
            placement=self.placement,
            stages=tuple(stages),
            collectives=tuple(self._collectives),
            resident=tuple(resident),
            given=tuple(self.given),
            kept=tuple(dict.fromkeys(kept)),
            posted_after=FrozenMapping(self.posted_after),
            host_ahead_s=self.calls.ahead_s,
        )
