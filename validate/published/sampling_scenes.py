"""Predictions of published sampling: each row's scenario, replayed once for all rows that share it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Final, NamedTuple

from profiles.clusters import Cluster, Collectives, Link, cluster_names, load_cluster
from profiles.errors import InfeasibleError
from profiles.models import Model, load_model, model_names
from sim.runs import run_point
from strategies.sampling.hybrid import Hybrid
from strategies.scenario import SamplingScenario, SamplingWorkload
from strategies.strategy import Sampler
from validate.published.sampling_methods import guidance, samplers
from validate.published.sampling_rows import SamplingRow, Uncovered, sampling_rows

FREE: Final = "patch_parallel_no_comm"
"""The method that is run without communication: on free links."""
LINKS_FROM: Final = "l40-pcie-8"
"""The cluster whose rows within one node its links are fitted to."""
FREE_LINK: Final = Link("ideal", float("inf"), 0.0, 0.0)


class Place(NamedTuple):
    """What is drawn where: all of a row but its method."""

    model: str
    cluster: Cluster
    num_gpus: int
    height: int
    width: int
    steps: int
    guidance: str


class Outcome(NamedTuple):
    """What a run takes.

    ``sent_bytes`` is what one device sends in one step, on average.
    """

    sampler: Sampler
    latency_s: float
    memory_bytes: float
    sent_bytes: float
    fits: bool
    provenance: str


@dataclass(frozen=True, slots=True)
class SamplingPrediction:
    """A published row beside the simulator's.

    Attributes:
        row: the published row.
        place: what was drawn where; None where the row is not covered.
        outcome: what the simulator says; None where the row is not covered.
        remark: what was run, or why the row is not covered.
    """

    row: SamplingRow
    place: Place | None
    outcome: Outcome | None
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
        return self.outcome.latency_s if self.outcome and self.outcome.fits else None

    @property
    def out_of_memory(self) -> bool:
        """Whether memory does not suffice by the prediction."""
        return self.outcome is not None and not self.outcome.fits

    @property
    def error(self) -> float | None:
        """Predicted over published seconds, less one; None where either is missing.

        Where the prediction does not fit and the published run did, the seconds count as if it did.
        """
        if self.outcome is None or self.row.latency_s is None:
            return None
        return self.outcome.latency_s / self.row.latency_s - 1

    @property
    def for_links(self) -> bool:
        """Whether the links of its cluster are fitted to the row, or to others of its charts."""
        gpus = self.row.num_gpus or 1
        return self.cluster == LINKS_FROM and 1 < gpus <= _cluster(LINKS_FROM).devices_per_node


def predictions(
    wanted: Callable[[SamplingRow], bool] = lambda row: row.num_gpus != 1,
    clusters: Mapping[str, Cluster] | None = None,
) -> list[SamplingPrediction]:
    """Return the predictions of published rows; points that occur again are not replayed again.

    Args:
        wanted: which rows; by default all but those of one GPU.
        clusters: by name, those that stand in for the shipped ones.
    """
    return [predict(row, clusters or {}) for row in sampling_rows() if wanted(row)]


def predict(row: SamplingRow, clusters: Mapping[str, Cluster]) -> SamplingPrediction:
    """Return the prediction of one row."""
    try:
        place = _place(row, clusters)
        asked = samplers(row, scenario_of(place))
        outcome = fastest(place, asked)
    except (Uncovered, InfeasibleError) as reason:
        return SamplingPrediction(row, None, None, str(reason))
    remark = describe(outcome.sampler, place)
    if len(asked) > 1:
        remark = f"best of {len(asked)}: {remark}"
    return SamplingPrediction(row, place, outcome, remark)


def _place(row: SamplingRow, clusters: Mapping[str, Cluster]) -> Place:
    if row.num_gpus is None:
        raise Uncovered("the number of GPUs is not said")
    if row["batch"] != "1":
        raise Uncovered(f"the batch is {row['batch'] or 'not said'}")
    name = row.cluster
    model = row.model
    if model not in model_names():
        raise Uncovered(f"no model folder of {model}")
    if name not in clusters and name not in cluster_names():
        raise Uncovered(f"no cluster file of {name}")
    cluster = clusters.get(name) or _cluster(name)
    if row.num_gpus > cluster.max_devices:
        raise Uncovered(f"cluster {name} has {cluster.max_devices} devices, not {row.num_gpus}")
    if row["method"] == FREE:
        cluster = without_communication(cluster)
    height, width = row.size
    divided = guidance(row, _model(model).guidance)
    return Place(model, cluster, row.num_gpus, height, width, row.steps, divided)


def fastest(place: Place, asked: Iterable[Sampler]) -> Outcome:
    """Return the fastest sampler that fits; where none does, the fastest.

    Raises:
        InfeasibleError: there is none.
    """
    best: Outcome | None = None
    reason: Exception = InfeasibleError("nothing applies", "nothing applies")
    for bound_s, sampler in sorted(_bounds(place, asked), key=lambda pair: pair[0]):
        if best is not None and best.fits and bound_s >= best.latency_s:
            break
        try:
            outcome = outcome_of(place, sampler)  # type: ignore[arg-type]  # samplers are frozen dataclasses
        except InfeasibleError as error:
            reason = error
            continue
        if best is None or (not outcome.fits, outcome.latency_s) < (not best.fits, best.latency_s):
            best = outcome
    if best is None:
        raise reason
    return best


def _bounds(place: Place, asked: Iterable[Sampler]) -> Iterator[tuple[float, Sampler]]:
    """Yield each sampler with what its run takes at least, 0 where it does not exist."""
    for sampler in asked:
        try:
            yield sampler.bound(scenario_of(place)), sampler
        except InfeasibleError:
            yield 0.0, sampler


@cache
def outcome_of(place: Place, sampler: Sampler) -> Outcome:
    """Return what one sampler makes of a place.

    Raises:
        InfeasibleError: it does not exist there.
    """
    result = run_point(sampler, scenario_of(place))
    expected = result.expected
    sent = (expected.collective_bytes + expected.p2p_bytes) / (place.num_gpus * place.steps)
    return Outcome(
        sampler, result.latency_s, expected.peak_memory_bytes, sent, result.fits_memory, result.provenance
    )


def sent_bytes(prediction: SamplingPrediction) -> float:
    """Return what one device sends in one step, of one sample without guidance."""
    assert prediction.place is not None and prediction.outcome is not None
    place = prediction.place._replace(guidance="none")
    return outcome_of(place, prediction.outcome.sampler).sent_bytes  # type: ignore[arg-type]  # as above


@lru_cache(maxsize=64)
def scenario_of(place: Place) -> SamplingScenario:
    """Return the scenario of a place."""
    workload = SamplingWorkload(place.num_gpus, place.height, place.width, place.steps, place.guidance)
    return SamplingScenario(_model(place.model), place.cluster, workload)


@cache
def _model(name: str) -> Model:
    return load_model(name)


@cache
def _cluster(name: str) -> Cluster:
    return load_cluster(name)


def without_communication(cluster: Cluster) -> Cluster:
    """Return a cluster with free links, on which nothing takes time but compute."""
    free = Collectives(0.0, cluster.collectives.efficiency, cluster.collectives.nodes)
    inter = None if cluster.inter_node is None else FREE_LINK
    return replace(cluster, intra_node=FREE_LINK, inter_node=inter, collectives=free)


def describe(sampler: Sampler, place: Place) -> str:
    """Return a sampler in words: its parameters that differ from their defaults, and its warm-up where it has one."""
    plain, words = type(sampler)(), [sampler.name]
    idle = isinstance(sampler, Hybrid) and sampler.pipeline_degree == 1
    for name in (field.name for field in fields(sampler)):  # type: ignore[arg-type]
        value = getattr(sampler, name)
        displaced = name in ("warmup_steps", "receive", "patches")
        if not (idle and displaced) and (value != getattr(plain, name) or name == "warmup_steps"):
            words.append(f"{name}={value}")
    words += ["guidance=parallel"] if place.guidance == "parallel" else []
    words += ["free links"] if place.cluster.intra_node.kind == "ideal" else []
    return " ".join(words)
