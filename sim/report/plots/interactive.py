"""Plotly's figures of points and timelines, for the page of a report."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from plotly import graph_objects as go
from plotly.io import to_html

from profiles.units import GIB, MILLISECOND
from sim.explore.points import Point
from sim.explore.sweep import Sweep
from sim.outcomes.tasks import TASKS
from sim.replay.timelines import COLLECTIVE, Bar, collective_bars, compute_bars
from sim.report.frames import rows
from sim.report.plots.charts import FADED, FRONT, INK, LIMIT, LOOKS, RECOMMENDED, label_of, strategy_look
from sim.report.plots.space import BEST_COLOUR, NEAR, plot_sweep_info
from sim.report.plots.timeline import COLLECTIVE_COLOUR, NARROW, bar_kinds
from sim.report.words import LETTERS, PER_SECOND, band, duration, how, tried
from strategies.plans.actions import FrozenAction, PatchAction, StageAction
from strategies.plans.traces import Trace

ROW: Final = {"offset": -0.42, "width": 0.62}
LANE: Final = {"offset": 0.22, "width": 0.18}
"""Places of compute, and of collectives, around the number of a device."""
MOST_BARS: Final = 6000
"""Bars that are drawn one by one; of more, neighbours of a kind become one."""
CROWD: Final = 400
"""Points of a sweep up to which their markers are large."""
TICKS: Final = 10
"""Of a logarithmic axis among parallel ones."""
SPREAD: Final = 4
"""Times whose longest is more than so many times their shortest are on a logarithmic axis."""


Box = tuple[int, float, float, str]
"""Device, start, end and words of a bar."""


def as_html(figure: go.Figure, number: int) -> str:
    """Return one of the figures of a page as HTML; the first brings Plotly along."""
    config = {"displayModeBar": False, "responsive": True}
    look = {
        "full_html": False,
        "include_plotlyjs": number == 0,
        "div_id": f"figure-{number}",
        "config": config,
    }
    return f'<div class="figure">{to_html(figure, **look)}</div>'


def _layout(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the look that all figures share."""
    return {
        "template": "plotly_white", "font": {"color": INK}, "margin": {"l": 10, "r": 10, "t": 10, "b": 40},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
        "yaxis": {"automargin": True}, **more,
    }  # fmt: skip


def trace_figure(trace: Trace) -> go.Figure:
    """Return the timeline of all devices."""
    devices = trace.plan.num_devices
    height = 120 + min(34, 620 // devices) * devices
    figure = go.Figure(_timeline_bars(trace), _layout(height=height, barmode="overlay"))
    figure.update_yaxes(autorange="reversed", tickprefix="GPU ", dtick=-(-devices // 16))
    figure.update_xaxes(range=[0.0, trace.end_s / MILLISECOND], title="time in ms")
    return figure


def _timeline_bars(trace: Trace) -> list[Any]:
    """Return the bars of each kind of work; kinds that are not named have no entry in the legend."""
    bars = compute_bars(trace)
    gap_s = trace.end_s / MOST_BARS if len(bars) > MOST_BARS else -1.0
    traces = []
    for kind in bar_kinds(bars):
        boxes = list[Box]()
        for bar in kind.bars:
            if gap_s > 0 and boxes and boxes[-1][0] == bar.device and bar.start_s - boxes[-1][2] < gap_s:
                boxes[-1] = (bar.device, boxes[-1][1], bar.end_s, "")
            else:
                boxes.append((bar.device, bar.start_s, bar.end_s, _words(bar)))
        traces.append(_bars(trace, kind.name, kind.colour, boxes, showlegend=kind.named, **ROW))
    lanes = [
        (one.device, one.start_s, one.end_s, one.operation.replace("_", "-"))
        for one in collective_bars(trace)
        if one.end_s > one.start_s
    ]
    return [*traces, _bars(trace, COLLECTIVE, COLLECTIVE_COLOUR, lanes, **LANE)] if lanes else traces


def _bars(trace: Trace, name: str, colour: str, boxes: Sequence[Box], **more: Any) -> Any:  # noqa: ANN401
    """Return bars of Plotly; those that are wide have a white edge."""
    widths = [0.5 * (end - start > NARROW * trace.end_s) for _, start, end, _ in boxes]
    texts = [
        f"GPU {device}, {': '.join(filter(None, (name, words)))}<br>"
        f"from {start / MILLISECOND:,.2f} ms, takes {(end - start) / MILLISECOND:,.3f} ms"
        for device, start, end, words in boxes
    ]
    devices, starts, ends, _ = zip(*boxes, strict=True)
    return go.Bar(
        name=name, orientation="h", y=devices, base=[start / MILLISECOND for start in starts],
        x=[(end - start) / MILLISECOND for start, end in zip(starts, ends, strict=True)],
        marker={"color": colour, "line": {"color": "white", "width": widths}},
        hovertext=texts, hoverinfo="text", **more,
    )  # fmt: skip


def _words(bar: Bar) -> str:
    """Return the name of a bar in a few letters."""
    action = bar.action
    if isinstance(action, PatchAction):
        return f"patch {action.patch}, step {action.step}"
    if isinstance(action, StageAction) and action.micro_batch >= 0:
        return f"stage {action.stage}, micro-batch {action.micro_batch}"
    if isinstance(action, FrozenAction):
        return f"layer {action.layer}, {action.samples:g} samples"
    return str(action)


def points_of(sweeps: Sequence[Sweep]) -> dict[object, tuple[Point, dict[str, Any]]]:
    """Return the simulated points of sweeps with their rows, each once: of samplers, more GPUs include fewer."""
    pairs = (pair for sweep in sweeps for pair in zip(sweep.listed(), rows(sweep), strict=True))
    return {point.identity or id(point): (point, row) for point, row in pairs if point.result is not None}


def sweep_figure(sweeps: Sequence[Sweep], best: Point | None) -> go.Figure:
    """Speed, or latency of sampling, against memory; a click on a strategy in the legend hides it.

    The more GPUs, the larger a point; pale where seams show.
    """
    points, of_points = map(list, zip(*points_of(sweeps).values(), strict=True))
    info, words = plot_sweep_info(of_points), list(_point_words(points))
    least = 11 if len(points) <= CROWD else 7
    figure = go.Figure(layout=_layout(height=560, hovermode="closest"))
    for name in info.strategies:
        pairs = [(spot, text) for spot, text in zip(info.points, words, strict=True) if spot.strategy == name]
        alike, texts = map(list, zip(*pairs, strict=True))
        seams = not all(point.recommended for point in alike)
        colour, marker = strategy_look(name)
        look = {
            "color": colour, "symbol": LOOKS["symbols"][marker], "line": {"color": INK, "width": 0.6},
            "size": [least + 2.5 * np.log2(point.num_gpus or 1) for point in alike],
        }  # fmt: skip
        figure.add_scatter(
            **info.places(alike), name=label_of(name, seams=seams), mode="markers", marker=look,
            opacity=FADED if seams else 1.0, text=texts, hoverinfo="text",
            customdata=[point.band for point in alike],
        )  # fmt: skip
    figure.add_scatter(
        **info.places(info.front), name="Pareto front", mode="lines",
        line={"color": FRONT, "shape": "hv"}, hoverinfo="skip",
    )  # fmt: skip
    if best in points:
        ring = {"size": 24, "symbol": "circle-open", "color": BEST_COLOUR, "line": {"width": 3}}
        place = info.places([info.points[points.index(best)]])
        figure.add_scatter(**place, name=RECOMMENDED, mode="markers", marker=ring, hoverinfo="skip")
    limit = sweeps[0].scenario.cluster.device.memory_bytes
    if limit is not None and max(point.peak_memory_bytes for point in info.points) > NEAR * limit:
        figure.add_vline(limit / GIB, line={"color": LIMIT, "dash": "dash"})
    figure.update_xaxes(title="peak memory of a GPU in GiB")
    figure.update_yaxes(title=info.label, **({"type": "log", "tickformat": "~g"} if info.by_latency else {}))
    return figure


def parallel_figure(sweeps: Sequence[Sweep]) -> go.Figure:
    """Return all points over parallel axes, coloured by strategy: degrees, time, memory and idle time."""
    results = [point.result for point, _ in points_of(sweeps).values() if point.result is not None]
    task = TASKS[sweeps[0].scenario.task]
    took = f"{task.timed} in {task.unit}"
    counts = dict.fromkeys(
        key for result in results for key in result.parameters if key.endswith("_degree") or key in LETTERS
    )
    frame = pd.DataFrame(
        {
            "strategy": result.strategy,
            "GPUs": result.num_gpus,
            **{key: result.parameters.get(key) or 1 for key in counts},
            took: result.expected.duration_s * PER_SECOND[task.unit],
            "memory in GiB": result.peak_memory_bytes / GIB,
            "bubble in %": 100 * result.bubble_ratio,
        }
        for result in results
    )
    places, names = frame.strategy.factorize()
    axes = [
        _axis(frame[name], power=name == took)
        for name in frame
        if name == "strategy" or frame[name].nunique() > 1
    ]
    share = 1 / len(names)
    scale = [(at * share, strategy_look(name)[0]) for i, name in enumerate(names) for at in (i, i + 1)]
    line = {"color": places + 0.5, "colorscale": scale, "cmin": 0, "cmax": len(names)}
    look = {"labelangle": -25, "labelside": "bottom", "rangefont": {"color": "rgba(0, 0, 0, 0)"}}
    lines = go.Parcoords(dimensions=axes, line=line, **look)
    return go.Figure(lines, _layout(height=520, margin={"l": 90, "r": 30, "t": 30, "b": 70}))


def _axis(values: pd.Series, *, power: bool) -> dict[str, Any]:
    """Return one of parallel axes: with a tick for each count or name; logarithmic for powers over a wide span."""
    name = str(values.name).removesuffix("_degree").removesuffix("_size").replace("_", "-")
    axis = {"label": name, "values": values}
    if values.dtype.kind != "f":
        places, every = values.factorize(sort=values.dtype.kind == "i")
        return axis | {"values": places, "tickvals": [*range(len(every))], "ticktext": [*map(str, every)]}
    if power and SPREAD * values.min() < values.max():
        ticks = np.geomspace(values.min(), values.max(), TICKS)
        words = [f"{tick:.3g}" for tick in ticks]
        return axis | {"values": np.log2(values), "tickvals": np.log2(ticks), "ticktext": words}
    return axis


def _point_words(points: Sequence[Point]) -> Iterator[str]:
    """Yield the words of each point."""
    values = tried(points)
    for result in (point.result for point in points if point.result is not None):
        took = f"{duration(result)}{f' ({between})' if (between := band(result)) else ''}"
        memory = f"{result.peak_memory_bytes / GIB:.1f} GiB"
        yield "<br>".join(filter(None, (result.strategy, how(result, values), took, memory)))
