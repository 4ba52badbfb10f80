"""What the command line prints about anchors: published one-GPU latencies over what the rates alone give."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

from profiles.anchors import Anchor
from profiles.devices import load_device
from profiles.models import load_model
from profiles.sampling_costs import SamplingCosts
from validate.anchors import published_anchors, write_anchors

NEAR: Final = 0.15
"""How far from 1 a factor may be for the rates alone to be called near."""
COLUMNS: Final = (
    "device",
    "model",
    "pixels",
    "batch",
    "steps",
    "published",
    "rates alone",
    "factor",
    "source",
)


@dataclass(frozen=True, slots=True)
class Factor:
    """An anchor of a model, and the seconds that the device's rates give without it."""

    model: str
    anchor: Anchor
    estimated_s: float

    @property
    def value(self) -> float:
        """Published over estimated."""
        return self.anchor.latency_s / self.estimated_s


def factor(name: str, anchor: Anchor) -> Factor:
    """Return what a device's rates alone give for an anchor of a model."""
    model = replace(load_model(name), anchors=())
    costs = SamplingCosts(model, load_device(anchor.device), anchor.height, anchor.width)
    passes = (costs.forward_s(index, anchor.batch).sum() for index in model.backbones)
    return Factor(name, anchor, anchor.steps * float(sum(passes)))


def report_anchors(output: Path | None) -> None:
    """Print every anchor with its factor and how many rows are none, and write the anchor files if asked to."""
    found, left = published_anchors()
    factors = [factor(name, anchor) for name, anchor in found]
    factors.sort(key=lambda f: (f.anchor.device, f.model, f.anchor.height * f.anchor.width))
    console = Console(width=170)
    console.print(factor_table(factors))
    for line in summary(factors):
        console.print(line, highlight=False)
    for reason, number in Counter(reason for _, reason in left).most_common():
        console.print(f"{number} more rows of one GPU are none: {reason}", highlight=False)
    if output:
        write_anchors(found, output)


def factor_table(factors: Sequence[Factor]) -> Table:
    """Return one row per anchor."""
    result = Table(title="one-GPU latencies: published, and by the rates alone", title_justify="left")
    for column in COLUMNS:
        result.add_column(column, justify="left" if column in ("device", "model", "source") else "right")
    for found in factors:
        anchor = found.anchor
        result.add_row(
            anchor.device,
            found.model,
            f"{anchor.height}x{anchor.width}",
            f"{anchor.batch}",
            f"{anchor.steps}",
            f"{anchor.latency_s:.4g} s",
            f"{found.estimated_s:.4g} s",
            f"{found.value:.3f}",
            anchor.source,
        )
    return result


def summary(factors: Sequence[Factor]) -> Iterator[str]:
    """Yield for each device how near its rates alone come."""
    for device in sorted({found.anchor.device for found in factors}):
        values = [found.value for found in factors if found.anchor.device == device]
        near = sum(abs(value - 1) <= NEAR for value in values)
        yield (
            f"{device}: {near} of {len(values)} factors within {NEAR:g} of 1, median {median(values):.3f},"
            f" {min(values):.3f} to {max(values):.3f}"
        )
