"""Scalings: the best on each number of GPUs as a table, and the verdict at the knee."""

from collections.abc import Sequence
from typing import Final

from profiles.units import GIB
from sim.explore.scaling import Scaling, Step
from sim.report.columns import Column, markdown_of, show_table
from sim.report.descriptions import how, tried
from sim.report.numbers import band, milliseconds
from sim.report.panels import Line, panel_markdown, show_panel
from sim.report.tables import console

NONE: Final = "best: none; nothing that is recommended fits, on any of these numbers of GPUs"


def print_scaling(scaling: Scaling) -> None:
    """Print the verdict at the knee, and the best on each number of GPUs."""
    screen, steps = console(), scaling.steps
    verdict = scaling.at_knee.verdict if steps else None
    if verdict is None:
        screen.print(NONE)
        return
    show_panel(screen, verdict.title, [knee_line(scaling), *verdict.lines])
    screen.print()
    show_table(screen, title_of(scaling), columns(scaling, steps))
    screen.print()
    screen.print(f"again: {verdict.again}", soft_wrap=True)


def print_markdown(scaling: Scaling) -> None:
    """Print the same in Markdown."""
    verdict = scaling.at_knee.verdict if scaling.steps else None
    if verdict is None:
        print(NONE)
        return
    panel = panel_markdown(verdict.title, [knee_line(scaling), *verdict.lines])
    table = markdown_of(title_of(scaling), columns(scaling, scaling.steps))
    print("\n\n".join([panel, f"```\n{verdict.again}\n```", table]))


def title_of(scaling: Scaling) -> str:
    """What the table holds, in words."""
    one = scaling.sweeps[0].scenario
    batches = {sweep.scenario.workload.batch_size for sweep in scaling.sweeps}
    whole = one.task == "sample" or len(batches) == 1
    batch = (
        f"batch {one.workload.batch_size}"
        if whole
        else f"{one.workload.batch_size / one.workload.num_gpus:g} per GPU"
    )
    return f"best on each number of GPUs, {batch}; gain: what was added brings, over its share"


def knee_line(scaling: Scaling) -> Line:
    """The knee and what lies beyond it."""
    knee, steps = scaling.knee, scaling.steps
    assert knee is not None
    beyond = next((step for step in steps if step.gpus > knee.gpus), None)
    words = f"{knee.gpus} GPUs, at {knee.efficiency:.0%} of the speed per GPU on {steps[0].gpus}"
    if beyond is None:
        return ("knee", f"none up to {words}")
    return ("knee", f"{words}; those added up to {beyond.gpus} bring {beyond.gain:.0%} of their share")


def columns(scaling: Scaling, steps: Sequence[Step]) -> list[Column]:
    """The columns of the table, with the knee marked."""
    results = [step.result for step in steps]
    values = tried(point for sweep in scaling.sweeps for point in sweep.points)
    sampled = scaling.sweeps[0].scenario.task == "sample"
    unit = "s" if sampled else "ms"
    times = [
        f"{r.latency_s:.3f}" if sampled else milliseconds(r.iteration_s).removesuffix(" ms") for r in results
    ]
    knee = scaling.knee
    marked = knee is not None and knee != steps[-1]
    return [
        Column("GPUs", [f"{step.gpus}{' knee' if marked and step == knee else ''}" for step in steps]),
        Column("strategy", [r.strategy for r in results], words=True),
        Column("how", [how(r, values) for r in results], 2, words=True, widest=18),
        Column(f"{'latency' if sampled else 'iteration'}\n{unit}", times, 1),
        Column("8 of 10\nwithin", [band(r, unit) or "-" for r in results], 4),
        Column(
            "images\nper s" if sampled else "samples\nper s", [f"{r.samples_per_s:,.4g}" for r in results]
        ),
        Column("efficiency", [f"{step.efficiency:.0%}" for step in steps]),
        Column("gain", [f"{step.gain:.0%}" if place else "-" for place, step in enumerate(steps)], 3),
        Column("memory\nGiB", [f"{r.expected.peak_memory_bytes / GIB:.1f}" for r in results], 5),
    ]
