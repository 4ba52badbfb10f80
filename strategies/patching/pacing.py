"""Pacing: how many layers each stage of a pipeline of patches gets."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise
from math import ceil, inf

from profiles.architectures.shares import Share
from strategies.sampling_scenario import SamplingScenario


def stage_layers(num_layers: int, degree: int) -> tuple[int, ...]:
    """The layers of each stage: as many as fit evenly, rounded up; the last stages get the rest, or none."""
    size = ceil(num_layers / degree)
    return tuple(max(0, min(size, num_layers - stage * size)) for stage in range(degree))


def paced_stages(scenario: SamplingScenario, degree: int, patches: int) -> tuple[int, ...] | None:
    """The layers that pace the stages best on one of some patches; None where there are too few layers."""

    def make() -> tuple[int, ...] | None:
        share, predictions = Share(1 / patches), scenario.workload.predictions
        seconds = scenario.costs.forward_s(scenario.backbone_index, predictions, share)
        return paced_layers(seconds.tolist(), degree) if degree <= len(seconds) else None

    return scenario.remember(("paced", degree, patches), make)


def paced_layers(seconds: Sequence[float], degree: int) -> tuple[int, ...]:
    """The layers of each stage such that the longest stage is as short as can be, and no stage is empty.

    Args:
        seconds: of each layer; at least as many as stages.
        degree: stages.
    """
    assert degree <= len(seconds), f"{degree} stages of {len(seconds)} layers"
    sums = [0.0, *accumulate(seconds)]
    lengths = sorted({end - start for start, end in combinations(sums, 2)})
    fitting = bisect_left(lengths, True, key=lambda longest: _stages_within(seconds, longest) <= degree)
    longest, layers, taken = lengths[fitting], [], 0
    for left in range(degree - 1, -1, -1):
        count = 1
        while taken + count < len(seconds) - left and sums[taken + count + 1] - sums[taken] <= longest:
            count += 1
        layers.append(count)
        taken += count
    return tuple(layers)


def _stages_within(seconds: Sequence[float], longest: float) -> float:
    """The fewest stages no longer than that which hold all layers; infinite where one layer is longer."""
    stages, start = 1, 0.0
    for before, after in pairwise([0.0, *accumulate(seconds)]):
        if after - before > longest:  # rounded as the lengths are that it is compared with
            return inf
        if after - start > longest:
            stages, start = stages + 1, before
    return stages
