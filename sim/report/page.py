"""The page of a report: one HTML file with the answer, Plotly's figures and where it is from; it needs no network."""

from collections.abc import Callable, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from string import Template
from typing import Final, NamedTuple

from profiles.errors import InfeasibleError, InputError
from profiles.outputs import check_ending, whole_file
from sim.explore.legality import runtimes_of
from sim.explore.scaling import Clusters
from sim.outcomes.contents import inputs_of
from sim.outcomes.results import Result
from sim.report.blocks import Block, Command, Panel, html
from sim.report.rankings import cluster_blocks, table_blocks, table_of, verdict_at_knee
from sim.report.results import command_of, panel_of, per_words
from sim.report.words import duration
from strategies.strategy import AnyScenario

HOVER: Final = "a point shows its 80 % range; a click on a strategy hides it, two show it alone"
FROM: Final = "Where this is from"
MOST_ROWS: Final = 200
"""Rows of the table of points."""


class Part(NamedTuple):
    """A heading, HTML, and a note between them."""

    head: str
    content: str
    note: str = ""


class Headline(NamedTuple):
    """What a page opens with: a number, what it is of, and commands to copy."""

    number: str
    unit: str
    commands: Sequence[Block] = ()


def headline_of(result: Result) -> Headline:
    """Return the headline of a result: its time, and the command that starts it where a runtime does."""
    start = [Command("start it", command_of(result, "launch", name)) for name in runtimes_of(result)[:1]]
    return Headline(duration(result), per_words(result), start)


def check_plotly(output: str = "a report") -> None:
    """Refuse to make a report, or another output, without Plotly."""
    if find_spec("plotly") is None:
        raise InputError(f"{output} needs plotly: pip install 'diffusim[report]'")


def write_sweep_report(clusters: Clusters, path: Path, asked: str = "", note: str = "") -> None:
    """Write the report of sweeps, which answers at the knee of the best cluster and shows the points of each.

    ``asked`` is the command line that gives the report again, ``note`` a further remark.
    """
    sweeps = clusters.leading.sweeps
    if not any(point.status == "simulated" for sweep in sweeps for point in sweep.points):
        raise InfeasibleError(f"{path} is not written, nothing to draw: {sweeps[-1].none_fits().message}")
    write_page(path, lambda: sweep_page(clusters, asked, note))


def run_page(result: Result, asked: str) -> str:
    """Return the page of a run, whose traces must be there."""
    panel, again = panel_of(result), asked or command_of(result)
    source = html(provenance(result.origin.scenario), Command("this page", again))
    parts = [_trace_part(result, 0), Part(FROM, source)]
    return page_text(panel.title, headline_of(result), panel, parts)


def _trace_part(result: Result, number: int) -> Part:
    """Return the timeline, figure ``number`` of its page, and the memory of a result."""
    check_plotly()
    from sim.report.plots import charts, interactive, timeline

    drawn = interactive.as_html(interactive.trace_figure(result.trace), number)
    memory = charts.as_html(timeline.plot_memory(result.trace))
    devices = result.trace.plan.num_devices
    what = "one GPU, as all others" if devices == 1 else f"{devices} GPUs of one group"
    return Part("Where time goes, and memory", drawn + memory, f"{what}; drag to zoom in")


def sweep_page(clusters: Clusters, asked: str, note: str) -> str:
    """Return the page of sweeps."""
    check_plotly()
    from sim.report.plots import charts, interactive
    from sim.report.plots.space import plot_scaling

    scaling = clusters.leading
    sweeps, chosen, verdict = scaling.sweeps, scaling.chosen, verdict_at_knee(scaling, note)
    best, source = chosen.best_point(), list[Block]([provenance(chosen.scenario)])
    headline = Headline("No answer", "no point that is recommended fits")
    if verdict:
        headline = headline_of(verdict.best)
        source.append(Command("the best again, without the sweep", verdict.again))
    source += [Command("this page", asked)] if asked else []
    figures = interactive.sweep_figure(sweeps, best), interactive.parallel_figure(sweeps)
    speeds, every = (interactive.as_html(figure, number) for number, figure in enumerate(figures))
    others = [peer.chosen for peer in clusters.scalings if peer is not scaling]
    parts = [Part("Clusters", html(*cluster_blocks(clusters)))] if others else []
    parts += [
        Part("Speed and memory", speeds, HOVER),
        Part("All points", every, "drag along an axis to keep what passes there"),
        Part("Best points", html(*table_blocks(chosen, MOST_ROWS))),
        *(Part(f"Best points on {peer.scenario.cluster_name}", html(*table_blocks(peer))) for peer in others),
    ]
    if len(sweeps) > 1 and scaling.steps:
        picture = charts.as_html(plot_scaling(scaling, "num_gpus"))
        parts.append(Part("More GPUs", picture + html(table_of(scaling))))
    parts += [] if best is None else [_trace_part(chosen.result_of(best), len(figures))]
    return page_text(verdict.panel.title, headline, verdict.panel, [*parts, Part(FROM, html(*source))])


def provenance(scenario: AnyScenario) -> Panel:
    """Return the origin of the answer: model, cluster, device and stack with sources, and versions."""
    cluster, stack = scenario.cluster, scenario.stack
    lines = [
        ("model", f"{scenario.model.title} ({scenario.model_name}). {scenario.model.source}"),
        ("cluster", f"{scenario.cluster_name}. {cluster.source}"),
        ("device", f"{cluster.device.name}. {cluster.device.source}"),
        ("stack", f"{scenario.stack_name}: {stack.summary}. {stack.source}"),
        ("times", scenario.costs.provenance),
        *([("measured", scenario.measured.words(scenario.task))] if scenario.measured is not None else []),
        ("content", ", ".join(f"{name} {key}" for name, key in inputs_of(scenario).items())),
        ("diffusim", f"{version('diffusim')}, Python {python_version()}"),
    ]
    return Panel("", lines)


def page_text(title: str, headline: Headline, answer: Panel, parts: Sequence[Part]) -> str:
    """Return the text of a page."""
    folder = files("sim.report")
    texts = {
        name: folder.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.js", "style.css")
    }
    sections = (
        f'<section><h2>{escape(part.head)}</h2><p class="note">{escape(part.note)}</p>{part.content}</section>\n'
        for part in parts
    )
    return Template(texts["page.html"]).substitute(
        title=escape(title), style=texts["style.css"], script=texts["page.js"],
        number=f"{escape(headline.number)} <small>{escape(headline.unit)}</small>",
        commands=html(*headline.commands), answer=html(answer._replace(title="")), sections="".join(sections),
    )  # fmt: skip


def write_page(path: Path, page: Callable[[], str]) -> None:
    """Write a page, which is made only if it can be written."""
    check_ending("path", path, (".html",))
    text = page()
    with whole_file(path) as file:
        file.write_text(text, encoding="utf-8")
