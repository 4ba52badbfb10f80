"""Throughput of training runs on real clusters: each row of ``clusters.csv``, and ratios between rows."""

import argparse
from collections.abc import Iterator
from typing import Any, Final

from profiles.architectures.models import load_model
from profiles.checks import sum_in_order
from profiles.costs.resolutions import with_frames
from profiles.errors import InfeasibleError
from profiles.machines.devices import load_device
from profiles.measuring.tables import grouped
from sim import api
from validate.published import records
from validate.published.clusters import SETS, ClusterRun, read_runs, shared_rate
from validate.published.ledger import error_words
from validate.published.records import Reason, Record, Standing, the_published
from validate.published.training.experiment import Found, experiment
from validate.tables import print_sections, signed, write_tables

REASONS: Final[dict[str, Reason]] = {
    SETS: (Standing.FITTED, "sets the share of the laws that stacks reach"),
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
FORWARDS: Final = 3
"""FLOP of an iteration over those of a forward, without recomputation: a backward counts as two. NeMo and Megatron are
known to count so; the code behind the row was not read."""
TERA: Final = 1e12
MARKERS: Final = "<!-- python -m validate clusters --readme -->", "<!-- end -->"
"""Lines before and after the tables that the command writes into a text."""


@experiment
def throughputs() -> Found:
    """Every row, on its stack."""
    for run in read_runs():
        record = _record(run)
        yield record
        gpus = f"{run.asked['gpus']} of {run.device or run.cluster}"
        predicted = "-" if record.predicted is None else f"{record.predicted:,.1f}"
        words = [run.name, gpus, f"{run.asked['batch_size']}", f"{run.asked['resolution']}", run.stack.name]
        yield [*words, f"{run.samples_per_s:,.1f}", predicted, error_words(record), f"{record.standing}"]


def run_clusters(options: argparse.Namespace) -> None:
    """Print published beside simulated throughput, and with ``--rates`` the shares of the laws that some runs set."""
    tables = [throughputs().section, scaling().section, encoders().section]
    print_sections(tables)
    if options.readme is not None:
        write_tables(options.readme, MARKERS, tables)
    if options.rates:
        for run in (run for run in read_runs() if run.role == SETS):
            print(f"{run.name} on {run.device_name}: a share of {shared_rate(run):.3f} of the laws")


def _record(run: ClusterRun) -> Record:
    row = _published(run)
    try:
        predicted = run.predicted()
    except InfeasibleError as reason:
        return Record(row, None, Standing.UNCOVERED, str(reason))
    if predicted is None:
        return Record(row, None, Standing.UNCOVERED, f"no cluster of {run.cluster}")
    kind = records.kind_of(str(run.asked["strategy"]), int(run.asked["gpus"]))
    conditions = records.Conditions(run.device_name, run.stack.name.split()[0], kind)
    setting = f"{run.cluster}, stack {run.stack.name}, {run.asked['micro_batches']} micro-batches"
    return Record(row, predicted, *REASONS[run.role], setting, records.ESTIMATED, conditions=conditions)


def _published(run: ClusterRun) -> records.Published:
    asked = run.asked
    return records.Published(
        records.TASKS[0],
        source=run.source,
        item=run.name,
        model=str(asked["model"]),
        machine=run.device_name,
        num_gpus=int(asked["gpus"]),
        method=f"{asked['strategy']}, {asked['frozen']}",
        batch_size=int(asked["batch_size"]),
        quantity=records.SAMPLES_PER_S,
        value=run.samples_per_s,
        resolution_px=f"{asked['resolution']}",
    )


@experiment
def model_flops() -> Found:
    """FLOP of the model per second and GPU, for a run whose throughput is not published."""
    row = the_published("NeMo", quantity="model_tflops_per_gpu")
    gpus, batch = row.num_gpus or 1, row.batch_size or 1
    result = api.run(row.model, "fsdp", cluster="h100-ib", gpus=gpus, batch_size=batch, **WAN)
    model = with_frames(load_model(row.model), WAN["frames"], load_device("h100-80gb-sxm"))
    layers = [layer for index in model.backbones for layer in model.components[index].layers]
    forward = sum_in_order(layer.conv_flop + layer.matmul_flop + layer.attention_flop for layer in layers)
    predicted = FORWARDS * forward * result.samples_per_s / gpus / TERA
    record = Record.of(row, predicted, "fsdp, block checkpointing, 93 frames of 832x480, stack eager")
    yield record
    yield ["Wan 2.1 14 B", f"{row.value:.1f}", f"{predicted:.1f}", error_words(record)]


@experiment
def scaling() -> Found:
    """Throughput over that of the same run on the fewest GPUs."""
    task = lambda run: (run.name, run.asked["resolution"], run.stack.name, run.device_name)  # noqa: E731
    for runs in grouped(read_runs(), task).values():
        base, *more = sorted(runs, key=lambda run: int(run.asked["gpus"]))
        for run in more:
            if run.asked["gpus"] == base.asked["gpus"]:
                continue
            published = run.samples_per_s / base.samples_per_s
            predicted, over = run.predicted(), base.predicted()
            simulated = None if predicted is None or over is None else predicted / over
            error = "-" if simulated is None else signed(simulated / published - 1)
            words = [run.name, f"{run.asked['gpus']} over {base.asked['gpus']}", f"{run.asked['resolution']}"]
            yield [*words, f"{published:.2f}", "-" if simulated is None else f"{simulated:.2f}", error]


@experiment
def encoders() -> Found:
    """Time of MosaicML's training, at 256 and then at 512 pixels on 8 GPUs, with the encoders online over cached."""
    row = the_published("README", quantity="time_ratio")
    runs = [run for run in read_runs() if run.name.startswith(CACHED) and run.asked["gpus"] == row.num_gpus]
    online, cached = (sum_in_order(_hours(runs, frozen)) for frozen in ("online", "cached"))
    yield Record.of(row, online / cached, f"stack {runs[0].stack.name}, 8 GPUs, 39 % of the images at 256 px")
    yield [row.note, f"{row.value:g}", f"{online / cached:.2f}"]


def _hours(runs: list[ClusterRun], frozen: str) -> Iterator[float]:
    for run in runs:
        yield IMAGES[int(run.asked["resolution"])] / (run.predicted(frozen=frozen) or 1.0) / 3600
