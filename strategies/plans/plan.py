"""The plan: who does what in which order, and which tensors tie it together.

A plan says nothing about time beyond the duration of each op. Transfers, memory and bubbles are consequences:
``strategies.plans.wiring`` derives the transfers, the engine the times, ``sim.replay.memory`` the bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from profiles.errors import counted
from profiles.mappings import FrozenMapping
from strategies.plans.actions import Action, CollectiveAction, Entry, Listing, Order, number_pieces
from strategies.plans.bubbles import Bubble
from strategies.plans.placement import Placement, Subgroup


@dataclass(frozen=True, slots=True)
class FilledLayer:
    """One layer of a frozen component, or a part of its batch, placed in a bubble or after the pipeline.

    Attributes:
        bubble: None after the pipeline.
        samples: of the group's batch, over all devices.
        positions: that share them.
        shares: samples of each position; None shares them evenly.
    """

    bubble: Bubble | None
    component: int
    layer: int
    samples: int
    positions: tuple[int, ...]
    duration_s: float
    shares: tuple[int, ...] | None = None


class Tensor(NamedTuple):
    """Bytes that one device writes and others may read; ``stage`` and ``number`` (micro-batch) name it."""

    role: str
    stage: int
    number: int
    size_bytes: float

    def __str__(self) -> str:
        return f"{self.role} {self.stage}.{self.number}"


class Op(NamedTuple):
    """One piece of work on a device's compute stream.

    Args:
        duration_s: seconds, when nothing runs beside it.
        reads: tensors that must be there before it starts.
        writes: tensors that are there when it ends.
        early: (offset_s, tensor) pairs, ascending: tensors that are there that long after its start.
        host_s: seconds in which the host dispatches it, and the calls after it; it ends no sooner than that.
    """

    action: Action
    duration_s: float
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    early: tuple[tuple[float, int], ...] = ()
    host_s: float = 0.0


@dataclass(slots=True)
class Draft:
    """An op that is still being written; its reads and writes grow."""

    action: Action
    duration_s: float
    reads: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)
    early: list[tuple[float, int]] = field(default_factory=list)
    host_s: float = 0.0

    def finish(self) -> Op:
        """Return the op."""
        reads, writes, early = tuple(self.reads), tuple(self.writes), tuple(self.early)
        return Op(self.action, self.duration_s, reads, writes, early, self.host_s)


class Collective(NamedTuple):
    """A collective of several devices; each device runs those of one stream in the order of the plan.

    Args:
        operation: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``send_recv`` (one round of a
            ring).
        devices: the simulated devices that take part; the replicas that were folded away are in the group.
        size_bytes: bytes of the whole operation.
        group: the positions whose replicas form the group, or None: the simulated devices themselves.
        reads: tensors that must be there before it starts: written by ops, or by collectives before it that have a
            device in common with it.
        writes: tensors that are there, on all its devices, when it ends.
        calls: calls that it stands for, one after the other, where nothing else happens between them.
        subgroup: the replicas of ``group`` that take part together, where not all of them do.
        stream: number of its stream: collectives of several streams run beside one another.
    """

    operation: str
    devices: tuple[int, ...]
    size_bytes: float
    group: tuple[int, ...] | None
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    calls: int = 1
    subgroup: Subgroup | None = None
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """A contiguous run of layers of one component, and what one micro-batch of it takes on one device."""

    component: int
    first_layer: int
    last_layer: int
    position: int
    forward_s: float
    backward_s: float
    parameters: int

    @property
    def layers(self) -> tuple[int, int, int]:
        """Its component, and its first and last layer."""
        return self.component, self.first_layer, self.last_layer


class Buffer(NamedTuple):
    """Bytes that lie on a device throughout the iteration."""

    name: str
    size_bytes: float


@dataclass(frozen=True, slots=True)
class Filling:
    """Frozen layers in execution order, and the op starts of the plan they are put into.

    Attributes:
        starts: for each position the start of each op of the unfilled plan, in seconds.
        balanced: layers that no bubble took are spread so that all positions end together.
    """

    layers: Sequence[FilledLayer]
    starts: Sequence[Sequence[float]] = ()
    balanced: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """The ops of every device in one iteration, the tensors between them, and the collectives.

    Args:
        ops: for each device its compute stream.
        tensors: all tensors; ops name them by index.
        placement: which GPUs the simulated devices stand for.
        stages: the stages, in order.
        collectives: in the order in which each device's communication stream runs them.
        resident: for each device the bytes that stay.
        given: (tensor, device): there when the iteration starts.
        kept: (tensor, device): must lie there when the iteration ends.
        posted_after: (tensor, device) to the index of the op on that device after which its receive is posted.
        blocking: between two ops of the pipeline a device waits until all it sends and receives there has arrived.
        cross_iteration: the frozen work belongs to the next iteration.
        prologue_s: seconds of frozen work that precede only the first iteration.
        filling: the frozen work of the plan.
        host_ahead_s: seconds of dispatching by which the host may be ahead of the GPU.
    """

    ops: tuple[tuple[Op, ...], ...]
    tensors: Sequence[Tensor]
    placement: Placement
    stages: tuple[Stage, ...] = ()
    collectives: tuple[Collective, ...] = ()
    resident: tuple[tuple[Buffer, ...], ...] = ()
    given: tuple[tuple[int, int], ...] = ()
    kept: tuple[tuple[int, int], ...] = ()
    posted_after: FrozenMapping[tuple[int, int], int] = field(default_factory=FrozenMapping)
    blocking: bool = False
    cross_iteration: bool = False
    prologue_s: float = 0.0
    filling: Filling | None = None
    host_ahead_s: float = 0.0

    def __repr__(self) -> str:
        ops, collectives = sum(map(len, self.ops)), counted(len(self.collectives), "collective")
        return f"<Plan of {counted(self.num_devices, 'device')}: {counted(ops, 'op')}, {collectives}>"

    @property
    def num_devices(self) -> int:
        """Simulated devices."""
        return len(self.ops)

    @property
    def roles(self) -> Sequence[str]:
        """The role of each tensor."""
        return [tensor.role for tensor in self.tensors]

    @property
    def sizes_bytes(self) -> Sequence[float]:
        """Bytes of each tensor."""
        return [tensor.size_bytes for tensor in self.tensors]

    @property
    def order(self) -> Order:
        """The actions of each device's compute stream."""
        return tuple(tuple(op.action for op in ops) for ops in self.ops)

    def rows(self, first_collective: int = 0) -> Listing:
        """The order of each device with its passes in numbered pieces, and its collectives where it starts them.

        A collective follows the last op of the device that writes what it reads, and the collectives before it.

        Args:
            first_collective: number of the first collective; a run of several plans counts on.
        """
        rows: list[list[Entry]] = [[] for _ in self.ops]
        numbered = [number_pieces([op.action for op in ops]) for ops in self.ops]
        done = [0] * len(self.ops)
        writers = {
            (tensor, device): index + 1
            for device, ops in enumerate(self.ops)
            for index, op in enumerate(ops)
            for tensor in (*op.writes, *(early for _, early in op.early))
        }
        for number, collective in enumerate(self.collectives, first_collective):
            for device in collective.devices:
                reached = max([done[device], *(writers.get((t, device), 0) for t in collective.reads)])
                rows[device] += numbered[device][done[device] : reached]
                rows[device].append(CollectiveAction(collective.operation, number))
                done[device] = reached
        return tuple(tuple(row + rest[end:]) for row, rest, end in zip(rows, numbered, done, strict=True))
