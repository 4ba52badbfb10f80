"""What the command line prints about anchors: published one-GPU latencies over what the rates alone give."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from rich.table import Table

from profiles.anchors import Anchor
from profiles.devices import load_device
from profiles.models import load_model
from profiles.sampling_costs import SamplingCosts
from validate.fitting.anchors import published_anchors, write_anchors
from validate.printing import show, table

NEAR: Final = 0.15
"""How far from 1 a factor may be for the rates alone to be called near."""
COLUMNS: Final = (
    *("device", "model", "pixels", "batch", "steps"),
    *("published", "rates alone", "factor", "source"),
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
    """What a device's rates alone give for an anchor of a model."""
    model = replace(load_model(name), anchors=())
    costs = SamplingCosts(model, load_device(anchor.device), anchor.height, anchor.width)
    passes = (costs.forward_s(index, anchor.batch).sum() for index in model.backbones)
    return Factor(name, anchor, anchor.steps * float(sum(passes)))


def report_anchors(output: Path | None) -> None:
    """Print every anchor with its factor and how many rows are none, and write the anchor files if asked to."""
    found, left = published_anchors()
    factors = [factor(name, anchor) for name, anchor in found]
    factors.sort(key=lambda f: (f.anchor.device, f.model, f.anchor.height * f.anchor.width))
    reasons = Counter(reason for _, reason in left).most_common()
    others = [f"{number} more rows of one GPU are none: {reason}" for reason, number in reasons]
    show(170, factor_table(factors), *summary(factors), *others)
    if output:
        write_anchors(found, output)


def factor_table(factors: Sequence[Factor]) -> Table:
    """One row per anchor."""
    rows = (
        [
            found.anchor.device,
            found.model,
            f"{found.anchor.height}x{found.anchor.width}",
            f"{found.anchor.batch}",
            f"{found.anchor.steps}",
            f"{found.anchor.latency_s:.4g} s",
            f"{found.estimated_s:.4g} s",
            f"{found.value:.3f}",
            found.anchor.source,
        ]
        for found in factors
    )
    title = "one-GPU latencies: published, and by the rates alone"
    return table(title, COLUMNS, rows, left=("device", "model", "source"))


def summary(factors: Sequence[Factor]) -> Iterator[str]:
    """How near each device's rates alone come, a line each."""
    for device in sorted({found.anchor.device for found in factors}):
        values = [found.value for found in factors if found.anchor.device == device]
        near = sum(abs(value - 1) <= NEAR for value in values)
        yield (
            f"{device}: {near} of {len(values)} factors within {NEAR:g} of 1, median {median(values):.3f},"
            f" {min(values):.3f} to {max(values):.3f}"
        )
