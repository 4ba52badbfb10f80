"""Settings: which sampler runs on how many ranks, and the plan that follows from them.

The model is ``validate.equal_blocks.equal_blocks_transformer`` with the sizes of
``validate.running.model``: the ranks of a real run must send the bytes of the plan.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from profiles.errors import InputError
from profiles.machines.clusters import Cluster, Link
from profiles.machines.devices import Device
from profiles.machines.fabrics import OPERATIONS, Collectives
from strategies.patching.grid import Grid
from strategies.plans.plan import Plan
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make
from strategies.sampling.teams import Attention2D
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Sampler
from validate.equal_blocks import equal_blocks_transformer

LAYERS: Final = 8
ROWS: Final = 16  # of image tokens; there are as many columns
HIDDEN: Final = 64
HEADS: Final = 8
WIDENING: Final = 2
"""Bytes of a number in a run, in single precision, over those in a plan, in half."""

DEVICE: Final = "ideal"  # times of a model on it are those of the run

DEGREES: Final = {"ring": "ring", "tensor": "tensor", "ulysses": "ulysses", "pipefusion": "pipeline"}
"""Samplers that divide all ranks in one way."""
PATCHED: Final = ("distrifusion", "sync-patch")
RUNNABLE: Final = (*PATCHED, *DEGREES, "usp", "hybrid", "attention2d", "allgather-kv")


def emulated_cluster(delay_s: float) -> Cluster:
    """One node whose links carry any number of messages at once, each in the same time."""
    source = f"processes of one machine; every message arrives {delay_s:g} s after it was sent"
    device, link = Device(DEVICE, "a process", None, None), Link("nvswitch", float("inf"), delay_s, 0.0)
    free = Collectives(0.0, tuple((operation, ((1.0, 1.0),)) for operation in OPERATIONS), ((1.0, 1.0),))
    return Cluster("emulated", source, device, 4096, 1, 1.0, link, None, free)


@dataclass(frozen=True)
class Settings:
    """One run of a sampler, with its fields by name."""

    strategy: str
    ranks: int = 2
    steps: int = 8
    parameters: tuple[tuple[str, Any], ...] = ()
    guidance: str = "none"

    def __post_init__(self) -> None:
        if self.ranks < 2:
            raise InputError(f"--ranks is {self.ranks}, must be at least 2")
        shares = self.ranks if self.grid.pipeline == 1 else self.grid.sequence
        if ROWS % shares:
            raise InputError(f"rows({ROWS}) are no multiple of ranks({shares}): shares must be alike")
        if self.warmup_steps < 1:
            why = "a first displaced step has nothing to read"
            raise InputError(f"--warmup-steps is 0, must be at least 1: {why}")

    @cached_property
    def scenario(self) -> SamplingScenario:
        """The small model on links that take no time: a plan's bytes do not depend on them."""
        model = equal_blocks_transformer(LAYERS, rows=ROWS, hidden_size=HIDDEN, heads=HEADS)
        workload = SamplingWorkload(self.ranks, model.height, model.width, self.steps, self.guidance)
        return SamplingScenario(model, emulated_cluster(0.0), workload)

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler."""
        sampler: Sampler = make(self.strategy, dict(self.parameters))
        return sampler

    @cached_property
    def plan(self) -> Plan:
        """The sampler's plan."""
        return self.sampler.plan(self.scenario)

    @cached_property
    def grid(self) -> Grid:
        """The grid of the ranks; patches that gather are the rows of one column."""
        if isinstance(self.sampler, Attention2D):
            sampler = self.sampler
            return Grid(ulysses=sampler.ulysses_degree, rows=sampler.rows, columns=sampler.columns)
        degrees: dict[str, Any] = {DEGREES.get(self.strategy, "rows"): self.ranks}
        if self.strategy in ("usp", "hybrid"):
            names = ("guidance", "pipeline", "ring", "ulysses", "tensor")
            degrees = {name: getattr(self.sampler, f"{name}_degree", 1) or 1 for name in names}
        return Grid(**degrees)

    @property
    def warmup_steps(self) -> int:
        """Synchronous steps with which a run begins: all of them if the sampler has no displaced ones."""
        displaced = self.strategy in PATCHED or self.grid.pipeline > 1
        return int(getattr(self.sampler, "warmup_steps", self.steps)) if displaced else self.steps

    @property
    def num_patches(self) -> int:
        """Patches of a displaced step: of a pipeline as asked for, else one for each rank."""
        if self.strategy in PATCHED:
            return self.ranks
        return int(getattr(self.sampler, "patches", None) or self.grid.pipeline)

    @property
    def batch(self) -> int:
        """Predictions of a step: with the prompt and, where there is guidance, without."""
        return 2 if self.guidance == "batch" else 1

    @property
    def exact(self) -> bool:
        """Whether no pass reads anything of an earlier step."""
        return self.warmup_steps >= self.steps or self.num_patches == 1
