"""Plotly's figures, of the page of a report and of notebooks."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from profiles.units import GIB, MILLISECOND, FloatArray
from sim.explore.points import Point
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.outcomes.tasks import TASKS
from sim.replay.timelines import COLLECTIVE, Bar, collective_bars, compute_bars, memory_curves, memory_kinds
from sim.report.frames import rows
from sim.report.plots.charts import FADED, FRONT, INK, LIMIT, LOOKS, RECOMMENDED, label_of, strategy_look
from sim.report.plots.space import BEST_COLOUR, NEAR, SweepInfo, plot_sweep_info
from sim.report.plots.timeline import COLLECTIVE_COLOUR, NARROW, bar_kinds
from sim.report.words import LETTERS, PER_SECOND, Tried, band, duration, how, tried
from strategies.plans.actions import FrozenAction, PatchAction, StageAction
from strategies.plans.traces import Trace

ROW: Final = {"offset": -0.42, "width": 0.62}
LANE: Final = {"offset": 0.22, "width": 0.18}
"""Places of compute, and of collectives, around the number of a device."""
MOST_BARS: Final = 6000
"""Bars that are drawn one by one; of more, neighbours of a kind become one."""
CROWD: Final = 400
"""Points of a sweep up to which their markers are large."""
MOST_TICKS: Final = 10
"""Of a logarithmic axis among parallel ones."""
SPREAD: Final = 4
"""Times whose longest is more than so many times their shortest are on a logarithmic axis."""
POINTS: Final = "points"
"""Mark of the points whose bands are drawn while the mouse is on them."""
Box = tuple[int, float, float, str]
"""Device, start, end and words of a bar."""


def trace_figure(trace: Trace) -> go.Figure:
    """Return the timeline of all devices, and below it the memory of the fullest over the same time."""
    figure = make_subplots(2, 1, shared_xaxes=True, vertical_spacing=0.05, row_heights=[0.6, 0.4])
    figure.add_traces(_timeline_bars(trace), rows=1, cols=1)
    figure.add_traces(_memory_areas(trace), rows=2, cols=1)
    devices, end_ms = trace.plan.num_devices, trace.end_s / MILLISECOND
    there = trace.plan.placement.cluster.device.memory_bytes
    if there is not None:
        figure.add_scatter(
            x=[0.0, end_ms], y=[there / GIB] * 2, line={"color": LIMIT, "dash": "dash"}, name="memory of a GPU",
            mode="lines", visible="legendonly", row=2, col=1,
        )  # fmt: skip
    figure.update_layout(**_layout(height=360 + min(34, 620 // devices) * devices, barmode="overlay"))
    figure.update_yaxes(autorange="reversed", tickprefix="GPU ", dtick=-(-devices // 16), row=1, col=1)
    figure.update_yaxes(title="memory in GiB", rangemode="tozero", automargin=True, row=2, col=1)
    figure.update_xaxes(range=[0.0, end_ms])
    figure.update_xaxes(title="time in ms", row=2, col=1)
    return figure


def _layout(**more: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the look that all figures share."""
    return {
        "template": "plotly_white", "font": {"color": INK}, "margin": {"l": 10, "r": 10, "t": 10, "b": 40},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "font": {"size": 11}},
        "yaxis": {"automargin": True}, **more,
    }  # fmt: skip


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


def _memory_areas(trace: Trace) -> list[Any]:
    """Return the memory of the fullest device over time, by kind, stacked."""
    fullest = int(np.argmax([curve.peak_bytes for curve in memory_curves(trace)]))
    times_s, by_role = memory_kinds(trace, fullest)
    kinds: dict[str, FloatArray] = {}
    for role, sizes in by_role.items():
        name = LOOKS["roles"].get(re.sub(r" (\d+|to .*|gradient .*)$", "", role), role.replace("_", "-"))
        kinds[name] = kinds.get(name, np.zeros(len(times_s))) + sizes
    steady = sorted(kinds, key=lambda kind: (np.ptp(kinds[kind]) > 0, -float(kinds[kind].max())))
    return [
        go.Scatter(
            name=kind, mode="lines", stackgroup="memory", line={"shape": "hv", "width": 0.5},
            x=times_s / MILLISECOND, y=kinds[kind] / GIB,
            hovertemplate=f"GPU {fullest}, {kind}: %{{y:.2f}} GiB<extra></extra>",
        )
        for kind in steady
    ]  # fmt: skip


def points_of(sweeps: Sequence[Sweep]) -> dict[object, tuple[Point, dict[str, Any]]]:
    """Return the simulated points of sweeps with their rows, each once: of samplers, more GPUs include fewer."""
    pairs = (pair for sweep in sweeps for pair in zip(sweep.listed(), rows(sweep), strict=True))
    return {of.identity or id(of): (of, row) for of, row in pairs if of.result is not None}


def sweep_figure(sweeps: Sequence[Sweep], best: Point | None) -> go.Figure:
    """Speed, or latency of sampling, against memory; a click on a strategy in the legend hides it."""
    points, of_points = map(list, zip(*points_of(sweeps).values(), strict=True))
    info, values = plot_sweep_info(of_points), tried(points)
    figure = go.Figure(layout=_layout(height=560, hovermode="closest"))
    for name in info.strategies:
        numbers = [number for number, point in enumerate(points) if point.name == name]
        texts = [_point_words(points[number], values) for number in numbers]
        figure.add_scatter(**_markers(name, numbers, info), text=texts, hoverinfo="text")
    x, y = info.places(info.front)
    figure.add_scatter(
        name="Pareto front", x=x, y=y, mode="lines",
        line={"color": FRONT, "shape": "hv"}, hoverinfo="skip",
    )  # fmt: skip
    if best in points:
        x, y = info.places([info.points[points.index(best)]])
        ring = {"size": 24, "symbol": "circle-open", "color": BEST_COLOUR, "line": {"width": 3}}
        figure.add_scatter(name=RECOMMENDED, x=x, y=y, mode="markers", marker=ring, hoverinfo="skip")
    limit = sweeps[0].scenario.cluster.device.memory_bytes
    if limit is not None and max(of.peak_memory_bytes for of in info.points) > NEAR * limit:
        figure.add_vline(limit / GIB, line={"color": LIMIT, "dash": "dash"})
    figure.update_xaxes(title="peak memory of a GPU in GiB")
    figure.update_yaxes(title=info.label)
    if info.by_latency:
        figure.update_yaxes(type="log", tickformat="~g")
    return figure


def _markers(name: str, numbers: Sequence[int], info: SweepInfo) -> dict[str, Any]:
    """The points of a strategy with their bands, the larger the more GPUs, pale where seams show."""
    points = [info.points[number] for number in numbers]
    seams = not all(point.recommended for point in points)
    colour, marker = strategy_look(name)
    least = 11 if len(info.points) <= CROWD else 7
    x, y = info.places(points)
    return {
        "name": label_of(name, seams=seams), "mode": "markers", "opacity": FADED if seams else 1.0,
        "x": x, "y": y,
        "marker": {
            "color": colour, "symbol": LOOKS["symbols"][marker], "line": {"color": INK, "width": 0.6},
            "size": [least + 2.5 * np.log2(point.num_gpus or 1) for point in points],
        },
        "customdata": [point.band for point in points], "meta": POINTS,
    }  # fmt: skip


def parallel_figure(sweeps: Sequence[Sweep]) -> go.Figure:
    """Return all points over parallel axes, coloured by strategy: degrees, time, memory and idle time."""
    results = [of.result for of, _ in points_of(sweeps).values() if of.result is not None]
    names = list(dict.fromkeys(result.strategy for result in results))
    places = [names.index(result.strategy) for result in results]
    task = TASKS[sweeps[0].scenario.task]
    times = [result.expected.duration_s * PER_SECOND[task.unit] for result in results]
    axes = [{"label": "strategy", "values": places, "tickvals": [*range(len(names))], "ticktext": names}]
    axes += [_axis(*of, power=True) for of in _degrees(results)]
    axes += [
        _axis(f"{task.timed} in {task.unit}", times, power=max(times) > SPREAD * min(times)),
        _axis("memory in GiB", [result.peak_memory_bytes / GIB for result in results]),
        _axis("bubble in %", [100 * result.bubble_ratio for result in results]),
    ]
    share = 1 / len(names)
    scale = [(at * share, strategy_look(name)[0]) for i, name in enumerate(names) for at in (i, i + 1)]
    line = {"color": [at + 0.5 for at in places], "colorscale": scale, "cmin": 0, "cmax": len(names)}
    look = {"labelangle": -25, "labelside": "bottom", "rangefont": {"color": "rgba(0, 0, 0, 0)"}}
    lines = go.Parcoords(dimensions=axes, line=line, **look)
    return go.Figure(lines, _layout(height=520, margin={"l": 90, "r": 30, "t": 30, "b": 70}))


def _degrees(results: Sequence[Result]) -> Iterator[tuple[str, list[int]]]:
    """Yield the names and values of counts that differ among results; a strategy without a degree has 1."""
    columns = {"GPUs": [result.num_gpus for result in results]}
    for key in dict.fromkeys(key for result in results for key in result.parameters):
        if key.endswith("_degree") or key in LETTERS:
            name = key.removesuffix("_degree").removesuffix("_size").replace("_", "-")
            columns[name] = [result.parameters.get(key) or 1 for result in results]
    yield from ((name, of) for name, of in columns.items() if len(set(of)) > 1)


def _axis(name: str, values: Sequence[float], *, power: bool = False) -> dict[str, Any]:
    """Return one of parallel axes; a logarithmic one has few ticks."""
    if not power:
        return {"label": name, "values": values}
    every = sorted(set(values))
    ticks = every if len(every) <= MOST_TICKS else np.geomspace(every[0], every[-1], MOST_TICKS)
    words = [f"{of:.3g}" for of in ticks]
    return {"label": name, "values": np.log2(values), "tickvals": np.log2(ticks), "ticktext": words}


def _point_words(point: Point, values: Tried) -> str:
    result = point.result
    assert result is not None
    took = f"{duration(result)}{f' ({words})' if (words := band(result)) else ''}"
    memory = f"{result.peak_memory_bytes / GIB:.1f} GiB"
    return "<br>".join(filter(None, (result.strategy, how(result, values), took, memory)))
