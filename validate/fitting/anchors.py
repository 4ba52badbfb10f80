"""Anchors: the published one-GPU latencies from which sampling predictions start, and how near the laws alone come.

They are rows of ``validate/published/inference.csv``. Rows of several GPUs are never used: predictions are compared
with them.
"""

import re
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from statistics import geometric_mean, median
from typing import Final

from profiles.architectures.component_files import ANCHOR_COLUMNS
from profiles.architectures.components import Anchor
from profiles.architectures.models import load_model
from profiles.costs.layers import one_gpu_s
from profiles.machines.devices import load_device
from profiles.measuring.writing import csv_text, grouped, show, table
from profiles.software.stacks import Shares, load_stack
from validate.points import cluster_of
from validate.published import runs
from validate.published.ledger import NEAR
from validate.published.runs import SamplingRow
from validate.tables import write_file

LINKS: Final = {"A100": ("NVLink", "PCIe"), "V100": ("NVLink",)}
"""Cards that come in several kinds, and beginnings of the links that identify the shipped one."""
DEV, DISTILLED = "FLUX.1-dev 12B", "FLUX.1-schnell"
REMARKS: Final = {"20?": "; 20 steps in the title, taken for the 50 of the other charts"}
"""What is said of the source of rows whose steps are no plain number."""
JUDGED: Final = ("cogvideox-5b", "hunyuanvideo", "qwen-image", "wan2.1-14b")
"""Models that were added after laws and stacks were fitted: their rows make no anchors."""
SHOWING: Final = ("a100-80gb-sxm",)
"""Devices whose anchors show the shares of their laws that kernels reach, as these were measured on them."""
LEAST: Final = {"matmul": 0.3, "attention": 0.5}
"""Least part of the estimated time that kernels of a class have in an anchor that shows their share."""

ModelAnchor = tuple[str, Anchor]
"""Model and anchor."""


def published_anchors(path: Path = runs.INFERENCE) -> tuple[list[ModelAnchor], list[tuple[SamplingRow, str]]]:
    """Anchors in the order of the file, and the other one-GPU rows with a reason."""
    kept: list[ModelAnchor] = []
    left: list[tuple[SamplingRow, str]] = []
    one_gpu = [row for row in runs.read_sampling(path) if row.num_gpus == 1]
    anchors = [(row, row["folder"], _anchor(row)) for row in one_gpu if not _unfit(row)]
    place = attrgetter("device", "height", "width")
    dev = {place(anchor) for row, _, anchor in anchors if row["model"] == DEV}
    for row, model, anchor in anchors:
        if row["model"] == DISTILLED and place(anchor) in dev:
            why = "28 steps of the same transformer are published; 4 carry more of what is beside it"
            left.append((row, why))
        elif any(name == model and replace(anchor, source=other.source) == other for name, other in kept):
            left.append((row, "the same number again"))
        else:
            kept.append((model, anchor))
    return kept, [(row, reason) for row in one_gpu if (reason := _unfit(row))] + left


def _unfit(row: SamplingRow) -> str:
    """Why a row of one GPU is no anchor; empty if it is one."""
    links = LINKS.get(re.split("[ -]", row["hardware"])[0], ("",))
    if row["unread"]:
        return row["unread"]
    if row["folder"] in JUDGED:
        return "a model whose rows judge the laws alone"
    if row.latency_s is None:
        return "no latency"
    if row["method"] not in ("original", "baseline") or "compile" in row["method_config"]:
        return "not the plain eager pass: compiled, or steps are skipped"
    if row["cfg"] in ("?", "yes?") or row["batch"] != "1":
        return "whether guidance is on, or the batch, is not clear"
    return "" if row["interconnect"].startswith(links) else "which device it was is not clear"


def _anchor(row: SamplingRow) -> Anchor:
    """The anchor of a row; guidance doubles the samples of a pass."""
    tag = re.match(r"\[([^],:]*)", row["note"])
    where = f"{row['source']}, {row['table_or_figure']} [{tag.group(1) if tag else 'text'}]"
    source = where + REMARKS.get(row["steps"], "")
    source += f"; {DISTILLED}" if row["model"] == DISTILLED else ""
    height, width, steps = (int(row[column]) for column in ("height", "width", "run_steps"))
    batch, device = 2 if row["cfg"].startswith("yes") else 1, cluster_of(row["cluster"]).device.name
    assert row.latency_s is not None
    return Anchor(device, height, width, batch, steps, row.latency_s, source)


def factor(name: str, anchor: Anchor) -> float:
    """Ratio of an anchor's published seconds to those of the device's laws alone."""
    return anchor.latency_s / one_gpu_s(load_model(name), load_device(anchor.device), anchor)


def share_of(kind: str, name: str, anchor: Anchor) -> float | None:
    """Share of their law at which kernels of a class, with the others as they are, give an anchor's seconds.

    None where they take little of them, or were not measured on the device.
    """
    if anchor.device not in SHOWING:
        return None
    model, device, stack = load_model(name), load_device(anchor.device), load_stack()
    freed = replace(stack, forward_operator_s=0.0)

    def seconds(share: float) -> float:
        rates: Shares = replace(stack.rates, **{kind: share})
        return one_gpu_s(model, device, anchor, replace(freed, rates=rates))

    own_s = seconds(0.5) - seconds(1.0)
    beside_s = seconds(1.0) - own_s
    if own_s < LEAST[kind] * (own_s + beside_s) or anchor.latency_s <= beside_s:
        return None
    return own_s / (anchor.latency_s - beside_s)


def shared(kind: str, anchors: Iterable[ModelAnchor]) -> float:
    """Median share over models and sizes; several latencies of one size count by their geometric mean."""
    shares_by_size: dict[tuple[str, int, int], list[float]] = {}
    for name, anchor in anchors:
        share = share_of(kind, name, anchor)
        if share is not None:
            shares_by_size.setdefault((name, anchor.height, anchor.width), []).append(share)
    return median(geometric_mean(shares) for shares in shares_by_size.values())


def report_anchors(options: Namespace) -> None:
    """Print every anchor with its factor, and why other rows are no anchors; write the anchor files if asked to."""
    anchors, left = published_anchors()
    anchors.sort(key=lambda one: (one[1].device, one[0], one[1].height * one[1].width))
    factors, lines = list[tuple[str, float]](), list[list[str]]()
    for name, at in anchors:
        value = factor(name, at)
        factors.append((at.device, value))
        place = at.device, name, f"{at.height}x{at.width}", f"{at.batch}", f"{at.steps}"
        seconds = f"{at.latency_s:.4g} s", f"{at.latency_s / value:.4g} s"
        lines.append([*place, *seconds, f"{value:.3f}", at.source])
    reasons = Counter(reason for _, reason in left).most_common()
    others = [f"{number} more rows of one GPU are none: {reason}" for reason, number in reasons]
    reached = (f"{kind} reaches {shared(kind, anchors):.3f} of its law" for kind in LEAST)
    near = []
    for device, of_device in grouped(factors, lambda one: one[0]).items():
        values = [value for _, value in of_device]
        count = sum(abs(value - 1) <= NEAR for value in values)
        within = f"{count} of {len(values)} factors within {NEAR:g} of 1, median {median(values):.3f}"
        near.append(f"{device}: {within}, {min(values):.3f} to {max(values):.3f}")
    title, texts = "one-GPU latencies: published, and by the laws alone", ("device", "model", "source")
    header = (*texts[:2], "pixels", "batch", "steps", "published", "laws alone", "factor", "source")
    show(170, table(title, header, lines, left=texts), *near, *reached, *others)
    for name, of_model in grouped(anchors, lambda one: one[0]).items() if options.output else ():
        ordered = sorted((one for _, one in of_model), key=lambda one: (one.device, one.height * one.width))
        cells = ([getattr(anchor, column) for column in ANCHOR_COLUMNS] for anchor in ordered)
        write_file(options.output / name / "anchors.csv", csv_text(ANCHOR_COLUMNS, cells))
