"""Anchors: the published one-GPU latencies from which sampling predictions start, by model and device.

They are read from ``validate/published/inference.csv``. Rows of several GPUs never enter: predictions are compared
with those.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Final

from profiles.anchors import ANCHOR_COLUMNS, Anchor
from profiles.files import read_text
from profiles.models import model_names
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

Cells = Mapping[str, str]
Found = tuple[str, Anchor]
"""Model and anchor."""


class Unfit(Exception):  # noqa: N818  no error: it says why a row is left out
    """A row that is no anchor, and why."""


def published_anchors(path: Path = INFERENCE) -> tuple[list[Found], list[tuple[Cells, str]]]:
    """Anchors in the order of the file, and the other one-GPU rows with a reason.

    Raises:
        InputError: the file cannot be read.
    """
    rows = [row for row in csv.DictReader(StringIO(read_text(path))) if row["num_gpus"] == "1"]
    found: list[tuple[Cells, Found]] = []
    left: list[tuple[Cells, str]] = []
    for row in rows:
        try:
            found.append((row, _anchor(row)))
        except Unfit as reason:
            left.append((row, str(reason)))
    dev = {_place(anchor) for row, (_, anchor) in found if row["model"] == DEV}
    kept: list[Found] = []
    for cells, (model, anchor) in found:
        if cells["model"] == DISTILLED and _place(anchor) in dev:
            left.append(
                (cells, "28 steps of the same transformer are published; 4 carry more of what is beside it")
            )
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
    """Write the anchor file of every model into its folder.

    Raises:
        InputError: a file cannot be written.
    """
    for name in sorted({model for model, _ in anchors}):
        text = anchor_text(anchor for model, anchor in anchors if model == name)
        write_file(folder / name / "anchors.csv", text)


def _anchor(row: Cells) -> Found:
    """Anchor of a row.

    Raises:
        Unfit: it is none.
    """
    model = MODELS.get(row["model"])
    if model is None or model not in model_names():
        raise Unfit("the model is not counted")
    if not row["latency_s"]:
        raise Unfit("no latency")
    if row["method"] not in ("original", "baseline") or "compile" in row["method_config"]:
        raise Unfit("not the plain eager pass: compiled, or steps are skipped")
    steps, remark = STEPS.get(row["steps"]) or (_whole(row["steps"]), "")
    height, width = _size(row["resolution_px"], model)
    tag = re.match(r"\[([^],:]*)", row["note"])
    source = f"{row['source']}, {row['table_or_figure']} [{tag.group(1) if tag else 'text'}]{remark}"
    if row["model"] == DISTILLED:
        source += "; FLUX.1-schnell"
    return model, Anchor(_device(row), height, width, _batch(row), steps, float(row["latency_s"]), source)


def _whole(cell: str) -> int:
    if not cell.isdigit():
        raise Unfit("steps are not said")
    return int(cell)


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
