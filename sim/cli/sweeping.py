"""Sweeping: the command ``sim sweep``, over one number of GPUs or over several."""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from profiles.errors import InputError, counted
from sim import api
from sim.cli.commands import check_files, print_experiment, write_files
from sim.cli.console import note
from sim.cli.flags import arguments, given_parameters, named
from sim.explore.scaling import gpus_in
from sim.explore.search import run_sweep
from sim.explore.sweep import Report
from sim.explore.workers import on_cluster
from sim.interrupts import postponed
from sim.outcomes.contents import content_of
from sim.outcomes.tasks import TASKS
from sim.report import rankings
from sim.report.blocks import print_blocks
from sim.report.frames import write_rows
from sim.report.listings import sampled_on
from sim.report.page import write_sweep_report
from sim.report.views import Clusters, Sweep
from sim.report.words import sample_words

if TYPE_CHECKING:
    from rich.progress import Progress

FEW_STEPS: Final = 8
"""Steps to which models are distilled, at most; distilled ones are seldom guided."""
REFRESH_S: Final = 0.1
"""Progress is drawn again at most this often."""


def sweep_command(options: argparse.Namespace) -> int:
    """Sweep over points and print the best."""
    options.gpus = options.gpus and gpus_in(options.gpus)
    if options.print_experiment:
        return print_experiment(options)
    check_files(options)
    answer, written = _start(options), False
    try:
        for sweep in answer:
            with (
                api.open_store(options.store, sweep) as store,
                on_cluster(options.dask) as workers,
                _progress(verbose=options.verbose) as report,
            ):
                run_sweep(sweep, report, store=store, **workers)
        written = _write_complete(options, answer)
        return _show(options, answer)
    except KeyboardInterrupt:
        with postponed():
            if not written:
                _write_reached(options, answer)
        raise


def _start(options: argparse.Namespace) -> Clusters:
    """Return a sweep for each cluster and each number of GPUs."""
    names = ("task", "objective", "exhaustive")
    question = arguments(options) | {name: getattr(options, name) for name in names}
    question["strategy"] = named(options)
    counts, cluster = question.pop("gpus"), question.pop("cluster")
    counts = counts if isinstance(counts, tuple) else (counts,)
    return api.start_clusters(partial(api.start_sweep, **question), cluster, counts, options.price)


@contextmanager
def _progress(*, verbose: bool) -> Iterator[Report]:
    """Show the stage of a sweep, and the time that is left, on stderr, where that is a terminal."""
    with _bar() if sys.stderr.isatty() else nullcontext() as bar:
        tasks: dict[str, Any] = {}
        start = refreshed = monotonic()

        def report(stage: str, done: int, total: int) -> None:
            nonlocal refreshed, start
            if verbose and done == total:
                note(f"{stage} {counted(total, 'point')} took {monotonic() - start:.2f} s")
                start = monotonic()
            if bar is None:
                return
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            if done == total or monotonic() - refreshed > REFRESH_S:
                refreshed = monotonic()
                bar.update(tasks[stage], completed=done, total=total, refresh=True)

        yield report


def _bar() -> "Progress":
    """Return a bar on stderr, without a thread of its own: worker processes may be forked while it is shown."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True, auto_refresh=False)


def _show(options: argparse.Namespace, clusters: Clusters) -> int:
    """Plot and print the answer."""
    answer, chosen = clusters.leading, clusters.leading.chosen
    alone = chosen.scenario.task == "sample" and not hasattr(options, "include")
    remarks = [words(options, chosen) for words in (_task_words, _steps_words, _batch_words)]
    remarks[1:1] = ["only denoising is counted; --include all adds encoders and VAE"] * alone
    remark = "; ".join(filter(None, [*remarks, _price_words(clusters)]))
    fits = any(point.status == "simulated" for point in chosen.points)
    if fits:
        _draw(options, clusters, remark)
    if options.json:
        rankings.print_rows_json(clusters)
    else:
        if len(clusters.scalings) > 1:
            blocks = rankings.cluster_blocks(clusters)
        elif len(answer) > 1:
            blocks = rankings.scaling_blocks(answer, remark)
        else:
            blocks = rankings.sweep_blocks(chosen, remark)
        print_blocks(blocks, as_markdown=options.format == "markdown")
    if fits:
        return 0
    if files := list(filter(None, (options.report, options.plot, options.trace, options.gantt))):
        names = ", ".join(map(str, files))
        note(f"did not write {names}: nothing fits, so there is nothing to draw")
    if remark:
        note(f"note: {remark}")
    raise chosen.none_fits()


def _draw(options: argparse.Namespace, clusters: Clusters, remark: str) -> None:
    """Write the requested pictures, of the chosen sweep and of its first point, and the report."""
    answer, chosen = clusters.leading, clusters.leading.chosen
    if options.plot is not None:
        from sim.report.plots.charts import save_figure
        from sim.report.plots.space import plot_sweep

        title = "; ".join(filter(None, (chosen.title, answer.choice)))
        figure = plot_sweep(chosen.rows(), title, chosen.scenario.cluster.device.memory_bytes)
        save_figure(figure, options.plot)
        note(f"wrote {options.plot}")
    if options.trace or options.gantt:
        write_files(options, chosen.result_of(next(iter(chosen))))
    if options.report is not None:
        write_sweep_report(clusters, options.report, options.line, remark)
        note(f"wrote {options.report}")


def _price_words(clusters: Clusters) -> str:
    """Return a remark on the dollars of samples on the only cluster; empty without a price."""
    dollars = [clusters.dollars_per_1000(knee) for knee, _ in clusters.ranked()]
    if len(clusters.scalings) > 1 or not any(dollars):
        return ""
    return f"${dollars[0]:,.2f} per 1,000 {sample_words(clusters.leading.chosen.scenario)[1]}"


def _task_words(options: argparse.Namespace, sweep: Sweep) -> str:
    """Return a remark on which task the question is of, where no flag of that task alone says so; else empty."""
    scenario, of_both = sweep.scenario, TASKS["sample"].options
    telling = {name for name in TASKS["train"].options if hasattr(options, name) and name not in of_both}
    told = options.task or options.strategy or given_parameters(options) or telling
    if told or scenario.task == "sample" or sampled_on(scenario.model) is None:
        return ""
    return "this plans training; for inference add --steps 20"


def _steps_words(options: argparse.Namespace, sweep: Sweep) -> str:
    """Return a remark on a few steps with the guidance of a model that was distilled to none; else empty."""
    model, steps = sweep.scenario.model, getattr(options, "steps", None)
    few = steps is not None and steps <= FEW_STEPS < (model.steps or steps + FEW_STEPS)
    if not few or hasattr(options, "guidance") or model.guidance != "batch":
        return ""
    return f"{steps} steps of two predictions, as {model.name} is guided; --guidance none asks about distilled weights"


def _batch_words(options: argparse.Namespace, sweep: Sweep) -> str:
    """Return a remark on the batch of a GPU in training: that it is the model's, or divides badly; else empty."""
    model, gpus = sweep.scenario.model, sweep.scenario.workload.num_gpus
    if sweep.scenario.task == "train" and options.batch_size and (rest := options.batch_size % gpus):
        more = options.batch_size - rest + gpus
        return f"{options.batch_size} samples do not divide among {gpus} GPUs, as {more} do: many points are left out"
    if sweep.scenario.task != "train" or options.batch_size is not None or not model.samples_source:
        return ""
    each = f"{counted(model.samples_per_gpu, 'sample')} per GPU ({model.samples_source})"
    return f"{each}; --batch-size changes it"


def _incomplete(options: argparse.Namespace, answer: Clusters) -> Path:
    """Return the file for the rows of an interrupted sweep, unlike that of any other question."""
    out = options.out
    if out is None:
        scenario, contents = [*answer][-1].scenario, [sweep.content for sweep in answer]
        name = re.sub(r"[^\w.-]+", "-", f"{scenario.model.name}-{scenario.cluster.name}")
        content = contents[0] if len(contents) == 1 else content_of(contents)
        out = Path(f"sweep-{name}-{scenario.workload.num_gpus}gpus-{content[:8]}.csv")
    return Path(out.with_name(f"{out.stem}-incomplete{out.suffix}"))


def _write_complete(options: argparse.Namespace, answer: Clusters) -> bool:
    """Write the rows of a complete sweep where that is wanted; return whether it was."""
    if options.out is not None:
        with postponed():
            write_rows(answer, options.out)
        rows, points = sum(map(len, answer)), sum(len(sweep.points) for sweep in answer)
        alike = f"; {points - rows} of {points} points have the result of another" if rows < points else ""
        note(f"wrote {counted(rows, 'row')} to {options.out}{alike}")
    _incomplete(options, answer).unlink(missing_ok=True)  # what an interrupted sweep left of this question
    return options.out is not None


def _write_reached(options: argparse.Namespace, answer: Clusters) -> None:
    """Write the rows of an interrupted sweep, and say where it goes on."""
    path, there = _incomplete(options, answer), sum(len(sweep.points) for sweep in answer)
    for sweep in answer:
        sweep.points = tuple(point for point in sweep.points if point.answered or point.reason)
    statuses = Counter(point.status for sweep in answer for point in sweep.points)
    try:
        if statuses:  # else an earlier file may know more
            write_rows(answer, path)
            counts = [*statuses.items(), ("not looked at", there - statuses.total())]
            words = ", ".join(f"{count} {status}" for status, count in counts if count)
            note(f"wrote what is known of {counted(there, 'point')} so far to {path}: {words}")
            if statuses["bounded"] or statuses.total() < there:
                note("any point that was not simulated may still be the best")
        else:
            note(f"nothing is known yet of {counted(there, 'point')}")
    except (InputError, OSError) as error:  # nobody asked for this file before
        note(error.message if isinstance(error, InputError) else str(error))
    if options.store is not None:
        note(f"{options.store} has what is done: the same command goes on from there")
