"""Each source left out: errors of its numbers as shipped, and with the constants that they set found without them.

A source is all numbers of the same authors. Where only it set a constant, what is taken for a box, or a model, of which
nothing is known stands in: a host within its range, the links of the nearest measured box, laws without anchors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from operator import methodcaller
from statistics import geometric_mean, median
from typing import Final

from profiles.architectures.components import Anchor
from profiles.architectures.models import model_names
from profiles.costs.layers import one_gpu_s
from profiles.machines.devices import load_device
from profiles.machines.hosts import BOX
from profiles.measuring.writing import grouped
from profiles.software.stacks import load_stack
from validate.fitting.anchors import LEAST, share_of, shared
from validate.fitting.boxes import BOXES, CLUSTER
from validate.points import cluster_of, model_of
from validate.published.clusters import SETS, SETS_HOST, rated, read_runs, shared_rate
from validate.published.ledger import Ledger
from validate.published.records import Standing, authors_of
from validate.published.runs import FREE_LINK, Place, Run, all_runs, outcome_of
from validate.tables import Section, percent

NEAREST: Final[Mapping[str, str]] = {CLUSTER: "l40s-pcie-8"}
"""The box whose measured collectives stand in for those that published rows set."""
BOX_AUTHORS: Final = "xDiT"
"""The authors of the rows that set hosts and links of sampling boxes."""
Line = list[str]
Head = tuple[str, str, str]
"""A constant, the source that set it, and what it is judged by."""


def sources_left_out(ledger: Ledger) -> list[Section]:
    """The errors of each source's numbers in view, and with the source left out, by constant."""
    header = ("constant", "source", "judged by", "numbers", "in view", "left out", "instead")
    rows = [*convolutions(), *host(), *(line for kind in LEAST for line in shares(kind)), *sampled()]
    remark = (
        "Medians of absolute relative errors. In view: as shipped. Left out: the fit repeated without the source's"
        " numbers; where it alone set a constant, what stands last is taken."
    )
    return [Section("Each source left out", header, rows, remark)]


def _line(head: Head, pairs: Iterable[tuple[float | None, float | None]], instead: str) -> Iterator[Line]:
    """A line of errors in view and left out; none where there is no number."""
    errors = [(abs(shown), abs(left)) for shown, left in pairs if shown is not None and left is not None]
    if errors:
        medians = (percent(median(one[at] for one in errors)) for at in (0, 1))
        yield [*head, f"{len(errors)}", *medians, instead]


def convolutions() -> Iterator[Line]:
    """The share of their law that convolutions reach: training runs of each source that set it."""
    every = read_runs()
    setting = [(authors_of(run.source), run.stack, shared_rate(run)) for run in every if run.why == SETS]
    shipped = setting[0][1].rates.conv
    for source in dict.fromkeys(source for source, *_ in setting):
        share = geometric_mean(share for author, _, share in setting if author != source)
        theirs = [run for run in every if authors_of(run.source) == source]
        pairs = [(run.error(), run.error(rated(run.stack, share))) for run in theirs]
        yield from _line(("conv's share", source, "training"), pairs, f"{share:.2f} for {shipped:.2f}")


def host() -> Iterator[Line]:
    """The host's seconds in an iteration that nothing hides: training runs of the source that set them."""
    runs = [run for run in read_runs() if run.why == SETS_HOST]
    for source, theirs in grouped(runs, lambda run: authors_of(run.source)).items():
        pairs = [(run.error(), run.error(iteration_us=0)) for run in theirs]
        yield from _line(("host in an iteration", source, "training"), pairs, "none")


def shares(kind: str) -> Iterator[Line]:
    """The share of its law that a class of kernels reaches: anchors of each source that show it."""
    anchors = [(name, one) for name in model_names() for one in model_of(name).anchors]
    showing = [one for one in anchors if share_of(kind, *one) is not None]
    for source in dict.fromkeys(authors_of(one.source) for _, one in showing):
        share = min(1.0, shared(kind, (row for row in showing if authors_of(row[1].source) != source)))
        theirs = [one for one in showing if authors_of(one[1].source) == source]
        shipped = getattr(load_stack().rates, kind)
        pairs = [(_error(kind, *one, shipped), _error(kind, *one, share)) for one in theirs]
        head = f"{kind}'s share", source, "one GPU, laws alone"
        yield from _line(head, pairs, f"{share:.2f} for {shipped:g}")


def _error(kind: str, name: str, anchor: Anchor, share: float) -> float:
    """Error of the laws alone, with a class of kernels at a share of its own."""
    stack = replace(load_stack(), rates=replace(load_stack().rates, **{kind: share}))
    return one_gpu_s(model_of(name), load_device(anchor.device), anchor, stack) / anchor.latency_s - 1


def _without(
    head: Head, runs: Iterable[Run], change: Callable[[Place], Place], instead: str
) -> Iterator[Line]:
    """The line of some runs, with a constant that a source alone set, and where it is changed."""
    pairs = []
    for run in runs:
        assert run.row.latency_s
        if run.place.cluster.intra_node != FREE_LINK:
            again = outcome_of(change(run.place), run.sampler)
            pairs.append((run.error, again.latency_s / run.row.latency_s - 1))
    yield from _line(head, pairs, instead)


def sampled() -> Iterator[Line]:
    """Anchors, hosts and links: latencies of each source that set them, one constant at a time, then all together."""
    runs = [run for run in all_runs() if run.error is not None and run.record.standing is not Standing.APART]
    anchors = [(name, one) for name in model_names() for one in model_of(name).anchors]
    for source, theirs in grouped(runs, lambda run: run.row.published.authors).items():
        several, where = [run for run in theirs if run.row.num_gpus != 1], "several GPUs"
        devices = {(name, anchor.device) for name, anchor in anchors if authors_of(anchor.source) == source}
        anchored = [run for run in theirs if (run.place.model, run.place.cluster.device.name) in devices]
        alone = [run for run in anchored if run.row.num_gpus == 1]
        change = methodcaller("_replace", unknown=source)
        yield from _without(("anchors", source, "one GPU"), alone, change, "laws alone")
        if len(anchored) > len(alone):
            yield from _without(("anchors", source, where), several, change, "laws alone")
        if source == BOX_AUTHORS:
            there = [run for run in several if run.place.cluster.name in NEAREST]
            yield from _without(("hosts", source, where), several, _unknown_host, f"pace {BOX.slowness:g}")
            yield from _without(("links", source, where), there, _other_links, f"{NEAREST[CLUSTER]}'s")
            every: Callable[[Place], Place] = lambda place: change(_other_links(_unknown_host(place)))  # noqa: B023,E731
            yield from _without(("all of these", source, where), several, every, "as above")


def _unknown_host(place: Place) -> Place:
    cluster = place.cluster
    return place._replace(cluster=replace(cluster, host=BOX)) if cluster.name in BOXES else place


def _other_links(place: Place) -> Place:
    cluster, other = place.cluster, NEAREST.get(place.cluster.name)
    links = cluster_of(other).collectives if other else cluster.collectives
    return place._replace(cluster=replace(cluster, collectives=links))
