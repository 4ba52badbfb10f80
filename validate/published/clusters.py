"""Published throughput of training runs on real clusters beside the simulator's, each under the stack of the run.

``clusters.csv`` says how each run is simulated. What its source leaves open is assumed: MosaicML's A100s have 40 GB, as
in its first benchmark, whose encoders run under autocast (the later code encodes in half precision).
NeMo's ControlNet, which is cldm's, encodes images under autocast.
A run "in view" was known while
stacks were described; those that "set the rates" give the share of the laws that all kernels but attention reach on all
stacks: the geometric mean of ``shared_rate``; those that "set the host" give its seconds in an iteration
(``hidden_by_nothing``). Attention's share is set by one-GPU latencies that are mostly attention (``anchors``).
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from scipy.optimize import brentq

from profiles.architectures.models import load_model
from profiles.costs.resolutions import with_frames
from profiles.errors import InfeasibleError
from profiles.files import Row, read_rows
from profiles.machines.clusters import cluster_names, load_cluster
from profiles.machines.devices import load_device
from profiles.measuring.writing import grouped
from profiles.software.levers import FP8, HALF
from profiles.software.stacks import Stack
from sim import api
from validate.published.ledger import error_words
from validate.published.records import (
    ESTIMATED,
    SAMPLES_PER_S,
    TASKS,
    Conditions,
    Published,
    Reason,
    Record,
    Standing,
    kind_of,
    published,
    stack_of,
    the_published,
)
from validate.tables import Section, print_sections, signed, write_tables

RUNS: Final = Path(__file__).parent / "clusters.csv"
COLUMNS: Final = (
    "name", "source", "model", "cluster", "device", "gpus", "strategy", "micro_batches", "batch", "resolution",
    "frozen", "ema", "engine", "role", "samples_per_s",
)  # fmt: skip
SETS: Final = "sets the rates"
SETS_HOST: Final = "sets the host"
ROLES: Final = (SETS, SETS_HOST, "in view", "independent")


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A published training run and how it is simulated.

    Attributes:
        options: arguments of ``sim.run`` except cluster and stack; beside the strategy its parameters and others.
        device: name of the device in it, where it is another.
        stack: of the engine and its version.
        samples_per_s: published throughput.
    """

    name: str
    source: str
    options: dict[str, str | int]
    cluster: str
    device: str
    stack: Stack
    role: str
    samples_per_s: float

    @classmethod
    def of(cls, row: Row) -> Self:
        """The run of a row."""
        numbers = {"gpus": "gpus", "micro_batches": "micro_batches", "batch_size": "batch"}
        texts = ("model", "frozen", "ema")
        options: dict[str, str | int] = {key: row.integer(column, 1) for key, column in numbers.items()}
        options |= {key: row.text(key) for key in texts} | {"resolution": row.integer("resolution", 1)}
        options["strategy"], *parameters = row.text("strategy").split()
        named = (of.partition("=") for of in parameters)
        options |= {name: int(value) if value.isdigit() else value for name, _, value in named}
        (device,) = row.cells(("device",))
        where = row.text("cluster"), device, stack_of(row.text("engine"))
        result = row.choice("role", ROLES), row.number("samples_per_s")
        return cls(row.text("name"), row.text("source"), options, *where, *result)

    @property
    def device_name(self) -> str:
        """The device in the cluster; for a cluster that is not shipped, the cluster's name."""
        there = self.cluster in cluster_names()
        return self.device or (load_cluster(self.cluster).device.name if there else self.cluster)

    def predicted(self, stack: Stack | None = None, **other: str | int) -> float | None:
        """Simulated samples per second, under another stack or arguments if given; None if no such cluster ships."""
        if self.cluster not in cluster_names():
            return None
        cluster = load_cluster(self.cluster)
        if self.device:
            name = f"{self.cluster} of {self.device}"
            cluster = replace(cluster, name=name, device=load_device(self.device))
        options = self.options | other
        result = api.run(cluster=cluster, stack=stack or self.stack, **options)  # type: ignore[arg-type]
        return result.samples_per_s

    def error(self, stack: Stack | None = None, **other: str | int) -> float | None:
        """Predicted over published throughput, less one, likewise."""
        predicted = self.predicted(stack, **other)
        return None if predicted is None else predicted / self.samples_per_s - 1


@cache
def read_runs() -> tuple[ClusterRun, ...]:
    """The published runs in the order of their file."""
    return tuple(map(ClusterRun.of, read_rows(RUNS, COLUMNS)))


def shared_rate(run: ClusterRun) -> float:
    """Share of the laws, the same for all kernels but attention, at which a run takes as long as published."""

    def excess(share: float) -> float:
        return (run.predicted(rated(run.stack, share)) or 0.0) - run.samples_per_s

    return float(brentq(excess, 0.1, 1.0, xtol=1e-5))


def rated(stack: Stack, share: float) -> Stack:
    """A stack of which all kernels but attention reach a share of their laws."""
    return replace(stack, rates=replace(stack.rates, matmul=share, conv=share, memory=share))


def hidden_by_nothing(few: ClusterRun, many: ClusterRun) -> float:
    """Seconds of the host in an iteration that, with one factor on all else, give both runs of a pair their pace."""

    def pace(run: ClusterRun) -> tuple[float, float]:
        batch, simulated = int(run.options["batch_size"]), run.predicted(iteration_us=0)
        assert simulated is not None
        return batch / run.samples_per_s, batch / simulated

    (few_s, few_without_s), (many_s, many_without_s) = pace(few), pace(many)
    return few_s - few_without_s * (few_s - many_s) / (few_without_s - many_without_s)


REASONS: Final[dict[str, Reason]] = {
    SETS: (Standing.FITTED, "sets the share of the laws that stacks reach"),
    SETS_HOST: (Standing.FITTED, "sets what the host takes in an iteration"),
    "in view": (Standing.IN_VIEW, "in view when stacks were described"),
    "independent": (Standing.INDEPENDENT, ""),
}
"""The standings of the roles of ``clusters.csv``."""
IMAGES: Final = {256: 1.126e9, 512: 1.741e9}
"""Images of MosaicML's whole training by pixels of a side (its README)."""
CACHED: Final = "MosaicML cached"
WAN: Final[dict[str, Any]] = {
    "frozen": "cached",
    "checkpointing": "block",
    "resolution": "832x480",
    "frames": 93,
}
"""Options for training on 37,440 tokens of Wan 2.1, 24 latent frames of 30 x 52.

The row names neither checkpointing nor the stack: blocks and eager are assumed.
"""
LORA: Final[dict[str, Any]] = {
    "strategy": "ddp",
    "cluster": "b200-ib",
    "gpus": 1,
    "batch_size": 1,
    "resolution": 512,
    "frozen": "cached",
    "trainable": "lora:16",
    "checkpointing": "block",
}
"""Options of the LoRA, whose row names neither rank nor checkpointing, nor what its encoders do."""
TUNED: Final[dict[str, Any]] = {
    "strategy": "fsdp",
    "cluster": "h100-nvlink-8",
    "gpus": 8,
    "frozen": "cached",
    "frames": 1,
}
"""Options of Automodel's full fine-tuning of Wan 2.1, which prints 38 to 49 GiB but no size: with Adam in single
precision one frame of 832x480 takes 49 to 53, of 512x512 41 to 45, and with checkpointing either 31 at most.
"""
FORWARDS: Final = 3
"""FLOP of an iteration over those of a forward, without recomputation: a backward counts as two. NeMo and Megatron are
known to count so; the code behind the row was not read."""
TERA: Final = 1e12
MARKERS: Final = "<!-- python -m validate clusters --readme -->", "<!-- end -->"
"""Lines before and after the tables that the command writes into a text."""


def throughputs() -> Iterator[Record]:
    """The record of every run, on its stack."""
    return map(_record, read_runs())


def tables() -> Iterator[Section]:
    """The tables of the runs: their throughput, over that of fewer GPUs, and with encoders in the loop."""
    header = ("run", "GPUs", "batch", "pixels", "stack", "published", "simulated", "error", "")
    remark = (
        "Each on the stack that it was run on; clusters.csv says how each is asked, and what became of it."
    )
    title = "Training on real clusters: images per second"
    yield Section(title, header, [_line(run, _record(run)) for run in read_runs()], remark)
    title = "Training on real clusters: throughput over that of the fewest GPUs"
    yield Section(title, ("run", "GPUs", "pixels", "published", "simulated", "error"), list(_scaling()))
    title = "MosaicML: seconds with VAE and text encoder in the loop over those with cached latents"
    rows = [[of.row.note, f"{of.row.value:g}", f"{of.predicted:.2f}"] for of in encoders()]
    yield Section(title, ("", "published", "simulated"), rows)


def _line(run: ClusterRun, record: Record) -> list[str]:
    predicted = "-" if record.predicted is None else f"{record.predicted:,.1f}"
    gpus = f"{run.options['gpus']} of {run.device or run.cluster}"
    sizes = (f"{run.options[key]}" for key in ("batch_size", "resolution"))
    numbers = f"{run.samples_per_s:,.1f}", predicted, error_words(record)
    return [run.name, gpus, *sizes, run.stack.name, *numbers, f"{record.standing}"]


def run_clusters(options: argparse.Namespace) -> None:
    """Print published beside simulated throughput, and with ``--rates`` the shares of the laws that some runs set."""
    sections = list(tables())
    print_sections(sections)
    if options.readme is not None:
        write_tables(options.readme, MARKERS, sections)
    if options.rates:
        for run in (run for run in read_runs() if run.role == SETS):
            print(f"{run.name} on {run.device_name}: a share of {shared_rate(run):.3f} of the laws")
        for few, many in _pairs():
            where = f"{few.name} on {few.options['gpus']} and {many.options['gpus']} GPUs ({few.stack.name})"
            seconds = hidden_by_nothing(few, many)
            print(f"{where}: {seconds:.3f} s of the host an iteration that nothing hides")


def _record(run: ClusterRun) -> Record:
    options, gpus = run.options, int(run.options["gpus"])
    row = Published(
        TASKS[0],
        source=run.source,
        item=run.name,
        model=str(options["model"]),
        machine=run.device_name,
        num_gpus=gpus,
        method=f"{options['strategy']}, {options['frozen']}",
        batch_size=int(options["batch_size"]),
        quantity=SAMPLES_PER_S,
        value=run.samples_per_s,
        resolution_px=f"{options['resolution']}",
    )
    try:
        predicted = run.predicted()
    except InfeasibleError as reason:
        return Record(row, None, Standing.UNCOVERED, str(reason))
    if predicted is None:
        return Record(row, None, Standing.UNCOVERED, f"no cluster of {run.cluster}")
    kind = kind_of(str(options["strategy"]), gpus)
    conditions = Conditions(run.device_name, run.stack.name.split()[0], kind)
    setting = f"{run.cluster}, stack {run.stack.name}, {options['micro_batches']} micro-batches"
    return Record(row, predicted, *REASONS[run.role], setting, ESTIMATED, conditions=conditions)


def model_flops() -> Iterator[Record]:
    """FLOP of the model per second and GPU, for a run whose throughput is not published."""
    row = the_published("NeMo", quantity="model_tflops_per_gpu")
    gpus, batch = row.num_gpus or 1, row.batch_size or 1
    result = api.run(row.model, "fsdp", cluster="h100-ib", gpus=gpus, batch_size=batch, **WAN)
    model = with_frames(load_model(row.model), WAN["frames"], load_device("h100-80gb-sxm"))
    layers = [layer for index in model.backbones for layer in model.components[index].layers]
    forward = sum(layer.conv_flop + layer.matmul_flop + layer.attention_flop for layer in layers)
    predicted = FORWARDS * forward * result.samples_per_s / gpus / TERA
    yield Record.of(row, predicted, "fsdp, block checkpointing, 93 frames of 832x480, stack eager")


def fewer_bits() -> Iterator[Record]:
    """Time of a step of a LoRA on one B200 in fp8 over that in half precision, both compiled."""
    row = the_published("unsloth")
    half, fp8 = (
        api.run(row.model, stack="inductor", precision=of, **LORA).samples_per_s for of in (HALF, FP8)
    )
    yield Record.of(row, half / fp8, "ddp, rank 16, block checkpointing, encoders cached, stack inductor")


def settings() -> Iterator[Record]:
    """Time of a step of Automodel's fine-tuning with another setting over that before: gradients, then compilation."""
    words = "fsdp, one frame of 832x480, encoders cached, memory recipes mixed and mixed-fp16-gradient"
    steps = [
        api.run("wan2.1-14b", batch_size=8, memory_recipe=recipe, stack=stack, **TUNED).iteration_s
        for recipe, stack in (
            ("mixed", "eager"), ("mixed-fp16-gradient", "eager"), ("mixed-fp16-gradient", "inductor"),
        )
    ]  # fmt: skip
    for row, before, after in zip(published("Automodel"), steps, steps[1:], strict=False):
        yield Record.of(row, after / before, words)


def _pairs() -> Iterator[tuple[ClusterRun, ClusterRun]]:
    """Every run with the same run on the fewest GPUs before it."""
    task = lambda run: (run.name, run.options["resolution"], run.stack.name, run.device_name)  # noqa: E731
    for runs in grouped(read_runs(), task).values():
        base, *more = sorted(runs, key=lambda run: int(run.options["gpus"]))
        yield from ((base, run) for run in more if run.options["gpus"] != base.options["gpus"])


def _scaling() -> Iterator[list[str]]:
    """Throughput over that of the same run on the fewest GPUs."""
    for base, run in _pairs():
        published = run.samples_per_s / base.samples_per_s
        predicted, over = run.predicted(), base.predicted()
        simulated = None if predicted is None or over is None else predicted / over
        error = "-" if simulated is None else signed(simulated / published - 1)
        gpus = f"{run.options['gpus']} over {base.options['gpus']}"
        words = [run.name, gpus, f"{run.options['resolution']}"]
        yield [*words, f"{published:.2f}", "-" if simulated is None else f"{simulated:.2f}", error]


def encoders() -> Iterator[Record]:
    """Time of MosaicML's training, at 256 and then at 512 pixels on 8 GPUs, with the encoders online over cached."""
    row = the_published("README", quantity="time_ratio")
    runs = [run for run in read_runs() if run.name.startswith(CACHED) and run.options["gpus"] == row.num_gpus]
    online, cached = (
        sum(IMAGES[int(of.options["resolution"])] / (of.predicted(frozen=frozen) or 1.0) for of in runs)
        for frozen in ("online", "cached")
    )
    yield Record.of(row, online / cached, f"stack {runs[0].stack.name}, 8 GPUs, 39 % of the images at 256 px")


EXPERIMENTS: Final = (throughputs, encoders, model_flops, fewer_bits, settings)
