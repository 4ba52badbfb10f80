"""What the runs of sampling amount to: errors by method and source, right winners, memory and volumes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final

from profiles.units import GB, GIB
from validate.points import cluster_of
from validate.published.ledger import near
from validate.published.sampling.runs import FREE, Run, sent_bytes
from validate.reporting.sections import Section, percent, signed

NO_RIVALS: Final = (FREE, "hybrid(best)")
"""No methods that compete with others: an ideal, and the best of all the others by its definition."""
HEADER: Final = ("", "numbers", "median error", "worst error", "within 15 %")


def sections(runs: Sequence[Run]) -> Iterator[Section]:
    """The sections of the report."""
    yield from summaries(runs)
    yield winners(runs)
    yield out_of_memory(runs)
    yield memory(runs)
    yield volumes(runs)
    yield misses(runs)
    yield every_row(runs)
    yield uncovered(runs)


def summaries(runs: Sequence[Run]) -> Iterator[Section]:
    """The errors by method and by model."""
    rows = [one for one in runs if one.judged]
    ran_out = sum(one.out_of_memory for one in rows)
    remark = (
        "Median error is of absolute values; a number that is printed twice counts once. Rows that links are fitted"
        f" to are not among them. {ran_out} that ran should not fit by the prediction; their seconds count all the"
        " same."
    )
    yield by("Latency by method", rows, _method, remark)
    yield by("Latency by model and cluster", rows, lambda one: f"{one.model} on {one.cluster}")
    links = [one for one in runs if one.for_links and one.error is not None]
    yield by("Used for the links: L40s within one node, by method", links, _method)


def _method(run: Run) -> str:
    return run.row["method"]


def by(title: str, runs: Sequence[Run], key: Callable[[Run], str], remark: str = "") -> Section:
    """The errors of runs, in groups."""
    names = sorted(set(map(key, runs)))
    groups = {name: [one for one in runs if key(one) == name] for name in names} | (
        {"all": runs} if runs else {}
    )
    return Section(title, HEADER, [_errors(name, group) for name, group in groups.items()], remark)


def _errors(name: str, runs: Sequence[Run]) -> list[str]:
    errors = [one.error for one in runs if one.error is not None]
    middle = f"{percent(median(map(abs, errors)))} (signed {signed(median(errors))})"
    right = f"{near(errors)} of {len(errors)} ({percent(near(errors) / len(errors))})"
    return [name, f"{len(errors)}", middle, signed(max(errors, key=abs)), right]


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
    groups: dict[tuple[str, ...], list[Run]] = {}
    for one in runs:
        row = one.row
        if one.outcome and row["latency_s"] and row.num_gpus != 1 and row["method"] not in NO_RIVALS:
            key = (source(one), one.model, one.cluster, row["num_gpus"], row["resolution_px"], row["steps"])
            groups.setdefault(key, []).append(one)
    return [_contest(key, rows) for key, rows in groups.items() if len(set(map(_method, rows))) > 1]


def _contest(key: tuple[str, ...], rows: Sequence[Run]) -> Contest:
    published: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for one in rows:
        method = one.row["method"]
        published[method] = min(published.get(method, inf), one.row.latency_s or inf)
        predicted[method] = min(predicted.get(method, inf), one.latency_s or inf)
    where, model, cluster, gpus, resolution, steps = key
    words = f"{where}: {model}, {resolution} px, {steps} steps, {gpus} GPUs of {cluster}"
    return Contest(words, published, predicted, rows[0].for_links)


def winners(runs: Sequence[Run]) -> Section:
    """Whether the method that is predicted to be fastest is the one that was."""
    found = contests(runs)
    rows = [
        [
            one.words + (" (links)" if one.for_links else ""),
            _order(one.published),
            _order(one.predicted),
            one.verdict,
        ]
        for one in found
    ]
    counts = []
    for words, for_links in (
        ("of comparisons whose rows no link is fitted to", False),
        ("of those that links are fitted to", True),
    ):
        losses = [one.loss for one in found if one.for_links == for_links]
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
        there = cluster_of(one.cluster).device.memory_bytes or inf
        needed = f"{one.outcome.memory_bytes / GIB:.1f} of {there / GIB:.1f} GiB"
        rows.append([words(one), *verdicts, needed, signed(one.outcome.memory_bytes / there - 1)])
    right = sum(row[1] == row[2] for row in rows)
    title = f"Out of memory: {right} of {len(rows)} rows right"
    remark = "Constants of memory were set with these rows in view; those within 1 % of a device's size decide little."
    return Section(title, ("row", "published", "predicted", "largest device", "beyond it"), rows, remark)


def memory(runs: Sequence[Run]) -> Section:
    """Published and predicted bytes of the fullest device."""
    rows, errors = [], []
    for one in runs:
        if one.outcome is None or one.row.memory_gib is None:
            continue
        found = one.outcome.memory_bytes / GIB
        error = found / one.row.memory_gib - 1
        errors += [] if one.sets_memory else [abs(error)]
        used = "yes" if one.sets_memory else ""
        rows.append([words(one), f"{one.row.memory_gib:g}", f"{found:.2f}", signed(error), used])
    middle = (
        f"median error {percent(median(errors))}, worst {percent(max(errors))}" if errors else "none covered"
    )
    remark = (
        "PixArt on one A100 set the runtime's bytes and the share of the activations held at once; Ulysses' rows said"
        " that keys and values are kept. They do not count."
    )
    header = ("row", "published GiB", "predicted", "error", "used")
    return Section(f"Memory: {len(errors)} rows, {middle}", header, rows, remark)


def volumes(runs: Sequence[Run]) -> Section:
    """Published and predicted bytes that one device sends in one step, of one sample."""
    printed = [
        (one, one.row.sent_gb, sent_bytes(one) / GB) for one in runs if one.outcome and one.row.sent_gb
    ]
    rows = [
        [words(one), f"{gb:g}", f"{found:.3f}", signed(found / gb - 1)] for one, gb, found in printed if gb
    ]
    title = "GB that one device sends in one step"
    remark = "DistriFusion, Table 2, counts one sample without guidance; 1.48 there is a misprint of 1.58."
    return Section(title, ("row", "published", "predicted", "error"), rows, remark)


def misses(runs: Sequence[Run]) -> Section:
    """The rows that are missed, with what is said of them."""
    found = [one for one in runs if one.missed]
    rows = [[*_latency(one), one.why or "unexplained"] for one in found]
    open_rows = sum(not one.why for one in found)
    title = f"Off by more than 20 %, or wrong about memory: {len(found)} rows, {open_rows} unexplained"
    return Section(title, ("row", "published s", "predicted", "error", "why"), rows)


def every_row(runs: Sequence[Run]) -> Section:
    """Each covered row with its latency beside the published one."""
    rows = [
        [*_latency(one), one.remark + ("; used for the links" if one.for_links else "")]
        for one in runs
        if one.outcome is not None and one.row["latency_s"] and one.row.num_gpus != 1
    ]
    header = ("row", "published s", "predicted", "error", "what was run")
    return Section(f"Every latency on several GPUs: {len(rows)} predicted", header, rows)


def uncovered(runs: Sequence[Run]) -> Section:
    """The rows that no prediction covers, with the reason."""
    rows = [[words(one), one.remark] for one in runs if one.outcome is None]
    return Section(f"Not covered: {len(rows)} rows", ("row", "why"), rows)


def source(run: Run) -> str:
    """The source of a row without what is said of it in brackets."""
    return run.row["source"].split(" (")[0].split(" arXiv")[0]


def words(run: Run) -> str:
    """What a row is about."""
    row, size = run.row, run.row["resolution_px"]
    about = (
        source(run),
        row.figure,
        run.model or row["model"],
        f"{size} px" if size.isdigit() else size,
        f"{row['steps'] or '?'} steps",
        f"{row['num_gpus'] or '?'} x {run.cluster or row['hardware']}",
        row.method,
    )
    return ", ".join(about)


def _latency(run: Run) -> list[str]:
    """A row with its published and predicted latency and the error."""
    outcome = run.outcome
    assert outcome is not None
    predicted = f"{outcome.time_s:.4g}" if outcome.fits else f"out of memory ({outcome.time_s:.4g})"
    error = "-" if run.error is None else signed(run.error)
    return [words(run), run.row["latency_s"] or f"{run.row['memory_GB']} (memory)", predicted, error]
