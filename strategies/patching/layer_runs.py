"""Layer runs: how a team of devices computes a run of layers together, under sequence and tensor parallelism.

Ulysses (Jacobs et al., DeepSpeed-Ulysses, 2023): three all-to-alls exchange tokens for heads before attention, one
changes back. Ring attention (Liu et al., 2023): keys and values pass around the ring while attention runs on those
that are there. USP (Fang and Zhao, 2024) is both. In rows and columns (Attention2D: Elango, 2025) each device
gathers the queries of its row and the keys and values of its column, and gets the partial outputs of its own queries
from its row; each tensor has a call of its own, so nothing is packed. Tensor parallelism (Shoeybi et al., Megatron-LM,
2019) sums the hidden state after each row-parallel matrix.

Between two exchanges work is spread evenly; within a run of several layers each kind of exchange is one collective
that stands for as many calls as it has layers, which takes as long where layers are alike and the exchanges block.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final, NamedTuple

import numpy as np

from profiles.architectures.kernels import Kernel
from profiles.architectures.shares import HALF_BYTES, WHOLE, Share
from profiles.costs.kernel_times import merging
from profiles.machines.hosts import CACHE_OPERATORS, PATCH_OPERATORS
from profiles.software.levers import FP8, HALF, levers
from profiles.units import FloatArray
from strategies.patching.builder import SamplingBuilder
from strategies.patching.footprint import waits_s
from strategies.patching.grid import Grid
from strategies.plans.actions import PatchAction
from strategies.plans.workloads import TEXTS
from strategies.sampling_scenario import SamplingScenario

REPLICATED: Final = TEXTS[1]
LOG_SUM_BYTES: Final = 4.0
"""Bytes of the log-sum-exp of a query and head. Source: FlashAttention's kernels return it in single precision, and the
output in that of the queries; a ring keeps and merges both so (ring-flash-attention, update_out_and_lse)."""
EXCHANGE: Final = "all_to_all"
"""The operation whose seconds of the host every exchange around attention takes; gathers along rows and columns too, as
nobody has published how long they take around attention, and Ulysses's calls surround the same tensors."""


@dataclass(frozen=True, slots=True)
class LayerRun:
    """A run of layers on a part of the image.

    Attributes:
        end: the layer after its last.
        batch: samples of one pass.
        share: what the team computes of the layers' work.
        tokens: share of all tokens that the team computes.
        cached: keys and values of all tokens are kept, so that the ring passes all of them around.
        conditioned: time step and text are embedded for it alone, as on every stage but the first, in whose layers that
            is counted.
    """

    first: int
    end: int
    batch: int
    share: Share = WHOLE
    tokens: float = 1.0
    cached: bool = False
    conditioned: bool = False


class Exchanged(NamedTuple):
    """Exchanges of the layers of a run, in bytes of one sample for all tokens, and their number.

    Attributes:
        hidden_bytes: queries of all self-attentions, and as much their keys, values and outputs.
        log_sum_bytes: the log-sum-exp of each query and head of all self-attentions, which weighs partial outputs.
        sums: sums under tensor parallelism.
    """

    attentions: int
    hidden_bytes: float
    log_sum_bytes: float
    sums: int
    summed_bytes: float


def exchanged(scenario: SamplingScenario, first: int, end: int) -> Exchanged:
    """The exchanges of the layers from ``first`` up to, but without, ``end``."""
    extent = scenario.extent
    of_image = HALF_BYTES * extent.pixels
    scale = of_image / (extent.image or 1.0)  # the text's tokens come on top
    passed = of_image if scenario.workload.text == REPLICATED else scale
    exchanges = [e for e in scenario.backbone.exchanges if first <= e.layer < end]
    keys = [e.elements for e in exchanges if e.kind == "key_value"]
    heads = [e.heads * scenario.backbone.image_tokens for e in exchanges if e.kind == "key_value"]
    sums = [e.elements for e in exchanges if e.kind == "reduce"]
    hidden = sum(keys) / 2 * passed
    log_sums = sum(heads) * passed * LOG_SUM_BYTES / HALF_BYTES
    return Exchanged(len(keys), hidden, log_sums, len(sums), sum(sums) * scale)


class RunWork(NamedTuple):
    """The work of each device of a team in a run of layers.

    Attributes:
        attention_s: those of self-attention in them.
        merging: seconds of GPU and host in which it merges partial outputs.
        swollen: bytes of what Ulysses exchanges over those in half precision without padding.
    """

    run: LayerRun
    exchanged: Exchanged
    total_s: float
    attention_s: float
    host_s: float
    merging: tuple[float, float]
    swollen: float


def run_work(scenario: SamplingScenario, grid: Grid, run: LayerRun) -> RunWork:
    """The work of a run of layers; the same for all teams of a grid."""
    merging = merged_s(scenario, grid, run) if grid.columns > 1 else (0.0, 0.0)
    padded = float(_fullest(scenario, grid.ulysses)[run.first : run.end].max(initial=1.0))
    smaller = scenario.workload.all_to_all != HALF
    swollen = padded * (levers()["all_to_all"][FP8]["bytes"] if smaller else 1.0)
    what = exchanged(scenario, run.first, run.end)
    return RunWork(run, what, *run_seconds(scenario, grid, run), merging, swollen)


class LayerRunner(NamedTuple):
    """Writes the ops and exchanges of a team in a run of layers."""

    builder: SamplingBuilder
    grid: Grid
    team: tuple[int, ...]
    work: RunWork
    action: PatchAction

    def append(self) -> None:
        """Append the run."""
        grid, what, work = self.grid, self.work.exchanged, self.work
        if grid.size == 1 or not (what.attentions or what.sums):
            self._compute(work.total_s, work.host_s)
            return
        rest_s = work.total_s - work.attention_s
        if not what.attentions:
            self._compute(rest_s, work.host_s)
            self._sum(what.sums)
            return
        self._compute(rest_s / 2, work.host_s / 2)
        self._all_to_all(tensors=3)
        self._attend()
        self._all_to_all(tensors=1)
        self._sum(what.attentions)
        self._compute(rest_s / 2, work.host_s / 2)
        self._sum(what.sums - what.attentions)

    def _compute(self, seconds: float, host_s: float = 0.0) -> None:
        self.builder.compute_together(self.team, self.action, seconds, host_s)

    def _exchange(
        self, kind: str, operation: str, *sizes: float, calls: int, held: int = 0, wait: bool = True
    ) -> Sequence[int]:
        """Append an exchange of some sizes in the groups of a kind; for each group its last result.

        Of ``held`` calls at a time the results are held, each until it is used; 0: none is.
        """
        results: list[int] = []
        for group in self.grid.groups_of(kind, self.team) if self.grid.members(kind) > 1 else ():
            each = [
                self.builder.collective(
                    operation,
                    group,
                    size,
                    stage=self.action.stage,
                    number=self.action.patch,
                    calls=calls,
                    held_bytes=size / held if held else 0.0,
                    wait=wait,
                    dispatched_as=EXCHANGE if operation == "all_gather" else "",
                    subgroup=self.grid.subgroup(kind),
                )
                for size in sizes
            ]
            results.append(each[-1])
        return results

    def _head_bytes(self, size_bytes: float) -> float:
        return self.grid.head_bytes(size_bytes, self.work.run.batch, self.work.run.tokens)

    def _all_to_all(self, tensors: int) -> None:
        """Exchange tokens for heads, or heads for tokens, in some tensors of each attention."""
        what = self.work.exchanged
        size = tensors * self.work.swollen * self._head_bytes(what.hidden_bytes)
        self._exchange("ulysses", "all_to_all", size, calls=tensors * what.attentions)

    def _attend(self) -> None:
        """Append attention; around a ring, on the keys and values of one member after another."""
        if self.grid.rows * self.grid.columns > 1:
            self._attend_in_rows()
            return
        rounds, run, calls = self.grid.ring, self.work.run, self.work.exchanged.attentions
        size = 2 * self._head_bytes(self.work.exchanged.hidden_bytes)
        size /= run.tokens if run.cached else 1.0
        for _ in range(rounds - 1):
            results = self._exchange("ring", "send_recv", size, calls=calls, held=calls, wait=False)
            self._compute(self.work.attention_s / rounds)
            for group, result in zip(self.grid.groups_of("ring", self.team), results, strict=True):
                for device in group:
                    self.builder.expect(device, result)
        self._compute(self.work.attention_s / rounds)

    def _attend_in_rows(self) -> None:
        """Append attention of a row's queries to a column's keys and values, and the merging of partial outputs."""
        grid, what = self.grid, self.work.exchanged
        hidden, log_sums = self._head_bytes(what.hidden_bytes), self._head_bytes(what.log_sum_bytes)
        if grid.ulysses > 1:
            self._compute(0.0)  # gathers what it has exchanged
        calls, keys_values = what.attentions, 2 * grid.rows * hidden
        self._exchange("column", "all_gather", keys_values, calls=2 * calls, held=calls)
        self._exchange("row", "all_gather", grid.columns * hidden, calls=calls, held=calls)
        self._compute(self.work.attention_s)
        outputs = grid.columns * hidden, grid.columns * log_sums
        self._exchange("row", "all_to_all", *outputs, calls=calls, held=calls)
        if grid.columns > 1:
            self._compute(*self.work.merging)

    def _sum(self, sums: int) -> None:
        what, run, grid = self.work.exchanged, self.work.run, self.grid
        if grid.tensor > 1 and sums > 0:
            size = grid.token_bytes(what.summed_bytes * sums / what.sums, run.batch, run.tokens)
            self._exchange("tensor", "all_reduce", size, calls=sums)


def run_seconds(scenario: SamplingScenario, grid: Grid, run: LayerRun) -> tuple[float, float, float]:
    """The seconds of a run on each GPU of a team, those of self-attention in them, and those of its host."""
    total, attention = _layers_seconds(scenario, grid, run)
    host = scenario.backbone_costs.host_s
    layers = slice(run.first, run.end)
    gpu_s, host_s = float(total[layers].sum()), float(host[layers].sum())
    if run.conditioned and scenario.remember("embeds", lambda: _embeds(scenario)):
        gpu_s += max(0.0, float(total[0] - total[1]))
        host_s += max(0.0, float(host[0] - host[1]) - PATCH_OPERATORS * scenario.operator_s)
    if run.cached:  # a patch's keys and values are put beside those of the others, read and written
        what = exchanged(scenario, run.first, run.end)
        moved = 4 * grid.head_bytes(what.hidden_bytes, run.batch, run.tokens)
        gpu_s += scenario.backbone_costs.copied_s(moved, what.attentions)
        host_s += CACHE_OPERATORS * what.attentions * scenario.operator_s
    return gpu_s, float(attention[layers].sum()), host_s


def _embeds(scenario: SamplingScenario) -> bool:
    """Whether the first layer is one like the second with embeddings before it: it has all of its kernels, and more."""
    kernels = [Counter[Kernel]() for _ in range(2)]
    for counts, of_layer in zip(kernels, scenario.backbone.half_kernels, strict=False):
        for kernel in of_layer:
            counts[replace(kernel, count=1)] += kernel.count
    return kernels[0] > kernels[1]


def _layers_seconds(scenario: SamplingScenario, grid: Grid, run: LayerRun) -> tuple[FloatArray, FloatArray]:
    """The seconds of all layers on each GPU of a team for a pass as in a run, and those of self-attention in them."""

    def make() -> tuple[FloatArray, FloatArray]:
        share = run.share._replace(
            ring=grid.ring,
            ulysses=grid.ulysses,
            tensor=grid.tensor,
            whole_text=scenario.workload.text == REPLICATED,
            device_rows=grid.rows,
            device_columns=grid.columns,
        )
        attention = scenario.backbone_costs.attention_s(run.batch, share)
        uneven = _fullest(scenario, grid.ulysses * grid.tensor) - 1
        total = scenario.backbone_costs.gpu_s(run.batch, share) + uneven * attention
        return total + waits_s(scenario, total, grid.tensor), (1 + uneven) * attention

    return scenario.remember(("layers", grid.degrees, run.share, run.batch), make)


def merged_s(scenario: SamplingScenario, grid: Grid, run: LayerRun) -> tuple[float, float]:
    """Seconds in which a GPU merges the partial outputs of its queries, and those of its host.

    They are merged as a ring merges its blocks, one of whose operators is a launch.
    """
    what = exchanged(scenario, run.first, run.end)
    elements = grid.head_bytes(what.hidden_bytes, run.batch, run.tokens) / HALF_BYTES
    moved, launches = merging(grid.columns)
    launches *= what.attentions
    return scenario.backbone_costs.copied_s(moved * elements, launches), launches * scenario.operator_s


def _fullest(scenario: SamplingScenario, degree: int) -> FloatArray:
    """For each layer the heads of the device that holds most of them, over an even share; shape (layers,)."""
    most = np.ones(len(scenario.backbone.layers))
    for exchange in scenario.backbone.exchanges:
        if exchange.kind == "key_value":
            most[exchange.layer] = ceil(exchange.heads / degree) * degree / exchange.heads
    return most
