"""Numbers of PULSE: throughputs, bytes of messages, and the gain of its skip-aware partition.

The paper gives neither degrees nor micro-batches of its comparisons, nor the placement of stages. The base setting is
inferred from elsewhere in it: the degree from its communication volumes, as many micro-batches, the micro-batch from
its volume of ZeRO-2 (half-precision gradients over the samples of one device), data parallelism inside the nodes
(section VI), blocking messages (section VII-A), baselines on blocks with relayed skips at PULSE's degree and
micro-batch (section VII). Every other setting changes one of these.

The paper counts some cells of bytes in one direction and some in both, and does not give every pipeline degree; each
cell is compared with every convention, and the nearest is named. Its MB is MiB.

It publishes no layer times. Activations are in single precision and products in half, as under autocast: the volumes of
Table III and the largest micro-batches of section VII-C2 suggest the first, 14 bytes per parameter (Eq. 14) and the
throughputs the second. Attention is unfused: FlashAttention-2 needs a newer GPU than its V100s, and has no NPUs.

Source: PULSE, sections IV, VI and VII-A to VII-C2, Table III, Figs. 6, 7, 13 and 14, Eq. 14.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, product
from math import log2
from typing import Any, Final, NamedTuple

import numpy as np

from profiles.measuring.writing import grouped
from profiles.units import MIB
from sim.outcomes.results import Result
from strategies.pipelining.layout import Layout
from strategies.scenario import Scenario
from strategies.training.pulse import Pulse
from validate.points import command_for, forward_bytes, model_of, replayed, scenario, train
from validate.published.records import OVER, Published, Record, published, the_published

GRADIENT_BYTES: Final = 2
DEFAULT_DEGREE: Final = 4
DEEP: Final = {"hunyuan-3b", "ascend910a-8node"}
"""Model and machine of pipelines of degree 8, by cells of Table III that come out exactly; the U-Net as the U-ViT."""
DEGREES: Final = (2, 4, 8)
MICRO_BATCHES: Final = (64, 32, 16, 8, 4, 2, 1)
"""The powers of two of the paper's tuner (section VI), from twice the largest it names."""
STACKS: Final = ("unfused", "eager")
"""Software stacks: attention in separate products, and fused. The first is the base."""


class Task(NamedTuple):
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
    whether devices wait for their messages, ``stack`` the software stack, ``recipe`` the memory recipe.
    """

    degree: int
    micro_batch: int
    placement: str = "data-inner"
    p2p: str = "blocking"
    stack: str = STACKS[0]
    recipe: str = "pulse"

    def scenario(self, task: Task) -> Scenario:
        """The scenario of a task in this setting."""
        how: dict[str, Any] = {"memory_recipe": self.recipe, "placement": self.placement, "stack": self.stack}
        return scenario(*task, self.micro_batch * task.num_gpus, self_conditioning=0.0, **how)

    def parameters(self, strategy: str) -> dict[str, Any]:
        """The parameters of a strategy in this setting."""
        if strategy == "zero2":
            return {"overlap": "none"}
        values = {"pipeline_degree": self.degree, "micro_batches": self.degree, "p2p": self.p2p}
        return values if strategy == "pulse" else values | {"partition": "blocks"}

    def commands(self, task: Task, *strategies: str) -> str:
        """The command that asks for a strategy, or for one over another."""
        point = self.scenario(task)
        return OVER.join(command_for(name, point, **self.parameters(name)) for name in strategies)


@cache
def run(task: Task, setting: Setting, strategy: str, partition: str | None = None) -> Result:
    """The result of a strategy in a setting."""
    cut = {} if partition is None else {"partition": partition}
    return train(strategy, setting.scenario(task), **setting.parameters(strategy), **cut)


def over(task: Task, setting: Setting, baseline: str) -> float:
    """PULSE's throughput over a baseline's in the same setting."""
    return run(task, setting, "pulse").samples_per_s / run(task, setting, baseline).samples_per_s


def base_of(task: Task) -> Setting:
    """The base setting of one of Table III's models."""
    row = the_published("Table III", model=task.model, machine="v100-2node", method="zero2")
    backbone = model_of(task.model).for_task("train").components[-1]
    samples = backbone.parameters * GRADIENT_BYTES / MIB / row.value
    degree = 8 if DEEP.intersection(task[:2]) else DEFAULT_DEGREE
    return Setting(degree, 2 ** round(log2(samples)))


CHANGES: Final[tuple[Mapping[str, Any], ...]] = (
    {},
    {"placement": "pipeline-inner"},
    {"p2p": "overlapped"},
    {"recipe": "mixed-fp16-gradient"},
    {"stack": STACKS[1]},
    *({"degree": degree} for degree in DEGREES),
)
"""Changes of each setting to the base, which comes first."""
ON_ASCEND: Final = CHANGES[:3]
"""The settings that are shown for all three models."""
BASELINES: Final = ("1f1b", "wave", "zero2")


def largest(task: Task, degree: int, stack: str = STACKS[0]) -> tuple[Setting, Result] | None:
    """The setting with the largest micro-batch with which PULSE fits in memory, and its result."""
    for micro_batch in MICRO_BATCHES:
        setting = Setting(degree, micro_batch, stack=stack)
        if (result := run(task, setting, "pulse")).fits_memory:
            return setting, result
    return None


def two_nodes() -> Iterator[Record]:
    """Section VII-A on 16 V100s: the base setting, and each change of it."""
    row = the_published("VII-A", method="pulse")
    task = Task.of(row)
    base = base_of(task)
    for setting in dict.fromkeys(replace(base, **change) for change in CHANGES):
        result = run(task, setting, "pulse")
        yield Record.of(row, result.samples_per_s, setting.commands(task, "pulse"))
        yield from _ratios(task, setting)


def eight_nodes() -> Iterator[Record]:
    """Section VII-A on 64 Ascend 910A: the largest of three models, as the paper gives the largest ratios."""
    models = dict.fromkeys(row.model for row in published("Table III"))
    tasks = [Task(model, "ascend910a-8node", 64) for model in models]
    for change in ON_ASCEND:
        ratios = [one for task in tasks for one in _ratios(task, replace(base_of(task), **change))]
        for same in grouped(ratios, lambda one: one.row).values():
            yield max(same, key=lambda one: one.predicted or 0.0)


def _ratios(task: Task, setting: Setting) -> Iterator[Record]:
    for baseline in BASELINES:
        ratio = over(task, setting, baseline)
        for row in published("VII-A", machine=task.cluster, method=f"pulse/{baseline}"):
            yield Record.of(row, ratio, setting.commands(task, "pulse", baseline))


def larger_models() -> Iterator[Record]:
    """Section VII-B: U-ViT of 6 B over the better of the two pipelines, by degree."""
    row = the_published("VII-B")
    task = Task.of(row)
    for degree in DEGREES:
        if pair := largest(task, degree):
            setting, _ = pair
            best, name = min((over(task, setting, name), name) for name in BASELINES[:2])
            yield Record.of(row, best, setting.commands(task, "pulse", name))


def degrees() -> Iterator[Record]:
    """Section VII-C2: the largest micro-batches, their throughputs and messages, by degree."""
    for row in published("VII-C2"):
        task, degree = Task(row.model, "v100-2node", 8), int(row.method.split("=")[1])
        if row.quantity == "p2p_MB_per_sample":
            yield _nearest(row, [degree])
            continue
        for stack in STACKS:
            pair = largest(task, degree, stack)
            assert pair is not None
            setting, result = pair
            value = setting.micro_batch if row.quantity == "micro_batch" else result.samples_per_s
            yield Record.of(row, value, setting.commands(task, "pulse"))


@cache
def volumes_of(task: Task, strategy: str, degree: int) -> dict[str, float]:
    """MiB that one iteration of a pipeline sends per sample in its replayed messages, as the paper may count them.

    Hidden states, skips and values carried with them go forwards, the gradients of the first two backwards.
    """
    batch = task.num_gpus
    point = scenario(*task, batch, self_conditioning=0.0)
    cut = {} if strategy == "pulse" else {"partition": "blocks"}
    trace = replayed(strategy, point, pipeline_degree=degree, micro_batches=degree, **cut)
    forwards, both = (size / batch / MIB for size in (forward_bytes(trace), trace.p2p_bytes))
    return {f"P = {degree}, forwards": forwards, f"P = {degree}, both ways": both}


def _nearest(row: Published, degrees: Sequence[int] = (4, 8)) -> Record:
    """The record of a pipeline's cell, counted in the way that comes closest to the printed number."""
    task, strategy = Task.of(row), row.method.split()[0]
    values = dict(chain.from_iterable(volumes_of(task, strategy, degree).items() for degree in degrees))
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
    point = scenario(*task, batch, self_conditioning=0.0, memory_recipe="mixed-fp16-gradient")
    trace = replayed("zero2", point, overlap="none")
    collectives = trace.plan.collectives
    scattered = sum(one.size_bytes for one in collectives if one.operation == "reduce_scatter")
    share = scattered / sum(one.size_bytes for one in collectives)
    return share * trace.collective_bytes / batch / MIB


MICRO_BATCH: Final = 32
"""Samples of a micro-batch in Figs. 6 and 7."""
PARTITIONS: Final = ("symmetric", "blocks")
"""The skip-aware partition, and block-wise stages."""


def longest_blocks() -> Iterator[Record]:
    """Fig. 6: the longest forward of a block over the mean of all; the text calls the blocks stages."""
    row = the_published("IV-A")
    for stack in STACKS:
        point = Setting(1, MICRO_BATCH, stack=stack).scenario(Task(row.model, "v100-2node", 1))
        (backbone,) = point.model.backbones
        forward_s = point.costs.components[backbone].forward_s(MICRO_BATCH)
        blocks = [layer.block for layer in point.model.components[backbone].layers]
        seconds = np.bincount(blocks, weights=forward_s)
        yield Record.of(row, float(seconds.max() / seconds.mean()), command_for("ddp", point))


def _partitioned(
    model: str, num_gpus: int, p2p: str
) -> Iterator[tuple[Task, Setting, tuple[Result, Result], str]]:
    """Results with both partitions by stack and degree, that of the base first, and the commands that ask for them."""
    task = Task(model, "v100-2node", num_gpus)
    for stack, degree in product(STACKS, dict.fromkeys((DEFAULT_DEGREE, *DEGREES))):
        setting = Setting(degree, MICRO_BATCH, p2p=p2p, stack=stack)
        aware, blocks = (run(task, setting, "pulse", partition) for partition in PARTITIONS)
        command = setting.commands(task, "pulse")
        yield task, setting, (aware, blocks), f"{command}{OVER}{command} --partition blocks"


def longest_stages() -> Iterator[Record]:
    """Section IV-B: by how much the longest forward of a stage is shorter than with block-wise stages."""
    row = the_published("IV-B")
    for *_, results, commands in _partitioned(row.model, 8, "overlapped"):
        aware, blocks = (max(float(stage["forward_s"]) for stage in result.stages) for result in results)
        yield Record.of(row, 1 - aware / blocks, commands)


def partition_speed_ups() -> Iterator[Record]:
    """Section VII-C1: throughput with the skip-aware partition over that with block-wise stages.

    By Eq. 15 every step takes as long as the slowest.
    """
    row = the_published("VII-C1")
    for p2p in ("blocking", "overlapped"):
        for task, setting, (aware, blocks), commands in _partitioned(row.model, 16, p2p):
            yield Record.of(row, aware.samples_per_s / blocks.samples_per_s, commands)
            if p2p == "blocking":
                point, degree = setting.scenario(task), setting.degree
                layouts = (
                    Pulse(degree, degree, partition=partition).layout(point) for partition in PARTITIONS
                )
                aware_s, blocks_s = (schedule_s(point, layout) for layout in layouts)
                yield Record.of(row, blocks_s / aware_s, f"Eq. 15 in place of {commands}")


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


TABLES: Final[Mapping[str, Sequence[Callable[[], Iterator[Record]]]]] = {
    "table-3": (volumes,),
    "partition": (longest_blocks, longest_stages, partition_speed_ups),
    "throughput": (two_nodes, eight_nodes, larger_models),
    "degrees": (degrees,),
}
"""Experiments by the name of their table."""
EXPERIMENTS: Final = tuple(chain.from_iterable(TABLES.values()))
