"""The settings in which PULSE's comparisons are replayed.

The paper prints neither degrees nor micro-batches of its comparisons, nor where stages lie. The base setting takes
what it says elsewhere: the degree that its communication volumes give away, as many micro-batches, the micro-batch
that its volume of ZeRO-2 gives away (half-precision gradients over the samples of one device), data parallelism
inside the nodes (section VI), blocking messages (section VII-A), baselines on blocks with
relayed skips at PULSE's degree and micro-batch (section VII). Every other setting changes one of these.

Source: PULSE, sections VI and VII, Table III.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from typing import Any, Final

from profiles.errors import InfeasibleError
from profiles.units import MIB
from sim.explore.pulse_equations import peak_memory_bytes
from strategies.scenario import Scenario
from strategies.training.pulse import Pulse
from validate.points import Outcome, model_of, scenario, trained
from validate.published.records import Published, the_published
from validate.published.training.models import COSTS, costs_of, with_collectives_of

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
        """What a row of the paper is about."""
        assert row.num_gpus is not None
        return cls(row.model, "v100-2node" if row.machine == "v100" else row.machine, row.num_gpus)


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
        """What a strategy is asked about."""
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
def run(task: Task, setting: Setting, strategy: str, partition: str | None = None) -> Outcome | None:
    """What a strategy makes of a setting; None where it cannot."""
    asked: dict[str, Any] = {"overlap": "none"}
    if strategy not in DATA_PARALLEL:
        asked = {"pipeline_degree": setting.degree, "micro_batches": setting.degree, "p2p": setting.p2p}
    if partition is not None:
        asked["partition"] = partition
    try:
        return trained(strategy, setting.scenario(task), **asked)
    except InfeasibleError:
        return None


def over(task: Task, setting: Setting, baseline: str) -> float | None:
    """PULSE's throughput over a baseline's in the same setting; None where one of them cannot."""
    own, other = run(task, setting, "pulse"), run(task, setting, baseline)
    return None if own is None or other is None else own.samples_per_s / other.samples_per_s


def base_of(task: Task) -> Setting:
    """The base setting of one of Table III's models."""
    row = the_published("Table III", model=task.model, machine="v100-2node", method="zero2")
    backbone = model_of(task.model).for_task("train").components[-1]
    samples = backbone.parameters * GRADIENT_BYTES / MIB / row.value
    return Setting(DEGREES.get((task.model, task.cluster), DEFAULT_DEGREE), 2 ** round(log2(samples)))


def changed(base: Setting) -> Iterator[tuple[str, Setting]]:
    """The base setting, and settings that change one thing of it, in words."""
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


def largest(task: Task, setting: Setting) -> Setting | None:
    """The setting with the largest micro-batch with which PULSE fits."""

    def fits(found: Setting) -> bool:
        result = run(task, found, "pulse")
        return result is not None and result.fits

    return _largest(setting, fits)


def largest_by_equation(task: Task, setting: Setting) -> Setting | None:
    """The setting with the largest micro-batch that fits by Eq. 14."""
    strategy = Pulse(setting.degree, setting.degree, p2p=setting.p2p)

    def fits(found: Setting) -> bool:
        point = found.scenario(task)
        memory_bytes = point.cluster.device.memory_bytes
        assert memory_bytes is not None
        return peak_memory_bytes(point, strategy.layout(point)) <= memory_bytes

    return _largest(setting, fits)


def _largest(setting: Setting, fits: Callable[[Setting], bool]) -> Setting | None:
    found = (replace(setting, micro_batch=micro_batch) for micro_batch in MICRO_BATCHES)
    return next(filter(fits, found), None)
