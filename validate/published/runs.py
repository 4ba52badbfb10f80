"""Published sampling runs, simulated: each row, its scenario, replayed once for all rows that share it, and its record.

``reading.md`` says what each column of the files means, and why rows are read as they are.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

from profiles.architectures.models import Model
from profiles.costs.layers import published
from profiles.errors import InfeasibleError
from profiles.machines.clusters import Cluster, Link
from profiles.machines.fabrics import Collectives
from profiles.software.stacks import DEFAULT_STACK, Stack, load_stack
from profiles.units import GIB
from sim.outcomes.results import Result
from sim.outcomes.runs import bound, run_point
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make, strategies_of
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Sampler
from validate.points import cluster_of, model_of
from validate.published.records import (
    LATENCY,
    MEMORY,
    TASKS,
    Conditions,
    Published,
    Record,
    Standing,
    authors_of,
    kind_of,
    stack_of,
)
from validate.tables import read_cells

INFERENCE: Final = Path(__file__).with_name("inference.csv")
ENGINES: Final = INFERENCE.with_name("engines.csv")
"""Rows of today's engines; all others are in ``INFERENCE``."""
OUT_OF_MEMORY: Final = "OOM"
NO_COMMUNICATION: Final = "patch_parallel_no_comm"
"""The method that runs without communication, on free links."""
FREE_LINK: Final = Link("ideal", inf, 0.0, 0.0)


class SamplingRow(dict[str, str]):
    """One published row by its cells."""

    def number(self, column: str) -> float | None:
        """The number in a cell; None where there is none, or memory ran out."""
        return None if self[column] in ("", OUT_OF_MEMORY) else float(self[column])

    @cached_property
    def num_gpus(self) -> int | None:
        """Number of GPUs; None where the source does not say."""
        return int(self["num_gpus"]) if self["num_gpus"] else None

    @cached_property
    def latency_s(self) -> float | None:
        """Seconds of a run; None likewise."""
        return self.number("latency_s")

    @property
    def out_of_memory(self) -> bool:
        """Whether memory ran out."""
        return OUT_OF_MEMORY in (self["latency_s"], self["memory_GB"])

    @property
    def published(self) -> Published:
        """The number by which it counts: its latency, or its memory where only that is published.

        The printed "GB" are allocated bytes in units of 2**30.
        """
        quantity, column = (LATENCY, "latency_s") if self["latency_s"] else (MEMORY, "memory_GB")
        value = self.number(column)
        machine = ", ".join(filter(None, (self["hardware"], self["interconnect"])))
        batch_size = int(self["batch"]) if self["batch"].isdigit() else None
        standing = Standing(self["standing"] or Standing.INDEPENDENT)
        return Published(
            TASKS[1], self["source"], self["table_or_figure"], self["model"], machine, self.num_gpus, self["method"],
            batch_size, quantity, inf if value is None else value, self["note"], self["method_config"],
            self["resolution_px"], self["steps"], standing, self["why"],
        )  # fmt: skip

    def samplers(self, scenario: SamplingScenario) -> list[Sampler]:
        """The samplers that it may have run; of several, its number is that of the fastest that fits."""
        return [one for words in self["samplers"].split(" | ") for one in samplers_of(words, scenario)]


def samplers_of(words: str, scenario: SamplingScenario) -> Iterator[Sampler]:
    """The samplers of a name and parameters, of which some may have several values; with ``*`` all points of it."""
    name, *settings = words.split()
    named = dict(setting.split("=") for setting in settings if setting != "*")
    values = [
        [int(value) if value.isdigit() else value for value in text.split(",")] for text in named.values()
    ]
    for chosen in product(*values):
        parameters: Mapping[str, Any] = dict(zip(named, chosen, strict=True))
        if "*" in settings:
            for one in strategies_of("sample")[name].candidates(scenario):
                yield replace(one, **parameters)
        else:
            yield make(name, parameters)


def read_sampling(path: Path) -> list[SamplingRow]:
    """The published rows of one file."""
    return list(map(SamplingRow, read_cells(path)))


@cache
def sampling_rows() -> tuple[SamplingRow, ...]:
    """All published rows of sampling, in the order of the files."""
    return (*read_sampling(INFERENCE), *read_sampling(ENGINES))


class Place(NamedTuple):
    """The scenario of a row: all but its method; anchors of the ``unknown`` authors are left out."""

    model: str
    cluster: Cluster
    num_gpus: int
    height: int
    width: int
    steps: int
    guidance: str
    stack: Stack = load_stack()
    unknown: str = ""

    @property
    def anchored(self) -> bool:
        """Whether compute starts from published latencies of one GPU."""
        device, anchors = self.cluster.device.name, _model(self.model, self.unknown).anchors
        return any(one.device == device for one in anchors) and self.stack.name == DEFAULT_STACK


@dataclass(frozen=True)
class Run:
    """A published row beside the simulated one: its place, its outcome, and the sampler in words."""

    row: SamplingRow
    place: Place
    outcome: Result
    remark: str

    @property
    def error(self) -> float | None:
        """Predicted over published seconds, less one; None where the row has no seconds.

        They also count where memory does not suffice by the prediction but the published run fitted.
        """
        return None if self.row.latency_s is None else self.outcome.latency_s / self.row.latency_s - 1

    @property
    def left_out(self) -> Place:
        """The place without the anchors of its authors."""
        return self.place._replace(unknown=self.row.published.authors)

    @property
    def sampler(self) -> Sampler:
        """The sampler of the outcome."""
        sampler: Sampler = make(self.outcome.strategy, self.outcome.parameters)
        return sampler

    @cached_property
    def record(self) -> Record:
        """The record of the row's number."""
        row, outcome, model = self.row.published, self.outcome, model_of(self.place.model)
        predicted = outcome.peak_memory_bytes / GIB if row.quantity == MEMORY else outcome.latency_s
        standing, reason, setting = row.standing, row.why, self.remark
        if self.row.out_of_memory:
            predicted = predicted if outcome.fits_memory else inf
            standing = Standing.APART
            reason = f"memory runs out, as {'not ' if outcome.fits_memory else ''}predicted"
        elif not outcome.fits_memory:
            setting += "; memory does not suffice"
        device, provenance = self.place.cluster.device, outcome.provenance
        if any(anchor.device == device.name for anchor in model.anchors):
            factor = published(model, device, self.place.height * self.place.width).factor
            provenance += f", times {factor:.3f} from one GPU's latencies"
        conditions = Conditions(device.name, outcome.stack, kind_of(outcome.strategy, outcome.num_gpus))
        needed_bytes = outcome.peak_memory_bytes
        return Record(row, predicted, standing, reason, setting, provenance, needed_bytes, conditions)


@cache
def predictions() -> tuple[Run | Record, ...]:
    """The run of each row, or its record where it is not covered."""
    results = list[Run | Record]()
    for row in sampling_rows():
        try:
            results.append(predict(row, {}))
        except InfeasibleError as reason:
            results.append(Record(row.published, None, Standing.UNCOVERED, str(reason)))
    return tuple(results)


def all_runs() -> list[Run]:
    """The runs of all rows that are covered."""
    return [one for one in predictions() if isinstance(one, Run)]


def sampling_records() -> list[Record]:
    """The record of each row."""
    return [one.record if isinstance(one, Run) else one for one in predictions()]


def predict(row: SamplingRow, clusters: Mapping[str, Cluster]) -> Run:
    """The run of one row; ``clusters``, by name, stand in for the shipped ones.

    Raises:
        InfeasibleError: it is not covered.
    """
    if row["unread"]:
        raise InfeasibleError(row["unread"])
    place = place_of(row, clusters)
    tried = row.samplers(scenario_of(place))
    outcome = fastest(place, tried)
    remark = describe(outcome, place)
    return Run(row, place, outcome, f"best of {len(tried)}: {remark}" if len(tried) > 1 else remark)


def place_of(row: SamplingRow, clusters: Mapping[str, Cluster]) -> Place:
    """The scenario of a row that is read; ``clusters`` as above."""
    assert row.num_gpus is not None
    cluster = clusters.get(row["cluster"]) or cluster_of(row["cluster"])
    if row["method"] == NO_COMMUNICATION:
        free = Collectives(0.0, cluster.collectives.efficiency, cluster.collectives.nodes)
        inter = None if cluster.inter_node is None else FREE_LINK
        cluster = replace(cluster, intra_node=FREE_LINK, inter_node=inter, collectives=free)
    height, width, steps = (int(row[column]) for column in ("height", "width", "run_steps"))
    stack = stack_of(row["engine"])
    return Place(row["folder"], cluster, row.num_gpus, height, width, steps, row["guidance"], stack)


def fastest(place: Place, tried: Iterable[Sampler]) -> Result:
    """The result of the fastest sampler that fits, or of the fastest if none fits; of equal ones, of the first.

    Raises:
        InfeasibleError: none applies.
    """
    reason = InfeasibleError("nothing applies", "nothing applies")
    bounded = list[tuple[float, int, Sampler]]()
    for number, sampler in enumerate(tried):
        try:
            bounded.append((bound(sampler, scenario_of(place)), number, sampler))
        except InfeasibleError as error:
            reason = error
    outcomes = list[tuple[bool, float, int, Result]]()
    for bound_s, number, sampler in sorted(bounded, key=lambda one: one[:2]):
        if outcomes and min(outcomes)[:2] < (False, bound_s):
            break  # it fits, and no other can be faster
        try:
            outcome = outcome_of(place, sampler)
            outcomes.append((not outcome.fits_memory, outcome.latency_s, number, outcome))
        except InfeasibleError as error:
            reason = error
    if not outcomes:
        raise reason
    return min(outcomes)[3]


@cache
def outcome_of(place: Place, sampler: Sampler) -> Result:
    """The result of one sampler in a place."""
    return run_point(sampler, scenario_of(place))


def sent_bytes(run: Run) -> float:
    """Bytes that one device sends in one step, on average, for one sample without guidance."""
    place = run.place._replace(guidance="none")
    outcome = outcome_of(place, run.sampler).expected
    return (outcome.collective_bytes + outcome.p2p_bytes) / (place.num_gpus * place.steps)


@cache
def _model(name: str, unknown: str) -> Model:
    """A model without the anchors of some authors, if there are any."""
    model = model_of(name)
    kept = tuple(one for one in model.anchors if not unknown or authors_of(one.source) != unknown)
    return replace(model, anchors=kept) if unknown else model


@lru_cache(maxsize=64)
def scenario_of(place: Place) -> SamplingScenario:
    """The scenario of a place."""
    workload = SamplingWorkload(place.num_gpus, place.height, place.width, place.steps, place.guidance)
    return SamplingScenario(_model(place.model, place.unknown), place.cluster, workload, stack=place.stack)


def describe(outcome: Result, place: Place) -> str:
    """A sampler in words: its parameters that differ from their defaults, and its warm-up where it has one."""
    plain, words = make(outcome.strategy, {}), [outcome.strategy]
    idle = outcome.parameters.get("pipeline_degree") == 1
    for name, value in outcome.parameters.items():
        displaced = name in ("warmup_steps", "receive", "patches")
        if not (idle and displaced) and (value != getattr(plain, name) or name == "warmup_steps"):
            words.append(f"{name}={value}")
    words += ["guidance=parallel"] if place.guidance == "parallel" else []
    words += [f"stack {place.stack.name}"] if place.stack != load_stack() else []
    words += ["free links"] if place.cluster.intra_node.kind == "ideal" else []
    return " ".join(words)
