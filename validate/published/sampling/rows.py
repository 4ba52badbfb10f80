"""Published rows of sampling, as they stand in the file, and which machine and size each one names."""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from io import StringIO
from math import inf
from pathlib import Path
from typing import Final

from profiles.files import parse_number, read_text
from profiles.software.stacks import DEFAULT_STACK
from validate.published.records import LATENCY, MEMORY, TASKS, Published

COLUMNS: Final = (
    "source", "table_or_figure", "model", "resolution_px", "steps", "sampler", "cfg", "batch", "hardware",
    "interconnect", "num_gpus", "method", "method_config", "latency_s", "memory_GB", "comm_GB", "note",
)  # fmt: skip
OUT_OF_MEMORY: Final = "OOM"
INFERENCE: Final = Path(__file__).parents[1] / "inference.csv"
DEV: Final = "FLUX.1-dev 12B"
DISTILLED: Final = "FLUX.1-schnell"
"""Sampled in 4 steps, so that encoders and decoder, if they are in the time, weigh most; it has FLUX.1-dev's
transformer."""
MODELS: Final = {
    "CogVideoX-2b": "cogvideox-2b",
    "CogVideoX-5b": "cogvideox-5b",
    DEV: "flux-dev",
    DISTILLED: "flux-dev",
    "HunyuanDiT v1.2": "hunyuan-1.5b",
    "HunyuanVideo 13B": "hunyuanvideo",
    "PixArt-alpha": "pixart",
    "PixArt-alpha XL/2 1024-MS (0.6B,28 layers,hs 1152,16 heads)": "pixart",
    "Qwen-Image": "qwen-image",
    "SD-v2": "sd21",
    "SD3-medium 2B": "sd3-medium",
    "SDXL": "sdxl",
    "Wan2.1-I2V-14B-480P": "wan2.1-14b",
    "Wan2.2-T2V-A14B": "wan2.1-14b",
}
"""Wan 2.2's two experts, of which each step runs one, are of Wan 2.1's shape. The I2V model reads the first image
beside the text (257 tokens of it in cross-attention, 20 channels more of the latent): half a percent more work than the
T2V model's, which is counted."""
STEPS: Final = {
    "1 (per step of 40)": (1, ""),
    "1 (per step of 50)": (1, ""),
    "20?": (50, "; 20 steps in the title, taken for the 50 of the other charts"),
}
"""Steps that are not a plain number, what they are taken for, and a remark; 20 steps of Hunyuan-DiT in 20.16 s would
make an L40 slower than half an L20."""
FRAMES: Final = {"cogvideox-2b": 49, "cogvideox-5b": 49, "hunyuanvideo": 129, "wan2.1-14b": 81}
AREAS: Final = {"480P (832x480 area)": (480, 832), "1280x720": (720, 1280)}
"""Height and width of videos whose frames are printed elsewhere: 81, or 80, of which diffusers makes 81."""
UNSAID_STEPS: Final = {"qwen-image": 50}
"""Steps of the pipeline in diffusers by default, which a row that says none is taken to have run."""
FUSED: Final = ("FastVideo", "LightX2V", "SGL-Diffusion")
FUSED_SOURCES: Final = ("vllm-omni", "TensorRT-LLM tech blog")
"""Engines with fused norms and pointwise kernels that attend by the newest kernels.

Three of their rows chose that stack, and are in view.
"""
NEWEST: Final = "newest"
"""The stack of these: compiled, with the attention that the laws were measured of."""
ENGINES: Final = INFERENCE.with_name("engines.csv")
"""Rows of today's engines; all but these are in ``INFERENCE``."""
ALONE: Final = "collective only"
COMPILED: Final = "compiled"
"""The stack of rows whose settings speak of a compiler."""
EARLY: Final = "AndyShih12/paradigms"
"""A source of spring 2023, which runs Stable Diffusion 2. Its rows say 512 px and no software; the release of that name
draws 768 px (its base model 512), and a pass of two predictions in 50 ms is that of 768 px on software of that spring
(47 ms), and 2.4 times that of 512 px. So they are read, and count as in view."""
EARLY_STACK: Final = "eager-2023"
EARLY_SIZE: Final = (768, 768)
MACHINES: Final = (
    ("GB200", "", "gb200-nvl72"),
    ("B200", "", "b200-ib"),
    ("A100", "PCIe", "a100-pcie-4"),
    ("A100", "", "a100-nvlink-8"),
    ("H100", "", "h100-nvlink-8"),
    ("H20", "", "h20-nvlink-8"),
    ("L20", "", "l20-pcie-8"),
    ("L40", "", "l40-pcie-8"),
    ("T4", "", "t4-pcie-8"),
    ("V100", "", "v100-2node"),
    ("8xGPU", "", "a100-nvlink-8"),
)
"""Hardware, how its interconnect begins, and the cluster. Of ``8xGPU`` only memory is printed."""


class Uncovered(Exception):  # noqa: N818  no error: it says why a row is not predicted
    """A row that no prediction covers, and why."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One published row: what ran where, and what it took; properties that a row does not say raise ``Uncovered``.

    ``num_gpus`` is None where the source does not say; ``memory_gib`` is the printed "GB": what the allocator counts,
    in units of 2**30 bytes; ``sent_gb`` are GB that one device sends in one step, of one sample. Those are None where
    there is no number, or memory ran out.
    """

    line: int
    cells: tuple[str, ...]
    num_gpus: int | None
    latency_s: float | None
    memory_gib: float | None
    sent_gb: float | None
    out_of_memory: bool

    @classmethod
    def of(cls, cells: Mapping[str, str], line: int, path: Path = INFERENCE) -> "SamplingRow":
        """What a row of a file says."""
        where = f"{path}:{line}"
        gpus = _number(cells, where, "num_gpus")
        return cls(
            line=line,
            cells=tuple(cells[column] for column in COLUMNS),
            num_gpus=None if gpus is None else int(gpus),
            latency_s=_number(cells, where, "latency_s"),
            memory_gib=_number(cells, where, "memory_GB"),
            sent_gb=_number(cells, where, "comm_GB"),
            out_of_memory=OUT_OF_MEMORY in (cells["latency_s"], cells["memory_GB"]),
        )

    def __getitem__(self, column: str) -> str:
        return self.cells[COLUMNS.index(column)]

    @property
    def figure(self) -> str:
        """Table or figure."""
        return self["table_or_figure"]

    @property
    def published(self) -> Published:
        """The number that it is counted by: its latency, or its memory where that alone is printed."""
        remembered = bool(self["memory_GB"]) and not self["latency_s"]
        value = self.memory_gib if remembered else self.latency_s
        texts = ("source", "model", "method", "note", "method_config", "resolution_px", "steps")
        return Published(
            TASKS[1],
            item=self.figure,
            machine=", ".join(filter(None, (self["hardware"], self["interconnect"]))),
            num_gpus=self.num_gpus,
            batch_size=int(self["batch"]) if self["batch"].isdigit() else None,
            quantity=MEMORY if remembered else LATENCY,
            value=inf if value is None else value,
            **{key: self[key] for key in texts},
        )

    @property
    def method(self) -> str:
        """What was run, as printed."""
        return " ".join(filter(None, (self["method"], self["method_config"])))

    @property
    def stack(self) -> str:
        """The software stack that ran."""
        if self["source"].startswith(EARLY):
            return EARLY_STACK
        if self["method_config"] in FUSED or self["source"].startswith(FUSED_SOURCES):
            return NEWEST
        return COMPILED if "compile" in self["method_config"] else DEFAULT_STACK

    @property
    def model(self) -> str:
        """The model's folder."""
        if self["model"] == ALONE:
            raise Uncovered("a collective alone, which no sampler runs")
        if self["model"] not in MODELS:
            raise Uncovered(f"no model folder of {self['model']}")
        return MODELS[self["model"]]

    @property
    def cluster(self) -> str:
        """The cluster's file."""
        for hardware, links, cluster in MACHINES:
            there = re.search(rf"(\b|\dx){hardware}\b", self["hardware"])
            if there and self["interconnect"].startswith(links):
                return cluster
        raise Uncovered(f"no cluster of {self['hardware']}, {self['interconnect'] or 'links not said'}")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels; pictures are printed height first, films width first."""
        if self["source"].startswith(EARLY):
            return EARLY_SIZE
        cell = self["resolution_px"]
        if cell in AREAS:
            return AREAS[cell]
        film = re.fullmatch(r"(\d+)x(\d+)x(\d+)f", cell)
        if film and int(film[3]) == FRAMES.get(self.model):
            return int(film[2]), int(film[1])
        picture = re.fullmatch(r"(\d+)(?:x(\d+))?", cell)
        if picture is None or self.model in FRAMES:
            raise Uncovered(f"resolution '{cell}' is not said, or not counted")
        return int(picture[1]), int(picture[2] or picture[1])

    @property
    def steps(self) -> int:
        """Denoising steps; 20 where only memory is printed."""
        cell = self["steps"]
        if cell in STEPS:
            return STEPS[cell][0]
        if not cell and self.latency_s is None:
            return 20
        if not cell and self.model in UNSAID_STEPS:
            return UNSAID_STEPS[self.model]
        if not cell.isdigit():
            raise Uncovered(f"steps '{cell}' are not said")
        return int(cell)


def _number(cells: Mapping[str, str], where: str, key: str) -> float | None:
    if cells[key] in ("", OUT_OF_MEMORY):
        return None
    return parse_number(where, key, cells[key], whole=key == "num_gpus")


def read_sampling(path: Path) -> list[SamplingRow]:
    """The published rows of one file."""
    reader = csv.DictReader(StringIO(read_text(path)))
    return [SamplingRow.of(cells, reader.line_num, path) for cells in reader]


@cache
def sampling_rows() -> tuple[SamplingRow, ...]:
    """All published rows of sampling, in the order of the files."""
    return (*read_sampling(INFERENCE), *read_sampling(ENGINES))
