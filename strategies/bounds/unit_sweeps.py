"""Unit sweeps: least seconds of backbones whose units are gathered, used and freed one after the other.

The plan's order is followed on ports that nobody else uses, beside compute that nothing slows down: all micro-batches
are alike, since everything is summed before the next begins. Besides, compute and exchanges that slow it down take
what they take in whatever order they run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from profiles.checks import sum_in_order
from strategies.pipelining.data_parallel import before_s, beside_share
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import GATHER, REDUCE, REPLICAS, SCATTER, SHARDS, Collected
from strategies.pipelining.teams import PassSpan, span_of
from strategies.pipelining.units import AHEAD_FORWARD, keeps, packed_s, step_s, unpacked_s
from strategies.plans.actions import BACKWARD, FORWARD
from strategies.plans.wiring import Slots
from strategies.plans.worklist import Step, walk


@dataclass(frozen=True, slots=True)
class UnitTimes:
    """Seconds of each unit: of its passes, of gathering, scattering and summing it once, and of copies around that.

    Only what is ``trained`` is scattered and summed.
    """

    trained: Sequence[bool]
    forward: Sequence[PassSpan]
    backward: Sequence[PassSpan]
    gather: Sequence[float]
    scatter: Sequence[float]
    reduce: Sequence[float]
    unpack: Sequence[float]
    pack: Sequence[float]


COMPUTE: Final = 2
"""The row of compute; SHARDS and REPLICAS are those of exchanges."""


@dataclass(slots=True)
class _Sweeps:
    """The steps of one GPU that sweeps through the units of a backbone.

    Attributes:
        times: of the units.
        reshard: whether units are freed after their forward.
        beside: share of an exchange's seconds by which it lengthens the run, where compute may run beside it.
        taken_s: seconds that all compute and exchanges take at least, in whatever order.
        rows: the steps of compute, and of each stream of exchanges.
        num_slots: one of each step, which it fills when it ends.
        last: the step of compute before, which ``trail_s`` seconds of exchanges follow.
        summed: the steps after which all gradients are summed.
        ready: the gather of each unit that lies there; ``packed`` are those still in their buffer.
    """

    times: UnitTimes
    reshard: bool
    beside: float
    taken_s: float = 0.0
    rows: list[list[Step]] = field(default_factory=lambda: [[], [], []])
    num_slots: int = 0
    last: Slots = ()
    trail_s: float = 0.0
    summed: Slots = ()
    ready: dict[int, Slots] = field(default_factory=dict)
    packed: set[int] = field(default_factory=set)

    def _step(self, row: int, waits: Slots, duration_s: float) -> Slots:
        self.rows[row].append((waits, duration_s, ((self.num_slots, 0.0),), ()))
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
        self.taken_s += copied_s + span.inner_s
        self.trail_s = span.trail_s

    def forward(self) -> None:
        """Sweep forwards; the first unit is waited for."""
        ends, start, last = list[Slots](), self.last + self.summed, len(self.times.forward) - 1
        self.taken_s += 0.0 if 0 in self.ready else (1 - self.beside) * self.times.gather[0]
        for unit, span in enumerate(self.times.forward):
            before = unit - AHEAD_FORWARD - 1
            self._gather(unit, ends[before] if before >= 0 else start)
            self.compute(span, self.ready[unit], copied_s=self._unpack_s(unit))
            ends.append(self.last)
            if not keeps(last, unit, reshard=self.reshard):
                del self.ready[unit]

    def backward(self) -> None:
        """Sweep backwards; whatever follows waits until all is summed."""
        scattered, reduced, last = list[Slots](), Slots(), len(self.times.backward) - 1
        self._gather(last - 1, self.last)
        for unit in range(last, -1, -1):
            waits = self.ready.pop(unit) + (scattered[-2] if len(scattered) > 1 else ())
            copied_s = self._unpack_s(unit) + self.times.pack[unit]
            self.compute(self.times.backward[unit], waits, copied_s=copied_s)
            if self.times.trained[unit]:
                scattered.append(self._step(SHARDS, self.last, self.times.scatter[unit]))
                reduced = self._step(REPLICAS, scattered[-1], self.times.reduce[unit])
                self.taken_s += (self.beside if unit else 1.0) * self.times.scatter[unit]
            self._gather(unit - 2, self.last)
        self.summed = (scattered[-1] if scattered else ()) + reduced

    def _gather(self, unit: int, room: Slots) -> None:
        if unit >= 0 and unit not in self.ready:
            self.ready[unit] = self._step(SHARDS, room, self.times.gather[unit])
            self.taken_s += self.beside * self.times.gather[unit]
            self.packed.add(unit)

    def _unpack_s(self, unit: int) -> float:
        """Seconds in which what was gathered is copied out of its buffer, once."""
        if unit not in self.packed:
            return 0.0
        self.packed.remove(unit)
        return self.times.unpack[unit]


def least_s(layout: Layout, *, reshard: bool) -> float:
    """Seconds that no iteration can undercut."""
    return sum_in_order(_least_s(layout, cut, reshard=reshard) for cut in range(len(layout.cuts)))


def _least_s(layout: Layout, cut: int, *, reshard: bool) -> float:
    """Seconds of one backbone, whose second micro-batch and all after it take as long as each other."""
    units, count = layout.chain(cut), layout.shape.micro_batches
    frozen_s = before_s(layout, [layout.stages[units[0]]])
    extra = layout.scenario.workload.extra_forward
    sweeps = _Sweeps(_times(layout, units), reshard, beside_share(layout.scenario))
    for _ in range(count if extra else 0):
        sweeps.begin(frozen_s)
        sweeps.forward()
    done, taken = list[tuple[Slots, float, Slots]](), list[float]()
    for _ in range(min(count, 2)):
        if not extra:
            sweeps.begin(frozen_s)
        sweeps.forward()
        sweeps.backward()
        done.append((sweeps.last, sweeps.trail_s, sweeps.summed))
        taken.append(sweeps.taken_s)
    filled_s = [inf] * sweeps.num_slots
    walk(sweeps.rows, filled_s, [0.0] * len(sweeps.rows))
    ends = [
        max(filled_s[last] + trail_s, *(filled_s[of] for of in summed)) for (last,), trail_s, summed in done
    ]
    alone = layout.team == 1  # else passes wait for exchanges inside them, which slow nothing down
    least_s = max(_after_all(of, count) for of in ([ends, taken] if alone else [ends]))
    return least_s + step_s(layout, units)


def _after_all(ends: Sequence[float], count: int) -> float:
    """When all of some micro-batches end, by the ends of the first two."""
    return ends[-1] + ((count - 2) * (ends[-1] - ends[-2]) if count > 2 else 0.0)


def _times(layout: Layout, units: range) -> UnitTimes:
    recipe, mesh = layout.scenario.workload.recipe, layout.mesh
    assert mesh
    gather, scatter = (Collected(of, SHARDS, mesh.sharding) for of in (GATHER, SCATTER))
    reduce = Collected(REDUCE, REPLICAS, mesh.replication)
    sizes = [layout.parameters[unit] for unit in units]
    gradients = [size * recipe.gradient_bytes for size in sizes]
    hidden = mesh.tensor * mesh.share.ring > 1  # copies may run beside exchanges that take longer
    unpacks, packs = (mesh.parts > 1 and not hidden), (mesh.parts * mesh.replicas > 1 and not hidden)
    return UnitTimes(
        [size > 0 for size in sizes],
        [span_of(layout, unit, FORWARD) for unit in units],
        [span_of(layout, unit, BACKWARD) for unit in units],
        [layout.seconds(gather, layout.weights_bytes[unit]) for unit in units],
        [layout.seconds(scatter, size) for size in gradients],
        [layout.seconds(reduce, size / mesh.parts) for size in gradients],
        [unpacked_s(layout, unit) if unpacks else 0.0 for unit in units],
        [
            packed_s(layout, unit, size) if packs and size else 0.0
            for unit, size in zip(units, sizes, strict=True)
        ],
    )
