"""Published rows of sampling, as they stand in the file: which machine, size and strategy each one names.

Methods are read by rule, so that a new row of a known kind needs no new line here; where a method may be several
strategies, the fastest counts. Where the released code of a source runs one more synchronous step than its "warm-up"
says, ``warmup_steps`` is the number that it runs.

Source: the released code of DistriFusion, PipeFusion and xDiT; see each constant.
"""

import csv
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from io import StringIO
from math import inf, prod
from pathlib import Path
from typing import Any, Final

from profiles.files import parse_number, read_text
from profiles.software.stacks import DEFAULT_STACK, Stack, load_stack
from strategies.plans.workloads import ONE_PREDICTION
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Sampler
from validate.points import candidates, sampler
from validate.published.clusters import NEWEST, changed_stack
from validate.published.records import LATENCY, MEMORY, TASKS, Published

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
"""Meanings of the words of the rows, with reasons."""
STEPS: Final[Mapping[str, tuple[int, str]]] = READINGS["steps"]
FRAMES: Final[Mapping[str, int]] = READINGS["frames"]
EARLY: Final = READINGS["early"]
"""A source, and the stack and the size that its rows do not say."""


class Uncovered(Exception):  # noqa: N818  no error: it says why a row is not predicted
    """A row that no prediction covers, and why."""


class SamplingRow(dict[str, str]):
    """One published row by its cells: model, machine, method and results.

    Properties that a row does not say raise ``Uncovered``, or are None: the number of GPUs, and results where there is
    no number, or memory ran out.
    """

    def _number(self, column: str) -> float | None:
        if self[column] in ("", OUT_OF_MEMORY):
            return None
        return parse_number(
            f"{self['source']}, {self.figure}", column, self[column], whole=column == "num_gpus"
        )

    @property
    def figure(self) -> str:
        """Table or figure."""
        return self["table_or_figure"]

    @cached_property
    def num_gpus(self) -> int | None:
        """Number of GPUs."""
        gpus = self._number("num_gpus")
        return None if gpus is None else int(gpus)

    @cached_property
    def latency_s(self) -> float | None:
        """Seconds of a run."""
        return self._number("latency_s")

    @cached_property
    def memory_gib(self) -> float | None:
        """The printed "GB": allocated bytes in units of 2**30."""
        return self._number("memory_GB")

    @cached_property
    def sent_gb(self) -> float | None:
        """GB that one device sends in one step for one sample."""
        return self._number("comm_GB")

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out."""
        return OUT_OF_MEMORY in (self["latency_s"], self["memory_GB"])

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
        """Method and its settings, as printed."""
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


def read_sampling(path: Path) -> list[SamplingRow]:
    """The published rows of one file."""
    return list(map(SamplingRow, csv.DictReader(StringIO(read_text(path)))))


@cache
def sampling_rows() -> tuple[SamplingRow, ...]:
    """All published rows of sampling, in the order of the files."""
    return (*read_sampling(INFERENCE), *read_sampling(ENGINES))


IN_GRAPHS: Final = replace(
    load_stack(), name="eager in CUDA graphs", forward_operator_s=0.0, backward_operator_s=0.0
)
"""Source: DistriFusion's released code, which captures each step of its own runs and of its baselines."""
FIRST_RELEASE: Final = "PipeFusion"
"""Beginning of its source; it posts the next receive before it computes, xDiT after."""
BEST_PATCHES: Final = (2, 4, 8, 16, 32)
"""Numbers of patches, of which PipeFusion's first release publishes the fastest. Source: PipeFusion v1, section 5."""
GATHER_LAYERS: Final = {"sdxl": 60}
"""Gathers launched together; 1 in the first release's port to transformers."""
SEQUENCE: Final = ("sp_ring", "sp_ulysses")
"""Methods that keep the keys and values of all layers in PipeFusion's first release (its Figure 7)."""
NORMS: Final = ("separate GN", "sync GN")
"""Other ways to gather a group norm's statistics than DistriFusion's own."""
NAMES: Final = {word: name for name, words in READINGS["degrees"].items() for word in words}
DEGREE: Final = re.compile(rf"(?<![a-z])({'|'.join(sorted(NAMES, key=len, reverse=True))})\s*=?\s*(\d+)")
PURE: Final = ("ulysses", "ring", "tensor")


def samplers(row: SamplingRow, scenario: SamplingScenario) -> list[Sampler]:
    """The samplers that a row may have run; of several, the row's number is that of the fastest that fits.

    Raises:
        Uncovered: the row's method is no strategy here.
        InfeasibleError: the strategy does not apply to the scenario.
    """
    if "cache" in row.method:
        raise Uncovered("a cache skips steps or layers")
    method = row["method"]
    if not _read(row["method_config"]) or method.startswith("distrifusion"):
        if method in READERS:
            return list(READERS[method](row, scenario))
        if method in READINGS["methods"]:
            name, parameters = READINGS["methods"][method]
            kept = method in SEQUENCE and row["source"].startswith(FIRST_RELEASE)
            return [sampler(name, **parameters, **({"keys_values": "kept"} if kept else {}))]
    return [_of_degrees(row)]


def stack_of(row: SamplingRow) -> Stack:
    """The software stack that a row was run by."""
    name, _, changes = row.stack.partition(" ")
    if changes:
        return changed_stack(name, changes)
    return IN_GRAPHS if row["source"].startswith("DistriFusion") else load_stack(name)


def guidance(row: SamplingRow, model_guidance: str) -> str:
    """How the predictions with and without the prompt are made, before any guidance degree divides them."""
    cell = row["cfg"]
    if row["method"].endswith("cfg split"):
        return "parallel"
    if cell.startswith("yes"):
        return "batch"
    if cell.startswith(("no", "embedded")) or (not cell and model_guidance in ONE_PREDICTION):
        return "none"
    if not cell:
        return model_guidance
    raise Uncovered("whether guidance is on is not said")


def _warmup(row: SamplingRow) -> int:
    config = row["method_config"]
    if run := re.search(r"(\d+) sync", config):
        return int(run[1])
    if more := re.search(r"warmup\s*=?\s*(\d+)\(\+1\)", config):
        return int(more[1]) + 1
    warmups: Mapping[str, int] = READINGS["warmups"]
    return next(steps for source, steps in warmups.items() if row["source"].startswith(source))


def _late(row: SamplingRow) -> dict[str, Any]:
    """Return warm-up and receives of xDiT's pipelines."""
    return {"warmup_steps": _warmup(row), "receive": "after"}


def _distrifusion(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    if row["method_config"] in NORMS:
        raise Uncovered("the group norms' statistics are gathered in another way")
    gathers = GATHER_LAYERS.get(scenario.model.name, 1)
    yield sampler("distrifusion", warmup_steps=_warmup(row), gather_layers=gathers)


def _pipefusion(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    """PipeFusion with each number of patches of which the best was published; xDiT's default is the pipeline degree."""
    if not row["source"].startswith(FIRST_RELEASE):
        yield sampler("pipefusion", **_late(row))
        return
    for patches in BEST_PATCHES:
        if patches <= scenario.rows:
            yield sampler("pipefusion", patches=patches, warmup_steps=_warmup(row), receive="before")


def _usp(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    """The degrees that the row gives, else all candidates."""
    if _read(_clause(row)):
        yield _of_degrees(row)
    else:
        yield from candidates("usp", scenario)


def _best(row: SamplingRow, scenario: SamplingScenario) -> Iterator[Sampler]:
    """XDiT's pure methods and their products on all GPUs."""
    yield from map(sampler, PURE)
    if scenario.workload.predictions == scenario.workload.num_gpus:
        yield sampler("hybrid", guidance_degree=2)
    for name in ("pipefusion", "hybrid"):
        for one in candidates(name, scenario):
            yield replace(one, **_late(row))  # type: ignore[type-var]  # samplers are frozen dataclasses


Reader = Callable[[SamplingRow, SamplingScenario], Iterator[Sampler]]
READERS: Final[Mapping[str, Reader]] = {
    "distrifusion": _distrifusion,
    "distrifusion+cfg split": _distrifusion,
    "hybrid(best)": _best,
    "pipefusion": _pipefusion,
    "usp": _usp,
}


def _read(text: str) -> dict[str, int]:
    return {NAMES[word]: int(degree) for word, degree in DEGREE.findall(text.lower())}


def _clause(row: SamplingRow) -> str:
    """The method in a row's note for its number of GPUs: after that number and a colon, or up to a larger number."""
    note = row["note"].lower()
    if of := re.search(rf"(?<!\d){row.num_gpus}: ([^;:]*)", note):
        return of[1]
    curve = re.search(r"up to (\d+) gpus hybrid=(\w+) curve", note)
    if curve and row.num_gpus and row.num_gpus <= int(curve[1]):
        return f"{curve[2]}={row.num_gpus}"
    return ""


def _degrees(row: SamplingRow) -> dict[str, int]:
    """The degrees that a row gives: in its method, or for its number of GPUs in its note."""
    degrees = _read(row.method) or _read(_clause(row))
    if not degrees:
        raise Uncovered(f"method '{row.method}' is no strategy here, or its degrees are not said")
    if prod(degrees.values()) != row.num_gpus:
        words = " * ".join(f"{name}({degree})" for name, degree in degrees.items())
        raise Uncovered(f"{words} = {prod(degrees.values())} are not {row.num_gpus} GPUs")
    return degrees


def _of_degrees(row: SamplingRow) -> Sampler:
    """The strategy of the degrees above 1 that a row gives."""
    above = {name: degree for name, degree in _degrees(row).items() if degree > 1}
    degrees = {f"{name}_degree": degree for name, degree in above.items()}
    if "data" in above:
        raise Uncovered("data parallelism draws several images; the latency is one image's")
    if not above:
        return sampler("single")
    if set(above) == {"ulysses", "ring"}:
        return sampler("usp", **degrees)
    if set(above) == {"pipeline"}:
        return sampler("pipefusion", **_late(row))
    if len(above) == 1 and set(above) <= set(PURE):
        return sampler(*above)
    return sampler("hybrid", **({"guidance_degree": 1} | degrees), **_late(row))
