"""The page of a report: one HTML file with the answer, Plotly's figures and where it is from; it needs no network."""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.metadata import version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from platform import python_version
from typing import Any, Final

from profiles.errors import InfeasibleError, InputError
from profiles.outputs import check_ending, whole_file
from sim.explore.scaling import Scaling
from sim.explore.sweep import Sweep
from sim.outcomes.contents import inputs_of
from sim.outcomes.results import Result
from sim.report.blocks import Line, Panel, html
from sim.report.descriptions import held_fixed
from sim.report.rankings import table_blocks
from sim.report.results import command_of, measured_words, panel_of
from sim.report.scalings import table_of, verdict_at_knee
from strategies.strategy import AnyScenario

PLOTLY: Final = "plotly"
PAGES: Final = (".html",)
"""Endings that a browser takes for a page."""
POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline';"
    " img-src data: blob:"
)
"""Content security policy: no network. Plotly compiles its shaders."""
NOTHING: Final = "none: no point that is recommended fits"
MOST_ROWS: Final = 200
"""Rows of the table of points."""

Part = tuple[str, str, Any]
"""A heading, a note below it, and a figure of Plotly or HTML."""


def check_plotly(output: str = "a report") -> None:
    """Refuse to make a report, or another output, without Plotly."""
    if find_spec(PLOTLY) is None:
        raise InputError(f"{output} needs plotly: pip install 'diffusim[report]'")


def write_sweep_report(sweeps: Sequence[Sweep], path: Path, asked: str = "", note: str = "") -> None:
    """Write the report of a sweep, or of sweeps over several numbers of GPUs, ascending.

    Args:
        sweeps: one, or one for each number of GPUs; the answer of several is that of the knee.
        path: of the page.
        asked: the command line that gives the report again.
        note: a further remark of the answer.

    Raises:
        InputError: the file cannot be written, or Plotly is not installed.
        InfeasibleError: no point fits, so that there is nothing to plot.
    """
    if not any(point.status == "simulated" for sweep in sweeps for point in sweep.points):
        raise InfeasibleError(
            f"{path} is not written, there is nothing to draw: {sweeps[-1].none_fits().message}"
        )
    write_page(path, lambda: sweep_page(sweeps, asked, note))


def run_page(result: Result, asked: str) -> str:
    """Return the page of a run, whose traces must be there."""
    assert result.source is not None
    source = [*provenance(result.source.scenario), ("again", asked or command_of(result))]
    return page_text(result.title, panel_of(result), [_trace_part(result)], source)


def _trace_part(result: Result) -> Part:
    from sim.report.plots.interactive import trace_figure

    devices = result.trace.plan.num_devices
    what = "one GPU, as all others" if devices == 1 else f"{devices} GPUs of one group"
    note = f"{what}; below, the memory of the fullest"
    return "Where time and memory go", note, trace_figure(result.trace)


def sweep_page(sweeps: Sequence[Sweep], asked: str, note: str) -> str:
    """Return the page of a sweep, or of several."""
    from sim.report.plots import interactive

    scaling = Scaling(tuple(sweeps))
    chosen, verdict = scaling.chosen, verdict_at_knee(scaling, note)
    best, title = chosen.best_point(), verdict.panel.title
    start = [("start it", verdict.launch)] if verdict and verdict.launch else []
    lines = [*verdict.lines, *start, ("again", verdict.again)] if verdict else [("best", NOTHING)]
    parts: list[Part] = [
        ("Speed and memory", "a click on a strategy hides it", interactive.sweep_figure(sweeps, best)),
        ("Points", "", html(*table_blocks(chosen, MOST_ROWS))),
    ]
    if len(sweeps) > 1 and scaling.steps:
        parts += [("More GPUs", "", interactive.scaling_figure(scaling)), ("", "", html(table_of(scaling)))]
    if best is not None:
        parts.append(_trace_part(chosen.result_of(best)))
    fixed = [("held fixed", held_fixed(chosen.points, verdict.best))] if verdict else []
    source = [*fixed, *provenance(chosen.scenario), *([("again", asked)] if asked else [])]
    return page_text(title, Panel(title, lines), parts, source)


def provenance(scenario: AnyScenario) -> list[Line]:
    """Return the origin of the answer: model, cluster, device and stack with sources, and versions."""
    cluster, stack = scenario.cluster, scenario.stack
    return [
        ("model", f"{scenario.model.title} ({scenario.model_name}). {scenario.model.source}"),
        ("cluster", f"{scenario.cluster_name}. {cluster.source}"),
        ("device", f"{cluster.device.name}. {cluster.device.source}"),
        ("stack", f"{scenario.stack_name}: {stack.summary}. {stack.source}"),
        ("times", scenario.costs.provenance),
        *([("measured", measured_words(scenario))] if scenario.measured is not None else []),
        ("content", ", ".join(f"{name} {key}" for name, key in inputs_of(scenario).items())),
        ("diffusim", f"{version('diffusim')}, Python {python_version()}"),
    ]


def page_text(title: str, answer: Panel, parts: Iterable[Part], source: Sequence[Line]) -> str:
    """Return the text of a page; Plotly is in it where a figure needs it."""
    parts, script = list(parts), ""
    if not all(isinstance(what, str) for _, _, what in parts):
        check_plotly()
        from plotly.offline import get_plotlyjs

        script = get_plotlyjs()
    sections = "".join(_section(number, *part) for number, part in enumerate(parts))
    style = files("sim.report").joinpath("style.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">
<title>{escape(title)}</title><style>{style}</style><script>{script}</script></head>
<body><main><h1>{escape(title)}</h1>
<section id="answer">{html(answer)}</section>
{sections}
<section>{html(Panel("Where this is from", source))}</section>
</main></body></html>
"""


def _section(number: int, head: str, note: str, what: Any) -> str:  # noqa: ANN401
    """Return a figure, or HTML, below its heading."""
    inner = what
    if not isinstance(what, str):
        from plotly.io import to_html

        config = {"displaylogo": False, "responsive": True}
        plot = {"full_html": False, "include_plotlyjs": False, "div_id": f"figure-{number}", "config": config}
        inner = to_html(what, **plot)
    return f"<section><h2>{escape(head)}</h2><p>{escape(note)}</p>{inner}</section>\n"


def write_page(path: Path, page: Callable[[], str]) -> None:
    """Write a page, which is made only if it can be written.

    Raises:
        InputError: the file cannot be written, or Plotly is not installed.
    """
    check_ending("path", path, PAGES)
    text = page()
    with whole_file(path) as file:
        file.write_text(text, encoding="utf-8")
