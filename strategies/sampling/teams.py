"""Samplers in which every GPU draws the whole image: alone, by its part of each matrix, or of the tokens."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from strategies import parameters as fields
from strategies.patching.grid import divides_heads
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import TeamSampler


@dataclass(frozen=True, slots=True)
class Single(TeamSampler):
    """No parallelism."""

    name = "single"
    summary = "one GPU"
    complexity = 0
    baseline = True
    gpu_counts = (1,)

    def degrees(self, scenario: SamplingScenario) -> Mapping[str, int]:
        """None above 1."""
        return {"guidance": 1}


@dataclass(frozen=True, slots=True)
class TensorParallel(TeamSampler):
    """Source: Shoeybi et al., Megatron-LM, 2019; on U-Nets as in DistriFusion (Li et al., 2024), section 5.2."""

    name = "tensor"
    summary = "tensor parallelism over all GPUs"
    complexity = 2
    degree = "tensor"


@dataclass(frozen=True, slots=True)
class Ulysses(TeamSampler):
    """Source: Jacobs et al., DeepSpeed-Ulysses, 2023."""

    name = "ulysses"
    summary = "sequence parallelism by all-to-all over all GPUs"
    complexity = 2
    degree = "ulysses"
    awaits = "all_to_all"

    keys_values: str = fields.keys_values()


@dataclass(frozen=True, slots=True)
class Ring(TeamSampler):
    """Source: Liu et al., Ring Attention with Blockwise Transformers, 2023."""

    name = "ring"
    summary = "sequence parallelism by a ring over all GPUs"
    complexity = 2
    degree = "ring"

    keys_values: str = fields.keys_values()


@dataclass(frozen=True, slots=True)
class USP(TeamSampler):
    """Source: Fang and Zhao, USP: A Unified Sequence Parallelism Approach, 2024."""

    name = "usp"
    summary = "sequence parallelism by all-to-all inside and a ring outside"
    complexity = 2
    awaits = "all_to_all"

    ulysses_degree: int = fields.degree("that exchange tokens for heads around attention", 2)
    ring_degree: int = fields.degree("around which keys and values pass", 2)
    keys_values: str = fields.keys_values()

    def degrees(self, scenario: SamplingScenario) -> Mapping[str, int]:
        """Both degrees."""
        return {"ring": self.ring_degree, "ulysses": self.ulysses_degree}

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """Every pair of degrees above 1."""
        degree = scenario.gpus_per_prediction
        for ulysses in range(2, degree):
            if degree % ulysses == 0:
                yield cls(ulysses, degree // ulysses)


@dataclass(frozen=True, slots=True)
class AllGatherKV(TeamSampler):
    """Source: vllm-omni 0.30.0, diffusion/attention/parallel/allgather_kv.py: keys are gathered, then values.

    It is one column of ``attention2d``: any number of heads will do, and each device sends tokens of the order of N.
    """

    name = "allgather-kv"
    summary = "sequence parallelism that gathers all keys and values"
    complexity = 2
    degree = "rows"
    awaits = "all_gather"


@dataclass(frozen=True, slots=True)
class Attention2D(TeamSampler):
    """Source: Elango, Attention2D: Communication Efficient Distributed Self-Attention Mechanism, 2025, section 3.

    Each device sends tokens of the order of N / sqrt(P), where a ring sends N and Ulysses N / P but needs as many heads
    as devices. TensorRT-LLM draws videos so on a rack of 72 GPUs, with Ulysses inside (its technical blog 25). The
    partial outputs of a row go to whoever owns their queries, as FlashAttention's kernels return them: in half
    precision, with the log-sum-exp of each query and head in single precision.
    """

    name = "attention2d"
    summary = "sequence parallelism on rows and columns of GPUs, all-to-all inside"
    complexity = 2
    awaits = "all_gather"

    rows: int = fields.parameter(2, "rows of GPUs, each with its part of the queries")
    columns: int = fields.parameter(2, "columns of GPUs, each with its part of the keys and values")
    ulysses_degree: int = fields.degree(
        "that exchange tokens for heads around attention, inside rows and columns"
    )

    def degrees(self, scenario: SamplingScenario) -> Mapping[str, int]:
        """All three degrees."""
        return {"ulysses": self.ulysses_degree, "rows": self.rows, "columns": self.columns}

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """At least two rows of two columns, as many as there are, with every degree inside that divides the heads."""
        gpus = scenario.gpus_per_prediction
        for ulysses in (d for d in range(1, gpus + 1) if gpus % d == 0 and divides_heads(scenario, d)):
            outer = gpus // ulysses
            for rows in (r for r in range(2, outer) if outer % r == 0):
                yield cls(rows, outer // rows, ulysses)
