"""Numbers of PULSE: throughputs, bytes of messages, and the gain of its skip-aware partition.

The paper gives neither degrees nor micro-batches of its comparisons, nor the placement of stages. The base setting is
inferred from elsewhere in it: the degree from its communication volumes, as many micro-batches, the micro-batch from
its volume of ZeRO-2 (half-precision gradients over the samples of one device), data parallelism inside the nodes
(section VI), blocking messages (section VII-A), baselines on blocks with relayed skips at PULSE's degree and
micro-batch (section VII). Every other setting changes one of these.

The paper counts some cells of bytes in one direction and some in both, and does not give every pipeline degree; each
cell is compared with every convention, and the nearest is named. Its MB is MiB.

Source: PULSE, sections IV, VI and VII-A to VII-C2, Table III, Figs. 6, 7, 13 and 14, Eq. 14.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from typing import Any, Final, NamedTuple

from profiles.checks import sum_in_order
from profiles.errors import InfeasibleError
from profiles.measuring.tables import grouped
from profiles.units import MIB
from sim.explore.pulse_equations import peak_memory_bytes, schedule_s
from sim.outcomes.results import Result
from strategies.scenario import Scenario
from strategies.training.pulse import Pulse
from validate.points import forward_bytes, model_of, replayed, scenario, trained
from validate.published.records import Published, Record, published, the_published
from validate.published.training.models import COSTS, Costs, costs_of, with_collectives_of

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


def two_nodes() -> Iterator[Record]:
    """Section VII-A on 16 V100s: the base setting, and what the ratios depend on."""
    row = the_published("VII-A", method="pulse")
    task = Task.of(row)
    base = base_of(task)
    for words, setting in changed(base):
        own = run(task, setting, "pulse")
        if own is not None:
            yield Record.of(row, own.samples_per_s, f"{base}; {words}")
        yield from _ratios(task, setting, f"{base}; {words}")


def eight_nodes() -> Iterator[Record]:
    """Section VII-A on 64 Ascend 910A: three models, of which the paper gives the largest ratios."""
    models = dict.fromkeys(row.model for row in published("Table III"))
    tasks = [Task(model, "ascend910a-8node", 64) for model in models]
    ratios: dict[str, list[Record]] = {words: [] for words in ON_ASCEND}
    for task in tasks:
        base, cases = base_of(task), dict(changed(base_of(task)))
        for words, found in ratios.items():
            setting = f"largest of {len(tasks)}: {task.model}, {base}; {words}"
            found.extend(_ratios(task, cases[words], setting))
    for found in ratios.values():
        for same in grouped(found, lambda one: one.row).values():
            yield max(same, key=lambda one: one.predicted or 0.0)


def _ratios(task: Task, setting: Setting, words: str) -> Iterator[Record]:
    for baseline in BASELINES:
        ratio = over(task, setting, baseline)
        for row in published("VII-A", machine=task.cluster, method=f"pulse/{baseline}"):
            if ratio is not None:
                yield Record.of(row, ratio, words)


def larger_models() -> Iterator[Record]:
    """Section VII-B: U-ViT of 6 B over the better of the two pipelines, by degree."""
    row = the_published("VII-B")
    task = Task.of(row)
    for degree in DEGREES:
        setting = largest(task, Setting(degree, 1), by_replay)
        if setting is None:
            continue
        ratios = [over(task, setting, baseline) for baseline in ("1f1b", "wave")]
        best = min(ratio for ratio in ratios if ratio is not None)
        yield Record.of(row, best, f"{setting}, the largest that fits")


def degrees() -> Iterator[Record]:
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


VOLUME_DEGREES: Final = (4, 8)
PIPELINES: Final = ("pulse", "wave", "1f1b")
WAYS: Final = ("forwards", "both ways")
"""What the paper may count: what is sent forwards, or gradients too."""


@cache
def volume(task: Task, strategy: str, degree: int) -> dict[str, float]:
    """MiB that one iteration of a pipeline sends per sample in its replayed messages, by way of counting.

    Hidden states, skips and what is carried with them go forwards, the gradients of the first two backwards.
    """
    batch = task.num_gpus
    point = scenario(task.model, task.cluster, task.num_gpus, batch, self_conditioning=0.0)
    trace = replayed(strategy, point, pipeline_degree=degree, micro_batches=degree)
    sizes = (forward_bytes(trace), trace.p2p_bytes)
    return {way: size / batch / MIB for way, size in zip(WAYS, sizes, strict=True)}


class Reading(NamedTuple):
    """One way to count a cell, with its value in MiB per sample."""

    degree: int
    way: str
    value: float

    def __str__(self) -> str:
        return f"P = {self.degree}, {self.way}"


def readings(row: Published, degrees: Sequence[int] = VOLUME_DEGREES) -> list[Reading]:
    """The values of a pipeline's cell, counted every way."""
    task, strategy = Task.of(row), row.method.split()[0]
    return [Reading(degree, way, volume(task, strategy, degree)[way]) for degree in degrees for way in WAYS]


def nearest(row: Published, found: Sequence[Reading]) -> Record:
    """The record of the reading that comes closest to the printed number."""
    best = min(found, key=lambda reading: abs(reading.value - row.value))
    return Record.of(row, best.value, f"nearest of {len(found)} conventions: {best}")


def pipeline_volumes() -> Iterator[Record]:
    """The cells of Table III that are messages of pipelines."""
    for row in _cells(PIPELINES):
        found = readings(row)
        yield nearest(row, found)


def messages() -> Iterator[Record]:
    """Section VII-C2: MiB per sample in messages, by degree."""
    for row in published("VII-C2", quantity="p2p_MB_per_sample"):
        found = readings(row, [int(row.method.split("=")[1])])
        yield nearest(row, found)


def reduction_volumes() -> Iterator[Record]:
    """The cells of Table III that are ZeRO-2's gradients: what one device sends in reduce-scatters."""
    for row in _cells(["zero2"]):
        task = Task.of(row)
        samples = base_of(task).micro_batch
        yield Record.of(row, reduced(task, samples), f"{samples} samples per device, fp16 gradients")


def _cells(methods: Sequence[str]) -> Iterator[Published]:
    return (row for of in methods for row in published("Table III", method=of))


def reduced(task: Task, samples: int) -> float:
    """MiB per sample that one device of ZeRO-2 sends in reduce-scatters."""
    batch = samples * task.num_gpus
    how: dict[str, Any] = {"self_conditioning": 0.0, "memory_recipe": "mixed-fp16-gradient"}
    point = scenario(task.model, task.cluster, task.num_gpus, batch, **how)
    trace = replayed("zero2", point, overlap="none")
    collectives = trace.plan.collectives
    scattered = sum_in_order(one.size_bytes for one in collectives if one.operation == "reduce_scatter")
    share = scattered / sum_in_order(one.size_bytes for one in collectives)
    return share * trace.collective_bytes / batch / MIB


MICRO_BATCH: Final = 32
"""Samples of a micro-batch in Fig. 7."""
BASE_DEGREE: Final = 4
PARTITIONS: Final = ("symmetric", "blocks")


class Gain(NamedTuple):
    """One pipeline of ``degree`` positions and micro-batches, with the skip-aware partition and with block-wise stages.

    ``by_equation`` is the throughput of the first over the second if every step took as long as the slowest (Eq. 15).
    """

    degree: int
    aware: Result
    blocks: Result
    by_equation: float

    @property
    def imbalance(self) -> float:
        """Longest over mean forward time of the block-wise stages."""
        times = _forwards_s(self.blocks)
        return max(times) * len(times) / sum_in_order(times)

    @property
    def shorter(self) -> float:
        """Share by which the longest forward of a stage is shorter than with block-wise stages."""
        return 1 - max(_forwards_s(self.aware)) / max(_forwards_s(self.blocks))

    @property
    def faster(self) -> float:
        """Throughput over that of block-wise stages."""
        return self.aware.samples_per_s / self.blocks.samples_per_s


def _forwards_s(of: Result) -> list[float]:
    """Seconds of the forward of each stage."""
    return [float(stage["forward_s"]) for stage in of.stages]


def gains(costs: Costs, num_gpus: int, p2p: str) -> Iterator[Gain]:
    """The gain at each degree, with as many micro-batches, of ``MICRO_BATCH`` samples, as positions."""
    for degree in DEGREES:
        how: dict[str, Any] = {"memory_recipe": "pulse", "placement": "data-inner", "stack": costs.stack}
        batch = MICRO_BATCH * num_gpus
        point = scenario(costs.model, "v100-2node", num_gpus, batch, self_conditioning=0.0, **how)
        asked = {"pipeline_degree": degree, "micro_batches": degree, "p2p": p2p}
        aware, blocks = (trained("pulse", point, partition=of, **asked) for of in PARTITIONS)
        layouts = (Pulse(degree, degree, partition=of, p2p=p2p).layout(point) for of in PARTITIONS)
        aware_s, blocks_s = (schedule_s(point, layout) for layout in layouts)
        yield Gain(degree, aware, blocks, blocks_s / aware_s)


def _base_first(found: list[Gain]) -> list[Gain]:
    return sorted(found, key=lambda gain: gain.degree != BASE_DEGREE)


def longest_stages() -> Iterator[Record]:
    """Section IV-B: the longest stage, and the imbalance of Fig. 6."""
    row, imbalance = the_published("IV-B"), the_published("IV-A")
    for words, costs in costs_of(row.model).items():
        found = list(gains(costs, 8, "overlapped"))
        for gain in _base_first(found):
            setting = f"{words}; P = {gain.degree}"
            yield Record.of(row, gain.shorter, setting)
            yield Record.of(imbalance, gain.imbalance, setting)


def partition_speed_ups() -> Iterator[Record]:
    """Section VII-C1: throughput with the skip-aware partition over that with block-wise stages."""
    row = the_published("VII-C1")
    for words, costs in costs_of(row.model).items():
        waiting, overlapped = (list(gains(costs, 16, p2p)) for p2p in ("blocking", "overlapped"))
        overlapping = {gain.degree: gain.faster for gain in overlapped}
        for wait in _base_first(waiting):
            ratios = (wait.faster, overlapping[wait.degree], wait.by_equation)
            for how, ratio in zip(("blocking", "overlapped", "by Eq. 15"), ratios, strict=True):
                yield Record.of(row, ratio, f"{words}; P = {wait.degree}; {how}")
