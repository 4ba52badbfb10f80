"""Published rows of sampling: what a source prints, and how it is simulated, row by row.

``reading.md`` says what each column of the files means, and why rows are read as they are.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, cached_property
from io import StringIO
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Final

from profiles.files import parse_number, read_text
from profiles.software.stacks import Stack
from strategies.registry import make, strategies_of
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Sampler
from validate.published.records import LATENCY, MEMORY, TASKS, Published, Standing, stack_of

OUT_OF_MEMORY: Final = "OOM"
INFERENCE: Final = Path(__file__).with_name("inference.csv")
ENGINES: Final = INFERENCE.with_name("engines.csv")
"""Rows of today's engines; all others are in ``INFERENCE``."""


class SamplingRow(dict[str, str]):
    """One published row by its cells; a number is None where there is none, or memory ran out."""

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
        texts = ("source", "model", "method", "note", "method_config", "resolution_px", "steps", "why")
        return Published(
            TASKS[1],
            item=self.figure,
            machine=", ".join(filter(None, (self["hardware"], self["interconnect"]))),
            num_gpus=self.num_gpus,
            batch_size=int(self["batch"]) if self["batch"].isdigit() else None,
            quantity=MEMORY if remembered else LATENCY,
            value=inf if value is None else value,
            standing=Standing(self["standing"] or Standing.INDEPENDENT),
            **{key: self[key] for key in texts},
        )

    @property
    def stack(self) -> Stack:
        """The software stack that it was run by."""
        return stack_of(self["engine"])

    def samplers(self, scenario: SamplingScenario) -> list[Sampler]:
        """The samplers that it may have run; of several, its number is that of the fastest that fits."""
        return [one for words in self["samplers"].split(" | ") for one in samplers_of(words, scenario)]


def samplers_of(words: str, scenario: SamplingScenario) -> Iterator[Sampler]:
    """The samplers of a name and parameters, of which some may have several values; with ``*`` all points of it."""
    name, *settings = words.split()
    named = dict(setting.split("=") for setting in settings if setting != "*")
    values = [[int(of) if of.isdigit() else of for of in text.split(",")] for text in named.values()]
    for chosen in product(*values):
        parameters: Mapping[str, Any] = dict(zip(named, chosen, strict=True))
        if "*" in settings:
            for one in strategies_of("sample")[name].candidates(scenario):
                yield replace(one, **parameters)
        else:
            yield make(name, parameters)


def read_sampling(path: Path) -> list[SamplingRow]:
    """The published rows of one file."""
    return list(map(SamplingRow, csv.DictReader(StringIO(read_text(path)))))


@cache
def sampling_rows() -> tuple[SamplingRow, ...]:
    """All published rows of sampling, in the order of the files."""
    return (*read_sampling(INFERENCE), *read_sampling(ENGINES))
