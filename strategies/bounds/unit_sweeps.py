"""Unit sweeps: least seconds of backbones whose units are gathered, used and freed one after the other.

The plan's order is followed on ports that nobody else uses, beside compute that nothing slows down: all micro-batches
are alike, since everything is summed before the next begins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from profiles.checks import sum_in_order
from strategies.pipelining.data_parallel import before_s
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import GATHER, REDUCE, REPLICAS, SCATTER, SHARDS, Collected
from strategies.pipelining.teams import PassSpan, span_of
from strategies.pipelining.units import AHEAD_FORWARD, keeps, packed_s, step_s, unpacked_s
from strategies.plans.actions import BACKWARD, FORWARD
from strategies.plans.wiring import Slots
from strategies.plans.worklist import Step, walk


class _Unit(NamedTuple):
    """Seconds of a unit: of its passes, of each exchange, and of copies; untrained ones are not scattered."""

    trained: bool
    forward: PassSpan
    backward: PassSpan
    gather_s: float
    scatter_s: float
    reduce_s: float
    unpack_s: float
    pack_s: float


COMPUTE: Final = 2
"""The row of compute; SHARDS and REPLICAS are those of exchanges."""


@dataclass(slots=True)
class _Sweeps:
    """The steps of one GPU that sweeps through the units of a backbone.

    Attributes:
        units: in order.
        reshard: whether units are freed after their forward.
        rows: the steps of compute, and of each stream of exchanges.
        num_slots: one of each step, which it fills when it ends.
        last: the step of compute before, which ``trail_s`` seconds of exchanges follow.
        summed: the steps after which all gradients are summed.
        ready: the gather of each unit that lies there; ``packed`` are those still in their buffer.
    """

    units: Sequence[_Unit]
    reshard: bool
    rows: list[list[Step]] = field(default_factory=lambda: [[], [], []])
    num_slots: int = 0
    last: Slots = ()
    trail_s: float = 0.0
    summed: Slots = ()
    ready: dict[int, Slots] = field(default_factory=dict)
    packed: set[int] = field(default_factory=set)

    def _step(self, row: int, waits: Slots, duration_s: float) -> Slots:
        self.rows[row].append((waits, duration_s, ((self.num_slots, 0.0),)))
        self.num_slots += 1
        return (self.num_slots - 1,)

    def begin(self, frozen_s: float) -> None:
        """Run the frozen work of a micro-batch, where there is any."""
        if frozen_s:
            self.compute(PassSpan(0.0, frozen_s, 0.0))

    def compute(self, span: PassSpan, waits: Slots = (), copied_s: float = 0.0) -> None:
        """Run an op once what it waits for is there."""
        if between_s := self.trail_s + span.lead_s:
            self._step(COMPUTE, (), between_s)
        self.last = self._step(COMPUTE, self.summed + waits, copied_s + span.inner_s)
        self.trail_s = span.trail_s

    def forward(self) -> None:
        """Sweep forwards; the first unit is waited for."""
        ends, start = list[Slots](), self.last + self.summed
        for number, unit in enumerate(self.units):
            self._gather(number, ends[-AHEAD_FORWARD - 1] if len(ends) > AHEAD_FORWARD else start)
            self.compute(unit.forward, self.ready[number], copied_s=self._unpack_s(number))
            ends.append(self.last)
            if not keeps(len(self.units) - 1, number, reshard=self.reshard):
                del self.ready[number]

    def backward(self) -> None:
        """Sweep backwards; whatever follows waits until all is summed."""
        scattered, reduced = list[Slots](), Slots()
        self._gather(len(self.units) - 2, self.last)
        for number, unit in reversed([*enumerate(self.units)]):
            waits = self.ready.pop(number) + (scattered[-2] if len(scattered) > 1 else ())
            self.compute(unit.backward, waits, copied_s=self._unpack_s(number) + unit.pack_s)
            if unit.trained:
                scattered.append(self._step(SHARDS, self.last, unit.scatter_s))
                reduced = self._step(REPLICAS, scattered[-1], unit.reduce_s)
            self._gather(number - 2, self.last)
        self.summed = (scattered[-1] if scattered else ()) + reduced

    def _gather(self, number: int, room: Slots) -> None:
        if number >= 0 and number not in self.ready:
            self.ready[number] = self._step(SHARDS, room, self.units[number].gather_s)
            self.packed.add(number)

    def _unpack_s(self, number: int) -> float:
        """Seconds in which what was gathered is copied out of its buffer, once."""
        if number not in self.packed:
            return 0.0
        self.packed.remove(number)
        return self.units[number].unpack_s


def least_s(layout: Layout, *, reshard: bool) -> float:
    """Seconds that no iteration can undercut."""
    return sum_in_order(_least_s(layout, cut, reshard=reshard) for cut in range(len(layout.cuts)))


def _least_s(layout: Layout, cut: int, *, reshard: bool) -> float:
    """Seconds of one backbone, whose second micro-batch and all after it take as long as each other."""
    chain, count, extra = (
        layout.chain(cut),
        layout.shape.micro_batches,
        layout.scenario.workload.extra_forward,
    )
    frozen_s = before_s(layout, [layout.stages[chain[0]]])
    sweeps = _Sweeps([*_units(layout, chain)], reshard)
    for _ in range(count if extra else 0):
        sweeps.begin(frozen_s)
        sweeps.forward()
    done = list[tuple[Slots, float, Slots]]()
    for _ in range(min(count, 2)):
        if not extra:
            sweeps.begin(frozen_s)
        sweeps.forward()
        sweeps.backward()
        done.append((sweeps.last, sweeps.trail_s, sweeps.summed))
    filled_s = [inf] * sweeps.num_slots
    walk(sweeps.rows, filled_s, [0.0] * len(sweeps.rows))
    ends = [
        max(filled_s[last] + trail_s, *(filled_s[of] for of in summed)) for (last,), trail_s, summed in done
    ]
    return ends[-1] + max(0, count - 2) * (ends[-1] - ends[0]) + step_s(layout, chain)


def _units(layout: Layout, chain: range) -> Iterator[_Unit]:
    recipe, mesh = layout.scenario.workload.recipe, layout.mesh
    gather, scatter = (Collected(of, SHARDS, mesh.sharding) for of in (GATHER, SCATTER))
    reduce = Collected(REDUCE, REPLICAS, mesh.replication)
    hidden = mesh.tensor * mesh.share.ring > 1  # copies may run beside exchanges that take longer
    unpacks, packs = (mesh.parts > 1 and not hidden), (mesh.parts * mesh.replicas > 1 and not hidden)
    for unit in chain:
        size = layout.parameters[unit]
        yield _Unit(
            size > 0,
            span_of(layout, unit, FORWARD),
            span_of(layout, unit, BACKWARD),
            layout.seconds(gather, layout.weights_bytes[unit]),
            layout.seconds(scatter, size * recipe.gradient_bytes),
            layout.seconds(reduce, size * recipe.gradient_bytes / mesh.parts),
            unpacked_s(layout, unit) if unpacks else 0.0,
            packed_s(layout, unit, size) if packs and size else 0.0,
        )
