"""Sweeping: the command ``sim sweep``, over one number of GPUs or over several."""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from profiles.errors import InfeasibleError, InputError, counted, in_flags
from sim import api
from sim.cli.commands import check_files, print_experiment, write_files
from sim.cli.requests import arguments, given_parameters, named
from sim.explore.scaling import each_count
from sim.explore.sweep import why_none
from sim.inputs.scenarios import OPTIONS
from sim.interrupts import postponed
from sim.outcomes.contents import content_of
from sim.report.views import Scaling, Sweep


def sweep_command(options: argparse.Namespace) -> int:
    """Sweep over points and print the best."""
    if options.print_experiment:
        return print_experiment(options)
    from sim.report.frames import check_out

    check_files(options)
    sweeps = _start(options)
    if options.out is not None:
        check_out(options.out)
    kept = False
    try:
        for sweep in sweeps:
            _run(options, sweep)
        kept = _write_complete(options, sweeps)
        return _show(options, sweeps)
    except KeyboardInterrupt:
        with postponed():
            if not kept:
                _save_reached(options, sweeps)
        raise


def _write_complete(options: argparse.Namespace, sweeps: Sequence[Sweep]) -> bool:
    """Write the rows of a complete sweep where that is wanted; return whether it was."""
    from sim.report.frames import write_rows

    if options.out is not None:
        with postponed():
            write_rows(_all(sweeps), options.out)
            _incomplete(options.out).unlink(missing_ok=True)
        _tell_rows(sweeps, options.out)
    if any(Path().glob("sweep-*-incomplete.csv")):
        _incomplete(_unasked(sweeps)).unlink(
            missing_ok=True
        )  # what an interrupted sweep left of this question
    return options.out is not None


def _show(options: argparse.Namespace, sweeps: Sequence[Sweep]) -> int:
    """Plot and print the answer.

    Raises:
        InfeasibleError: nothing fits.
    """
    chosen = Scaling(tuple(sweeps)).chosen
    found = any(point.status == "simulated" for point in chosen.points)
    if found:
        _draw(options, sweeps, chosen)
    _print(options, sweeps)
    if not found:
        _tell_undrawn(options)
        if words := _task_words(options, sweeps[0]):
            print(f"sim: note: {words}", file=sys.stderr)
        raise InfeasibleError(why_none(chosen))
    return 0


def _save_reached(options: argparse.Namespace, sweeps: Sequence[Sweep]) -> None:
    """Write what an interrupted sweep has come to know, and say where it goes on."""
    try:
        _write_reached(sweeps, _incomplete(options.out or _unasked(sweeps)))
    except (InputError, OSError) as error:  # nobody asked for this file before
        print(f"sim: {in_flags(error.message) if isinstance(error, InputError) else error}", file=sys.stderr)
    if options.store is not None:
        print(f"sim: {options.store} has what is done: the same command goes on from there", file=sys.stderr)


def _tell_undrawn(options: argparse.Namespace) -> None:
    """Say which files that were asked for are not written, where nothing fits."""
    asked = [
        path for path in (options.report, options.plot, options.trace, options.gantt) if path is not None
    ]
    if asked:
        names = ", ".join(map(str, asked))
        print(f"sim: did not write {names}: nothing fits, so there is nothing to draw", file=sys.stderr)


def _unasked(sweeps: Sequence[Sweep]) -> Path:
    """Where the rows of an interrupted sweep go that is to write none."""
    return Path(f"sweep-{_case(sweeps)}.csv")


def _incomplete(out: Path) -> Path:
    """The file of what an interrupted sweep has come to know, beside that of a complete one."""
    return out.with_name(f"{out.stem}-incomplete{out.suffix}")


def _tell_rows(sweeps: Sequence[Sweep], out: Path) -> None:
    """Say how many rows were written, and why there are more points."""
    rows, points = sum(map(len, sweeps)), sum(len(sweep.points) for sweep in sweeps)
    alike = f"; {points - rows} of {points} points have the result of another" if rows < points else ""
    print(f"sim: wrote {counted(rows, 'row')} to {out}{alike}", file=sys.stderr)


def _start(options: argparse.Namespace) -> list[Sweep]:
    """A sweep for each number of GPUs."""
    given = arguments(options)
    counts = given.pop("gpus")
    asked = {
        "strategy": named(options),
        "task": options.task,
        "objective": options.objective,
        "exhaustive": options.exhaustive,
        **given,
    }
    if not isinstance(counts, tuple):
        return [api.start_sweep(gpus=counts, **asked)]
    return each_count(api.start_sweep, counts, **asked)


def _run(options: argparse.Namespace, sweep: Sweep) -> None:
    from sim.cli.progress import progress
    from sim.explore.search import run_sweep

    with _help(options, sweep) as given, progress(sweep, told=options.verbose) as report:

        def prepared(stage: str, done: int, total: int) -> None:
            if done == 1:  # so workers are busy now, and this takes a while
                import_module("sim.report.rankings")
            report(stage, done, total)

        run_sweep(sweep, prepared, **given)


@contextmanager
def _help(options: argparse.Namespace, sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Who works on a sweep and where answers are kept, as ``run_sweep`` takes it."""
    from sim.explore.workers import on_cluster

    with api.open_store(options.store, sweep) as store, on_cluster(options.dask) as workers:
        yield {**workers, "store": store}


def _all(sweeps: Sequence[Sweep]) -> Sweep | Scaling:
    return sweeps[0] if len(sweeps) == 1 else Scaling(tuple(sweeps))


def _print(options: argparse.Namespace, sweeps: Sequence[Sweep]) -> None:
    from sim.report import rankings, scalings

    note, markdown = _task_words(options, sweeps[0]), options.format == "markdown"
    if options.json:
        rankings.print_rows_json(_all(sweeps))
    elif len(sweeps) == 1:
        (rankings.print_markdown if markdown else rankings.print_sweep)(sweeps[0], note)
    else:
        (scalings.print_markdown if markdown else scalings.print_scaling)(Scaling(tuple(sweeps)), note)


def _task_words(options: argparse.Namespace, sweep: Sweep) -> str:
    """A remark on which task the question is of, where no flag of that task alone says so; else empty.

    A question of training has it where the model could draw.
    """
    from sim.report.listings import sampled_on
    from sim.report.numbers import image_words

    scenario = sweep.scenario
    own = set(OPTIONS[scenario.task]).difference(
        *(OPTIONS[task] for task in OPTIONS if task != scenario.task)
    )
    if (
        options.task
        or options.strategy
        or given_parameters(options)
        or any(hasattr(options, name) for name in own)
    ):
        return ""
    several = image_words(scenario.options)[1]
    if scenario.task == "sample":
        return f"this is about drawing {several}; --task train asks about training"
    if sampled_on(scenario.model) is None:
        return ""
    return f"this is about training; --steps 20, or another flag of sampling, asks about drawing {several}"


def _case(sweeps: Sequence[Sweep]) -> str:
    """The name of an interrupted sweep's file: what is asked in words, and its hash: no other question has it."""
    scenario = sweeps[-1].scenario
    named = (scenario.model.name, scenario.cluster.name, scenario.stack.name)
    counts = sorted({sweep.scenario.workload.num_gpus for sweep in sweeps})
    name, gpus = re.sub(r"[^\w.-]+", "-", "-".join(named)), "-".join(map(str, {counts[0]: 0, counts[-1]: 0}))
    batch, pixels = scenario.workload.batch_size, f"{scenario.asked['resolution']}px"
    words = [name, f"{gpus}gpus"]
    if scenario.task == "sample":
        words += [pixels, *([f"batch{batch}"] if batch > 1 else [])]
    else:
        words += [f"batch{batch}", *([pixels] if scenario.model.resized_from else [])]
        words += ["cached"] if scenario.asked["frozen"] == "cached" else []
    contents = [sweep.content for sweep in sweeps]
    return "-".join([*words, (contents[0] if len(contents) == 1 else content_of(contents))[:8]])


def _draw(options: argparse.Namespace, sweeps: Sequence[Sweep], chosen: Sweep) -> None:
    """Write the pictures that are asked for, of a sweep and of its first point, and the report."""
    if options.plot is not None:
        from sim.report.plots.charts import save_figure
        from sim.report.plots.sweep import plot_sweep

        title = "; ".join(filter(None, (chosen.title, Scaling(tuple(sweeps)).choice)))
        save_figure(
            plot_sweep(chosen.rows(), title, chosen.scenario.cluster.device.memory_bytes), options.plot
        )
        print(f"sim: wrote {options.plot}", file=sys.stderr)
    if options.trace or options.gantt:
        write_files(options, chosen.result_of(next(iter(chosen))))
    if options.report is not None:
        from sim.report.page import write_sweep_report

        write_sweep_report(sweeps, options.report, options.line, _task_words(options, sweeps[0]))
        print(f"sim: wrote {options.report}", file=sys.stderr)


def _write_reached(sweeps: Sequence[Sweep], out: Path) -> None:
    """Write what an interrupted sweep has come to know, beside the file of a complete one."""
    from sim.report.frames import write_rows

    there = sum(len(sweep.points) for sweep in sweeps)
    for sweep in sweeps:
        sweep.points = [point for point in sweep.points if point.reached]
    if not any(sweep.points for sweep in sweeps):  # an earlier file may know more
        print(f"sim: nothing is known yet of {counted(there, 'point')}", file=sys.stderr)
        return
    write_rows(_all(sweeps), out)
    statuses = Counter(point.status for sweep in sweeps for point in sweep.points)
    left = there - statuses.total()
    counts = {name: statuses[name] for name in ("simulated", "bounded", "infeasible")} | {
        "not looked at": left
    }
    said = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    print(
        f"sim: wrote what is known of {counted(there, 'point')} so far to {out}: {said or 'nothing'}",
        file=sys.stderr,
    )
    if statuses["bounded"] or left:
        print("sim: any point that was not simulated may still be the best", file=sys.stderr)
