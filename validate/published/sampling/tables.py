"""Tables of the sampling runs: errors by method and source, right winners, memory and volumes."""

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from statistics import median
from typing import Final

from profiles.measuring.tables import grouped
from profiles.units import GB, GIB
from validate.points import cluster_of
from validate.published.contests import Contest, least, winners
from validate.published.ledger import Ledger, coverage, near
from validate.published.records import MEMORY, Standing
from validate.published.sampling.runs import NO_COMMUNICATION, Run, sent_bytes
from validate.tables import Section, percent, signed

NO_RIVALS: Final = (NO_COMMUNICATION, "hybrid(best)")
"""Methods that do not compete: an ideal, and one that is the best of all others by definition."""
REMARK: Final = (
    "Median error is of absolute values; a number that is printed twice counts once. Rows that links are fitted to are"
    " not among them. {} that ran should not fit by the prediction; their seconds count all the same."
)
HEADER: Final = ("", "numbers", "median error", "worst error", "within 15 %")


def sections(runs: Sequence[Run]) -> Iterator[Section]:
    """The sections of the report."""
    several = [(one, one.error) for one in runs if one.error is not None and one.row.num_gpus != 1]
    for standing in (Standing.INDEPENDENT, Standing.IN_VIEW):
        found = [(one, error) for one, error in several if one.record.standing is standing]
        remark = REMARK.format(sum(one.out_of_memory for one, _ in found))
        methods = ((one.row["method"], error) for one, error in found)
        yield by(f"Latency by method, {standing}", methods, remark)
        there = ((f"{one.model} on {one.cluster}", error) for one, error in found)
        yield by(f"Latency by model and cluster, {standing}", there)
    links = ((one.row["method"], error) for one, error in several if one.for_links)
    yield by("Used for the links: L40s within one node, by method", links)
    yield winners(contests(runs))
    yield out_of_memory(runs)
    yield memory(runs)
    yield volumes(runs)
    yield coverage([[one.record] for one in runs])


def sampling_ledger(runs: Sequence[Run]) -> Ledger:
    """Every row of sampling, in the order of the runs, and the contests among them."""
    return Ledger(tuple(one.record for one in runs), tuple(contests(runs)))


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


def contests(runs: Iterable[Run]) -> list[Contest]:
    """The contests of at least two methods that a source ran on the same GPUs at the same size.

    Several figures of one such setting make one contest, as some show the same runs again.
    """
    groups: dict[tuple[str, bool], tuple[dict[str, float], dict[str, float]]] = {}
    standings: dict[tuple[str, bool], set[Standing]] = {}
    for one in runs:
        row, method = one.row, one.row["method"]
        if one.outcome is None or not row["latency_s"] or row.num_gpus == 1 or method in NO_RIVALS:
            continue
        where = f"{row['num_gpus']} GPUs of {one.cluster}"
        what = f"{one.model}, {row['resolution_px']} px, {row['steps']} steps"
        key = (f"{row.published.paper}: {what}, {where}", one.for_links)
        both = groups.setdefault(key, ({}, {}))
        standings.setdefault(key, set()).add(one.record.standing)
        for seconds, found in zip(both, (row.latency_s, one.latency_s), strict=True):
            seconds[method] = min(seconds.get(method, inf), found or inf)
    return [
        Contest(key[0], published, predicted, least(standings[key]))
        for key, (published, predicted) in groups.items()
        if len(published) > 1
    ]


def out_of_memory(runs: Sequence[Run]) -> Section:
    """The rows in which memory ran out, or does by the prediction."""
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
    errors = ((one.row.group, one.error) for one in records if one.standing is not Standing.FITTED)
    remark = (
        "PixArt on one A100 set the runtime's bytes and the share of the activations held at once; Ulysses' rows said"
        " that keys and values are kept. They do not count; the others were in view."
    )
    return by("Memory by source", ((name, error) for name, error in errors if error is not None), remark)


def volumes(runs: Sequence[Run]) -> Section:
    """Published and predicted bytes that one device sends in one step for one sample."""
    rows = []
    for one in runs:
        if one.outcome and (gb := one.row.sent_gb):
            found = sent_bytes(one) / GB
            rows.append([f"{one.row.published}", f"{gb:g}", f"{found:.3f}", signed(found / gb - 1)])
    remark = "DistriFusion, Table 2, counts one sample without guidance; 1.48 there is a misprint of 1.58."
    header = ("row", "published", "predicted", "error")
    return Section("GB that one device sends in one step", header, rows, remark)
