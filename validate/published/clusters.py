"""Published throughput of training runs on real clusters beside the simulator's, each under the stack of the run.

``clusters.csv`` says how each run is simulated. What its source leaves open is assumed: MosaicML's A100s have 40 GB, as
in its first benchmark, whose encoders run under autocast (the later code encodes in half precision).
NeMo's ControlNet, which is cldm's, encodes images under autocast. Two kinds of runs set constants: the share of their
law that convolutions reach on all stacks, which is the geometric mean of ``shared_rate``, each source once, and the
seconds of the host in an iteration (``hidden_by_nothing``). The shares of products and attention are set by one-GPU
latencies that they make up (``anchors``).
"""

import argparse
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from scipy.optimize import brentq

from profiles.architectures.models import load_model
from profiles.costs.resolutions import with_frames
from profiles.files import read_text
from profiles.machines.clusters import load_cluster
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
    Record,
    Standing,
    kind_of,
    published,
    stack_of,
    the_published,
)
from validate.tables import Section, print_sections, read_cells, signed, write_tables

RUNS: Final = Path(__file__).parent / "clusters.csv"
OPTIONS: Final = ("model", "gpus", "micro_batches", "batch_size", "resolution", "frozen", "ema")
"""Columns that are arguments of ``sim.run``."""
SETS: Final = "sets the share of their law that convolutions reach"
SETS_HOST: Final = "sets what the host takes in an iteration"


@dataclass(frozen=True, slots=True)
class ClusterRun:
    """A published training run and how it is simulated.

    Attributes:
        options: arguments of ``sim.run`` except cluster and stack; beside the strategy its parameters and others.
        device: name of the device in the cluster, where it is another.
        stack: of the engine and its version.
        standing: of the published number, and why.
    """

    name: str
    source: str
    options: dict[str, str | int]
    cluster: str
    device: str
    stack: Stack
    samples_per_s: float
    standing: Standing
    why: str

    @classmethod
    def of(cls, row: Mapping[str, str]) -> Self:
        """The run of a row."""
        strategy, *parameters = row["strategy"].split()
        texts = {key: row[key] for key in OPTIONS} | dict(parameter.split("=") for parameter in parameters)
        options = {key: int(text) if text.isdigit() else text for key, text in texts.items()}
        where = row["cluster"], row["device"], stack_of(row["engine"])
        result = float(row[SAMPLES_PER_S]), Standing(row["standing"] or Standing.INDEPENDENT), row["why"]
        return cls(row["name"], row["source"], options | {"strategy": strategy}, *where, *result)

    @property
    def device_name(self) -> str:
        """The device in the cluster."""
        return self.device or load_cluster(self.cluster).device.name

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return int(self.options["gpus"])

    @property
    def task(self) -> tuple[object, ...]:
        """All but the number of GPUs."""
        return self.name, self.options["resolution"], self.stack.name, self.device_name

    def predicted(self, stack: Stack | None = None, **other: str | int) -> float:
        """Simulated samples per second, under another stack or arguments if given."""
        cluster = load_cluster(self.cluster)
        if self.device:
            name = f"{self.cluster} of {self.device}"
            cluster = replace(cluster, name=name, device=load_device(self.device))
        options = self.options | other
        result = api.run(cluster=cluster, stack=stack or self.stack, **options)  # type: ignore[arg-type]
        return result.samples_per_s

    def error(self, stack: Stack | None = None, **other: str | int) -> float:
        """Predicted over published throughput, less one, likewise."""
        return self.predicted(stack, **other) / self.samples_per_s - 1


@cache
def read_runs() -> tuple[ClusterRun, ...]:
    """The published runs in the order of their file."""
    return tuple(map(ClusterRun.of, read_cells(RUNS)))


def shared_rate(run: ClusterRun) -> float:
    """Share of their law that convolutions reach, other kernels as they are, where a run takes as long as published."""
    return float(brentq(lambda share: run.error(rated(run.stack, share)), 0.1, 1.0, xtol=1e-5))


def rated(stack: Stack, share: float) -> Stack:
    """A stack of which convolutions reach a share of their law."""
    return replace(stack, rates=replace(stack.rates, conv=share))


def hidden_by_nothing(few: ClusterRun, many: ClusterRun) -> float:
    """Seconds of the host in an iteration that, with one factor on all else, give both runs of a pair their pace."""
    few_s, many_s = (int(run.options["batch_size"]) / run.samples_per_s for run in (few, many))
    few_without_s, many_without_s = (
        int(run.options["batch_size"]) / run.predicted(iteration_us=0) for run in (few, many)
    )
    return few_s - few_without_s * (few_s - many_s) / (few_without_s - many_without_s)


IMAGES: Final = {256: 1.126e9, 512: 1.741e9}
"""Images of MosaicML's whole training by pixels of a side (its README)."""
CACHED: Final = "MosaicML cached"
TUNED: Final[dict[str, dict[str, Any]]] = tomllib.loads(read_text(RUNS.with_name("tuning.toml")))
"""Options of the runs of which other numbers than throughputs are published."""
FORWARDS: Final = 3
"""FLOP of an iteration over those of a forward, without recomputation: a backward counts as two. NeMo and Megatron are
known to count so; the code behind the row was not read."""
TERA: Final = 1e12


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
    rows = [[row.row.note, f"{row.row.value:g}", f"{row.predicted:.2f}"] for row in encoders()]
    yield Section(title, ("", "published", "simulated"), rows)


def _line(run: ClusterRun, record: Record) -> list[str]:
    gpus = f"{run.gpus} of {run.device or run.cluster}"
    sizes = (f"{run.options[key]}" for key in ("batch_size", "resolution"))
    numbers = f"{run.samples_per_s:,.1f}", f"{record.predicted:,.1f}", error_words(record)
    return [run.name, gpus, *sizes, run.stack.name, *numbers, f"{record.standing}"]


def run_clusters(options: argparse.Namespace) -> None:
    """Print published beside simulated throughput, and with ``--rates`` the shares that some runs set."""
    sections = list(tables())
    print_sections(sections)
    if options.readme is not None:
        write_tables(options.readme, "clusters --readme", sections)
    if options.rates:
        for run in (run for run in read_runs() if run.why == SETS):
            print(
                f"{run.name} on {run.device_name}: a share of {shared_rate(run):.3f} of the law of convolutions"
            )
        for few, many in _pairs():
            where = f"{few.name} on {few.gpus} and {many.gpus} GPUs ({few.stack.name})"
            seconds = hidden_by_nothing(few, many)
            print(f"{where}: {seconds:.3f} s of the host an iteration that nothing hides")


def _record(run: ClusterRun) -> Record:
    options, strategy = run.options, str(run.options["strategy"])
    row = Published(
        TASKS[0], run.source, run.name, str(options["model"]), run.device_name, run.gpus,
        f"{strategy}, {options['frozen']}", int(options["batch_size"]), SAMPLES_PER_S, run.samples_per_s,
        resolution_px=f"{options['resolution']}",
    )  # fmt: skip
    conditions = Conditions(run.device_name, run.stack.name.split()[0], kind_of(strategy, run.gpus))
    setting = f"{run.cluster}, stack {run.stack.name}, {options['micro_batches']} micro-batches"
    standing = run.standing, run.why
    return Record(row, run.predicted(), *standing, setting, ESTIMATED, conditions=conditions)


def model_flops() -> Iterator[Record]:
    """FLOP of the model per second and GPU, for a run whose throughput is not published."""
    row = the_published("NeMo", quantity="model_tflops_per_gpu")
    gpus, batch = row.num_gpus or 1, row.batch_size or 1
    result = api.run(row.model, "fsdp", cluster="h100-ib", gpus=gpus, batch_size=batch, **TUNED["wan"])
    model = with_frames(load_model(row.model), TUNED["wan"]["frames"], load_device("h100-80gb-sxm"))
    layers = [layer for index in model.backbones for layer in model.components[index].layers]
    forward = sum(layer.conv_flop + layer.matmul_flop + layer.attention_flop for layer in layers)
    predicted = FORWARDS * forward * result.samples_per_s / gpus / TERA
    yield Record.of(row, predicted, "fsdp, block checkpointing, 93 frames of 832x480, stack eager")


def fewer_bits() -> Iterator[Record]:
    """Time of a step of a LoRA on one B200 in fp8 over that in half precision, both compiled."""
    row = the_published("unsloth")
    half, fp8 = (
        api.run(row.model, stack="inductor", precision=precision, **TUNED["lora"]).samples_per_s
        for precision in (HALF, FP8)
    )
    yield Record.of(row, half / fp8, "ddp, rank 16, block checkpointing, encoders cached, stack inductor")


def settings() -> Iterator[Record]:
    """Time of a step of Automodel's fine-tuning with another setting over that before: gradients, then compilation."""
    words = "fsdp, one frame of 832x480, encoders cached, memory recipes mixed and mixed-fp16-gradient"
    steps = [
        api.run("wan2.1-14b", batch_size=8, memory_recipe=recipe, stack=stack, **TUNED["full"]).iteration_s
        for recipe, stack in (
            ("mixed", "eager"), ("mixed-fp16-gradient", "eager"), ("mixed-fp16-gradient", "inductor"),
        )
    ]  # fmt: skip
    for row, before, after in zip(published("Automodel"), steps, steps[1:], strict=False):
        yield Record.of(row, after / before, words)


def _pairs() -> Iterator[tuple[ClusterRun, ClusterRun]]:
    """Every run with the same run on the fewest GPUs before it."""
    for runs in grouped(read_runs(), lambda run: run.task).values():
        base, *more = sorted(runs, key=lambda run: run.gpus)
        yield from ((base, run) for run in more if run.gpus != base.gpus)


def _scaling() -> Iterator[list[str]]:
    """Throughput over that of the same run on the fewest GPUs."""
    for base, run in _pairs():
        published = run.samples_per_s / base.samples_per_s
        simulated = run.predicted() / base.predicted()
        words = [run.name, f"{run.gpus} over {base.gpus}", f"{run.options['resolution']}"]
        yield [*words, f"{published:.2f}", f"{simulated:.2f}", signed(simulated / published - 1)]


def encoders() -> Iterator[Record]:
    """Time of MosaicML's training, at 256 and then at 512 pixels on 8 GPUs, with the encoders online over cached."""
    row = the_published("README", quantity="time_ratio")
    runs = [run for run in read_runs() if run.name.startswith(CACHED) and run.gpus == row.num_gpus]
    online, cached = (
        sum(IMAGES[int(run.options["resolution"])] / run.predicted(frozen=frozen) for run in runs)
        for frozen in ("online", "cached")
    )
    yield Record.of(row, online / cached, f"stack {runs[0].stack.name}, 8 GPUs, 39 % of the images at 256 px")


EXPERIMENTS: Final = (throughputs, encoders, model_flops, fewer_bits, settings)
