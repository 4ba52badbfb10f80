"""Throughputs that PULSE compares, and the best pipeline degree on 8 V100s.

The paper gives neither degrees nor micro-batches of its comparisons, nor the placement of stages. The base setting is
inferred from elsewhere in it: the degree from its communication volumes, as many micro-batches, the micro-batch from
its volume of ZeRO-2 (half-precision gradients over the samples of one device), data parallelism inside the nodes
(section VI), blocking messages (section VII-A), baselines on blocks with relayed skips at PULSE's degree and
micro-batch (section VII). Every other setting changes one of these.

Source: PULSE, sections VI and VII-A to VII-C2, Table III, Fig. 14, Eq. 14.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from typing import Any, Final

from profiles.errors import InfeasibleError
from profiles.measuring.tables import grouped
from profiles.units import GIB, MIB
from sim.explore.pulse_equations import peak_memory_bytes
from sim.outcomes.results import Result
from strategies.scenario import Scenario
from strategies.training.pulse import Pulse
from validate.points import model_of, scenario, trained
from validate.published.records import Published, Record, published, the_published
from validate.published.training.experiment import Found, experiment
from validate.published.training.models import COSTS, costs_of, with_collectives_of

DATA_PARALLEL: Final = ("zero2",)
GRADIENT_BYTES: Final = 2
DEFAULT_DEGREE: Final = 4
PIPELINE_DEGREES: Final = {
    ("uvit-2.7b", "ascend910a-8node"): 8,
    ("hunyuan-3b", "v100-2node"): 8,
    ("hunyuan-3b", "ascend910a-8node"): 8,
    ("sdv2-4.6b", "ascend910a-8node"): 8,
}
"""Degrees other than 4, from cells of PULSE in Table III that come out exactly; the U-Net is taken to have U-ViT's."""
MICRO_BATCHES: Final = (64, 32, 16, 8, 4, 2, 1)
"""The powers of two of the paper's tuner (section VI), from twice the largest it names."""


@dataclass(frozen=True, slots=True)
class Task:
    """A model, a cluster and a number of GPUs."""

    model: str
    cluster: str
    num_gpus: int

    @classmethod
    def of(cls, row: Published) -> "Task":
        """The task of a row of the paper."""
        assert row.num_gpus is not None
        return cls(row.model, "v100-2node" if row.machine == "v100" else row.machine, row.num_gpus)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the paper leaves open.

    ``degree`` is the number of positions and of micro-batches; ``micro_batch`` the samples of a micro-batch, and of
    each data-parallel device; ``placement`` says whether pipelines or data parallelism get the faster links, ``p2p``
    whether devices wait for their messages, ``recipe`` the memory recipe, ``collectives`` the cluster whose
    efficiencies hold.
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
        """The scenario of a task in this setting."""
        costs, gpus = costs_of(task.model)[self.costs], task.num_gpus
        cluster = with_collectives_of(task.cluster, self.collectives or task.cluster)
        how: dict[str, Any] = {
            "memory_recipe": self.recipe,
            "placement": self.placement,
            "stack": costs.stack,
        }
        return scenario(costs.model, cluster, gpus, self.micro_batch * gpus, self_conditioning=0.0, **how)


@cache
def run(task: Task, setting: Setting, strategy: str, partition: str | None = None) -> Result | None:
    """The result of a strategy in a setting; None where it is infeasible."""
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
    """PULSE's throughput over a baseline's in the same setting; None where either is infeasible."""
    own, other = run(task, setting, "pulse"), run(task, setting, baseline)
    return None if own is None or other is None else own.samples_per_s / other.samples_per_s


def base_of(task: Task) -> Setting:
    """The base setting of one of Table III's models."""
    row = the_published("Table III", model=task.model, machine="v100-2node", method="zero2")
    backbone = model_of(task.model).for_task("train").components[-1]
    samples = backbone.parameters * GRADIENT_BYTES / MIB / row.value
    degree = PIPELINE_DEGREES.get((task.model, task.cluster), DEFAULT_DEGREE)
    return Setting(degree, 2 ** round(log2(samples)))


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


def largest(task: Task, setting: Setting, fits: Callable[[Task, Setting], bool]) -> Setting | None:
    """The setting with the largest micro-batch that fits by a rule."""
    found = (replace(setting, micro_batch=micro_batch) for micro_batch in MICRO_BATCHES)
    return next((one for one in found if fits(task, one)), None)


def by_replay(task: Task, setting: Setting) -> bool:
    """Whether PULSE fits in memory by its replay."""
    result = run(task, setting, "pulse")
    return result is not None and result.fits_memory


def by_equation(task: Task, setting: Setting) -> bool:
    """Whether PULSE fits in memory by Eq. 14."""
    point, strategy = setting.scenario(task), Pulse(setting.degree, setting.degree, p2p=setting.p2p)
    memory_bytes = point.cluster.device.memory_bytes
    return memory_bytes is not None and peak_memory_bytes(point, strategy.layout(point)) <= memory_bytes


BASELINES: Final = ("1f1b", "wave", "zero2")
DEGREES: Final = (2, 4, 8)
ON_ASCEND: Final = (
    *("base", "pipelines inside the nodes", "messages overlap"),
    *("collectives as on p4de", "activations in half precision"),
)
"""The settings that are shown for all three models."""
ON_ONE_NODE: Final = ("sdv2-1.7b", "uvit-1b", "hunyuan-1.5b")


@experiment
def two_nodes() -> Found:
    """Section VII-A on 16 V100s: the base setting, and what the ratios depend on."""
    row = the_published("VII-A", method="pulse")
    task = Task.of(row)
    base = base_of(task)
    yield ["published", f"{row.value:g}", "-", *_printed(task.cluster)]
    for words, setting in changed(base):
        yield [words, *cells(task, setting)]
        own = run(task, setting, "pulse")
        if own is not None:
            yield Record.of(row, own.samples_per_s, f"{base}; {words}")
        yield from _ratios(task, setting, f"{base}; {words}")


@experiment
def eight_nodes() -> Found:
    """Section VII-A on 64 Ascend 910A: three models, of which the paper gives the largest ratios."""
    models = dict.fromkeys(row.model for row in published("Table III"))
    tasks = [Task(model, "ascend910a-8node", 64) for model in models]
    yield ["published, the largest", "-", "-", "-", *_printed("ascend910a-8node")]
    ratios: dict[str, list[Record]] = {words: [] for words in ON_ASCEND}
    for task in tasks:
        base, cases = base_of(task), dict(changed(base_of(task)))
        for words, found in ratios.items():
            yield [f"{task.model}, {base}", words, *cells(task, cases[words])]
            setting = f"largest of {len(tasks)}: {task.model}, {base}; {words}"
            found.extend(_ratios(task, cases[words], setting))
    for found in ratios.values():
        for same in grouped(found, lambda one: one.row).values():
            yield max(same, key=lambda one: one.predicted or 0.0)


def _printed(cluster: str) -> Iterator[str]:
    for baseline in BASELINES:
        rows = published("VII-A", machine=cluster, method=f"pulse/{baseline}")
        yield f"{rows[0].value:g}" if rows else "-"


def _ratios(task: Task, setting: Setting, words: str) -> Iterator[Record]:
    for baseline in BASELINES:
        ratio = over(task, setting, baseline)
        for row in published("VII-A", machine=task.cluster, method=f"pulse/{baseline}"):
            if ratio is not None:
                yield Record.of(row, ratio, words)


def cells(task: Task, setting: Setting) -> list[str]:
    """PULSE's throughput and memory and its ratios, in words; in brackets where memory does not suffice."""
    own = run(task, setting, "pulse")
    if own is None:
        return ["-"] * (2 + len(BASELINES))
    memory = f"{own.peak_memory_bytes / GIB:.1f} GiB"
    found = [_bracketed(f"{own.samples_per_s:.1f}", own.fits_memory), memory]
    for baseline in BASELINES:
        ratio, other = over(task, setting, baseline), run(task, setting, baseline)
        found.append("-" if ratio is None or other is None else _bracketed(f"{ratio:.2f}", other.fits_memory))
    return found


def _bracketed(words: str, fits: bool) -> str:
    return words if fits else f"({words})"


@experiment
def larger_models() -> Found:
    """Section VII-B: U-ViT of 6 B over the better of the two pipelines, by degree."""
    row = the_published("VII-B")
    task = Task.of(row)
    columns = 2 + len(BASELINES)
    yield ["published", *["-"] * columns, f"{row.value:g}"]
    for degree in DEGREES:
        setting = largest(task, Setting(degree, 1), by_replay)
        if setting is None:
            yield [f"P = {degree}", *["does not fit"] * columns, "-"]
            continue
        ratios = [over(task, setting, baseline) for baseline in ("1f1b", "wave")]
        best = min(ratio for ratio in ratios if ratio is not None)
        yield [f"{setting}", *cells(task, setting), f"{best:.2f}"]
        yield Record.of(row, best, f"{setting}, the largest that fits")


@experiment
def degrees() -> Found:
    """Section VII-C2: the largest micro-batches and their throughputs, by degree."""
    for model, degree in ((model, degree) for model in ON_ONE_NODE for degree in DEGREES):
        task = Task(model, "v100-2node", 8)
        setting = largest(task, Setting(degree, 1), by_replay)
        assert setting is not None
        result = run(task, setting, "pulse")
        assert result is not None
        found = {"samples_per_s": result.samples_per_s, "micro_batch": float(setting.micro_batch)}
        rows = {row.quantity: row for row in published("VII-C2", model=model, method=f"pulse P={degree}")}
        yield from (Record.of(rows[key], found[key], f"{setting}") for key in found if key in rows)
        equated = largest(task, setting, by_equation)
        printed = (f"{rows[key].value:g}" if key in rows else "-" for key in found)
        fits = f"{setting.micro_batch} ({result.peak_memory_bytes / GIB:.1f} GiB)"
        by_eq = "none" if equated is None else f"{equated.micro_batch}"
        yield [f"{model}, P = {degree}", *printed, f"{result.samples_per_s:.1f}", fits, by_eq]
