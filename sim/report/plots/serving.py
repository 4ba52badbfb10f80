"""Serving: attainment and percentiles against the rate, and latency against cost."""

from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from profiles.errors import InputError
from sim.report.plots import charts
from sim.report.plots.looks import MARKERS
from sim.serving.answers import Serving
from sim.serving.outcomes import Outcome

__all__ = [f"plot_{name}{info}" for name in ("costs", "rates") for info in ("", "_info")]

COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
"""Of plans, in turn."""
WIDTH: Final = 7.0
"""Inches of a picture, whose letters can be read on a phone, too."""


def _plan(of: Outcome) -> str:
    """Return a plan as legends name it."""
    return f"{of.plan.replicas}, {of.plan.rule_and_cap}"


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
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        look = {"color": colour, "marker": marker, "markersize": 4}
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
    points = [(_plan(of), of.cost, of.percentile_s(99)) for of in plot_costs_info(serving)]
    figure, axes = charts.chart(WIDTH, 5.0, ax)
    names = list(dict.fromkeys(name for name, *_ in points))
    for number, name in enumerate(names):
        spots = [spot for of, *spot in points if of == name]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        label = name if number < len(MARKERS) else None  # a legend of all would hide the picture
        axes.plot(
            *zip(*spots, strict=True), linestyle="", color=colour, marker=marker, label=label, **charts.EDGE
        )
    front: list[tuple[float, float]] = []
    for _, cost, p99_s in sorted(points, key=lambda point: point[1:]):
        if not front or p99_s < front[-1][1]:
            front.append((cost, p99_s))
    axes.step([x for x, _ in front], [y for _, y in front], where="post", color=charts.FRONT, zorder=1)
    priced = serving.outcomes and serving.best.dollars_per_1000 is not None
    unit = "dollars of 1,000 requests" if priced else "GPU-seconds of a request"
    axes.set(xlabel=unit, ylabel="p99 in s")
    charts.scale_logarithmically(axes, "y")
    charts.add_grid(axes, "both")
    charts.set_title(axes, serving.title)
    charts.add_legend(axes, "below")
    return figure


def pictures_of(serving: Serving) -> list[tuple[str, str]]:
    """Return the headings of a report's pictures, and the pictures as HTML."""
    load = [("Load", charts.as_html(plot_rates(serving)))] if serving.curves else []
    return [*load, ("Latency and cost", charts.as_html(plot_costs(serving)))]
