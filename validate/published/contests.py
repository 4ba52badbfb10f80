"""Contests: methods that a source published side by side, and whether predictions pick the one that won."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isnan
from statistics import mean
from typing import Final

from scipy.stats import kendalltau

from validate.published.records import Standing
from validate.tables import Section, percent, signed

STANDINGS: Final = (Standing.INDEPENDENT, Standing.IN_VIEW, Standing.FITTED)
"""Standings of a contest, best first; its own is the worst of its numbers."""
HEADER: Final = (
    *("", "comparisons", "right winner"),
    *("loss by the pick, mean", "largest", "rank correlation, mean"),
)


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
        seconds = ([of[method] for method in self.published] for of in (self.published, self.predicted))
        found = float(kendalltau(*seconds).statistic)
        return 0.0 if isnan(found) else found

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
    return Section("Methods published side by side", HEADER, rows, remark)


def _summary(group: Sequence[Contest]) -> list[str]:
    losses = [one.loss for one in group]
    right, ran_out = losses.count(0), inf in losses
    worst = "out of memory" if ran_out else percent(max(losses))
    average = "-" if ran_out else percent(mean(losses))
    tau = mean(one.correlation for one in group)
    return [f"{len(group)}", f"{right} ({percent(right / len(group))})", average, worst, f"{tau:.2f}"]


def winners(contests: Sequence[Contest]) -> Section:
    """Every comparison with both orders, and whether the favourite won."""
    rows = []
    for one in contests:
        orders = _order(one.published), _order(one.predicted)
        rows.append([one.words, *orders, one.verdict, f"{one.correlation:.2f}", one.standing])
    orders = ("published, fastest first", "predicted, fastest first")
    return Section("The right winner", ("comparison", *orders, "winner", "rank correlation", ""), rows)


def _order(seconds: Mapping[str, float]) -> str:
    ordered = sorted(seconds.items(), key=lambda item: item[1])
    return ", ".join(f"{name} {'out of memory' if s == inf else f'{s:.4g}'}" for name, s in ordered)
