"""Numbers of PULSE: throughputs, bytes of messages, and the gain of its skip-aware partition.

The paper gives neither degrees nor micro-batches of its comparisons, nor the placement of stages. The base setting is
inferred from elsewhere in it: the degree from its communication volumes, as many micro-batches, the micro-batch from
its volume of ZeRO-2 (half-precision gradients over the samples of one device), data parallelism inside the nodes
(section VI), blocking messages (section VII-A), baselines on blocks with relayed skips at PULSE's degree and
micro-batch (section VII). Every other setting changes one of these.

The paper counts some cells of bytes in one direction and some in both, and does not give every pipeline degree; each
cell is compared with every convention, and the nearest is named. Its MB is MiB.

It publishes no layer times. Activations in single precision and products in half precision, as under autocast, are
the base of ``costs_of``: the volumes of Table III and the largest micro-batches of section VII-C2 suggest the first, 14
bytes per parameter (Eq. 14) and the throughputs the second. Its V100s and NPUs may run attention unfused.

Source: PULSE, sections IV, VI and VII-A to VII-C2, Table III, Figs. 6, 7, 13 and 14, Eq. 14.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log2
from typing import Any, Final

from profiles.architectures.components import Component, Layer
from profiles.architectures.models import Model
from profiles.checks import sum_in_order
from profiles.errors import InfeasibleError
from profiles.measuring.tables import grouped
from profiles.software.stacks import Stack, load_stack
from profiles.units import MIB
from sim.outcomes.results import Result
from strategies.pipelining.layout import Layout
from strategies.scenario import Scenario
from strategies.training.pulse import Pulse
from validate.points import cluster_of, forward_bytes, model_of, replayed, scenario, train
from validate.published.records import Published, Record, published, the_published

GRADIENT_BYTES: Final = 2
DEFAULT_DEGREE: Final = 4
PIPELINE_DEGREES: Final = {
    ("uvit-2.7b", "ascend910a-8node"): 8,
    ("hunyuan-3b", "v100-2node"): 8,
    ("hunyuan-3b", "ascend910a-8node"): 8,
    ("sdv2-4.6b", "ascend910a-8node"): 8,
}
"""Degrees other than 4, from cells of PULSE in Table III that come out exactly; the U-Net is taken to have U-ViT's."""
DEGREES: Final = (2, 4, 8)
MICRO_BATCHES: Final = (64, 32, 16, 8, 4, 2, 1)
"""The powers of two of the paper's tuner (section VI), from twice the largest it names."""
HALF: Final = "activations in half precision"
COSTS: Final = ("activations in single precision", HALF, "attention unfused")
"""Assumptions about the costs of layers. The first is the base; the others change it."""


@cache
def costs_of(name: str) -> dict[str, tuple[Model, Stack]]:
    """A model and its stack under each assumption about the costs of its layers."""
    single, eager = model_of(name), load_stack()
    others = ((in_half_precision(name), eager), (single, load_stack("unfused")))
    return dict(zip(COSTS, ((single, eager), *others), strict=True))


def in_half_precision(name: str) -> Model:
    """A model counted in single precision, changed to half: half the bytes, and no casts; its FLOP stay."""
    model = model_of(name)
    assert model.dtype == "float32"

    def halve(layer: Layer) -> Layer:
        sizes = {key: getattr(layer, key) / 2 for key in ("moved_bytes", "output_bytes", "saved_bytes")}
        return replace(layer, **sizes)

    def lighten(part: Component) -> Component:
        layers, carried = tuple(map(halve, part.layers)), part.carried_bytes / 2
        return replace(part, layers=layers, carried_bytes=carried, kernels=part.half_kernels)

    return replace(model, components=tuple(map(lighten, model.components)), dtype="float16")


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
    """Choices that the paper leaves open.

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
        (model, stack), gpus = costs_of(task.model)[self.costs], task.num_gpus
        efficiencies = cluster_of(self.collectives or task.cluster).collectives
        cluster = replace(cluster_of(task.cluster), collectives=efficiencies)
        how: dict[str, Any] = {"memory_recipe": self.recipe, "placement": self.placement, "stack": stack}
        return scenario(model, cluster, gpus, self.micro_batch * gpus, self_conditioning=0.0, **how)


@cache
def run(task: Task, setting: Setting, strategy: str, partition: str | None = None) -> Result | None:
    """The result of a strategy in a setting; None where it is infeasible."""
    options: dict[str, Any] = {"overlap": "none"}
    if strategy != "zero2":
        options = {"pipeline_degree": setting.degree, "micro_batches": setting.degree, "p2p": setting.p2p}
    if partition is not None:
        options["partition"] = partition
    try:
        return train(strategy, setting.scenario(task), **options)
    except InfeasibleError:
        return None


def over(task: Task, setting: Setting, baseline: str) -> float | None:
    """PULSE's throughput over a baseline's in the same setting; None where either is infeasible."""
    pulse, other = run(task, setting, "pulse"), run(task, setting, baseline)
    return None if pulse is None or other is None else pulse.samples_per_s / other.samples_per_s


def base_of(task: Task) -> Setting:
    """The base setting of one of Table III's models."""
    row = the_published("Table III", model=task.model, machine="v100-2node", method="zero2")
    backbone = model_of(task.model).for_task("train").components[-1]
    samples = backbone.parameters * GRADIENT_BYTES / MIB / row.value
    degree = PIPELINE_DEGREES.get((task.model, task.cluster), DEFAULT_DEGREE)
    return Setting(degree, 2 ** round(log2(samples)))


CHANGES: Final[Mapping[str, Mapping[str, Any]]] = {
    "base": {},
    "pipelines inside the nodes": {"placement": "pipeline-inner"},
    "messages overlap": {"p2p": "overlapped"},
    "gradients in half precision": {"recipe": "mixed-fp16-gradient"},
    "collectives as on p4de": {"collectives": "p4de"},
    **{costs: {"costs": costs} for costs in COSTS[1:]},
    **{f"P = {degree}": {"degree": degree} for degree in DEGREES},
}
"""Changes of each setting to the base."""
ON_ASCEND: Final = (
    *("base", "pipelines inside the nodes", "messages overlap", "collectives as on p4de", HALF),
)
"""The settings that are shown for all three models."""
BASELINES: Final = ("1f1b", "wave", "zero2")


def largest(task: Task, setting: Setting) -> Setting | None:
    """The setting with the largest micro-batch with which PULSE fits in memory."""
    for micro_batch in MICRO_BATCHES:
        one = replace(setting, micro_batch=micro_batch)
        if (result := run(task, one, "pulse")) is not None and result.fits_memory:
            return one
    return None


def two_nodes() -> Iterator[Record]:
    """Section VII-A on 16 V100s: the base setting, and each change of it."""
    row = the_published("VII-A", method="pulse")
    task = Task.of(row)
    base = base_of(task)
    for words, change in CHANGES.items():
        setting = replace(base, **change)
        if words != "base" and setting == base:
            continue
        result = run(task, setting, "pulse")
        if result is not None:
            yield Record.of(row, result.samples_per_s, f"{base}; {words}")
        yield from _ratios(task, setting, f"{base}; {words}")


def eight_nodes() -> Iterator[Record]:
    """Section VII-A on 64 Ascend 910A: three models, of which the paper gives the largest ratios."""
    models = dict.fromkeys(row.model for row in published("Table III"))
    tasks = [Task(model, "ascend910a-8node", 64) for model in models]
    for words in ON_ASCEND:
        ratios: list[Record] = []
        for task in tasks:
            base = base_of(task)
            setting = f"largest of {len(tasks)}: {task.model}, {base}; {words}"
            ratios += _ratios(task, replace(base, **CHANGES[words]), setting)
        for same in grouped(ratios, lambda one: one.row).values():
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
        setting = largest(task, Setting(degree, 1))
        if setting is not None:
            ratios = [over(task, setting, baseline) for baseline in ("1f1b", "wave")]
            best = min(ratio for ratio in ratios if ratio is not None)
            yield Record.of(row, best, f"{setting}, the largest that fits")


def degrees() -> Iterator[Record]:
    """Section VII-C2: the largest micro-batches, their throughputs and messages, by degree."""
    for row in published("VII-C2"):
        task, degree = Task(row.model, "v100-2node", 8), int(row.method.split("=")[1])
        if row.quantity == "p2p_MB_per_sample":
            yield _nearest(row, [degree])
            continue
        setting = largest(task, Setting(degree, 1))
        assert setting is not None
        result = run(task, setting, "pulse")
        assert result is not None
        of_micro_batch = row.quantity == "micro_batch"
        value = float(setting.micro_batch) if of_micro_batch else result.samples_per_s
        yield Record.of(row, value, f"{setting}")


WAYS: Final = ("forwards", "both ways")
"""Bytes that the paper may count: those sent forwards, or gradients too."""


@cache
def volume(task: Task, strategy: str, degree: int) -> dict[str, float]:
    """MiB that one iteration of a pipeline sends per sample in its replayed messages, by way of counting.

    Hidden states, skips and values carried with them go forwards, the gradients of the first two backwards.
    """
    batch = task.num_gpus
    point = scenario(task.model, task.cluster, task.num_gpus, batch, self_conditioning=0.0)
    trace = replayed(strategy, point, pipeline_degree=degree, micro_batches=degree)
    sizes = (forward_bytes(trace), trace.p2p_bytes)
    return {way: size / batch / MIB for way, size in zip(WAYS, sizes, strict=True)}


def _nearest(row: Published, degrees: Sequence[int] = (4, 8)) -> Record:
    """The record of a pipeline's cell, counted in the way that comes closest to the printed number."""
    task, strategy = Task.of(row), row.method.split()[0]
    values = {f"P = {n}, {way}": volume(task, strategy, n)[way] for n in degrees for way in WAYS}
    way = min(values, key=lambda way: abs(values[way] - row.value))
    return Record.of(row, values[way], f"nearest of {len(values)} conventions: {way}")


def volumes() -> Iterator[Record]:
    """Table III: the messages of pipelines, and the reduce-scatters of one device of ZeRO-2."""
    for row in published("Table III"):
        if row.method == "zero2":
            samples = base_of(Task.of(row)).micro_batch
            words = f"{samples} samples per device, fp16 gradients"
            yield Record.of(row, reduced(Task.of(row), samples), words)
        elif row.method in ("pulse", "wave", "1f1b"):
            yield _nearest(row)


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
PARTITIONS: Final = ("symmetric", "blocks")
"""The skip-aware partition, and block-wise stages."""


def _partitioned(
    model: str, num_gpus: int, p2p: str
) -> Iterator[tuple[str, Task, Setting, tuple[Result, Result]]]:
    """Results with both partitions, by costs of layers and degree, that of the base first."""
    task = Task(model, "v100-2node", num_gpus)
    for costs in COSTS:
        for degree in (DEFAULT_DEGREE, *(of for of in DEGREES if of != DEFAULT_DEGREE)):
            setting = Setting(degree, MICRO_BATCH, p2p=p2p, costs=costs)
            aware, blocks = (run(task, setting, "pulse", of) for of in PARTITIONS)
            assert aware is not None and blocks is not None
            yield f"{costs}; P = {degree}", task, setting, (aware, blocks)


def longest_stages() -> Iterator[Record]:
    """Section IV-B: the longest forward of a stage, and the imbalance of Fig. 6: it over the mean."""
    row, imbalance = the_published("IV-B"), the_published("IV-A")
    for words, _, _, results in _partitioned(row.model, 8, "overlapped"):
        aware, blocks = ([float(stage["forward_s"]) for stage in of.stages] for of in results)
        yield Record.of(row, 1 - max(aware) / max(blocks), words)
        yield Record.of(imbalance, max(blocks) * len(blocks) / sum_in_order(blocks), words)


def partition_speed_ups() -> Iterator[Record]:
    """Section VII-C1: throughput with the skip-aware partition over that with block-wise stages.

    By Eq. 15 every step takes as long as the slowest.
    """
    row = the_published("VII-C1")
    both = (_partitioned(row.model, 16, p2p) for p2p in ("blocking", "overlapped"))
    for (words, task, setting, waiting), (*_, overlapped) in zip(*both, strict=True):
        for how, (aware, blocks) in (("blocking", waiting), ("overlapped", overlapped)):
            yield Record.of(row, aware.samples_per_s / blocks.samples_per_s, f"{words}; {how}")
        point, degree = setting.scenario(task), setting.degree
        layouts = (Pulse(degree, degree, partition=of, p2p=setting.p2p).layout(point) for of in PARTITIONS)
        aware_s, blocks_s = (schedule_s(point, layout) for layout in layouts)
        yield Record.of(row, blocks_s / aware_s, f"{words}; by Eq. 15")


def schedule_s(scenario: Scenario, layout: Layout) -> float:
    """The estimated seconds of an iteration, one wave, M = P. Source: PULSE, Eq. 15."""
    degree = layout.shape.degree
    forward_s = max(stage.forward_s for stage in layout.stages)
    size = max(layout.handovers_bytes)
    routes = [layout.network.route(p, p + 1) for p in range(degree - 1)]
    message_s = max((route.delay_s + size * route.wire_s_per_byte for route in routes), default=0.0)
    steps = max(10 * degree - 12, 0)
    return (10 * degree - 4) * forward_s + steps * message_s + all_reduce_s(scenario, layout)


def all_reduce_s(scenario: Scenario, layout: Layout) -> float:
    """The estimated seconds of the gradient reduction of the largest stage. Source: PULSE, Eq. 16."""
    copies, cluster = layout.placement.copies, scenario.cluster
    if copies == 1:
        return 0.0
    size = 2 * max(stage.parameters for stage in layout.stages)
    within = layout.placement.group(0).num_nodes == 1
    link = cluster.intra_node if within else cluster.inter_node or cluster.intra_node
    return link.latency_s + 2 * (copies - 1) / copies * size / link.bandwidth_bytes_per_s


EXPERIMENTS: Final = (
    *(volumes, two_nodes, eight_nodes, larger_models, longest_stages, partition_speed_ups, degrees),
)
