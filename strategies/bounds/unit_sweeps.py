"""Unit sweeps: least seconds of backbones whose units are gathered, used and freed one after the other.

The plan's order is followed on ports that nobody else uses, beside compute that nothing slows down: all micro-batches
are alike, since everything is summed before the next begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from strategies.pipelining.data_parallel import before_s
from strategies.pipelining.mesh import MeshLayout
from strategies.pipelining.sharding import GATHER, SCATTER
from strategies.pipelining.units import AHEAD_FORWARD, REDUCE, keeps, step_s


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each unit: of its passes, and of gathering, scattering and summing it once."""

    forward: Sequence[float]
    backward: Sequence[float]
    gather: Sequence[float]
    scatter: Sequence[float]
    reduce: Sequence[float]


@dataclass(slots=True)
class Clocks:
    """The clocks of one GPU while it sweeps through the units of a backbone.

    Attributes:
        times: of the units.
        reshard: whether units are freed after their forward.
        now: when its last op ended; ``shards`` and ``replicas``: when their streams are free.
        ready: when the weights of each unit that is gathered are there.
    """

    times: Times
    reshard: bool
    now: float = 0.0
    shards: float = 0.0
    replicas: float = 0.0
    ready: dict[int, float] = field(default_factory=dict)

    def forward(self) -> None:
        """Sweep forwards."""
        ends, start, count = list[float](), self.now, len(self.times.forward)
        for unit, seconds in enumerate(self.times.forward):
            before = unit - AHEAD_FORWARD - 1
            self._gather(unit, ends[before] if before >= 0 else start)
            self.now = max(self.now, self.ready[unit]) + seconds
            ends.append(self.now)
            if not keeps(count - 1, unit, reshard=self.reshard):
                del self.ready[unit]

    def backward(self) -> None:
        """Sweep backwards, and wait until all is summed."""
        scattered, last = list[float](), len(self.times.backward) - 1
        self._gather(last - 1, self.now)
        for unit in range(last, -1, -1):
            waited = scattered[-2] if len(scattered) > 1 else 0.0
            self.now = max(self.now, self.ready.pop(unit), waited) + self.times.backward[unit]
            self.shards = max(self.shards, self.now) + self.times.scatter[unit]
            scattered.append(self.shards)
            self.replicas = max(self.replicas, self.shards) + self.times.reduce[unit]
            self._gather(unit - 2, self.now)
        self.now = max(self.now, self.shards, self.replicas)

    def _gather(self, unit: int, room: float) -> None:
        if unit >= 0 and unit not in self.ready:
            self.ready[unit] = self.shards = max(self.shards, room) + self.times.gather[unit]


def least_s(layout: MeshLayout, *, reshard: bool) -> float:
    """Seconds that no iteration can undercut."""
    return sum(_least_s(layout, cut, reshard=reshard) for cut in range(len(layout.cuts)))


def _least_s(layout: MeshLayout, cut: int, *, reshard: bool) -> float:
    """Seconds of one backbone, whose second micro-batch and all after it take as long as each other."""
    units, count = layout.chain(cut), layout.shape.micro_batches
    frozen_s = before_s(layout, [layout.stages[units[0]]])
    extra = layout.scenario.workload.extra_forward
    clocks, ends = Clocks(_times(layout, units), reshard), [0.0]
    for _ in range(count if extra else 0):
        clocks.now += frozen_s
        clocks.forward()
    ends = [clocks.now]
    for _ in range(min(count, 2)):
        clocks.now += 0.0 if extra else frozen_s
        clocks.forward()
        clocks.backward()
        ends.append(clocks.now)
    again_s = (count - 2) * (ends[-1] - ends[-2]) if count > 2 else 0.0
    return ends[-1] + again_s + sum(step_s(layout, unit) for unit in units)


def _times(layout: MeshLayout, units: range) -> Times:
    recipe, mesh = layout.scenario.workload.recipe, layout.mesh
    stages, sizes = [layout.stages[u] for u in units], [layout.parameters(u) for u in units]
    gradients = [size * recipe.gradient_bytes for size in sizes]
    return Times(
        [stage.forward_s for stage in stages],
        [stage.backward_s for stage in stages],
        [layout.seconds(GATHER, mesh.sharding, size * recipe.weight_bytes) for size in sizes],
        [layout.seconds(SCATTER, mesh.sharding, size) for size in gradients],
        [layout.seconds(REDUCE, mesh.replication, size / mesh.parts) for size in gradients],
    )
