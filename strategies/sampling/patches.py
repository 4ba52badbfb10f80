"""Samplers in which every GPU draws its rows: with stale rows of the others, with fresh ones, or without."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

from profiles.errors import InfeasibleError
from strategies import parameters as fields
from strategies.patching.patch_parallel import Kind, Patches
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler

BUNDLED: Final = 60
"""Source: its released code, for SDXL; the port to transformers in PipeFusion's launches every gather alone."""


@dataclass(frozen=True, slots=True)
class DistriFusion(GridSampler):
    """Source: Li et al., DistriFusion, CVPR 2024, section 4, and its released code.

    ``warmup_steps`` are the synchronous steps really run: one more than that code's setting.
    """

    name = "distrifusion"
    summary = "displaced patches with asynchronous gathers"
    awaits = "all_gather"

    warmup_steps: int = fields.warmup_steps()
    gather_layers: int = fields.parameter(BUNDLED, "exchanging layers whose gathers are launched together")

    def layout(self, scenario: SamplingScenario) -> Patches:
        """Rows of the image on each device; as many devices as a power of two, as the released code demands."""
        gpus = scenario.workload.num_gpus
        if gpus & (gpus - 1):
            raise InfeasibleError(f"`gpus({gpus})` is not a power of two", "needs a power of two of GPUs")
        return Patches.of(
            scenario, Kind.DISPLACED, warmup_steps=self.warmup_steps, gather_layers=self.gather_layers
        )

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Gathers in bundles, as on U-Nets, and one by one; at most as many warm-up steps as the run has."""
        for gather_layers in (BUNDLED, 1):
            yield cls(min(2, scenario.workload.steps), gather_layers)


@dataclass(frozen=True, slots=True)
class SyncPatch(GridSampler):
    """Source: DistriFusion (Li et al., 2024), Table 2, synchronous patch parallelism."""

    name = "sync-patch"
    summary = "patch parallelism that gathers fresh activations"
    awaits = "all_gather"

    def layout(self, scenario: SamplingScenario) -> Patches:
        """Rows of the image on each device, which see those of the others in the same step."""
        return Patches.of(scenario, Kind.SYNCHRONOUS)


@dataclass(frozen=True, slots=True)
class NaivePatch(GridSampler):
    """Source: DistriFusion (Li et al., 2024), section 4, naive baseline."""

    name = "naive-patch"
    summary = "independent patches, without exchange"
    seamless = False

    def layout(self, scenario: SamplingScenario) -> Patches:
        """Rows of the image on each device, which see only themselves."""
        return Patches.of(scenario, Kind.ALONE)
