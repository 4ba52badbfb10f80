"""Each source left out: errors of its numbers as shipped, and with the constants that they set found without them.

A source is all numbers of the same authors. Where only it set a constant, what is taken for a box, or a model, of which
nothing is known stands in: a host within its range, the links of the nearest measured box, laws without anchors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from statistics import geometric_mean, median
from typing import Final, NamedTuple

from profiles.architectures.components import Anchor
from profiles.architectures.models import model_names
from profiles.costs.layers import one_gpu_s
from profiles.machines.devices import load_device
from profiles.machines.hosts import BOX
from profiles.measuring.tables import grouped
from profiles.software.stacks import load_stack
from sim.outcomes.runs import run_point
from validate.fitting.anchors import attention_share, shared_attention
from validate.fitting.efficiencies import CLUSTER
from validate.fitting.hosts import BOXES
from validate.points import cluster_of, model_of
from validate.published.clusters import SETS, SETS_HOST, ClusterRun, rated, read_runs, shared_rate
from validate.published.ledger import Ledger
from validate.published.records import Standing, authors_of
from validate.published.runs import FREE_LINK, Place, Run, all_runs, sampler_of, scenario_of
from validate.tables import Section, percent

NEAREST: Final[Mapping[str, str]] = {CLUSTER: "l40s-pcie-8"}
"""The box whose measured collectives stand in for those that published rows set."""
BOX_AUTHORS: Final = "xDiT"
"""The authors of the rows that set hosts and links of sampling boxes."""
Line = list[str]


def sources_left_out(ledger: Ledger) -> list[Section]:
    """The errors of each source's numbers in view, and with the source left out, by constant."""
    header = ("constant", "source", "judged by", "numbers", "in view", "left out", "instead")
    rows = [*shares(), *host(), *attention(), *sampled()]
    remark = (
        "Medians of absolute relative errors. In view: as shipped. Left out: the fit repeated without the source's"
        " numbers; where it alone set a constant, what stands last is taken."
    )
    return [Section("Each source left out", header, rows, remark)]


def _line(
    constant: str, source: str, what: str, pairs: Iterable[tuple[float, float]], instead: str
) -> Iterator[Line]:
    """A line of errors in view and left out; none where there is no number."""
    errors = [(abs(shown), abs(left)) for shown, left in pairs]
    if errors:
        medians = (percent(median(one[at] for one in errors)) for at in (0, 1))
        yield [constant, source, what, f"{len(errors)}", *medians, instead]


def shares() -> Iterator[Line]:
    """The share of the laws that all kernels but attention reach: training runs of each source that set it."""
    every = read_runs()
    found = {id(run): shared_rate(run) for run in every if run.role == SETS}
    for source in dict.fromkeys(authors_of(run.source) for run in every if run.role == SETS):
        others = [
            share for run in every if (share := found.get(id(run))) and authors_of(run.source) != source
        ]
        share = geometric_mean(others)
        pairs = [
            (
                shown / run.samples_per_s - 1,
                (run.predicted(rated(run.stack, share)) or 0.0) / run.samples_per_s - 1,
            )
            for run in every
            if authors_of(run.source) == source and (shown := run.predicted())
        ]
        yield from _line(
            "share of the laws", source, "training", pairs, f"{share:.2f} for {_share(every):.2f}"
        )


def host() -> Iterator[Line]:
    """The host's seconds in an iteration that nothing hides: training runs of the source that set them."""
    runs = [run for run in read_runs() if run.role == SETS_HOST]
    for source, own in grouped(runs, lambda run: authors_of(run.source)).items():
        both = ((run.predicted(), run.predicted(iteration_us=0), run.samples_per_s) for run in own)
        pairs = [(shown / printed - 1, left / printed - 1) for shown, left, printed in both if shown and left]
        yield from _line("host in an iteration", source, "training", pairs, "none")


def _share(runs: Iterable[ClusterRun]) -> float:
    return next(run.stack.rates.matmul for run in runs if run.role == SETS)


def attention() -> Iterator[Line]:
    """The share of its law that attention reaches: anchors of each source that show it."""
    anchors = [(name, one) for name in model_names() for one in model_of(name).anchors]
    showing = [one for one in anchors if attention_share(*one) is not None]
    for source in dict.fromkeys(authors_of(one.source) for _, one in showing):
        others = [one for one in showing if authors_of(one[1].source) != source]
        if not others:
            yield [
                "attention's share",
                source,
                "one GPU",
                f"{len(showing)}",
                "-",
                "-",
                "no other source shows it",
            ]
            continue
        share = min(1.0, shared_attention(others))
        own = [one for one in showing if authors_of(one[1].source) == source]
        shipped = load_stack().rates.attention
        pairs = [(_error(*one, shipped), _error(*one, share)) for one in own]
        yield from _line(
            "attention's share", source, "one GPU, laws alone", pairs, f"{share:.2f} for {shipped:g}"
        )


def _error(name: str, anchor: Anchor, share: float) -> float:
    """Error of the laws alone, with attention at a share of its own."""
    stack = replace(load_stack(), rates=replace(load_stack().rates, attention=share))
    return one_gpu_s(model_of(name), load_device(anchor.device), anchor, stack) / anchor.latency_s - 1


class Constant(NamedTuple):
    """A constant that a source alone set: how runs go without it, and what is taken instead."""

    name: str
    source: str
    change: Callable[[Place], Place]
    instead: str

    def line(self, what: str, runs: Iterable[Run]) -> Iterator[Line]:
        """The line of some runs, with the constant and without it."""
        pairs = []
        for run in runs:
            assert (
                run.place is not None
                and run.outcome is not None
                and run.row.latency_s
                and run.error is not None
            )
            if run.place.cluster.intra_node != FREE_LINK:
                again = run_point(sampler_of(run.outcome), scenario_of(self.change(run.place)))
                pairs.append((run.error, again.latency_s / run.row.latency_s - 1))
        yield from _line(self.name, self.source, what, pairs, self.instead)


def sampled() -> Iterator[Line]:
    """Anchors, hosts and links: latencies of each source that set them, one constant at a time, then all together."""
    runs = [run for run in all_runs() if run.error is not None and run.record.standing is not Standing.APART]
    for source, own in grouped(runs, lambda run: run.row.published.authors).items():
        anchors = Constant("anchors", source, partial(_without_anchors, source=source), "laws alone")
        alone = [run for run in own if run.row.num_gpus == 1 and _anchored_by(run, source)]
        several = [run for run in own if run.row.num_gpus != 1]
        yield from anchors.line("one GPU", alone)
        if any(_anchored_by(run, source) for run in several):
            yield from anchors.line("several GPUs", several)
        if source == BOX_AUTHORS:
            there = [run for run in several if run.cluster in NEAREST]
            hosts = Constant("hosts", source, _unknown_host, f"pace {BOX.slowness:g}")
            yield from hosts.line("several GPUs", several)
            yield from Constant("links", source, _other_links, f"{NEAREST[CLUSTER]}'s").line(
                "several GPUs", there
            )
            every = Constant("all of these", source, partial(_without_all, source=source), "as above")
            yield from every.line("several GPUs", several)


def _anchored_by(run: Run, source: str) -> bool:
    """Whether the source's own anchors scale a run."""
    device = run.place and run.place.cluster.device.name
    return any(
        one.device == device and authors_of(one.source) == source for one in model_of(run.model).anchors
    )


def _without_anchors(place: Place, source: str) -> Place:
    return place._replace(unknown=source)


def _without_all(place: Place, source: str) -> Place:
    return _without_anchors(_other_links(_unknown_host(place)), source)


def _unknown_host(place: Place) -> Place:
    cluster = place.cluster
    return place._replace(cluster=replace(cluster, host=BOX)) if cluster.name in BOXES else place


def _other_links(place: Place) -> Place:
    cluster, other = place.cluster, NEAREST.get(place.cluster.name)
    links = cluster_of(other).collectives if other else cluster.collectives
    return place._replace(cluster=replace(cluster, collectives=links))
