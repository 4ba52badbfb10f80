"""What the runs of sampling amount to: errors by method and source, right winners, memory and volumes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

from profiles.units import GB, GIB
from validate.points import cluster_of
from validate.published.ledger import COVERAGE, coverage, line, near
from validate.published.records import MEMORY, Standing
from validate.published.sampling.runs import FREE, Run, sent_bytes
from validate.reporting.sections import Section, grouped, percent, signed

NO_RIVALS: Final = (FREE, "hybrid(best)")
"""No methods that compete with others: an ideal, and the best of all the others by its definition."""
REMARK: Final = (
    "Median error is of absolute values; a number that is printed twice counts once. Rows that links are fitted to are"
    " not among them. {} that ran should not fit by the prediction; their seconds count all the same."
)
HEADER: Final = ("", "numbers", "median error", "worst error", "within 15 %")


def sections(runs: Sequence[Run]) -> Iterator[Section]:
    """The sections of the report."""
    several = [(one, one.error) for one in runs if one.error is not None and one.row.num_gpus != 1]
    judged = [(one, error) for one, error in several if one.record.standing is Standing.JUDGED]
    links = [(one.row["method"], error) for one, error in several if one.for_links]
    remark = REMARK.format(sum(one.out_of_memory for one, _ in judged))
    yield by("Latency by method", ((one.row["method"], error) for one, error in judged), remark)
    there = ((f"{one.model} on {one.cluster}", error) for one, error in judged)
    yield by("Latency by model and cluster", there)
    yield by("Used for the links: L40s within one node, by method", links)
    yield winners(runs)
    yield out_of_memory(runs)
    yield memory(runs)
    yield volumes(runs)
    yield misses(runs)
    yield coverage([[one.record] for one in runs])


def by(title: str, named: Iterable[tuple[str, float]], remark: str = "") -> Section:
    """Errors in groups, and all together."""
    groups = {name: [error for _, error in of] for name, of in grouped(named, lambda one: one[0]).items()}
    lines = sorted(groups.items())
    lines += [("all", [error for errors in groups.values() for error in errors])] if groups else []
    return Section(title, HEADER, [_errors(name, errors) for name, errors in lines], remark)


def _errors(name: str, errors: Sequence[float]) -> list[str]:
    middle = f"{percent(median(map(abs, errors)))} (signed {signed(median(errors))})"
    right = f"{near(errors)} of {len(errors)} ({percent(near(errors) / len(errors))})"
    return [name, f"{len(errors)}", middle, signed(max(errors, key=abs)), right]


@dataclass(frozen=True, slots=True)
class Contest:
    """Methods that one source compared on one machine, by seconds: infinite where memory ran out."""

    words: str
    published: Mapping[str, float]
    predicted: Mapping[str, float]
    for_links: bool

    @property
    def winner(self) -> str:
        """The fastest method as published; of several the first."""
        return min(self.published, key=self.published.__getitem__)

    @property
    def favourite(self) -> str:
        """The fastest method by prediction."""
        return min(self.predicted, key=self.predicted.__getitem__)

    @property
    def loss(self) -> float:
        """What one loses who follows the prediction: published seconds of its favourite over the winner's, less one."""
        return self.published[self.favourite] / self.published[self.winner] - 1

    @property
    def verdict(self) -> str:
        """Whether the favourite won, in words."""
        if self.loss == 0:
            return "right"
        lost = f"{self.favourite} takes {signed(self.loss)}" if self.loss < inf else "out of memory"
        return f"wrong: {lost}"


def contests(runs: Iterable[Run]) -> list[Contest]:
    """The comparisons of at least two methods that a source ran on the same GPUs at the same size.

    Several figures of one such setting make one comparison: some print the same runs again.
    """
    groups: dict[tuple[str, bool], tuple[dict[str, float], dict[str, float]]] = {}
    for one in runs:
        row, method = one.row, one.row["method"]
        if one.outcome is None or not row["latency_s"] or row.num_gpus == 1 or method in NO_RIVALS:
            continue
        where = f"{row['num_gpus']} GPUs of {one.cluster}"
        what = f"{one.model}, {row['resolution_px']} px, {row['steps']} steps"
        key = (f"{row.published.paper}: {what}, {where}", one.for_links)
        both = groups.setdefault(key, ({}, {}))
        for seconds, found in zip(both, (row.latency_s, one.latency_s), strict=True):
            seconds[method] = min(seconds.get(method, inf), found or inf)
    return [
        Contest(words, published, predicted, for_links)
        for (words, for_links), (published, predicted) in groups.items()
        if len(published) > 1
    ]


def winners(runs: Sequence[Run]) -> Section:
    """Whether the method that is predicted to be fastest is the one that was."""
    found = contests(runs)
    rows = []
    for one in found:
        words = one.words + (" (links)" if one.for_links else "")
        rows.append([words, _order(one.published), _order(one.predicted), one.verdict])
    counts = []
    fits = ("of comparisons whose rows no link is fitted to", "of those that links are fitted to")
    for for_links, words in enumerate(fits):
        losses = [one.loss for one in found if one.for_links == bool(for_links)]
        counts.append(f"{losses.count(0)} of {len(losses)} {words}")
    header = ("comparison", "published, fastest first", "predicted, fastest first", "winner")
    return Section("The right winner: " + ", ".join(counts), header, rows)


def _order(seconds: Mapping[str, float]) -> str:
    ordered = sorted(seconds.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {'out of memory' if s == inf else f'{s:.4g}'}" for name, s in ordered)


def out_of_memory(runs: Sequence[Run]) -> Section:
    """The rows in which memory ran out, or should by the prediction."""
    rows = []
    for one in runs:
        if one.outcome is None or not (one.row.out_of_memory or one.out_of_memory):
            continue
        verdicts = ["out of memory" if out else "fits" for out in (one.row.out_of_memory, one.out_of_memory)]
        there, needed = cluster_of(one.cluster).device.memory_bytes or inf, one.outcome.peak_memory_bytes
        gib = f"{needed / GIB:.1f} of {there / GIB:.1f} GiB"
        rows.append([f"{one.row.published}", *verdicts, gib, signed(needed / there - 1)])
    right = sum(row[1] == row[2] for row in rows)
    title = f"Out of memory: {right} of {len(rows)} rows right"
    remark = "Constants of memory were set with these rows in view; those within 1 % of a device's size decide little."
    return Section(title, ("row", "published", "predicted", "largest device", "beyond it"), rows, remark)


def memory(runs: Sequence[Run]) -> Section:
    """Errors of the bytes of the fullest device, by source."""
    records = [one.record for one in runs if one.row.published.quantity == MEMORY]
    errors = ((one.row.group, one.error) for one in records if one.standing is Standing.JUDGED)
    remark = (
        "PixArt on one A100 set the runtime's bytes and the share of the activations held at once; Ulysses' rows said"
        " that keys and values are kept. They do not count."
    )
    return by("Memory by source", ((name, error) for name, error in errors if error is not None), remark)


def volumes(runs: Sequence[Run]) -> Section:
    """Published and predicted bytes that one device sends in one step, of one sample."""
    rows = []
    for one in runs:
        if one.outcome and (gb := one.row.sent_gb):
            found = sent_bytes(one) / GB
            rows.append([f"{one.row.published}", f"{gb:g}", f"{found:.3f}", signed(found / gb - 1)])
    remark = "DistriFusion, Table 2, counts one sample without guidance; 1.48 there is a misprint of 1.58."
    header = ("row", "published", "predicted", "error")
    return Section("GB that one device sends in one step", header, rows, remark)


def misses(runs: Sequence[Run]) -> Section:
    """The rows that are missed, with what is said of them."""
    found = [one.record for one in runs if one.missed]
    open_rows = sum(not one.miss for one in found)
    title = f"Off by more than 20 %, or wrong about memory: {len(found)} rows, {open_rows} unexplained"
    return Section(title, COVERAGE, [line(one) for one in found])
