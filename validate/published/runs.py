"""Published sampling runs, simulated: each row's scenario, replayed once for all rows that share it, and its record."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import inf
from typing import Final, NamedTuple

from profiles.architectures.models import Model
from profiles.costs.layers import published
from profiles.errors import InfeasibleError
from profiles.machines.clusters import Cluster, Link
from profiles.machines.devices import Device
from profiles.machines.fabrics import Collectives
from profiles.software.stacks import DEFAULT_STACK, Stack, load_stack
from profiles.units import GIB
from sim.outcomes.results import Result
from sim.outcomes.runs import bound, run_point
from strategies.registry import make
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import Sampler
from validate.points import cluster_of, model_of, sampling
from validate.published.records import MEMORY, Conditions, Record, Standing, authors_of, kind_of
from validate.published.rows import SamplingRow, sampling_rows

NO_COMMUNICATION: Final = "patch_parallel_no_comm"
"""The method that runs without communication, on free links."""
FREE_LINK: Final = Link("ideal", inf, 0.0, 0.0)


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
        named = any(
            one.device == self.cluster.device.name for one in _model(self.model, self.unknown).anchors
        )
        return named and self.stack.name == DEFAULT_STACK


@dataclass(frozen=True, slots=True)
class Run:
    """A published row beside the simulated one: its place, its outcome, and the sampler in words.

    Place and outcome are None where the row is not covered; ``remark`` then says why.
    """

    row: SamplingRow
    place: Place | None
    outcome: Result | None
    remark: str

    @property
    def model(self) -> str:
        """The model's folder; empty where the row is not covered."""
        return self.place.model if self.place else ""

    @property
    def cluster(self) -> str:
        """The cluster's name; likewise."""
        return self.place.cluster.name if self.place else ""

    @property
    def latency_s(self) -> float | None:
        """Predicted seconds; None where the row is not covered, or memory does not suffice."""
        return self.outcome.latency_s if self.outcome and self.outcome.fits_memory else None

    @property
    def out_of_memory(self) -> bool:
        """Whether memory does not suffice by the prediction."""
        return self.outcome is not None and not self.outcome.fits_memory

    @property
    def error(self) -> float | None:
        """Predicted over published seconds, less one; None where either is missing.

        The seconds also count where memory does not suffice by the prediction but the published run fitted.
        """
        if self.outcome is None or self.row.latency_s is None:
            return None
        return self.outcome.latency_s / self.row.latency_s - 1

    @property
    def left_out(self) -> Place:
        """The place without the anchors of its authors."""
        assert self.place is not None
        return self.place._replace(unknown=self.row.published.authors)

    @property
    def sampler(self) -> Sampler:
        """The sampler of the outcome."""
        assert self.outcome is not None
        sampler: Sampler = make(self.outcome.strategy, self.outcome.parameters)
        return sampler

    @property
    def record(self) -> Record:
        """The record of the row's number."""
        row, place, outcome = self.row.published, self.place, self.outcome
        if place is None or outcome is None:
            return Record(row, None, Standing.UNCOVERED, self.remark)
        predicted = outcome.peak_memory_bytes / GIB if row.quantity == MEMORY else outcome.latency_s
        if self.row.out_of_memory and self.out_of_memory:
            predicted = inf
        standing, reason = row.standing, row.why
        if self.row.out_of_memory:
            standing = Standing.APART
            reason = f"memory runs out, as {'' if self.out_of_memory else 'not '}predicted"
        lacking = self.out_of_memory and not self.row.out_of_memory
        setting = f"{self.remark}; memory does not suffice" if lacking else self.remark
        device, pixels = place.cluster.device, place.height * place.width
        provenance = _provenance(self.model, device, pixels, outcome.provenance)
        conditions = Conditions(device.name, outcome.stack, kind_of(outcome.strategy, outcome.num_gpus))
        needed_bytes = outcome.peak_memory_bytes
        return Record(row, predicted, standing, reason, setting, provenance, needed_bytes, conditions)


@cache
def _provenance(model: str, device: Device, pixels: int, provenance: str) -> str:
    """Where layer times are from, with the factor by which one GPU's published latencies scale them."""
    if all(anchor.device != device.name for anchor in model_of(model).anchors):
        return provenance
    factor = published(model_of(model), device, pixels).factor
    return f"{provenance}, times {factor:.3f} from one GPU's latencies"


def runs(wanted: Callable[[SamplingRow], bool] = lambda row: row.num_gpus != 1) -> list[Run]:
    """The runs of published rows, by default of all but those on one GPU."""
    return [predict(row, {}) for row in sampling_rows() if wanted(row)]


def all_runs() -> list[Run]:
    """The runs of all rows, those of one GPU too."""
    return runs(lambda _: True)


def predict(row: SamplingRow, clusters: Mapping[str, Cluster]) -> Run:
    """The run of one row; ``clusters``, by name, stand in for the shipped ones."""
    if row["unread"]:
        return Run(row, None, None, row["unread"])
    place = place_of(row, clusters)
    try:
        tried = row.samplers(scenario_of(place))
        outcome = fastest(place, tried)
    except InfeasibleError as reason:
        return Run(row, None, None, str(reason))
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
    return Place(row["folder"], cluster, row.num_gpus, height, width, steps, row["guidance"], row.stack)


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
    best: tuple[bool, float, int, Result] | None = None
    for bound_s, number, sampler in sorted(bounded, key=lambda one: one[:2]):
        if best is not None and best[:2] < (False, bound_s):
            break  # it fits, and no other can be faster
        try:
            outcome = outcome_of(place, sampler)
        except InfeasibleError as error:
            reason = error
            continue
        found = (not outcome.fits_memory, outcome.latency_s, number, outcome)
        best = found if best is None or found[:3] < best[:3] else best
    if best is None:
        raise reason
    return best[3]


@cache
def outcome_of(place: Place, sampler: Sampler) -> Result:
    """The result of one sampler in a place."""
    return run_point(sampler, scenario_of(place))


def sent_bytes(run: Run) -> float:
    """Bytes that one device sends in one step, on average, for one sample without guidance."""
    assert run.place is not None
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
    size = (place.height, place.width)
    of = _model(place.model, place.unknown), place.cluster, place.num_gpus, size, place.steps
    return sampling(*of, guidance=place.guidance, stack=place.stack)


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
