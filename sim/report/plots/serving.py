"""Serving: attainment and percentiles against the rate, latency against cost, GPUs and the queue over time."""

from itertools import accumulate
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from profiles.errors import InputError
from sim.report.plots import charts
from sim.serving.answers import Serving
from sim.serving.fleet import Ran
from sim.serving.serve import Outcome, log_of, waiting_over_time

__all__ = [f"plot_{name}{info}" for name in ("costs", "fleet", "queue", "rates") for info in ("", "_info")]

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
"""Of plans and requests, in turn."""
WIDTH: Final = 7.0
"""Inches of a picture, whose letters can be read on a phone, too."""
WINDOW: Final = 12
"""Mean latencies that a picture of the fleet shows."""


def _plan(of: Outcome) -> str:
    """Return a plan as legends name it."""
    return f"{of.plan.replicas}, {of.plan.rule_and_cap}"


def _look(number: int) -> dict[str, str]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": charts.MARKERS[number % len(charts.MARKERS)]}


def plot_rates_info(serving: Serving) -> list[list[Outcome]]:
    """Return what ``plot_rates`` draws: for each plan its outcome at each rate."""
    if not serving.curves:
        raise InputError("a curve needs a span of rates: rate='0.5-4'")
    return serving.curves


def plot_costs_info(serving: Serving) -> list[Outcome]:
    """Return the outcomes that ``plot_costs`` draws: those that complete requests."""
    every = [of for curve in serving.curves for of in curve] or serving.outcomes
    return [of for of in every if charts.is_finite(of.cost) and charts.is_finite(of.percentile_s(99))]


def plot_rates(serving: Serving) -> Figure:
    """Attainment of each plan against the rate, and below it p50 and p99."""
    curves = plot_rates_info(serving)
    figure = charts.new_figure(WIDTH, 5.5)
    above, below = figure.subplots(2, sharex=True)
    for number, curve in enumerate(curves):
        look: Any = {**_look(number), "markersize": 4}
        rates = [of.rate_per_s for of in curve]
        if curve[0].attainment is not None:
            above.plot(rates, [of.attainment for of in curve], **look)
        below.plot(rates, [of.percentile_s(99) for of in curve], label=_plan(curve[0]), **look)
        below.plot(rates, [of.percentile_s(50) for of in curve], linestyle=":", **look)
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
    points = sorted((of.cost, of.percentile_s(99), _plan(of)) for of in plot_costs_info(serving))
    figure, axes = charts.chart(WIDTH, 5.0, ax)
    for number, name in enumerate(dict.fromkeys(map(_plan, plot_costs_info(serving)))):
        spots = [spot for *spot, of in points if of == name]
        look: Any = {"linestyle": "", **_look(number), **charts.EDGE}
        label = name if number < len(charts.MARKERS) else None  # a legend of all would hide the picture
        axes.plot(*zip(*spots, strict=True), label=label, **look)
    least = accumulate((p99_s for _, p99_s, _ in points), min)
    axes.step([cost for cost, *_ in points], [*least], where="post", color=charts.FRONT, zorder=1)
    priced = serving.outcomes and serving.best.dollars_per_1000 is not None
    axes.set(xlabel="dollars of 1,000 requests" if priced else "GPU-seconds of a request", ylabel="p99 in s")
    charts.scale_logarithmically(axes, "y")
    charts.add_grid(axes, "both")
    charts.set_title(axes, serving.title)
    charts.add_legend(axes, "below")
    return figure


def plot_fleet_info(serving: Serving) -> list[Ran]:
    """Return the values that ``plot_fleet`` draws: what ran around the time of the longest queue."""
    log = log_of(serving.best)
    middle_s = max(waiting_over_time(log), key=lambda item: item[1])[0]
    start_s = max(0.0, middle_s - serving.best.mean_s * WINDOW / 2)
    end_s = start_s + serving.best.mean_s * WINDOW
    return [ran for ran in log.ran if ran.end_s > start_s and ran.start_s < end_s]


def plot_fleet(serving: Serving, ax: Axes | None = None) -> Figure:
    """GPUs over time by request, around the time of the longest queue; requests of a batch share a bar."""
    every = plot_fleet_info(serving)
    figure, axes = charts.chart(WIDTH, max(2.5, min(8.0, 1.5 + 0.25 * serving.best.plan.gpus)), ax)
    for ran in every:
        colour = COLOURS[ran.jobs[0] % len(COLOURS)]
        lasts_s = ran.end_s - ran.start_s
        axes.barh([*ran.gpus], lasts_s, left=ran.start_s, height=0.9, color=colour, edgecolor="white")
    axes.invert_yaxis()
    axes.set(xlabel="seconds", ylabel="GPU")
    charts.set_title(axes, _plan(serving.best), "a colour for each request")
    return figure


def plot_queue_info(serving: Serving) -> list[tuple[float, int]]:
    """Return the values that ``plot_queue`` draws: seconds, and the requests that wait from then on."""
    return waiting_over_time(log_of(serving.best))


def plot_queue(serving: Serving, ax: Axes | None = None) -> Figure:
    """Requests that wait over time."""
    figure, axes = charts.chart(WIDTH, 2.8, ax)
    axes.step(*zip(*plot_queue_info(serving), strict=True), where="post", color=COLOURS[0], linewidth=1)
    axes.set(xlabel="seconds", ylabel="requests that wait")
    charts.add_grid(axes)
    charts.set_title(axes, _plan(serving.best))
    return figure


def pictures_of(serving: Serving) -> list[tuple[str, str]]:
    """Return the headings of a report's pictures, and the pictures as HTML."""
    every = [("Latency and cost", plot_costs), ("GPUs over time", plot_fleet), ("The queue", plot_queue)]
    load = [("Load", charts.as_html(plot_rates(serving)))] if serving.curves else []
    return [*load, *((head, charts.as_html(draw(serving))) for head, draw in every)]
