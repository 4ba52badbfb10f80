"""The settings in which PULSE's comparisons are replayed.

The paper prints neither degrees nor micro-batches of its comparisons, nor where stages lie. The base setting takes
what it says elsewhere: the degree that its communication volumes give away, as many micro-batches, the micro-batch
that its volume of ZeRO-2 gives away (half-precision gradients over the samples of one device), data parallelism
inside the nodes (section VI), blocking messages (section VII-A), baselines on blocks with
relayed skips at PULSE's degree and micro-batch (section VII). Every other setting changes one of these.

Source: PULSE, sections VI and VII, Table III.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from typing import Any, Final

from profiles.errors import InfeasibleError
from profiles.models import load_model
from profiles.units import GIB, MIB
from sim.results import Result
from sim.runs import run_point
from strategies.registry import make_strategy
from strategies.scenario import Scenario
from validate.published.costs import COSTS, costs_of
from validate.published.rows import Published, the_published
from validate.published.scenes import scenario, with_collectives_of

BASELINES: Final = ("1f1b", "wave", "zero2")
DATA_PARALLEL: Final = ("zero2",)
GRADIENT_BYTES: Final = 2
DEFAULT_DEGREE: Final = 4
DEGREES: Final = {
    ("uvit-2.7b", "ascend910a-8node"): 8,
    ("hunyuan-3b", "v100-2node"): 8,
    ("hunyuan-3b", "ascend910a-8node"): 8,
    ("sdv2-4.6b", "ascend910a-8node"): 8,
}
"""Of Table III's cells of PULSE that come out exactly, where they are not 4; the U-Net's are taken to be U-ViT's."""
MICRO_BATCHES: Final = (64, 32, 16, 8, 4, 2, 1)
"""The powers of two of the paper's tuner (section VI), from twice the largest it names."""


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained where."""

    model: str
    cluster: str
    num_gpus: int

    @classmethod
    def of(cls, row: Published) -> "Task":
        """Return what a row of the paper is about."""
        assert row.num_gpus is not None
        return cls(row.model, "v100-2node" if row.cluster == "v100" else row.cluster, row.num_gpus)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the paper leaves open.

    Attributes:
        degree: devices of a pipeline, and its micro-batches.
        micro_batch: samples of one, and of each device of data parallelism.
        placement: which of pipeline and data parallelism gets the faster links.
        p2p: whether devices wait for their messages.
        costs: assumption on what layers cost, a key of ``costs_of``.
        recipe: memory recipe; it says which bytes gradients are reduced in.
        collectives: the cluster whose collectives' efficiencies are taken; None: the task's own.
    """

    degree: int
    micro_batch: int
    placement: str = "data-inner"
    p2p: str = "blocking"
    costs: str = COSTS[0]
    recipe: str = "pulse"
    collectives: str | None = None

    def __str__(self) -> str:
        return f"P = {self.degree}, micro-batch {self.micro_batch}"

    def scenario(self, task: Task) -> Scenario:
        """Return what a strategy is asked about."""
        return scenario(
            costs_of(task.model)[self.costs],
            with_collectives_of(task.cluster, self.collectives or task.cluster),
            task.num_gpus,
            self.micro_batch * task.num_gpus,
            self_conditioning=0.0,
            memory_recipe=self.recipe,
            placement=self.placement,
        )


@cache
def run(task: Task, setting: Setting, strategy: str, partition: str | None = None) -> Result | None:
    """Return what a strategy makes of a setting; None where it cannot."""
    asked: dict[str, Any] = {"overlap": "none"}
    if strategy not in DATA_PARALLEL:
        asked = {"pipeline_degree": setting.degree, "micro_batches": setting.degree, "p2p": setting.p2p}
    if partition is not None:
        asked["partition"] = partition
    try:
        return run_point(make_strategy(strategy, asked), setting.scenario(task))
    except InfeasibleError:
        return None


def base_of(task: Task) -> Setting:
    """Return the base setting of one of Table III's models."""
    row = the_published("Table III", model=task.model, cluster="v100-2node", method="zero2")
    backbone = load_model(task.model).for_task("train").components[-1]
    samples = backbone.parameters * GRADIENT_BYTES / MIB / row.value
    return Setting(DEGREES.get((task.model, task.cluster), DEFAULT_DEGREE), 2 ** round(log2(samples)))


def largest(task: Task, setting: Setting, strategy: str = "pulse") -> Setting | None:
    """Return the setting with the largest micro-batch that fits."""
    for micro_batch in MICRO_BATCHES:
        found = replace(setting, micro_batch=micro_batch)
        result = run(task, found, strategy)
        if result is not None and result.fits_memory:
            return found
    return None


def changed(base: Setting) -> Iterator[tuple[str, Setting]]:
    """Yield the base setting, and settings that change one thing of it, in words."""
    yield "base", base
    yield "pipelines inside the nodes", replace(base, placement="pipeline-inner")
    yield "messages overlap", replace(base, p2p="overlapped")
    yield "gradients in half precision", replace(base, recipe="mixed-fp16-gradient")
    yield "collectives as on p4de", replace(base, collectives="p4de")
    for costs in COSTS[1:]:
        yield costs, replace(base, costs=costs)
    for degree in (2, 4, 8):
        if degree != base.degree:
            yield f"P = {degree}", replace(base, degree=degree)


def over(task: Task, setting: Setting, baseline: str) -> float | None:
    """Return PULSE's throughput over a baseline's in the same setting; None where one of them cannot."""
    own, other = run(task, setting, "pulse"), run(task, setting, baseline)
    return None if own is None or other is None else own.samples_per_s / other.samples_per_s


def cells(task: Task, setting: Setting) -> list[str]:
    """Return PULSE's throughput and memory and its ratios, in words; in brackets where memory does not suffice."""
    own = run(task, setting, "pulse")
    if own is None:
        return ["-"] * (2 + len(BASELINES))
    memory = f"{own.expected.peak_memory_bytes / GIB:.1f} GiB"
    return [
        _bracketed(own, f"{own.samples_per_s:.1f}"),
        memory,
        *(_ratio(task, setting, baseline) for baseline in BASELINES),
    ]


def _ratio(task: Task, setting: Setting, baseline: str) -> str:
    ratio, other = over(task, setting, baseline), run(task, setting, baseline)
    return "-" if ratio is None or other is None else _bracketed(other, f"{ratio:.2f}")


def _bracketed(result: Result, words: str) -> str:
    return words if result.fits_memory else f"({words})"
