"""ParaDiGMS: a window of denoising steps is evaluated at once, and slides on over those that have converged.

In each Picard iteration every device predicts the noise of its share of the window, the predictions are gathered, and
every device sums them up from the window's start. The first step of a window is exact, so at least one converges.

How many iterations a run takes depends on what is drawn, not on costs. It is an estimate from published counts, as
``ParaDiGMS.iterations`` says; no prediction of this sampler is better than that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import ClassVar, Final, NamedTuple, Self

import numpy as np

from profiles.errors import InfeasibleError
from strategies import parameters as fields
from strategies.patching.builder import SamplingBuilder
from strategies.patching.footprint import parameters, weights, working
from strategies.plans.actions import PatchAction
from strategies.plans.placement import Placement
from strategies.plans.plan import Buffer, Plan, Stage
from strategies.scenario import SamplingScenario
from strategies.strategy import Phase

TOLERANCE: Final = 0.1
"""The only tolerance with counts. Source: the default of the authors' pipeline in diffusers; the tables do not print
theirs, so that they hold for it is assumed."""


class Count(NamedTuple):
    """What a published run took: its denoising steps, the evaluations of a step in all, and those of an iteration."""

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


@dataclass(frozen=True, slots=True)
class ParaDiGMS:
    """Source: Shih et al., Parallel Sampling of Diffusion Models, NeurIPS 2023, Algorithm 1.

    The released code gathers the predictions on one device and scatters the window from there.
    """

    name: ClassVar[str] = "paradigms"
    task: ClassVar[str] = "sample"
    summary: ClassVar[str] = "several steps at once, by Picard iteration; how many iterations is an estimate"

    window: int | None = fields.parameter(
        None, "steps that are evaluated at once (default: as in published runs, at least one a GPU)"
    )
    tolerance: float = fields.parameter(
        TOLERANCE, "of a converged step, over the noise; counts exist for it only"
    )

    def plan(self, scenario: SamplingScenario) -> Plan:
        """The plan of a run; its actions count iterations, not denoising steps."""
        return self._iterate(scenario, range(self.iterations(scenario)))

    def phases(self, scenario: SamplingScenario) -> tuple[Phase, ...]:
        """The phase of a run: its iterations are alike."""
        iterations = self.iterations(scenario)
        return (Phase("iteration", self._iterate(scenario, [iterations - 1]), iterations),)

    def iterations(self, scenario: SamplingScenario) -> int:
        """The Picard iterations of a run: an estimate.

        Evaluations per denoising step are those of published runs, linear in the logarithm of the steps between
        them and constant beyond, whatever the model. A smaller window than theirs needs as many evaluations; a
        larger one saves no iterations, for no count says that it would. One that converges step by step takes as
        many as there are steps.

        Raises:
            InfeasibleError: this point does not exist for the scenario.
        """
        steps, window = scenario.workload.steps, self._window(scenario)
        evaluations = round(steps * _published(steps, [count.evaluations / count.steps for count in COUNTS]))
        return min(steps, ceil(evaluations / min(window, _published_window(steps))))

    def _window(self, scenario: SamplingScenario) -> int:
        """The steps of a window.

        Raises:
            InfeasibleError: they, or the predictions, cannot be divided over the GPUs.
        """
        workload = scenario.workload
        gpus, steps = workload.num_gpus, workload.steps
        if self.tolerance != TOLERANCE:
            raise InfeasibleError(
                f"tolerance({self.tolerance:g}) is not {TOLERANCE:g}, the only one with published iterations",
                "no published iterations",
            )
        if workload.guidance == "parallel":
            raise InfeasibleError(
                "divides the steps over all GPUs, but --guidance parallel divides each step's predictions",
                "guidance cannot be divided so",
            )
        if gpus > steps:
            raise InfeasibleError(f"gpus({gpus}) exceed steps({steps})", "more GPUs than steps")
        window = self.window or min(steps, max(gpus, _published_window(steps)))
        if window < gpus:
            raise InfeasibleError(
                f"window({window}) is below gpus({gpus})", "the window leaves GPUs without a step"
            )
        if window > steps:
            raise InfeasibleError(
                f"window({window}) exceeds steps({steps})", "the window is longer than the run"
            )
        return window

    def _share(self, scenario: SamplingScenario) -> int:
        """The samples of one pass on the device that has most of the window."""
        workload = scenario.workload
        steps = ceil(self._window(scenario) / workload.num_gpus)
        return steps * workload.batch_size * workload.predictions

    def _iteration_s(self, scenario: SamplingScenario) -> float:
        """The seconds that a device computes in one iteration."""
        return float(scenario.costs.forward_s(scenario.backbone_index, self._share(scenario)).sum())

    def _iterate(self, scenario: SamplingScenario, iterations: Sequence[int]) -> Plan:
        """The plan of successive iterations."""
        gpus, seconds = scenario.workload.num_gpus, self._iteration_s(scenario)
        builder = SamplingBuilder(Placement(scenario.cluster, gpus, gpus, gpus))
        size = scenario.output_bytes * self._share(scenario) * gpus
        for iteration in iterations:
            for device in range(gpus):
                builder.compute(device, PatchAction(0, device, iteration), seconds)
            builder.collective("all_gather", range(gpus), size, held_bytes=size)
        return builder.build([self._stage(scenario, seconds)], [self._resident(scenario)] * gpus)

    def _stage(self, scenario: SamplingScenario, seconds: float) -> Stage:
        """The one stage, which every device holds; its time is that of the device's share of a window."""
        layers = len(scenario.backbone.layers)
        of = parameters(scenario, 0, layers)
        return Stage(scenario.backbone_index, 0, layers - 1, 0, seconds, 0.0, of)

    def _resident(self, scenario: SamplingScenario) -> tuple[Buffer, ...]:
        """Bytes that stay on each device, the latents of the window included."""
        layers = len(scenario.backbone.layers)
        latents = self._window(scenario) * scenario.workload.batch_size * scenario.output_bytes
        return (
            *weights(scenario, parameters(scenario, 0, layers), scenario.workload.num_gpus),
            working(scenario, 0, layers, self._share(scenario)),
            Buffer("latents of the window", latents),
        )

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """The default window, and smaller ones of one, two and four steps a GPU."""
        default, gpus = cls()._window(scenario), scenario.workload.num_gpus
        for window in sorted({default, *(gpus * each for each in (1, 2, 4) if gpus * each <= default)}):
            yield cls(window)

    def bound(self, scenario: SamplingScenario) -> float:
        """Seconds that no run can undercut."""
        return self.iterations(scenario) * self._iteration_s(scenario)

    def least_memory_bytes(self, scenario: SamplingScenario) -> float:
        """Bytes that no device can do without: what stays on each."""
        return sum(buffer.size_bytes for buffer in self._resident(scenario))


def _published_window(steps: int) -> int:
    """The window of published runs, for a number of steps."""
    return ceil(_published(steps, [count.window for count in COUNTS]))


def _published(steps: int, values: Sequence[float]) -> float:
    """A value of the published runs, linear in the logarithm of the steps, constant beyond."""
    return float(np.interp(log(steps), [log(count.steps) for count in COUNTS], values))
