"""Anchors: published latencies of one GPU, from which predictions of several start."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from profiles.checks import check_counts, check_numbers, check_positive
from profiles.files import path_kind, read_rows

ANCHOR_COLUMNS: Final = ("device", "height", "width", "batch", "steps", "latency_s", "source")


@dataclass(frozen=True, slots=True)
class Anchor:
    """Published latency of ``steps`` forward passes of the backbones on one device.

    Attributes:
        device: its name.
        height: pixels.
        width: pixels.
        batch: samples in one pass; 2 per image with classifier-free guidance.
        steps: passes.
        latency_s: seconds of all of them, without text encoders and VAE.
        source: where that is published.
    """

    device: str
    height: int
    width: int
    batch: int
    steps: int
    latency_s: float
    source: str

    def __post_init__(self) -> None:
        owner = f"anchor of {self.device}"
        check_counts(owner, least=1, height=self.height, width=self.width, batch=self.batch, steps=self.steps)
        check_numbers(owner, latency_s=self.latency_s)
        check_positive(owner, latency_s=self.latency_s)


def read_anchors(path: Path) -> tuple[Anchor, ...]:
    """The anchors of a model; none where the file does not exist.

    Raises:
        InputError: the file breaks a rule.
    """
    if path_kind(path) == "nothing":
        return ()
    anchors = []
    for row in read_rows(path, ANCHOR_COLUMNS):
        latency_s = row.number("latency_s")
        if latency_s == 0:
            raise row.fail("latency_s", "must be positive")
        anchor = Anchor(
            device=row.text("device"),
            height=row.integer("height", minimum=1),
            width=row.integer("width", minimum=1),
            batch=row.integer("batch", minimum=1),
            steps=row.integer("steps", minimum=1),
            latency_s=latency_s,
            source=row.text("source"),
        )
        anchors.append(anchor)
    return tuple(anchors)
