"""FSDP: blocks are sharded over some of the GPUs and replicated over others, beside context and tensor parallelism."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from profiles.errors import InfeasibleError
from strategies.parameters import parameter
from strategies.pipelining import data_parallel as fields
from strategies.pipelining.data_parallel import DataParallel, shares
from strategies.pipelining.footprint import MASTERS, TRAINED_STATE
from strategies.pipelining.layout import Layout
from strategies.pipelining.mesh import WAYS, Mesh, check_divisible, shard_sizes, teams
from strategies.pipelining.stages import divisors
from strategies.pipelining.units import Exchange
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
        for backbones, gpus in shares(scenario).items():
            samples, left = divmod(scenario.workload.batch_size, gpus)
            alone = [
                cls(size, reshard, micro_batches=count, backbones=backbones)
                for size in shard_sizes(scenario, gpus, 1)
                for reshard in (("true", "false") if gpus > 1 else ("true",))
                for count in ([1] if left else divisors(samples))
            ]
            yield from alone
            for mesh in () if cls._suffices(alone, scenario) else teams(scenario, gpus):
                samples, left = divmod(scenario.workload.batch_size * mesh.team, gpus)
                for size in () if left else shard_sizes(scenario, gpus, mesh.team):
                    for count in sorted({1, samples}):  # all samples of a team at once, or one at a time
                        yield cls(size, "true", mesh.context, mesh.way, mesh.tensor, count, backbones)

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
