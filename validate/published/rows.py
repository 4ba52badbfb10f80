"""Published rows of sampling, as they stand in the file, and which machine and size each one names."""

import csv
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from io import StringIO
from math import inf
from pathlib import Path
from typing import Final

from profiles.files import parse_number, read_text
from profiles.software.stacks import DEFAULT_STACK
from validate.published.clusters import NEWEST
from validate.published.records import LATENCY, MEMORY, TASKS, Published

COLUMNS: Final = (
    "source", "table_or_figure", "model", "resolution_px", "steps", "sampler", "cfg", "batch", "hardware",
    "interconnect", "num_gpus", "method", "method_config", "latency_s", "memory_GB", "comm_GB", "note",
)  # fmt: skip
OUT_OF_MEMORY: Final = "OOM"
INFERENCE: Final = Path(__file__).with_name("inference.csv")
DEV: Final = "FLUX.1-dev 12B"
DISTILLED: Final = "FLUX.1-schnell"
ENGINES: Final = INFERENCE.with_name("engines.csv")
"""Rows of today's engines; all others are in ``INFERENCE``."""
ALONE: Final = "collective only"
COMPILED: Final = "compiled"
"""The stack of rows whose settings speak of a compiler."""
READINGS: Final = tomllib.loads(read_text(Path(__file__).with_name("readings.toml")))
"""What the words of the rows mean here; the file says why."""
STEPS: Final[Mapping[str, tuple[int, str]]] = READINGS["steps"]
FRAMES: Final[Mapping[str, int]] = READINGS["frames"]
EARLY: Final = READINGS["early"]
"""A source, and the stack and the size that its rows do not say."""


class Uncovered(Exception):  # noqa: N818  no error: it says why a row is not predicted
    """A row that no prediction covers, and why."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One published row: what ran where, and its results; properties that a row does not say raise ``Uncovered``.

    ``num_gpus`` is None where the source does not say; ``memory_gib`` is the printed "GB": what the allocator counts,
    in units of 2**30 bytes; ``sent_gb`` are GB that one device sends in one step for one sample. The latter two and
    ``latency_s`` are None where there is no number, or memory ran out.
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
        """The row of a file, from its cells and its line."""
        texts, columns = tuple(cells[of] for of in COLUMNS), ("num_gpus", "latency_s", "memory_GB", "comm_GB")
        gpus, latency_s, memory, sent = (_number(cells, f"{path}:{line}", of) for of in columns)
        out_of_memory = OUT_OF_MEMORY in (cells["latency_s"], cells["memory_GB"])
        return cls(line, texts, None if gpus is None else int(gpus), latency_s, memory, sent, out_of_memory)

    def __getitem__(self, column: str) -> str:
        return self.cells[COLUMNS.index(column)]

    @property
    def figure(self) -> str:
        """Table or figure."""
        return self["table_or_figure"]

    @property
    def published(self) -> Published:
        """The number by which it counts: its latency, or its memory where only that is published."""
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
        """Name of the software stack, with the run's changes to it."""
        if self["source"].startswith(EARLY["source"]):
            return str(EARLY["stack"])
        fused = READINGS["fused"]
        if self["method_config"] in fused["methods"] or self["source"].startswith(tuple(fused["sources"])):
            return f"{COMPILED} {NEWEST}"
        if self["method_config"] in READINGS["attending"]["methods"]:
            return f"{DEFAULT_STACK} {NEWEST}"
        return COMPILED if "compile" in self["method_config"] else DEFAULT_STACK

    @property
    def model(self) -> str:
        """The model's folder."""
        if self["model"] == ALONE:
            raise Uncovered("a collective alone, which no sampler runs")
        if self["model"] not in READINGS["models"]:
            raise Uncovered(f"no model folder of {self['model']}")
        return str(READINGS["models"][self["model"]])

    @property
    def cluster(self) -> str:
        """The cluster's file."""
        for hardware, by_links in READINGS["machines"].items():
            if re.search(rf"(\b|\dx){hardware}\b", self["hardware"]):
                return str(
                    next(of for links, of in by_links.items() if self["interconnect"].startswith(links))
                )
        raise Uncovered(f"no cluster of {self['hardware']}, {self['interconnect'] or 'links not said'}")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels; pictures are printed height first, films width first."""
        if self["source"].startswith(EARLY["source"]):
            return EARLY["size"][0], EARLY["size"][1]
        cell = self["resolution_px"]
        if cell in READINGS["areas"]:
            height, width = READINGS["areas"][cell]
            return height, width
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
        if not cell and self.model in READINGS["unsaid_steps"]:
            return int(READINGS["unsaid_steps"][self.model])
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
