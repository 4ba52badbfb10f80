"""What the predictions of sampling amount to: errors by method and source, right winners, memory and volumes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

from profiles.clusters import load_cluster
from profiles.units import GB, GIB
from validate.published.rows import Section, percent
from validate.published.sampling_misses import missed, why
from validate.published.sampling_scenes import FREE, SamplingPrediction, sent_bytes

Predicted = Sequence[SamplingPrediction]

NEAR: Final = 0.15
"""Relative error within which a prediction counts as near."""
TWICE: Final = 0.002
"""Relative difference below which two numbers of one point are one measurement, rounded twice."""
MEMORY_SOURCE: Final = ("Fig7 memory.py",)
MEMORY_METHODS: Final = ("original", "sp_ulysses")
"""The rows from which the constants of ``strategies.patching.footprint`` were taken."""
NO_RIVALS: Final = (FREE, "hybrid(best)")
"""No methods that compete with others: an ideal, and the best of all the others by its definition."""
HEADER: Final = ("", "numbers", "median error", "worst error", "within 15 %")


def judged(predicted: Predicted) -> list[SamplingPrediction]:
    """Return predictions of latencies on several GPUs, to which no link is fitted; a number printed twice once."""
    again = printed_before(predicted)
    free = [one for one in predicted if one.error is not None and not one.for_links and one.row.num_gpus != 1]
    return [one for one in free if one.row.line not in again]


def printed_before(predicted: Predicted) -> set[int]:
    """Return the lines of the rows whose latency at that point an earlier row says already."""
    kept: list[SamplingPrediction] = []
    again = set()
    for one in predicted:
        if one.error is None:
            continue
        if any(_same(one, other) for other in kept):
            again.add(one.row.line)
        else:
            kept.append(one)
    return again


def _same(one: SamplingPrediction, other: SamplingPrediction) -> bool:
    first, second = one.row.latency_s, other.row.latency_s
    assert first is not None and second is not None
    return one.place == other.place and one.outcome == other.outcome and same_number(first, second)


def same_number(one: float, other: float) -> bool:
    """Return whether two numbers of one point are one measurement, rounded twice."""
    return abs(one / other - 1) < TWICE


def sets_memory(one: SamplingPrediction) -> bool:
    """Return whether the constants of memory were taken from a row."""
    return one.row.figure in MEMORY_SOURCE and one.row["method"] in MEMORY_METHODS


def by(
    title: str, predicted: Predicted, key: Callable[[SamplingPrediction], str], remark: str = ""
) -> Section:
    """Return the errors of predictions, in groups."""
    groups: dict[str, list[SamplingPrediction]] = {}
    for one in predicted:
        groups.setdefault(key(one), []).append(one)
    rows = [_errors(name, groups[name]) for name in sorted(groups)]
    return Section(title, HEADER, [*rows, _errors("all", predicted)] if predicted else [], remark)


def _errors(name: str, predicted: Predicted) -> list[str]:
    errors = [one.error for one in predicted if one.error is not None]
    absolute = [abs(error) for error in errors]
    near = sum(error <= NEAR for error in absolute)
    worst = max(errors, key=abs)
    return [
        name,
        str(len(errors)),
        f"{percent(median(absolute))} (signed {median(errors):+.1%})",
        f"{worst:+.1%}",
        f"{near} of {len(errors)} ({percent(near / len(errors))})",
    ]


def summaries(predicted: Predicted) -> Iterator[Section]:
    """Yield the errors by method and by model."""
    rows = judged(predicted)
    ran_out = sum(one.out_of_memory for one in rows)
    remark = (
        "Median error is of absolute values; a number that is printed twice counts once. Rows that links are fitted"
        f" to are not among them. {ran_out} that ran should not fit by the prediction; their seconds count all the"
        " same."
    )
    yield by("Latency by method", rows, lambda one: one.row["method"], remark)
    yield by("Latency by model and cluster", rows, lambda one: f"{one.model} on {one.cluster}")
    links = [one for one in predicted if one.for_links and one.error is not None]
    yield by("Used for the links: L40s within one node, by method", links, lambda one: one.row["method"])


def source(prediction: SamplingPrediction) -> str:
    """Return the source of a row without what is said of it in brackets."""
    return prediction.row["source"].split(" (")[0].split(" arXiv")[0]


@dataclass(frozen=True, slots=True)
class Contest:
    """Methods that one source compared on one machine.

    Attributes:
        words: what they drew where.
        published: seconds by method, infinite where memory ran out.
        predicted: likewise.
        for_links: whether links are fitted to them.
    """

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


def contests(predicted: Iterable[SamplingPrediction]) -> list[Contest]:
    """Return the comparisons of at least two methods that a source ran on the same GPUs at the same size.

    Several figures of one such setting make one comparison: some print the same runs again.
    """
    groups: dict[tuple[str, ...], list[SamplingPrediction]] = {}
    for one in predicted:
        row = one.row
        timed = row.latency_s is not None or row["latency_s"]
        if one.outcome is not None and timed and row.num_gpus != 1 and row["method"] not in NO_RIVALS:
            key = (source(one), one.model, one.cluster, row["num_gpus"], row["resolution_px"])
            groups.setdefault((*key, row["steps"]), []).append(one)
    return [
        _contest(key, rows) for key, rows in groups.items() if len({one.row["method"] for one in rows}) > 1
    ]


def _contest(key: tuple[str, ...], rows: Predicted) -> Contest:
    published: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for one in rows:
        method = one.row["method"]
        published[method] = min(published.get(method, inf), one.row.latency_s or inf)
        predicted[method] = min(predicted.get(method, inf), one.latency_s or inf)
    where, model, cluster, gpus, resolution, steps = key
    words = f"{where}: {model}, {resolution} px, {steps} steps, {gpus} GPUs of {cluster}"
    return Contest(words, published, predicted, rows[0].for_links)


def winners(predicted: Predicted) -> Section:
    """Return whether the method that is predicted to be fastest is the one that was."""
    found = contests(predicted)
    rows = [
        [
            one.words + (" (links)" if one.for_links else ""),
            _order(one.published),
            _order(one.predicted),
            _verdict(one),
        ]
        for one in found
    ]
    counts = []
    for words, group in (
        ("of comparisons whose rows no link is fitted to", [one for one in found if not one.for_links]),
        ("of those that links are fitted to", [one for one in found if one.for_links]),
    ):
        right = sum(one.loss == 0 for one in group)
        counts.append(f"{right} of {len(group)} {words}")
    header = ("comparison", "published, fastest first", "predicted, fastest first", "winner")
    return Section("The right winner: " + ", ".join(counts), header, rows)


def _order(seconds: Mapping[str, float]) -> str:
    ordered = sorted(seconds, key=seconds.__getitem__)
    return ", ".join(f"{name} {_seconds(seconds[name])}" for name in ordered)


def _seconds(value: float) -> str:
    return "out of memory" if value == inf else f"{value:.4g}"


def _verdict(contest: Contest) -> str:
    if contest.loss == 0:
        return "right"
    return (
        f"wrong: {contest.favourite} takes {contest.loss:+.1%}"
        if contest.loss < inf
        else "wrong: out of memory"
    )


def out_of_memory(predicted: Predicted) -> Section:
    """Return the rows in which memory ran out, or should by the prediction."""
    rows = []
    for one in predicted:
        if one.outcome is None or not (one.row.out_of_memory or one.out_of_memory):
            continue
        said = "out of memory" if one.row.out_of_memory else "fits"
        verdict = "out of memory" if one.out_of_memory else "fits"
        there = load_cluster(one.cluster).device.memory_bytes or inf
        needed = f"{one.outcome.memory_bytes / GIB:.1f} of {there / GIB:.1f} GiB"
        rows.append([words(one), said, verdict, needed, f"{one.outcome.memory_bytes / there - 1:+.1%}"])
    right = sum(row[1] == row[2] for row in rows)
    title = f"Out of memory: {right} of {len(rows)} rows right"
    remark = "Constants of memory were set with these rows in view; those within 1 % of a device's size decide little."
    return Section(title, ("row", "published", "predicted", "largest device", "beyond it"), rows, remark)


def memory(predicted: Predicted) -> Section:
    """Return published and predicted bytes of the fullest device."""
    rows, errors = [], []
    for one in predicted:
        if one.outcome is None or one.row.memory_gib is None:
            continue
        found = one.outcome.memory_bytes / GIB
        error = found / one.row.memory_gib - 1
        used = sets_memory(one)
        if not used:
            errors.append(abs(error))
        rows.append(
            [words(one), f"{one.row.memory_gib:g}", f"{found:.2f}", f"{error:+.1%}", "yes" if used else ""]
        )
    middle = (
        f"median error {percent(median(errors))}, worst {percent(max(errors))}" if errors else "none covered"
    )
    remark = (
        "PixArt on one A100 set the runtime's bytes and the share of the activations held at once; Ulysses' rows said"
        " that keys and values are kept. They do not count."
    )
    header = ("row", "published GiB", "predicted", "error", "used")
    return Section(f"Memory: {len(errors)} rows, {middle}", header, rows, remark)


def volumes(predicted: Predicted) -> Section:
    """Return published and predicted bytes that one device sends in one step, of one sample."""
    rows = []
    for one in predicted:
        if one.outcome is not None and one.row.sent_gb:
            found = sent_bytes(one) / GB
            rows.append(
                [words(one), f"{one.row.sent_gb:g}", f"{found:.3f}", f"{found / one.row.sent_gb - 1:+.1%}"]
            )
    remark = "DistriFusion, Table 2, counts one sample without guidance; 1.48 there is a misprint of 1.58."
    return Section(
        "GB that one device sends in one step", ("row", "published", "predicted", "error"), rows, remark
    )


def misses(predicted: Predicted) -> Section:
    """Return the rows that are missed, with what is said of them."""
    found = [one for one in predicted if missed(one)]
    rows = [
        [words(one), _published(one), _predicted(one), error(one), why(one) or "unexplained"] for one in found
    ]
    open_rows = sum(not why(one) for one in found)
    title = f"Off by more than 20 %, or wrong about memory: {len(found)} rows, {open_rows} unexplained"
    return Section(title, ("row", "published s", "predicted", "error", "why"), rows)


def every_row(predicted: Predicted) -> Section:
    """Return each covered row with its latency beside the published one."""
    rows = [
        [words(one), _published(one), _predicted(one), error(one), remark(one)]
        for one in predicted
        if one.outcome is not None and one.row["latency_s"] and one.row.num_gpus != 1
    ]
    header = ("row", "published s", "predicted", "error", "what was run")
    return Section(f"Every latency on several GPUs: {len(rows)} predicted", header, rows)


def uncovered(predicted: Predicted) -> Section:
    """Return the rows that no prediction covers, with the reason."""
    rows = [[words(one), one.remark] for one in predicted if one.outcome is None]
    return Section(f"Not covered: {len(rows)} rows", ("row", "why"), rows)


def words(prediction: SamplingPrediction) -> str:
    """Return what a row is about."""
    row = prediction.row
    model, where = prediction.model or row["model"], prediction.cluster or row["hardware"]
    size = f"{row['resolution_px']} px" if row["resolution_px"].isdigit() else row["resolution_px"]
    parts = (
        source(prediction),
        row.figure,
        model,
        size,
        f"{row['steps'] or '?'} steps",
        f"{row['num_gpus'] or '?'} x",
    )
    return f"{', '.join(parts)} {where}, {row.method}"


def remark(prediction: SamplingPrediction) -> str:
    """Return what was run, and whether the row was used."""
    return prediction.remark + ("; used for the links" if prediction.for_links else "")


def error(prediction: SamplingPrediction) -> str:
    """Return the relative error in words."""
    return "-" if prediction.error is None else f"{prediction.error:+.1%}"


def _published(prediction: SamplingPrediction) -> str:
    return prediction.row["latency_s"] or f"{prediction.row['memory_GB']} (memory)"


def _predicted(prediction: SamplingPrediction) -> str:
    outcome = prediction.outcome
    assert outcome is not None
    return f"{outcome.latency_s:.4g}" if outcome.fits else f"out of memory ({outcome.latency_s:.4g})"
