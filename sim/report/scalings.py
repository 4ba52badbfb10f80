"""Scalings: the best on each number of GPUs as a table, and the verdict at the knee."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from math import fsum
from typing import Final

from profiles.errors import counted
from profiles.units import GIB
from sim.explore.scaling import PAYS, Scaling, Step
from sim.explore.sweep import nearest_words
from sim.report.columns import Column, markdown_of, more_html, table_html
from sim.report.descriptions import Tried, how, tried
from sim.report.numbers import band, counted_words, milliseconds
from sim.report.panels import Line
from sim.report.rankings import show_with_legend
from sim.report.reasons import Account, fewer_reason
from sim.report.tables import account_in, console
from sim.report.verdicts import NoVerdict, Verdict, verdict_of, with_note

LEAST_MORE: Final = 0.01
"""Parts of what GPU time grows by that are below this share of it are not told."""
NONE: Final = "best: none; nothing that is recommended fits, on any of these numbers of GPUs"


def verdict_at_knee(scaling: Scaling) -> Verdict | None:
    """The verdict at the knee, after the fastest and the knee; None where nothing recommended fits.

    Of one number of GPUs it is that of its sweep: one has no knee.
    """
    verdict, knee, fastest = verdict_of(scaling.chosen), scaling.knee, scaling.fastest
    if verdict is None or knee is None or fastest is None or len(scaling) == 1:
        return verdict
    lead = [knee_line(scaling), *_beyond_line(scaling, knee, verdict.account), *_left_out_lines(scaling)]
    if fastest.gpus != knee.gpus:
        lead.insert(0, _fastest_line(scaling, fastest))
    word = "at the knee" if scaling.bends else verdict.best_word
    return replace(verdict, title=scaling.title, lead=tuple(lead), best_word=word)


def _left_out_lines(scaling: Scaling) -> Iterator[Line]:
    """The numbers of GPUs that have no step, each with what keeps it from one."""
    there, word = {step.gpus for step in scaling.steps}, "not on"
    for sweep in scaling.sweeps:
        gpus = sweep.scenario.workload.num_gpus
        if gpus not in there:
            yield (word, f"{counted(gpus, 'GPU')}: {nearest_words(sweep)}")
            word = ""


def _beyond_line(scaling: Scaling, knee: Step, account: Account) -> Iterator[Line]:
    """How much more of the GPUs' time a sample takes on the first number of GPUs beyond the knee, and where it goes."""
    for sweep in scaling.sweeps:
        gpus, best = sweep.scenario.workload.num_gpus, sweep.best_point()
        if best is None or gpus <= knee.gpus:
            continue
        result, before_s = sweep.sourced(best), knee.result.gpu_s_per_sample
        here, there = account.seconds(before_s), account_in(result).seconds(result.gpu_s_per_sample)
        more = {name: (there[name] - here[name]) / before_s for name in here}
        parts = (name for name in sorted(more, key=lambda one: -more[one]) if abs(more[name]) >= LEAST_MORE)
        where, whole = ", ".join(f"{name} {more[name]:+.0%}" for name in parts), fsum(more.values())
        on, one = counted(gpus, "GPU"), unit_of(scaling).removesuffix("s")
        if (used := result.num_gpus * sweep.copies(best)) < gpus:
            yield ("", f"on {on} the best uses {used} of them ({best.name})")
        if where and whole > 0:
            yield ("", f"on {on} each {one} takes {whole:.0%} more GPU time ({best.name}): {where}")
        yield from (("", words) for words in fewer_reason(sweep, best))
        return


def _fastest_line(scaling: Scaling, fastest: Step) -> Line:
    """The most samples per second, and what they cost."""
    result = fastest.result
    named = ", ".join(filter(None, (result.strategy, how(result, _values(scaling)))))
    speed = f"{fastest.samples_per_s:,.4g} {unit_of(scaling)}/s"
    share = f"at {fastest.efficiency:.0%} of the speed per GPU on {scaling.steps[0].gpus}"
    return ("fastest", f"{counted(fastest.gpus, 'GPU')}, {speed}, {share}: {named}{_copies(fastest)}")


def _copies(step: Step) -> str:
    return f", {counted(step.copies, 'copy', 'copies')}" if step.copies > 1 else ""


def unit_of(scaling: Scaling) -> str:
    """What speeds count, in words."""
    scenario = scaling.sweeps[0].scenario
    return counted_words(scenario.task, scenario.options)


def _values(scaling: Scaling) -> Tried:
    return tried(point for sweep in scaling.sweeps for point in sweep.points)


def print_scaling(scaling: Scaling, note: str = "") -> None:
    """Print the verdict at the knee with a note, and the best on each number of GPUs."""
    screen, verdict = console(), with_note(verdict_at_knee(scaling), note)
    if verdict is None:
        screen.print(NONE)
        return
    verdict.panel.show(screen)
    show_with_legend(screen, title_of(scaling), columns(scaling, scaling.steps))
    screen.print(f"again: {verdict.again}", soft_wrap=True)


def print_markdown(scaling: Scaling, note: str = "") -> None:
    """Print the same in Markdown."""
    verdict = with_note(verdict_at_knee(scaling), note)
    if verdict is None:
        print(NONE)
        return
    table = markdown_of(title_of(scaling), columns(scaling, scaling.steps))
    print("\n\n".join([verdict.markdown(), f"```\n{verdict.again}\n```", table]))


def scaling_html(scaling: Scaling, verdict: Verdict | NoVerdict) -> str:
    """Return the same in HTML."""
    if isinstance(verdict, NoVerdict):
        return f"<b>{escape(repr(scaling)[1:-1])}</b><p>{escape(str(verdict))}</p>"
    table = table_html(title_of(scaling), columns(scaling, scaling.steps))
    return f"{verdict.panel.html()}{table}{more_html('plot()', 'steps_frame()')}"


def title_of(scaling: Scaling) -> str:
    """What the table holds, in words."""
    return f"best on each number of GPUs, {scaling.batch}; gain: what was added brings, over its share"


def knee_line(scaling: Scaling) -> Line:
    """The knee and what lies beyond it."""
    knee, steps = scaling.knee, scaling.steps
    assert knee is not None
    beyond = next((step for step in steps if step.gpus > knee.gpus), None)
    share, first = f"{knee.efficiency:.0%}", steps[0].gpus
    if len(steps) == 1:
        return (
            "knee",
            f"none: something fits on {counted(first, 'GPU')} alone, of the numbers that were asked",
        )
    if beyond is None:
        pays = f"none: up to {counted(knee.gpus, 'GPU')} each added GPU pays"
        return ("knee", f"{pays}; the speed per GPU there is {share} of that on {first}")
    words = f"{counted(knee.gpus, 'GPU')}, at {share} of the speed per GPU on {first}"
    return (
        "knee",
        f"{words}; those added up to {beyond.gpus} bring {beyond.gain:.0%} of their share, where {PAYS:.0%} would pay",
    )


def _copies_column(steps: Sequence[Step]) -> list[Column]:
    """The column of copies side by side, where there are any."""
    counts = [step.copies for step in steps]
    return [Column("copies", list(map(str, counts)), 1)] if max(counts, default=1) > 1 else []


def columns(scaling: Scaling, steps: Sequence[Step]) -> list[Column]:
    """The columns of the table, with the knee marked."""
    results = [step.result for step in steps]
    values = _values(scaling)
    sampled = scaling.sweeps[0].scenario.task == "sample"
    unit = "s" if sampled else "ms"
    times = [
        f"{r.latency_s:.3f}" if sampled else milliseconds(r.iteration_s).removesuffix(" ms") for r in results
    ]
    knee = scaling.knee
    return [
        Column("GPUs", [f"{step.gpus}{' knee' if scaling.bends and step == knee else ''}" for step in steps]),
        Column("strategy", [r.strategy for r in results], words=True),
        Column("how", [how(r, values) for r in results], 2, words=True, widest=18),
        *_copies_column(steps),
        Column(f"{'latency' if sampled else 'iteration'}\n{unit}", times, 1),
        Column("8 of 10\nwithin", [band(r, unit) or "-" for r in results], 4),
        Column(f"{unit_of(scaling)}\nper s", [f"{step.samples_per_s:,.4g}" for step in steps]),
        Column("efficiency", [f"{step.efficiency:.0%}" for step in steps]),
        Column("gain", [f"{step.gain:.0%}" if place else "-" for place, step in enumerate(steps)], 3),
        Column("memory\nGiB", [f"{r.expected.peak_memory_bytes / GIB:.1f}" for r in results], 5),
    ]
