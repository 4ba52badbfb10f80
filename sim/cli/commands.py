"""Commands: one function for each subcommand of ``sim``; ``sim.cli.main`` parses the flags.

What takes long to import is imported where it is used.
"""

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NoReturn

from profiles.clusters import cluster_names, load_cluster
from profiles.errors import InputError
from profiles.models import load_model, model_names
from profiles.stacks import load_stack, stack_names
from sim import api
from sim.cli.flags import strategy_names
from sim.cli.requests import arguments, given, named
from sim.explore.points import Point
from sim.explore.sweep import Sweep
from sim.measured_runs import calibrated
from sim.results import Result
from sim.scenarios import Request, scenario_of
from strategies.registry import class_of
from strategies.scenario import Scenario
from strategies.strategy import AnyScenario

FIGURES: Final = (".png", ".svg", ".pdf")


@contextmanager
def _termination_as_interrupt() -> Iterator[None]:
    """Treat a request to terminate like Ctrl-C, so that what was computed so far is saved."""

    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def models_command(options: argparse.Namespace) -> int:
    """List the models."""
    from sim.report.tables import print_models

    models = [load_model(name) for name in model_names()]
    return _print(options, models, print_models)


def clusters_command(options: argparse.Namespace) -> int:
    """List the clusters."""
    from sim.report.tables import print_clusters

    return _print(options, [load_cluster(name) for name in cluster_names()], print_clusters)


def stacks_command(options: argparse.Namespace) -> int:
    """List the software stacks."""
    from sim.report.tables import print_stacks

    return _print(options, [load_stack(name) for name in stack_names()], print_stacks)


def strategies_command(options: argparse.Namespace) -> int:
    """List the strategies and their parameters."""
    from sim.report.tables import print_strategies

    return _print(options, [class_of(name) for name in strategy_names()], print_strategies)


def _print(options: argparse.Namespace, items: list[Any], show: Callable[[list[Any], bool], None]) -> int:
    show(items, options.json)
    return 0


def run_command(options: argparse.Namespace) -> int:
    """Simulate one point and print its result."""
    _check_files(options)
    result = api.run(strategy=options.strategy, **arguments(options))
    _warn_of_memory(result)
    for remark in result.source.remarks if result.source else ():
        print(f"sim: note: {remark}", file=sys.stderr)
    _write_files(options, result)
    if options.json:
        print(json.dumps(result.to_json(), allow_nan=False))
    else:
        from sim.report.tables import print_result

        print_result(result)
    return 0


def _warn_of_memory(result: Result) -> None:
    if result.missing_memory:
        print(f"sim: warning: {result.strategy} does not fit: {result.missing_memory}", file=sys.stderr)


def _check_files(options: argparse.Namespace) -> None:
    """Refuse files that could not be written at the end."""
    from sim.explore.frames import check_writable

    claimed: dict[Path, str] = {}
    for flag in ("--out", "--trace", "--gantt", "--plot"):
        path = getattr(options, flag[2:], None)
        if path is None:
            continue
        if (other := claimed.setdefault(path.resolve(), flag)) != flag:
            raise InputError(f"{flag} is '{path}', which {other} writes")
        if flag != "--out":
            check_writable(flag, path)
            if flag != "--trace" and path.suffix.lower() not in FIGURES:
                raise InputError(f"{flag} is '{path}', must end in {', '.join(FIGURES)}")


def _write_files(options: argparse.Namespace, result: Result) -> None:
    """Write the traces and the pictures of a result, each by its name beside the main one."""
    asked = [
        (path, write)
        for path, write in ((options.trace, _write_trace), (options.gantt, _write_gantt))
        if path is not None
    ]
    for name, trace in result.traces.items() if asked else ():
        suffix = f"-{name}" if name else ""
        for path, write in asked:
            target = path.with_name(f"{path.stem}{suffix}{path.suffix}")
            write(trace, target)
            print(f"sim: wrote {target}", file=sys.stderr)


def _write_trace(trace: Any, path: Path) -> None:  # noqa: ANN401
    from sim.replay.chrome_trace import write_chrome_trace

    write_chrome_trace(trace, path)


def _write_gantt(trace: Any, path: Path) -> None:  # noqa: ANN401
    from sim.report.plots import plot_timeline, save_figure

    save_figure(plot_timeline(trace), path)


def sweep_command(options: argparse.Namespace) -> int:
    """Sweep over points and print the best."""
    from sim.explore.frames import check_out, write_rows
    from sim.explore.sweep import run_sweep
    from sim.report.rankings import print_rows_json, print_sweep
    from sim.report.tables import progress

    _check_files(options)
    sweep = api.start_sweep(
        strategy=named(options), task=options.task, objective=options.objective, **arguments(options)
    )
    out = options.out or Path(f"sweep-{_case(sweep.scenario)}.csv")
    check_out(out)
    try:
        with _termination_as_interrupt(), progress() as report:
            run_sweep(sweep, report)
    except KeyboardInterrupt:
        _write_reached(sweep, out.with_name(f"{out.stem}-incomplete{out.suffix}"))
        raise
    write_rows(sweep, out)
    print(f"sim: wrote {len(sweep)} rows to {out}", file=sys.stderr)
    first = next(iter(sweep), None)
    if first is None or first.status != "simulated":
        print("sim: warning: no point of the sweep is feasible", file=sys.stderr)
    else:
        _draw_sweep(options, sweep, first)
    if options.json:
        print_rows_json(sweep)
    else:
        print_sweep(sweep)
    return 0


def _case(scenario: AnyScenario) -> str:
    """The name of a sweep's file, which tells it from those of others."""
    name, gpus = re.sub(r"[^\w.-]+", "-", scenario.model.name), f"{scenario.workload.num_gpus}gpus"
    batch, pixels = scenario.workload.batch_size, f"{scenario.asked['resolution']}px"
    if scenario.task == "sample":
        return f"{name}-{gpus}-{pixels}" + (f"-batch{batch}" if batch > 1 else "")
    cached = "-cached" if scenario.asked["frozen"] == "cached" else ""
    return f"{name}-{gpus}-batch{batch}" + (f"-{pixels}" if scenario.model.resized_from else "") + cached


def _draw_sweep(options: argparse.Namespace, sweep: Sweep, first: Point) -> None:
    """Write the pictures of a sweep and of its first point that are asked for."""
    from sim.report.plots import save_figure

    if options.plot is not None:
        save_figure(sweep.plot(), options.plot)
        print(f"sim: wrote {options.plot}", file=sys.stderr)
    if options.trace or options.gantt:
        _write_files(options, sweep.result_of(first))


def _write_reached(sweep: Sweep, out: Path) -> None:
    """Write what an interrupted sweep has come to know, beside the file of a complete one."""
    from sim.explore.frames import write_rows

    there = len(sweep.points)
    sweep.points = [point for point in sweep.points if point.reached]
    write_rows(sweep, out)
    print(
        f"sim: wrote {len(sweep.ranked())} rows of {there} points to {out}; any that is bounded may still be the best",
        file=sys.stderr,
    )


def tune_command(options: argparse.Namespace) -> int:
    """Tune PULSE's degrees and micro-batch."""
    from sim.explore.tuning import TUNED, tune
    from sim.report.tables import print_choices

    if options.strategy not in (None, TUNED):
        raise InputError(f"--strategy is '{options.strategy}', but only {TUNED} is tuned")
    if options.batch_size is not None:
        raise InputError("--batch-size is what tune looks for: b * P * G; leave it out")
    where = options.model, options.cluster, options.gpus
    asked = Request(*where, (TUNED,), given(options), stack=options.stack)
    scenario = calibrated(scenario_of(asked), options.measured, options.measured_run)
    assert isinstance(scenario, Scenario)
    return _print(options, tune(scenario, p2p=options.p2p), print_choices)


def schedule_command(options: argparse.Namespace) -> int:
    """Print a strategy's order."""
    schedule = api.schedule(strategy=options.strategy, format=options.format, **arguments(options))
    for note in schedule.notes:
        print(f"sim: {note}", file=sys.stderr)
    sys.stdout.write(schedule.text)
    return 0
