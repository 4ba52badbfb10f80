"""Hybrid: guidance, sequence, pipeline and tensor parallelism in any product."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Self

from profiles.errors import InfeasibleError
from strategies import parameters as fields
from strategies.patching.grid import guidance_degrees, make_grid
from strategies.patching.patch_pipeline import PatchPipeline, paced_stages
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class Hybrid(GridSampler):
    """Source: Fang et al., xDiT, 2024. GPUs left over draw other images of the batch.

    With sequence parallelism inside a pipeline each patch is divided once more; the ring then passes all keys and
    values around, fresh and stale.
    """

    name = "hybrid"
    summary = "products of guidance, sequence, pipeline and tensor parallelism"
    awaits = "all_to_all"

    guidance_degree: int | None = fields.parameter(
        None, "groups of GPUs, one per noise prediction (default: by --guidance)"
    )
    ulysses_degree: int = fields.degree("that exchange tokens for heads around attention")
    ring_degree: int = fields.degree("around which keys and values pass")
    pipeline_degree: int = fields.degree("in line, each with its stage")
    tensor_degree: int = fields.degree("that hold parts of the same matrices")
    patches: int | None = fields.patches()
    warmup_steps: int = fields.warmup_steps()
    receive: str = fields.receive()
    layers: tuple[int, ...] | None = fields.layers()
    keys_values: str = fields.keys_values()

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """Stages on teams of devices; without a pipeline no step is displaced."""
        piped, patches = self.pipeline_degree > 1, self.patches or self.pipeline_degree
        if not piped and patches > 1:
            raise InfeasibleError(
                f"`patches({patches})` need `pipeline_degree` above 1", "patches without a pipeline"
            )
        grid = make_grid(
            scenario,
            guidance=self.guidance_degree,
            pipeline=self.pipeline_degree,
            ring=self.ring_degree,
            ulysses=self.ulysses_degree,
            tensor=self.tensor_degree,
            data=None,
        )
        return PatchPipeline.of(
            scenario,
            grid,
            warmup_steps=self.warmup_steps if piped else None,
            layers=self.layers,
            patches=patches,
            receive=self.receive,
            kept=self.keys_values == "kept" and not piped and grid.sequence > 1,
        )

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Guidance or whole images divided alone, and all products of at least two degrees.

        A pipeline has as many patches as stages, or two or four times as many.

        The layers of a pipeline are those that pace its stages best.
        """
        workload = scenario.workload
        gpus, warmup = workload.num_gpus, min(2, workload.steps)
        groups = guidance_degrees(workload)
        divisors = [d for d in range(1, gpus + 1) if gpus % d == 0]
        for guidance, ulysses, ring, pipeline, tensor in product(groups, *[divisors] * 4):
            degrees = (guidance, ulysses, ring, pipeline, tensor)
            data = gpus // prod(degrees) if gpus % prod(degrees) == 0 else 0
            if not data or workload.batch_size % data:
                continue
            if guidance == data == 1 and sum(degree > 1 for degree in degrees) < 2:
                continue  # a method with a name of its own
            for patches in sorted({pipeline, 2 * pipeline, 4 * pipeline}) if pipeline > 1 else [1]:
                if patches * ulysses * ring <= (scenario.rows if patches > 1 else scenario.lines):
                    layers = paced_stages(scenario, pipeline, patches) if pipeline > 1 else None
                    yield cls(*degrees, patches, warmup, layers=layers)
