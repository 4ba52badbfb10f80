"""Unified sequence parallelism: Ulysses inside, a ring outside."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from strategies import parameters as fields
from strategies.patching.grid import make_grid
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class USP(GridSampler):
    """Source: Fang and Zhao, USP: A Unified Sequence Parallelism Approach, 2024."""

    name = "usp"
    summary = "sequence parallelism by all-to-all inside and a ring outside"
    awaits = "all_to_all"

    ulysses_degree: int = fields.degree("that exchange tokens for heads around attention", 2)
    ring_degree: int = fields.degree("around which keys and values pass", 2)
    keys_values: str = fields.keys_values()

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """All layers on every device, the tokens divided by both degrees."""
        grid = make_grid(scenario, ring=self.ring_degree, ulysses=self.ulysses_degree)
        return PatchPipeline.of(scenario, grid, kept=self.keys_values == "kept")

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Every pair of degrees above 1."""
        degree = scenario.gpus_per_prediction
        for ulysses in range(2, degree):
            if degree % ulysses == 0:
                yield cls(ulysses, degree // ulysses)
