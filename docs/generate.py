"""Write what the docs show: ``python docs/generate.py [outputs] [sweeps] [PICTURE ...]``; without names, all of it.

A page asks for the output of a command with ``<!-- output: sim run ... -->`` before a block of text; ``output 1-7``
keeps these lines, ``output box`` the first panel, ``output error`` what goes to stderr. ``python`` is the code above;
of ``A && B`` the page shows what B prints.
"""

import os
import re
import shlex
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from math import inf
from pathlib import Path
from unittest.mock import patch

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import sim
from sim.cli.main import main as run
from sim.report.plots import charts
from validate.published.ledger import NEAR, independent_errors, near
from validate.published.records import LATENCY, Record, Standing, source_names
from validate.published.report import report

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/pages/**/*.md"))]
PICTURES = ROOT / "docs/pages/pictures"
OUTPUT = re.compile(
    r"(?P<mark><!-- output(?: (?P<part>box|error|\d+-\d+))?: (?P<command>[^>]+?) -->\n\n```text\n)(?P<shown>.*?)```",
    re.DOTALL,
)
SWEEPS = re.compile(r"(<!-- first sweep: table -->\n).*?(<!-- end of it -->)", re.DOTALL)
SWEPT = ("encoders", "stack", "first", "seconds (band)", "ties", "`diffusionpipe` over `gpipe`", "over `ddp`")
STACKS = ("eager-2023", "eager", "compiled")
SD21 = {"model": "sd21", "gpus": 8, "batch_size": 256}
PANELS = {"train": ("training", "each in its own unit"), "sample": ("sampling", "latency in s")}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#222222")
MARKERS = "osD^vP<X>*p"
FOUR_STAGES = {"pipeline_degree": 4, "micro_batches": 8, "group_size": 8}


def with_outputs(text: str) -> str:
    """Return a page with the output of each command that it asks for."""
    return OUTPUT.sub(lambda match: f"{match['mark']}{output(match)}\n```", text)


def output(match: re.Match[str]) -> str:
    """Return what a command prints on a terminal of 80 columns, or the part of it that is asked for."""
    command, part = match["command"], match["part"] or ""
    above = re.findall(r"```python\n(.*?)```", match.string[: match.start()], re.DOTALL)
    failed, out, err = printed(command, above[-1] if command == "python" else "")
    if part == "error":
        return textwrap.fill(err, 80)
    if failed:
        raise SystemExit(f"{command}: {err}")
    lines = [line.rstrip() for line in out.splitlines()]
    if part == "box":
        lines = lines[: next(place for place, line in enumerate(lines, 1) if line.endswith("╯"))]
    elif "-" in part:
        first, last = map(int, part.split("-"))
        lines = lines[first - 1 : last]
    return "\n".join(lines).rstrip()


@cache
def printed(command: str, code: str) -> tuple[int, str, str]:
    """Return the exit code of a command in an empty folder, what it prints, and what it says on stderr."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder), patch.dict(os.environ, COLUMNS="80"):
        for step in command.split(" && "):
            with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
                if code:
                    exec(code, {})
                failed = 0 if code else run(shlex.split(step)[1:])
    return failed, out.getvalue(), err.getvalue()


def sweeps() -> Iterator[tuple[str, ...]]:
    """Sweep sd21 on 64 GPUs with each stack: the best, its ties, and `diffusionpipe` over two others."""
    for frozen in ("online", "cached"):
        for stack in STACKS:
            sweep = sim.sweep("sd21", gpus=64, frozen=frozen, stack=stack)
            best = sweep.best
            tied = dict.fromkeys(row["strategy"] for row in sweep.rows(best_of_each=True) if row["tie"])
            filled_s = sweep.best_of("diffusionpipe").iteration_s
            gains = (sweep.best_of(other).iteration_s / filled_s for other in ("gpipe", "ddp"))
            ties = ", ".join(name for name in tied if name != best.strategy) or "none"
            band = f"{best.iteration_s:.3f} ({best.low_s:.2f} to {best.high_s:.2f})"
            yield frozen, f"`{stack}`", f"`{best.strategy}`", band, ties, *(f"{gain:.2f}" for gain in gains)


def table_of_sweeps() -> str:
    """Return the table of the first sweep."""
    rows = [SWEPT, ("---",) * len(SWEPT), *sweeps()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def timeline() -> Figure:
    """One iteration of DiffusionPipe on eight A100s, frozen encoders in its bubbles."""
    return sim.run(strategy="diffusionpipe", **SD21, **FOUR_STAGES).plot_timeline()


def winners() -> Figure:
    """The fastest strategy of Stable Diffusion 2.1 by GPUs and samples per GPU."""
    rows = [
        row | {"samples per GPU": each}
        for each in (4, 8, 16, 32)
        for gpus in (8, 16, 32, 64, 128)
        for row in sim.sweep("sd21", gpus=gpus, batch_size=each * gpus, top=1).rows(best_of_each=True)
    ]
    title = "Stable Diffusion 2.1 on p4de"
    return sim.plots.plot_winners(rows, across="num_gpus", down="samples per GPU", title=title)


def front() -> Figure:
    """Latency against peak memory of every sampler of PixArt on up to eight L20, and their front."""
    return sim.sweep("pixart", "l20-pcie-8", 8, resolution=2048, steps=20, objective="pareto").plot()


def parity() -> Figure:
    """Predicted against published numbers by source; hollow ones are not independent, the band is 15 % each way.

    Formulas are left out, and of sampling all but latencies of several GPUs and those that set nothing.
    """
    figure, (ledger, _) = charts.Chart(figsize=(13.2, 7.6), layout="constrained"), report()
    drawn = [
        one
        for one in ledger.records
        if one.standing in (Standing.INDEPENDENT, Standing.IN_VIEW, Standing.FITTED)
        and 0 < one.predicted < inf
        and (one.row.task == "train" or one.row.quantity == LATENCY)
        and not (one.row.task == "sample" and one.row.num_gpus == 1 and one.standing is Standing.FITTED)
    ]
    for number, (task, (title, unit)) in enumerate(PANELS.items(), start=1):
        axes, records = figure.add_subplot(1, 2, number), [one for one in drawn if one.row.task == task]
        compare(axes, records)
        axes.set(xlabel=f"published, {unit}", ylabel=f"predicted, {unit}")
        axes.grid(color=charts.GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=2, frameon=False, fontsize=8.5)
        errors = independent_errors(records)
        charts.set_title(axes, title, f"{near(errors)} of {len(errors)} independent within {NEAR:.0%}")
    return figure


def compare(axes: Axes, records: list[Record]) -> None:
    """Draw predicted against published numbers on logarithmic axes, with the line on which both agree."""
    axes.spines[["top", "right"]].set_visible(False)
    values = [value for one in records for value in (one.row.value, one.predicted) if value]
    ends = (min(values) / 1.3, max(values) * 1.3)
    low, high = ([factor * end for end in ends] for factor in (1 - NEAR, 1 + NEAR))
    axes.plot(ends, ends, color=charts.INK, linewidth=1.0, zorder=1)
    axes.fill_between(ends, low, high, color=charts.FRONT, alpha=0.25, linewidth=0, zorder=0)
    axes.set(xlim=ends, ylim=ends)
    groups = [name for name in source_names() if any(one.row.group == name for one in records)]
    for number, name in enumerate(groups):
        group = [one for one in records if one.row.group == name]
        colour = COLOURS[number % len(COLOURS)]
        look = {"s": 34, "marker": MARKERS[number % len(MARKERS)]}
        hollow = {"facecolor": "none", "edgecolor": colour, "linewidth": 1.0, "zorder": 2}
        filled = {"facecolor": colour, "edgecolor": "white", "linewidth": 0.5, "zorder": 3}
        for independent, kind in ((False, hollow), (True, filled)):
            points = [one for one in group if (one.standing is Standing.INDEPENDENT) is independent]
            axes.scatter([one.row.value for one in points], [one.predicted for one in points], **look, **kind)
        axes.scatter([], [], color=colour, label=f"{name} ({len(group)})", **look)
    words = "hollow: fitted or in view, not independent"
    axes.scatter([], [], s=34, facecolor="none", edgecolor=charts.INK, label=words)
    for which in ("x", "y"):
        charts.scale_logarithmically(axes, which)


def schedules() -> Figure:
    """Four schedules of the same stages: GPipe, 1F1B, interleaved 1F1B and ZB-H1."""
    model = sim.equal_layers_model(16)
    shape = {"gpus": 4, "batch_size": 32, "pipeline_degree": 4, "micro_batches": 8}
    orders = ("gpipe", "1f1b", "interleaved", "zero-bubble")
    return stacked({strategy: sim.run(model, strategy, "ideal", **shape) for strategy in orders})


def filling() -> Figure:
    """The same pipeline with its bubbles empty, and with frozen layers in them."""
    fills = {"bubbles empty": "none", "bubbles filled": "partial"}
    runs = {
        name: sim.run(strategy="diffusionpipe", fill=fill, **SD21, **FOUR_STAGES)
        for name, fill in fills.items()
    }
    return stacked(runs)


def patches() -> Figure:
    """PipeFusion and DistriFusion, three steps on four A100s over PCIe."""
    shape = {"cluster": "a100-pcie-4", "gpus": 4, "resolution": 2048, "steps": 3, "warmup_steps": 1}
    pipefusion = sim.run("pixart", "pipefusion", patches=8, **shape)
    distrifusion = sim.run("pixart", "distrifusion", gather_layers=1, **shape)
    title = "PipeFusion, a synchronous step and two displaced ones"
    return stacked({title: pipefusion, "DistriFusion, one displaced step": distrifusion}, alike=False)


def stacks() -> Figure:
    """The same training on three stacks, with encoders in every iteration and with cached outputs."""
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes = figure.subplots()
    cases = [(frozen, stack) for frozen in ("online", "cached") for stack in STACKS]
    results = [sim.run("sd21", "zero2", gpus=64, frozen=frozen, stack=stack) for frozen, stack in cases]
    seconds = [result.iteration_s for result in results]
    band = [[r.iteration_s - r.low_s for r in results], [r.high_s - r.iteration_s for r in results]]
    axes.barh(range(len(cases)), seconds, xerr=band, color=["#0072B2"] * 3 + ["#56B4E9"] * 3, capsize=3)
    axes.set_yticks(range(len(cases)), [f"encoders {frozen}, {stack}" for frozen, stack in cases])
    axes.set(xlabel="seconds of an iteration, and its band")
    axes.invert_yaxis()
    return figure


def stacked(results: Mapping[str, sim.Result], *, alike: bool = True) -> Figure:
    """Draw timelines one above the other with one legend; on one axis of time if they are alike."""
    longest_s = max(result.trace.end_s for result in results.values())
    figure = Figure(figsize=(9.0, 2.3 * len(results) + 0.6), layout="constrained")
    handles: dict[str, Artist] = {}
    for axes, (name, result) in zip(figure.subplots(len(results)), results.items(), strict=True):
        sim.plots.plot_timeline(result.trace, name, ax=axes)
        if alike:
            axes.set_xlim(0.0, 1e3 * longest_s)
        legend = axes.get_legend()
        labels = (text.get_text() for text in legend.get_texts())
        handles |= dict(zip(labels, legend.legend_handles, strict=True))
        legend.remove()
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8.5)
    return figure


DRAWINGS: dict[str, Callable[[], Figure]] = {
    draw.__name__: draw for draw in (timeline, winners, front, parity, schedules, filling, patches, stacks)
}


def main(names: list[str]) -> None:
    """Write what is named, or everything."""
    names = names or ["outputs", "sweeps", *DRAWINGS]
    mpl.rcParams["svg.hashsalt"] = "diffusim"  # the same picture is the same file
    for name in names:
        if name in DRAWINGS:
            DRAWINGS[name]().savefig(PICTURES / f"{name}.svg", metadata={"Date": None})
    for page in PAGES:
        text = new = page.read_text(encoding="utf-8")
        if "outputs" in names:
            new = with_outputs(new)
        if "sweeps" in names and SWEEPS.search(new):
            table = table_of_sweeps()
            new = SWEEPS.sub(lambda match, table=table: f"{match[1]}\n{table}\n\n{match[2]}", new)
        if new != text:
            page.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
