"""Answers as notebooks show them: the verdict first, then the table, then how to see more."""

from html import escape

from profiles.units import GIB
from sim.explore.scaling import Scaling
from sim.explore.sweep import Sweep
from sim.outcomes.results import Result
from sim.report.columns import Column, table_html
from sim.report.rankings import columns, shown_points
from sim.report.tables import panel_of
from sim.report.verdicts import NoVerdict, Verdict


def result_html(result: Result) -> str:
    """A result as ``sim run`` says it."""
    return panel_of(result).html()


def sweep_html(sweep: Sweep, verdict: Verdict | NoVerdict) -> str:
    """The verdict of a sweep and its best points; why nothing fits, where nothing does."""
    shown = shown_points(sweep)
    head = verdict._repr_html_()
    if not shown.rows:
        return head
    table = table_html(shown.title, columns(sweep, shown), shown.above)
    return f"{head}{table}{_more('plot()', 'best.plot_timeline()')}"


def scaling_html(scaling: Scaling, verdict: Verdict | NoVerdict) -> str:
    """The verdict at the knee, and the best on each number of GPUs."""
    steps = scaling.steps
    if isinstance(verdict, NoVerdict):
        return f"<b>{escape(repr(scaling)[1:-1])}</b><p>{escape(str(verdict))}</p>"
    table = [
        Column("GPUs", [str(step.gpus) for step in steps]),
        Column("strategy", [step.result.strategy for step in steps], words=True),
        Column("samples per s", [f"{step.samples_per_s:,.4g}" for step in steps]),
        Column("efficiency", [f"{step.efficiency:.1%}" for step in steps]),
        Column("gain", [f"{step.gain:.1%}" for step in steps]),
        Column("memory GiB", [f"{step.result.peak_memory_bytes / GIB:.1f}" for step in steps]),
    ]
    told = "the best on each number of GPUs; gain: what those added bring, over what they would at the speed so far"
    return f"{verdict.panel.html()}{table_html(told, table)}{_more('plot()', 'steps_frame()')}"


def _more(*calls: str) -> str:
    """How to see more of an answer."""
    said = ", ".join(f"<code>.{call}</code>" for call in ("frame()", *calls, "write_report('report.html')"))
    return f"<p>More: {said}</p>"
