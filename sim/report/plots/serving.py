"""Serving: attainment and percentiles against the rate, latency against cost, GPUs and the queue over time."""

from itertools import accumulate
from math import isfinite
from operator import itemgetter
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from profiles.errors import InputError
from sim.report.plots import charts
from sim.serving.answers import Serving
from sim.serving.serve import Outcome, log_of, waiting_over_time

__all__ = ["plot_costs", "plot_fleet", "plot_queue", "plot_rates"]

WIDTH: Final = 7.0
"""Inches of a picture, whose letters can be read on a phone, too."""
WINDOW: Final = 12
"""Mean latencies that a picture of the fleet shows."""


def _plan(outcome: Outcome) -> str:
    """Return a plan as legends name it."""
    return f"{outcome.plan.replicas}, {outcome.plan.rule_and_cap}"


def _look(number: int) -> dict[str, str]:
    return {
        "color": charts.COLOURS[number % len(charts.COLOURS)],
        "marker": charts.MARKERS[number % len(charts.MARKERS)],
    }


def plot_rates(serving: Serving) -> Figure:
    """Attainment of each plan against the rate, and below it p50 and p99."""
    if not serving.curves:
        raise InputError("a curve needs a span of rates: rate='0.5-4'")
    figure = charts.new_figure(WIDTH, 5.5)
    above, below = figure.subplots(2, sharex=True)
    for number, curve in enumerate(serving.curves):
        look: Any = {**_look(number), "markersize": 4}
        rates = [outcome.rate_per_s for outcome in curve]
        if curve[0].attainment is not None:
            above.plot(rates, [outcome.attainment for outcome in curve], **look)
        below.plot(rates, [outcome.percentile_s(99) for outcome in curve], label=_plan(curve[0]), **look)
        below.plot(rates, [outcome.percentile_s(50) for outcome in curve], linestyle=":", **look)
    above.axhline(serving.options.slo_share, color=charts.INK, linewidth=1)
    above.yaxis.set_major_formatter(PercentFormatter(1.0))
    above.set(ylabel="SLO held")
    charts.scale_logarithmically(below, "y")
    below.set(xlabel="requests per second", ylabel="p99 (solid), p50 (dotted) in s")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        charts.add_grid(axes)
    charts.set_title(above, serving.title)
    charts.add_legend(below, "below")
    return figure


def plot_costs(serving: Serving, ax: Axes | None = None) -> Figure:
    """99th percentile of the latency against the cost of each plan; a line joins those that no other beats in both."""
    every = [outcome for curve in serving.curves for outcome in curve] or serving.outcomes
    points = [(outcome.cost, outcome.percentile_s(99), _plan(outcome)) for outcome in every]
    points = [(cost, p99_s, name) for cost, p99_s, name in points if isfinite(cost) and isfinite(p99_s)]
    figure, axes = charts.chart(WIDTH, 5.0, ax)
    for number, name in enumerate(dict.fromkeys(name for *_, name in points)):
        spots = [spot for *spot, plan in points if plan == name]
        look: Any = {"linestyle": "", **_look(number), **charts.EDGE}
        label = name if number < len(charts.MARKERS) else None  # a legend of all would hide the picture
        axes.plot(*zip(*spots, strict=True), label=label, **look)
    points.sort()  # none where no plan completes a request in time
    least_s = accumulate((p99_s for _, p99_s, _ in points), min)
    axes.step([cost for cost, *_ in points], [*least_s], where="post", color=charts.FRONT, zorder=1)
    priced = serving.outcomes and serving.best.dollars_per_1000 is not None
    axes.set(xlabel="dollars of 1,000 requests" if priced else "GPU-seconds of a request", ylabel="p99 in s")
    charts.scale_logarithmically(axes, "y")
    charts.add_grid(axes, "both")
    charts.set_title(axes, serving.title)
    charts.add_legend(axes, "below")
    return figure


def plot_fleet(serving: Serving, ax: Axes | None = None) -> Figure:
    """GPUs over time by request, around the time of the longest queue; requests of a batch share a bar."""
    log, best = log_of(serving.best), serving.best
    longest_s, _ = max(waiting_over_time(log), key=itemgetter(1))
    start_s = max(0.0, longest_s - best.mean_s * WINDOW / 2)
    end_s = start_s + best.mean_s * WINDOW
    figure, axes = charts.chart(WIDTH, max(2.5, min(8.0, 1.5 + 0.25 * best.plan.gpus)), ax)
    for ran in (ran for ran in log.ran if ran.end_s > start_s and ran.start_s < end_s):
        colour = charts.COLOURS[ran.jobs[0] % len(charts.COLOURS)]
        lasts_s = ran.end_s - ran.start_s
        axes.barh([*ran.gpus], lasts_s, left=ran.start_s, height=0.9, color=colour, edgecolor="white")
    axes.invert_yaxis()
    axes.set(xlabel="seconds", ylabel="GPU")
    charts.set_title(axes, _plan(best), "a colour for each request")
    return figure


def plot_queue(serving: Serving, ax: Axes | None = None) -> Figure:
    """Requests that wait over time."""
    figure, axes = charts.chart(WIDTH, 2.8, ax)
    waiting = waiting_over_time(log_of(serving.best))
    axes.step(*zip(*waiting, strict=True), where="post", color=charts.COLOURS[0], linewidth=1)
    axes.set(xlabel="seconds", ylabel="requests that wait")
    charts.add_grid(axes)
    charts.set_title(axes, _plan(serving.best))
    return figure


def pictures_of(serving: Serving) -> list[tuple[str, str]]:
    """Return the headings of a report's pictures, and the pictures as HTML."""
    every = [("Latency and cost", plot_costs), ("GPUs over time", plot_fleet), ("The queue", plot_queue)]
    load = [("Load", charts.as_html(plot_rates(serving)))] if serving.curves else []
    return [*load, *((head, charts.as_html(draw(serving))) for head, draw in every)]
