"""The ledger: every published number once, contests of methods among them, summaries, and files of them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isnan
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import pandas as pd
from scipy.stats import kendalltau

from profiles.measuring.writing import grouped
from profiles.units import GIB
from validate.published.records import Published, Record, Standing, all_published, source_names
from validate.tables import Section, percent, signed, write_file

STANDINGS: Final = (Standing.INDEPENDENT, Standing.IN_VIEW, Standing.FITTED)
"""Standings of a contest, best first; its own is the worst of its numbers."""


@dataclass(frozen=True, slots=True)
class Contest:
    """Methods that one source compared on one machine, by seconds: infinite where memory ran out."""

    words: str
    published: Mapping[str, float]
    predicted: Mapping[str, float]
    standing: Standing = Standing.INDEPENDENT

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
        """Loss by following the prediction: published seconds of its favourite over the winner's, less one."""
        return self.published[self.favourite] / self.published[self.winner] - 1

    @property
    def correlation(self) -> float:
        """Kendall's tau-b between the published and the predicted order, from -1 to 1; 0 where one has no order."""
        seconds = (
            [seconds[method] for method in self.published] for seconds in (self.published, self.predicted)
        )
        tau = float(kendalltau(*seconds).statistic)
        return 0.0 if isnan(tau) else tau

    @property
    def verdict(self) -> str:
        """Whether the favourite won, in words."""
        if self.loss == 0:
            return "right"
        lost = f"{self.favourite} takes {signed(self.loss)}" if self.loss < inf else "out of memory"
        return f"wrong: {lost}"


def least(standings: Iterable[Standing]) -> Standing:
    """The standing of a contest of numbers with these standings: the worst of them, leaving out those apart."""
    return max((one for one in standings if one in STANDINGS), key=STANDINGS.index, default=STANDINGS[0])


def side_by_side(contests: Sequence[Contest]) -> Section:
    """How often the pick is right, its loss where it is wrong, and the rank correlation, by standing."""
    groups = [(f"{one}", [c for c in contests if c.standing is one]) for one in STANDINGS]
    rows = [[name, *_summary(group)] for name, group in (*groups, ("all", list(contests))) if group]
    remark = (
        "The pick is the method that is predicted to be fastest; its loss is its published time over the winner's,"
        " less one. A comparison is worth as much as the number of it that is worth least. Kendall's tau-b."
    )
    header = (
        "",
        "comparisons",
        "right winner",
        "loss by the pick, mean",
        "largest",
        "rank correlation, mean",
    )
    return Section("Methods published side by side", header, rows, remark)


def _summary(group: Sequence[Contest]) -> list[str]:
    losses = [one.loss for one in group]
    right, tau = losses.count(0), mean(one.correlation for one in group)
    sizes = ("-", "out of memory") if inf in losses else (percent(mean(losses)), percent(max(losses)))
    return [f"{len(group)}", f"{right} ({percent(right / len(group))})", *sizes, f"{tau:.2f}"]


def winners(contests: Sequence[Contest]) -> Section:
    """Every comparison with both orders, and whether the favourite won."""
    rows = [
        [
            one.words,
            *map(_order, (one.published, one.predicted)),
            one.verdict,
            f"{one.correlation:.2f}",
            one.standing,
        ]
        for one in contests
    ]
    orders = ("published, fastest first", "predicted, fastest first")
    return Section("The right winner", ("comparison", *orders, "winner", "rank correlation", ""), rows)


def _order(seconds: Mapping[str, float]) -> str:
    ordered = sorted(seconds.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {'out of memory' if s == inf else f'{s:.4g}'}" for name, s in ordered)


NEAR: Final = 0.15
"""Relative error within which a prediction counts as near."""
COUNTED: Final = (
    "numbers", "predicted", "independent", "median error", "worst error", f"within {NEAR:.0%}", "in view", "formula",
    "fitted", "apart", "not covered",
)  # fmt: skip
REMARK: Final = (
    "Each number stands in one of the columns independent, in view, formula, fitted, apart and not covered. Errors,"
    " simulated over published less one, are of independent numbers alone; the median is of absolute values. In view: a"
    " model variant, a precision, a reading or a constant was chosen knowing the number. Formula: it follows from its"
    " definition. Fitted: it set a constant. Apart: predicted, but a bound, a zero, memory that ran out,"
    " printed before or not as a number."
)
COVERAGE: Final = ("where", "number", "published", "simulated", "error", "setting, or why not")
COLUMNS: Final = (
    "task", "source", "item", "model", "machine", "num_gpus", "method", "method_config", "batch_size",
    "resolution_px", "steps", "quantity", "unit", "published", "predicted", "error", "standing", "reason",
    "provenance", "setting", "predicted_memory_GiB", "device", "stack", "kind",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ledger:
    """Published numbers, each with one record, in the order of the files, and contests of methods among them."""

    records: tuple[Record, ...]
    contests: tuple[Contest, ...] = ()

    def of(self, standing: Standing) -> list[Record]:
        """The records of one standing."""
        return [one for one in self.records if one.standing is standing]

    def by_source(self) -> Section:
        """One line per source."""
        groups = grouped(self.records, lambda one: one.row.group)
        rows = [[name, *_counts(groups[name])] for name in source_names() if name in groups]
        title = f"By source: {len(self.records)} published numbers"
        return Section(title, ("source", *COUNTED), [*rows, ["all", *_counts(self.records)]], REMARK)

    def not_independent(self) -> Section:
        """Why numbers are not independent: how many, and which."""
        left = [one for one in self.records if one.standing is not Standing.INDEPENDENT]
        order = list(Standing)
        groups = grouped(left, lambda one: (order.index(one.standing), _split(one.reason)[0])).items()
        rows = []
        for (standing, reason), group in sorted(
            groups, key=lambda item: (item[0][0], -len(item[1]), item[0][1])
        ):
            which = dict.fromkeys(_split(one.reason)[1] or one.row.group for one in group)
            rows.append([order[standing], reason, f"{len(group)}", "; ".join(which)])
        title = f"Not independent: {len(left)} of {len(self.records)} numbers"
        return Section(title, ("", "why", "numbers", "which"), rows)

    def write(self, path: Path) -> None:
        """Write one line per number, with its prediction and standing, as CSV, or as JSON where the file ends so."""
        frame = pd.DataFrame([_flat(one) for one in self.records], columns=list(COLUMNS))
        frame = frame.astype({"num_gpus": "Int64", "batch_size": "Int64", "standing": str})
        json = path.suffix.lower() == ".json"
        text = (
            frame.to_json(orient="records", indent=1) + "\n"
            if json
            else frame.to_csv(index=False, float_format="%.6g")
        )
        write_file(path, text)


def all_training(records: Iterable[Record]) -> list[Record]:
    """The first record of each number of training, those of the file first; if there is none, one with the reason."""
    firsts: dict[Published, Record] = {}
    for one in records:
        firsts.setdefault(one.row, one)
    return [
        firsts.get(row) or Record(row, None, Standing.UNCOVERED, row.why or "not predicted")
        for row in dict.fromkeys([*all_published(), *firsts])
    ]


def coverage(records: Collection[Record]) -> Section:
    """Each number with its prediction, or why there is none."""
    covered = sum(one.predicted is not None for one in records)
    return Section(
        f"Every published number: {covered} of {len(records)} predicted", COVERAGE, [*map(line, records)]
    )


def line(one: Record) -> list[str]:
    """The cells of a number."""
    row, value = one.row, f"{one.row.value:g}".replace("inf", "out of memory")
    head = [f"{row}", row.quantity.replace("_", " "), value]
    if one.predicted is None:
        return [*head, "-", "-", one.reason]
    words = "; ".join(filter(None, (one.setting, one.reason if one.error is not None else "")))
    return [*head, f"{one.predicted:.4g}".replace("inf", "out of memory"), error_words(one), words]


def error_words(record: Record) -> str:
    """The relative error in words; where the published number is a bound, whether it holds."""
    if record.reason.startswith("a bound, which "):
        return record.reason.removeprefix("a bound, which ")
    return "-" if record.relative_error is None else signed(record.relative_error)


def _counts(records: Sequence[Record]) -> list[str]:
    numbers = Counter(one.standing for one in records)
    errors = independent_errors(records)
    summary = ["-", "-", "-"]
    if errors:
        summary = [percent(median(map(abs, errors))), signed(max(errors, key=abs)), f"{near(errors)}"]
    covered = len(records) - numbers[Standing.UNCOVERED]
    left = (f"{numbers[one]}" for one in list(Standing)[1:])
    return [f"{len(records)}", f"{covered}", f"{numbers[Standing.INDEPENDENT]}", *summary, *left]


def independent_errors(records: Iterable[Record]) -> list[float]:
    """Errors of the independent numbers."""
    return [error for one in records if (error := one.independent_error) is not None]


def near(errors: Iterable[float]) -> int:
    """Number of errors up to ``NEAR``."""
    return sum(abs(error) <= NEAR for error in errors)


def _split(reason: str) -> tuple[str, str]:
    """A reason without the thing that is missing, and that thing."""
    kind, _, missing = reason.partition(" of ") if reason.startswith("no ") else (reason, "", "")
    return kind, missing


def _flat(one: Record) -> Mapping[str, Any]:
    memory = None if one.memory_bytes is None else one.memory_bytes / GIB
    more = {
        "unit": one.row.unit,
        "published": one.row.value,
        "error": one.error,
        "predicted_memory_GiB": memory,
    }
    return asdict(one.row) | asdict(one) | more | (one.conditions._asdict() if one.conditions else {})
