"""Anchors: the published one-GPU latencies from which sampling predictions start, and how near the rates alone come.

They are read from ``validate/published/inference.csv``. Rows of several GPUs never enter: predictions are compared
with those.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rich.table import Table

from profiles.anchors import ANCHOR_COLUMNS, Anchor
from profiles.devices import load_device
from profiles.files import read_text
from profiles.models import load_model, model_names
from profiles.sampling_costs import SamplingCosts
from validate.printing import show, table
from validate.writing import csv_text, write_file

INFERENCE: Final = Path(__file__).parents[1] / "published" / "inference.csv"
DEV: Final = "FLUX.1-dev 12B"
DISTILLED: Final = "FLUX.1-schnell"
"""Sampled in 4 steps, so that encoders and decoder, if they are in the time, weigh most; it has FLUX.1-dev's
transformer."""
MODELS: Final = {
    "CogVideoX-2b": "cogvideox-2b",
    DEV: "flux-dev",
    DISTILLED: "flux-dev",
    "HunyuanDiT v1.2": "hunyuan-1.5b",
    "PixArt-alpha": "pixart",
    "PixArt-alpha XL/2 1024-MS (0.6B,28 layers,hs 1152,16 heads)": "pixart",
    "SD-v2": "sd21",
    "SD3-medium 2B": "sd3-medium",
    "SDXL": "sdxl",
}
DEVICES: Final = (
    ("A100", "NVLink", "a100-80gb-sxm"),
    ("A100", "PCIe", "a100-80gb-pcie"),
    ("H100", "", "h100-80gb-sxm"),
    ("H20", "", "h20-96gb"),
    ("L20", "", "l20-48gb"),
    ("L40", "", "l40-48gb"),
    ("T4", "", "t4-16gb"),
    ("V100", "NVLink", "v100-32gb-sxm"),
)
"""How hardware and interconnect begin, and the device of that kind."""
STEPS: Final = {
    "1 (per step of 50)": (1, ""),
    "20?": (50, "; 20 steps in the title, taken for the 50 of the other charts"),
}
"""Steps that are not a plain number, what they are taken for, and a remark; 20 steps of Hunyuan-DiT in 20.16 s would
make an L40 slower than half an L20."""
FRAMES: Final = {"cogvideox-2b": 49}

NEAR: Final = 0.15
"""How far from 1 a factor may be for the rates alone to be called near."""
COLUMNS: Final = (
    *("device", "model", "pixels", "batch", "steps"),
    *("published", "rates alone", "factor", "source"),
)

Cells = Mapping[str, str]
Found = tuple[str, Anchor]
"""Model and anchor."""


class Unfit(Exception):  # noqa: N818  no error: it says why a row is left out
    """A row that is no anchor, and why."""


def published_anchors(path: Path = INFERENCE) -> tuple[list[Found], list[tuple[Cells, str]]]:
    """Anchors in the order of the file, and the other one-GPU rows with a reason."""
    rows = [row for row in csv.DictReader(StringIO(read_text(path))) if row["num_gpus"] == "1"]
    found: list[tuple[Cells, Found]] = []
    kept: list[Found] = []
    left: list[tuple[Cells, str]] = []
    for row in rows:
        try:
            found.append((row, _anchor(row)))
        except Unfit as reason:
            left.append((row, str(reason)))
    dev = {_place(anchor) for row, (_, anchor) in found if row["model"] == DEV}
    for cells, (model, anchor) in found:
        if cells["model"] == DISTILLED and _place(anchor) in dev:
            why = "28 steps of the same transformer are published; 4 carry more of what is beside it"
            left.append((cells, why))
        elif any(name == model and replace(anchor, source=other.source) == other for name, other in kept):
            left.append((cells, "the same number again"))
        else:
            kept.append((model, anchor))
    return kept, left


def anchor_text(anchors: Iterable[Anchor]) -> str:
    """Text of an anchor file, by device and size."""
    ordered = sorted(anchors, key=lambda anchor: (anchor.device, anchor.height * anchor.width))
    rows = ([getattr(anchor, column) for column in ANCHOR_COLUMNS] for anchor in ordered)
    return csv_text(ANCHOR_COLUMNS, rows)


def write_anchors(anchors: Sequence[Found], folder: Path) -> None:
    """Write the anchor file of every model into its folder."""
    for name in sorted({model for model, _ in anchors}):
        text = anchor_text(anchor for model, anchor in anchors if model == name)
        write_file(folder / name / "anchors.csv", text)


def _anchor(row: Cells) -> Found:
    model = MODELS.get(row["model"])
    if model is None or model not in model_names():
        raise Unfit("the model is not counted")
    if not row["latency_s"]:
        raise Unfit("no latency")
    if row["method"] not in ("original", "baseline") or "compile" in row["method_config"]:
        raise Unfit("not the plain eager pass: compiled, or steps are skipped")
    if row["steps"] not in STEPS and not row["steps"].isdigit():
        raise Unfit("steps are not said")
    steps, remark = STEPS.get(row["steps"]) or (int(row["steps"]), "")
    height, width = _size(row["resolution_px"], model)
    tag = re.match(r"\[([^],:]*)", row["note"])
    source = f"{row['source']}, {row['table_or_figure']} [{tag.group(1) if tag else 'text'}]{remark}"
    if row["model"] == DISTILLED:
        source += "; FLUX.1-schnell"
    return model, Anchor(_device(row), height, width, _batch(row), steps, float(row["latency_s"]), source)


def _size(cell: str, model: str) -> tuple[int, int]:
    """Height and width in pixels; pictures are printed height first, films width first."""
    film = re.fullmatch(r"(\d+)x(\d+)x(\d+)f", cell)
    if film and int(film[3]) == FRAMES.get(model):
        return int(film[2]), int(film[1])
    picture = re.fullmatch(r"(\d+)(?:x(\d+))?", cell)
    if not picture or model in FRAMES:
        raise Unfit("the resolution is not said, or not one that is counted")
    return int(picture[1]), int(picture[2] or picture[1])


def _batch(row: Cells) -> int:
    """Samples of one pass: guidance doubles them."""
    if row["cfg"] in ("?", "yes?") or row["batch"] != "1":
        raise Unfit("whether guidance is on, or the batch, is not clear")
    return 2 if row["cfg"].startswith("yes") else 1


def _device(row: Cells) -> str:
    hardware = re.split("[ -]", row["hardware"])[0]
    for name, links, device in DEVICES:
        if hardware == name and row["interconnect"].startswith(links):
            return device
    raise Unfit("which device it was is not clear, or it is not shipped")


def _place(anchor: Anchor) -> tuple[str, int, int]:
    return anchor.device, anchor.height, anchor.width


class Factor(NamedTuple):
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
    show(170, _factor_table(factors), *_summary(factors), *others)
    if output:
        write_anchors(found, output)


def _factor_table(factors: Sequence[Factor]) -> Table:
    rows = (
        [
            *(at.device, name, f"{at.height}x{at.width}", f"{at.batch}", f"{at.steps}"),
            *(
                f"{at.latency_s:.4g} s",
                f"{estimated_s:.4g} s",
                f"{at.latency_s / estimated_s:.3f}",
                at.source,
            ),
        ]
        for name, at, estimated_s in factors
    )
    title = "one-GPU latencies: published, and by the rates alone"
    return table(title, COLUMNS, rows, left=("device", "model", "source"))


def _summary(factors: Sequence[Factor]) -> Iterator[str]:
    """How near each device's rates alone come, a line each."""
    for device in sorted({found.anchor.device for found in factors}):
        values = [found.value for found in factors if found.anchor.device == device]
        near = sum(abs(value - 1) <= NEAR for value in values)
        yield (
            f"{device}: {near} of {len(values)} factors within {NEAR:g} of 1, median {median(values):.3f},"
            f" {min(values):.3f} to {max(values):.3f}"
        )
