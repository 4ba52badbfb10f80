"""FSDP: blocks are sharded over some of the GPUs and replicated over others, beside context and tensor parallelism."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from profiles.checks import sum_in_order
from profiles.errors import InfeasibleError
from strategies.parameters import parameter
from strategies.pipelining import data_parallel as fields
from strategies.pipelining.data_parallel import DataParallel, before_s, shares
from strategies.pipelining.footprint import MASTERS, TRAINED_STATE
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import (
    GATHER,
    REDUCE,
    REPLICAS,
    SCATTER,
    SHARDS,
    WAYS,
    Collected,
    Mesh,
    check_divisible,
    shard_sizes,
    teams,
)
from strategies.pipelining.stages import divisors
from strategies.pipelining.teams import span_s
from strategies.pipelining.units import Exchange, packed_s, step_s, unpacked_s
from strategies.plans.actions import BACKWARD, FORWARD
from strategies.scenario import Scenario


@dataclass(frozen=True, slots=True)
class FSDP(DataParallel):
    """Four axes that multiply to the GPUs: replicas, shards, context, tensor; the last are neighbours.

    Each block is gathered before it is used and, with ``reshard``, freed between its forward and its backward; what
    replicas have scattered they sum (hybrid sharding). With no context or tensor degree a ``shard_size`` of 1 is
    ``ddp``. Parameters are sharded over the GPUs of a context too. Frozen components lie whole on every GPU, and run
    there on all of its samples.

    Source: Zhao et al., PyTorch FSDP, 2023; torchtitan (Liang et al., 2024), ``ParallelDims`` and ``apply_fsdp``;
    FastVideo, ``hsdp_shard_dim`` and ``hsdp_replicate_dim``.
    """

    name = "fsdp"
    summary = "FSDP2: blocks sharded over some GPUs or all, with context and tensor parallelism"
    complexity = 1
    awaits = "all_gather"

    shard_size: int | None = parameter(
        None, "GPUs, each with samples of its own, that share a block's parameters (default: all)"
    )
    reshard: str = parameter("true", "free blocks after their forward", choices=("true", "false"))
    context_degree: int = parameter(1, "GPUs among which the tokens of a sample are divided")
    context: str = parameter("ulysses", "how those GPUs attend to one another's tokens", choices=WAYS)
    tensor_degree: int = parameter(1, "GPUs among which matrices, heads and the tokens of norms are divided")
    micro_batches: int = fields.micro_batches()
    backbones: str = fields.backbones()

    @property
    def group_size(self) -> int:
        """GPUs that work on the same samples."""
        return self.context_degree * self.tensor_degree

    def layout(self, scenario: Scenario) -> Layout:
        """The blocks of all backbones on the mesh; whole backbones where every GPU trains alone."""
        return scenario.remember(
            ("mesh", self, scenario.workload.extra_forward), lambda: self._lay_out(scenario)
        )

    def _lay_out(self, scenario: Scenario) -> Layout:
        degrees = self.context_degree, self.tensor_degree, self.context
        mesh = Mesh.of(scenario.workload.num_gpus, self.shard_size, *degrees)
        if mesh.parts * mesh.tensor == 1:
            return self.units(scenario, mesh)
        check_divisible(scenario, mesh)
        layout = self.units(scenario, mesh, (*TRAINED_STATE, MASTERS), 1)
        for subgroup in (mesh.sharding, mesh.replication, mesh.contexts, mesh.tensors):
            if subgroup.size > 1:
                layout.placement.group(0, subgroup=subgroup)
        return layout

    def way(self, layout: Layout) -> Exchange:
        """Blocks are gathered and scattered in sweeps; gradients of whole backbones summed as by ``ddp``."""
        if not layout.divided:
            return Exchange(every=self.micro_batches)
        return Exchange(gathers=True, sweeps=True, reshard=self.reshard == "true")

    @classmethod
    def candidates(cls, scenario: Scenario) -> Iterator[Self]:
        """Every sharding worth a look, and every accumulation of the local batch; teams where that falls short.

        Context and tensor parallelism send more than sharding does: they are for fewer samples than GPUs, and for
        samples that lack memory alone.
        """
        for backbones, share in shares(scenario).items():
            alone = list(cls._alone(scenario, share, backbones))
            yield from alone
            if not cls._suffices(alone, scenario):
                yield from cls._in_teams(scenario, share, backbones)

    @classmethod
    def _alone(cls, scenario: Scenario, gpus: int, backbones: str) -> Iterator[Self]:
        """Points in which each GPU has samples of its own."""
        samples, left = divmod(scenario.workload.batch_size, gpus)
        for size in shard_sizes(scenario, gpus, 1):
            for reshard in ("true", "false") if gpus > 1 else ("true",):
                for count in [1] if left else divisors(samples):
                    yield cls(size, reshard, micro_batches=count, backbones=backbones)

    @classmethod
    def _suffices(cls, alone: Sequence[Self], scenario: Scenario) -> bool:
        """Whether each GPU has several samples, and memory for one of them."""
        workload, memory = scenario.workload, scenario.room_bytes
        if workload.batch_size <= workload.num_gpus:
            return False
        finest = [point for point in alone if point.reshard == "true" and point.shard_size is None][-1]
        try:
            jobs = finest.jobs(scenario)
            least = max(job.strategy.least_memory_bytes(job.scenario) for job in jobs)
        except InfeasibleError:
            return False
        return memory is None or least <= memory

    @classmethod
    def _in_teams(cls, scenario: Scenario, gpus: int, backbones: str) -> Iterator[Self]:
        """Points in which several GPUs share samples, all of them at once or one at a time."""
        for mesh in teams(scenario, gpus):
            samples, left = divmod(scenario.workload.batch_size * mesh.team, gpus)
            for size in () if left else shard_sizes(scenario, gpus, mesh.team):
                for count in sorted({1, samples}):
                    yield cls(size, "true", mesh.context, mesh.way, mesh.tensor, count, backbones)

    def bound(self, scenario: Scenario) -> float:
        """Seconds that no iteration can undercut: in each backbone all compute, or all that shards exchange."""
        layout, reshard = self.layout(scenario), self.reshard == "true"
        if not layout.divided:
            return DataParallel.bound(self, scenario)
        chains = map(layout.chain, range(len(layout.cuts)))
        return sum_in_order(_least_s(layout, units, reshard=reshard) for units in chains)


def _least_s(layout: Layout, units: range, *, reshard: bool) -> float:
    """Seconds of one backbone: in either sweep all compute, or all that shards exchange; nothing runs into the next.

    A forward sweep waits for its first gather, a backward one for its last sum; in teams, whose own exchanges these and
    copies may run beside, that counts as nothing.
    """
    mesh, workload = layout.mesh, layout.scenario.workload
    sizes = [layout.parameters[unit] * workload.recipe.gradient_bytes for unit in units]
    gathers_s, scatters_s, sums_s = (
        [layout.seconds(what, size) for size in of]
        for what, of in (
            (Collected(GATHER, SHARDS, mesh.sharding), [layout.weights_bytes[unit] for unit in units]),
            (Collected(SCATTER, SHARDS, mesh.sharding), sizes),
            (Collected(REDUCE, REPLICAS, mesh.replication), [size / mesh.parts for size in sizes]),
        )
    )
    forward_s, backward_s = (
        sum_in_order(span_s(layout, unit, kind) for unit in units) for kind in (FORWARD, BACKWARD)
    )
    frozen_s = before_s(layout, [layout.stages[units[0]]]) + workload.extra_forward * forward_s
    again = units[:-1] if reshard else ()  # the last unit stays
    if mesh.team == 1:
        forward_s += gathers_s[0] + sum_in_order(unpacked_s(layout, unit) for unit in units)
        backward_s += scatters_s[0] + sums_s[0] + sum_in_order(unpacked_s(layout, unit) for unit in again)
        backward_s += sum_in_order(packed_s(layout, unit, layout.parameters[unit]) for unit in units)
    gathered_s = sum_in_order(gathers_s[:-1])
    scattered_s = sum_in_order([*scatters_s, *gathers_s[: len(again)]])
    swept_s = max(forward_s, gathered_s) + max(backward_s, scattered_s, sum_in_order(sums_s))
    return layout.shape.micro_batches * (frozen_s + swept_s) + step_s(layout, units)
