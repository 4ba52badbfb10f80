"""Attention2D: devices stand in rows and columns; queries are gathered along rows, keys and values along columns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from strategies import parameters as fields
from strategies.patching.grid import divides_heads, make_grid
from strategies.patching.patch_pipeline import PatchPipeline
from strategies.sampling_scenario import SamplingScenario
from strategies.templates.grid_sampler import GridSampler


@dataclass(frozen=True, slots=True)
class Attention2D(GridSampler):
    """Source: Elango, Attention2D: Communication Efficient Distributed Self-Attention Mechanism, 2025, section 3.

    Each device sends tokens of the order of N / sqrt(P), where a ring sends N and Ulysses N / P but needs as many heads
    as devices. TensorRT-LLM draws videos so on a rack of 72 GPUs, with Ulysses inside (its technical blog 25). The
    partial outputs of a row go to whoever owns their queries, as FlashAttention's kernels return them: in half
    precision, with the log-sum-exp of each query and head in single precision.
    """

    name = "attention2d"
    summary = "sequence parallelism on rows and columns of GPUs, all-to-all inside"
    awaits = "all_gather"

    rows: int = fields.parameter(2, "rows of GPUs, each with its part of the queries")
    columns: int = fields.parameter(2, "columns of GPUs, each with its part of the keys and values")
    ulysses_degree: int = fields.degree(
        "that exchange tokens for heads around attention, inside rows and columns"
    )

    def layout(self, scenario: SamplingScenario) -> PatchPipeline:
        """All layers on every device, the tokens divided by all three degrees."""
        grid = make_grid(scenario, ulysses=self.ulysses_degree, rows=self.rows, columns=self.columns)
        return PatchPipeline.of(scenario, grid)

    @classmethod
    def candidates(cls, scenario: SamplingScenario) -> Iterator[Self]:
        """At least two rows of two columns, as many as there are, with every degree inside that divides the heads."""
        gpus = scenario.gpus_per_prediction
        for ulysses in (d for d in range(1, gpus + 1) if gpus % d == 0 and divides_heads(scenario, d)):
            outer = gpus // ulysses
            for rows in (r for r in range(2, outer) if outer % r == 0):
                yield cls(rows, outer // rows, ulysses)
