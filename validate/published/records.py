"""Records: each published number once, its prediction, and its standing."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.files import read_text
from profiles.software.stacks import Stack, load_stack
from validate.tables import read_cells


class Standing(StrEnum):
    """Standing of a published number towards the simulator; each has one.

    ``INDEPENDENT``: nothing was set with the number in view. ``IN_VIEW``: a model variant, a precision, a reading or a
    constant was chosen knowing it. ``FORMULA``: it follows from its definition, and judges arithmetic alone.
    ``FITTED``: it set a constant. ``APART``: there is a prediction, but no error that could be judged: the number is a
    bound, a zero, memory that ran out, or printed a second time.
    """

    INDEPENDENT = "independent"
    IN_VIEW = "in view"
    FORMULA = "formula"
    FITTED = "fitted"
    APART = "apart"
    UNCOVERED = "not covered"


HERE: Final = Path(__file__).parent
TRAINING: Final = HERE / "training.csv"
SOURCES: Final = HERE / "sources.csv"
TASKS: Final = ("train", "sample")
LATENCY: Final = "latency_s"
SAMPLES_PER_S: Final = "samples_per_s"
MEMORY: Final = "memory_GiB"
UNITS: Final = {
    SAMPLES_PER_S: "samples/s",
    "requests_per_s": "requests/s",
    "micro_batch": "samples",
    "_MB_per_sample": "MiB/sample",
    "_GiB": "GiB",
    "gpu_hours": "h",
    "tflops_per_gpu": "TFLOP/s",
    "_s": "s",
}
"""Units by the ending of a quantity's name; all others have none."""
TIMES: Final = (LATENCY, SAMPLES_PER_S)
"""Quantities that are times or throughputs."""
UNSAID: Final = "-"
"""Cell of what the paper does not say."""
OVER: Final = " over "
"""Between the commands that ask for the two sides of a comparison."""
ESTIMATED: Final = "estimated"
"""Provenance of layer times from the cost model; no model folder holds measured ones of a published machine."""


@dataclass(frozen=True, slots=True)
class Published:
    """One published number: its place, its run, and the number.

    Model and machine of training are named as in ``profiles`` where they are shipped; ``num_gpus`` and ``batch_size``
    (of all GPUs together) are None where the source does not say; ``method`` is ``one/another`` where the number
    compares two; ``quantity`` ends in its unit; ``value`` has ratios as fractions, times in seconds, and is infinite
    where memory ran out; ``note`` is the paper's wording, ``why`` the reason for the standing.
    """

    task: str
    source: str
    item: str
    model: str
    machine: str
    num_gpus: int | None
    method: str
    batch_size: int | None
    quantity: str
    value: float
    note: str = ""
    method_config: str = ""
    resolution_px: str = ""
    steps: str = ""
    standing: Standing = Standing.INDEPENDENT
    why: str = ""

    @property
    def unit(self) -> str:
        """Unit of the number."""
        return next((unit for ending, unit in UNITS.items() if self.quantity.endswith(ending)), "1")

    @property
    def group(self) -> str:
        """The source in the words of ``sources.csv``."""
        return source_name(self.source, self.item)

    @property
    def authors(self) -> str:
        """Who published it: numbers of the same authors, who share boxes, count as one source."""
        return authors_of(self.source)

    @property
    def paper(self) -> str:
        """The source without its remark in brackets."""
        return self.source.split(" (")[0].split(" arXiv")[0]

    def __str__(self) -> str:
        words = [self.paper, self.item, self.model, self.machine]
        words.append(f"{self.method} {self.method_config}".strip())
        numbers = (self.resolution_px, self.steps, self.num_gpus, self.batch_size)
        texts = ("{} px", "{} steps", "{} GPUs", "batch {}")
        words += [text.format(number) for text, number in zip(texts, numbers, strict=True) if number]
        return ", ".join(word for word in words if word != UNSAID)


@cache
def stack_of(engine: str) -> Stack:
    """The stack of an engine and its version (``software.toml``), named by the flags that ask for it."""
    flags = dict(SOFTWARE[engine])
    flags.pop("source", "")
    stack = load_stack(flags.pop("stack"))
    name = " ".join([stack.name, *(f"--{flag} {value}" for flag, value in flags.items())])
    return replace(stack.changed(flags.get("attention"), flags.get("encoder-precision")), name=name)


SOFTWARE: Final[Mapping[str, dict[str, Any]]] = tomllib.loads(read_text(HERE / "software.toml"))
METHODS_OF_KIND: Final[Mapping[str, list[str]]] = tomllib.loads(read_text(HERE / "kinds.toml"))
ONE_GPU: Final = next(iter(METHODS_OF_KIND))


def kind_of(strategy: str, num_gpus: int) -> str:
    """The kind of a shipped method; on one GPU all methods are of one kind."""
    if num_gpus == 1:
        return ONE_GPU
    return next(kind for kind, names in METHODS_OF_KIND.items() if strategy in names)


class Conditions(NamedTuple):
    """Device, software stack and kind of method (``kinds.toml``) of a prediction."""

    device: str
    stack: str
    kind: str


@dataclass(frozen=True, slots=True)
class Record:
    """One published number beside a predicted one, or the reason why there is none.

    ``predicted`` is infinite where memory runs out, None where the number is not covered; ``reason`` says why it is
    not independent; ``setting`` what was simulated: for training, the choices that the paper leaves open;
    ``provenance`` where the layer times are from; ``memory_bytes`` are those of the fullest device in sampling;
    ``conditions`` are known where the number is a time or a throughput.
    """

    row: Published
    predicted: float | None
    standing: Standing
    reason: str = ""
    setting: str = ""
    provenance: str = ""
    memory_bytes: float | None = None
    conditions: Conditions | None = None

    def __post_init__(self) -> None:
        if (self.standing is Standing.INDEPENDENT) != (self.reason == ""):
            raise ValueError(f"{self.row} is {self.standing}, but the reason is '{self.reason}'")
        if (self.standing is Standing.UNCOVERED) != (self.predicted is None):
            raise ValueError(f"{self.row} is {self.standing}, but predicted as {self.predicted}")

    @classmethod
    def of(
        cls, row: Published, predicted: float, setting: str = "", *, provenance: str = ESTIMATED
    ) -> "Record":
        """The record of a number of training, predicted in one setting of the choices that the paper leaves open."""
        apart = "" if row.value else "no gain: a zero has no relative error"
        if row.quantity.endswith("_below"):
            apart = f"a bound, which {'holds' if predicted < row.value else 'does not hold'}"
        standing, why = (Standing.APART, apart) if apart else (row.standing, row.why)
        return cls(row, predicted, standing, why, setting, provenance)

    @property
    def relative_error(self) -> float | None:
        """Predicted over published, less one; None where either is missing or infinite, or the published one is 0."""
        if self.predicted is None or not self.row.value or inf in (self.predicted, self.row.value):
            return None
        return self.predicted / self.row.value - 1

    @property
    def error(self) -> float | None:
        """The relative error; None also for a number apart."""
        return None if self.standing is Standing.APART else self.relative_error

    @property
    def independent_error(self) -> float | None:
        """The relative error of an independent number; None for all others."""
        return self.error if self.standing is Standing.INDEPENDENT else None


@cache
def all_published() -> tuple[Published, ...]:
    """All published numbers of training, in the order of the file."""
    rows: list[dict[str, Any]] = [*read_cells(TRAINING)]
    for row in rows:
        row |= {key: None if row[key] == UNSAID else int(row[key]) for key in ("num_gpus", "batch_size")}
        row |= {"value": float(row["value"]), "standing": Standing(row["standing"] or Standing.INDEPENDENT)}
    return tuple(Published(TASKS[0], **row) for row in rows)


def published(item: str, **wanted: str | int) -> tuple[Published, ...]:
    """The rows of one table, figure or section of training whose columns have the wanted values."""
    alike = {"item": item, **wanted}.items()
    return tuple(row for row in all_published() if all(getattr(row, key) == value for key, value in alike))


def the_published(item: str, **wanted: str | int) -> Published:
    """The only row that ``published`` finds."""
    (row,) = published(item, **wanted)
    return row


@cache
def _names() -> list[tuple[str, ...]]:
    return [tuple(row.values()) for row in read_cells(SOURCES)]


def source_names() -> list[str]:
    """The sources in the order in which they are listed."""
    return list(dict.fromkeys(name for *_, name, _ in _names()))


@cache
def source_name(source: str, item: str) -> str:
    """The name of a source: that of the first pattern that it fits."""
    for of_source, of_item, name, _ in _names():
        if fnmatchcase(source, of_source) and fnmatchcase(item, of_item):
            return name
    raise ValueError(f"{SOURCES.name} has no name for source '{source}', {item}")


@cache
def authors_of(source: str) -> str:
    """The authors of a source, or of a text that begins with it, such as the source of an anchor."""
    for of_source, *_, authors in _names():
        if fnmatchcase(source, f"{of_source.removesuffix('*')}*"):
            return authors
    raise ValueError(f"{SOURCES.name} has no authors for source '{source}'")
