"""Answers: what a sweep asks of a point, of training or of sampling, and what it hears."""

from dataclasses import dataclass

from profiles.errors import InfeasibleError
from sim.experiment import bound, check_held_memory, least_memory_bytes, run_training_within
from sim.points import AnyScenario, Asked, Result
from sim.sampling import run_sampling_within
from strategies.sampler import MemoryBoundedSampler, Sampler
from strategies.sampling import SamplingScenario
from strategies.strategy import Strategy


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a point cannot undercut: seconds, and bytes of its fullest device."""

    bound_s: float
    least_memory_bytes: float


Outcome = Result | InfeasibleError | float
"""A result, why there is none, or seconds that the point cannot undercut."""


def bounds_of(asked: Asked, scenario: AnyScenario) -> Bounds | InfeasibleError:
    """Return what a point cannot undercut, or why it does not exist."""
    try:
        if isinstance(scenario, SamplingScenario):
            return _sampling_bounds(asked, scenario)
        assert isinstance(asked.strategy, Strategy)
        return Bounds(bound(asked.strategy, scenario), least_memory_bytes(asked.strategy, scenario))
    except InfeasibleError as error:
        return error


def _sampling_bounds(asked: Asked, scenario: SamplingScenario) -> Bounds:
    sampler, there = asked.strategy, scenario.on(asked.num_gpus)
    assert isinstance(sampler, Sampler)
    least = sampler.least_memory_bytes(there) if isinstance(sampler, MemoryBoundedSampler) else 0.0
    return Bounds(sampler.bound(there), least)


def outcome_of(asked: Asked, scenario: AnyScenario, limit_s: float) -> Outcome:
    """Return what comes out of a point; only seconds where these are at least the limit."""
    try:
        if isinstance(scenario, SamplingScenario):
            assert isinstance(asked.strategy, Sampler)
            return run_sampling_within(asked.strategy, scenario.on(asked.num_gpus), limit_s)
        assert isinstance(asked.strategy, Strategy)
        check_held_memory(asked.strategy, scenario)
        return run_training_within(asked.strategy, scenario, limit_s)
    except InfeasibleError as error:
        return error
