"""ParaDiGMS: a window of denoising steps is evaluated at once, and slides on over those that have converged.

In each Picard iteration every device predicts the noise of its share of the window, the predictions are gathered, and
every device sums them up from the window's start. The first step of a window is exact, so at least one converges.

The number of iterations of a run depends on the image, not on costs. It is an estimate from published counts, as
``Window.num_steps`` says; no prediction of this sampler is better than that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil, log
from typing import Final, NamedTuple, Self

import numpy as np

from profiles.errors import InfeasibleError
from strategies import parameters as fields
from strategies.patching.builder import SamplingBuilder
from strategies.patching.footprint import waits_s
from strategies.patching.grid import Grid
from strategies.patching.layout import GridLayout
from strategies.plans.actions import PatchAction
from strategies.plans.plan import Buffer, Plan
from strategies.plans.workloads import SEQUENTIAL
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Phase
from strategies.templates.grid_sampler import GridSampler

TOLERANCE: Final = 0.1
"""The only tolerance with counts. Source: the default of the authors' pipeline in diffusers; the tables do not print
theirs, so that they hold for it is assumed."""


class Count(NamedTuple):
    """Counts of a published run: its denoising steps, the evaluations of a step in all, and those of an iteration."""

    steps: int
    evaluations: float
    window: float


COUNTS: Final = (
    Count(25, 721 / 6.763, 8),
    Count(50, 657 / 6.763, 8),
    Count(200, (425 + 411) / 2, (425 + 411) / 2 / 16),
    Count(1000, 2040, 2040 / 44),
)
"""Source: SDXL, total MACs in T over those of a step, eight at once (DistriFusion, Table 1 and sections 3 and 5);
Stable Diffusion 2, evaluations and iterations (released results of ParaDiGMS; of 200 steps, the mean of its two)."""


@dataclass(frozen=True, eq=False)
class Window(GridLayout):
    """A window of denoising steps, divided over all devices; each holds all layers.

    Attributes:
        window: steps that are evaluated at once.
    """

    window: int = 1

    @cached_property
    def num_steps(self) -> int:
        """The Picard iterations of a run: an estimate.

        Evaluations per denoising step are those of published runs, linear in the logarithm of the steps between
        them and constant beyond, whatever the model. A smaller window than theirs needs as many evaluations; a
        larger one saves no iterations, for no count says that it would. One that converges step by step takes as
        many as there are steps.
        """
        steps = self.scenario.workload.steps
        evaluations = round(steps * _published(steps, [count.evaluations / count.steps for count in COUNTS]))
        return min(steps, ceil(evaluations / min(self.window, _published_window(steps))))

    @property
    def approximation(self) -> str:
        """Why an image is not the one that a single GPU draws: steps converge within a tolerance."""
        return f"steps count as converged within {TOLERANCE:g} of their noise"

    def plan(self, steps: Sequence[int]) -> Plan:
        """The plan of successive iterations; its actions count them, not denoising steps."""
        builder, gpus, seconds = SamplingBuilder(self.placement), self.grid.positions, self.stage_s()
        size = self.scenario.output_bytes * self.pass_samples(steps) * gpus
        for iteration in steps:
            for device in range(gpus):
                builder.compute(device, PatchAction(0, device, iteration), seconds)
            builder.collective("all_gather", range(gpus), size, held_bytes=size)
        return builder.build(self.stages(), self.resident(steps))

    def phases(self, *, excerpt: bool = False) -> tuple[Phase, ...]:
        """The phase of a run: its iterations are alike."""
        return (Phase("iteration", self.plan([self.num_steps - 1]), self.num_steps),)

    def pass_samples(self, steps: Sequence[int]) -> int:
        """Samples of one pass on the device that has most of the window."""
        return ceil(self.window / self.grid.positions) * self.batch

    def stage_s(self, stage: int = 0) -> float:
        """Seconds that a device computes in one iteration."""
        samples = self.pass_samples(range(self.num_steps))
        seconds = self.scenario.costs.forward_s(self.scenario.backbone_index, samples)
        return float((seconds + waits_s(self.scenario, seconds)).sum())

    def passing_on(self, stage: int, steps: Sequence[int]) -> tuple[Buffer, ...]:
        """The latents of the window."""
        size = self.window * self.scenario.workload.batch_size * self.scenario.output_bytes
        return (Buffer("latents of the window", size),)


@dataclass(frozen=True, slots=True)
class ParaDiGMS(GridSampler):
    """Source: Shih et al., Parallel Sampling of Diffusion Models, NeurIPS 2023, Algorithm 1.

    The released code gathers the predictions on one device and scatters the window from there.
    """

    name = "paradigms"
    summary = "several steps at once, by Picard iteration; how many iterations is an estimate"

    window: int | None = fields.parameter(
        None, "steps that are evaluated at once (default: as in published runs, at least one a GPU)"
    )
    tolerance: float = fields.parameter(
        TOLERANCE, "of a converged step, over the noise; counts exist for it only"
    )

    def layout(self, scenario: SamplingScenario) -> Window:
        """All layers on every device, and its share of the window."""
        window, layers = self._window(scenario), len(scenario.backbone.layers)
        return Window(scenario, Grid(ring=scenario.workload.num_gpus), (0, layers), window=window)

    def iterations(self, scenario: SamplingScenario) -> int:
        """The Picard iterations of a run: an estimate.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        return self.layout(scenario).num_steps

    def _window(self, scenario: SamplingScenario) -> int:
        """The steps of a window."""
        workload = scenario.workload
        gpus, steps = workload.num_gpus, workload.steps
        if self.tolerance != TOLERANCE:
            raise InfeasibleError(
                f"`tolerance({self.tolerance:g})` is not {TOLERANCE:g}, the only one with published iterations",
                "no published iterations",
            )
        if workload.computed_steps < steps:
            raise InfeasibleError(
                f"`cache_steps({workload.cache_steps:g})`: a window's steps are evaluated at once, none is skipped",
                "steps cannot be cached so",
            )
        if workload.guidance in (SEQUENTIAL, "parallel"):
            raise InfeasibleError(
                f"divides the steps over all GPUs, but `guidance` {workload.guidance} divides each step's predictions",
                "guidance cannot be divided so",
            )
        if gpus > steps:
            raise InfeasibleError(f"`gpus({gpus})` exceed `steps({steps})`", "more GPUs than steps")
        window = self.window or min(steps, max(gpus, _published_window(steps)))
        if window < gpus:
            raise InfeasibleError(
                f"`window({window})` is below `gpus({gpus})`", "the window leaves GPUs without a step"
            )
        if window > steps:
            raise InfeasibleError(
                f"`window({window})` exceeds `steps({steps})`", "the window is longer than the run"
            )
        return window

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """The default window, and smaller ones of one, two and four steps a GPU."""
        default, gpus = cls()._window(scenario), scenario.workload.num_gpus
        for window in sorted({default, *(gpus * each for each in (1, 2, 4) if gpus * each <= default)}):
            yield cls(window)


def _published_window(steps: int) -> int:
    """The window of published runs, for a number of steps."""
    return ceil(_published(steps, [count.window for count in COUNTS]))


def _published(steps: int, values: Sequence[float]) -> float:
    """A value of the published runs, linear in the logarithm of the steps, constant beyond."""
    return float(np.interp(log(steps), [log(count.steps) for count in COUNTS], values))
