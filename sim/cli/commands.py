"""Commands: what each subcommand of ``sim`` does with its parsed flags; ``sim.cli.main`` parses them.

What takes long to import is imported where it is used.
"""

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, Final, NoReturn

from profiles.clusters import cluster_names, load_cluster
from profiles.errors import InputError
from profiles.models import load_model, model_names
from sim.cli.flags import class_of, strategy_names
from sim.cli.requests import KIND, named, parameters, sampling_scenario, task, training_scenario
from strategies.registry import make, make_sampler, make_strategy
from strategies.scenario import SamplingScenario, Scenario

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


def strategies_command(options: argparse.Namespace) -> int:
    """List the strategies and their parameters."""
    from sim.report.tables import print_strategies

    return _print(options, [class_of(name) for name in strategy_names()], print_strategies)


def _print(options: argparse.Namespace, items: list[Any], show: Callable[[list[Any], bool], None]) -> int:
    show(items, options.json)
    return 0


def run_command(options: argparse.Namespace) -> int:
    """Simulate one point and print its result."""
    from sim.runs import bound, named_traces, replay_parts, weigh
    from strategies.strategy import Remarking

    _check_files(options)
    scenario = (sampling_scenario if task(options) == "sample" else training_scenario)(options)
    strategy = make(options.strategy, parameters(options))
    bound(strategy, scenario)  # refuses what cannot exist before its order is written out
    parts = replay_parts(strategy, scenario)
    result = weigh(strategy, scenario, parts)
    _warn_of_memory(result)
    if isinstance(strategy, Remarking):
        for remark in strategy.remarks(scenario):
            print(f"sim: note: {remark}", file=sys.stderr)
    _write_files(options, named_traces(parts))
    if options.json:
        print(json.dumps(result.to_json(), allow_nan=False))
    else:
        from sim.report.tables import print_result

        print_result(result, scenario)
    return 0


def _warn_of_memory(result: Any) -> None:  # noqa: ANN401
    if result.missing_memory:
        print(f"sim: warning: {result.strategy} does not fit: {result.missing_memory}", file=sys.stderr)


def _check_files(options: argparse.Namespace) -> None:
    """Refuse files that could not be written at the end."""
    from sim.explore.frames import check_writable

    given: dict[Path, str] = {}
    for flag in ("--out", "--trace", "--gantt", "--plot"):
        path = getattr(options, flag[2:], None)
        if path is None:
            continue
        if (other := given.setdefault(path.resolve(), flag)) != flag:
            raise InputError(f"{flag} is '{path}', which {other} writes")
        if flag != "--out":
            check_writable(flag, path)
            if flag != "--trace" and path.suffix.lower() not in FIGURES:
                raise InputError(f"{flag} is '{path}', must end in {', '.join(FIGURES)}")


def _write_files(options: argparse.Namespace, traces: list[Any]) -> None:
    """Write the trace and the picture of what was replayed, by the suffix of its files."""
    for name, trace, _ in traces:
        suffix = f"-{name}" if name else ""
        for path, write in ((options.trace, _write_trace), (options.gantt, _write_gantt)):
            if path is not None:
                target = path.with_name(f"{path.stem}{suffix}{path.suffix}")
                write(trace, target)
                print(f"sim: wrote {target}", file=sys.stderr)


def _write_trace(trace: Any, path: Path) -> None:  # noqa: ANN401
    from sim.replay.chrome_trace import write_chrome_trace

    write_chrome_trace(trace, path)


def _write_gantt(trace: Any, path: Path) -> None:  # noqa: ANN401
    from sim.report.plots import plot_timeline, save_figure

    save_figure(plot_timeline(trace), path)


def _write_plot(sweep: Any, path: Path) -> None:  # noqa: ANN401
    from sim.explore.frames import rows
    from sim.report.plots import plot_sweep, save_figure

    workload, drawn = sweep.scenario.workload, ""
    if isinstance(sweep.scenario, SamplingScenario):
        drawn = f", {workload.resolution} pixels, {workload.steps} steps"
    title = f"{sweep.scenario.model.title} on {workload.num_gpus} GPUs of {sweep.scenario.cluster.name}"
    there = sweep.scenario.cluster.device.memory_bytes
    save_figure(plot_sweep(rows(sweep), f"{title}, batch {workload.batch_size}{drawn}", there), path)
    print(f"sim: wrote {path}", file=sys.stderr)


def sweep_command(options: argparse.Namespace) -> int:
    """Sweep over points and print the best."""
    from sim.explore.frames import check_out, write_rows
    from sim.explore.sweep import run_sweep
    from sim.report.rankings import print_rows_json, print_sweep
    from sim.report.tables import progress

    _check_files(options)
    scenario = (sampling_scenario if task(options) == "sample" else training_scenario)(options)
    out = options.out or Path(f"sweep-{_case(scenario)}.csv")
    check_out(out)
    sweep = _start_sweep(options, scenario)
    try:
        with _termination_as_interrupt(), progress() as report:
            run_sweep(sweep, report)
    except KeyboardInterrupt:
        _write_reached(sweep, out.with_name(f"{out.stem}-incomplete{out.suffix}"))
        raise
    write_rows(sweep, out)
    print(f"sim: wrote {len(sweep.ranked())} rows to {out}", file=sys.stderr)
    first = next(iter(sweep.ranked()), None)
    if first is None or first.status != "simulated":
        print("sim: warning: no point of the sweep is feasible", file=sys.stderr)
    else:
        _draw_sweep(options, sweep, first)
    if options.json:
        print_rows_json(sweep)
    else:
        print_sweep(sweep)
    return 0


def _case(scenario: Scenario | SamplingScenario) -> str:
    """The name of a sweep's file, which tells it from those of others."""
    name, gpus = re.sub(r"[^\w.-]+", "-", scenario.model.name), f"{scenario.workload.num_gpus}gpus"
    batch = f"batch{scenario.workload.batch_size}"
    if not isinstance(scenario, SamplingScenario):
        return f"{name}-{gpus}-{batch}"
    pixels = f"{scenario.workload.resolution}px"
    return f"{name}-{gpus}-{pixels}" + (f"-{batch}" if scenario.workload.batch_size > 1 else "")


def _start_sweep(options: argparse.Namespace, scenario: Any) -> Any:  # noqa: ANN401
    """A sweep with its points.

    Raises:
        InputError: the sweep cannot rank by what it is asked to, or no strategy has a parameter that is given.
    """
    from sim.explore.points import find_points
    from sim.explore.sweep import Sweep, objectives

    offered = objectives(scenario)
    objective = options.objective or offered[0]
    if objective not in offered:
        raise InputError(
            f"--objective is '{objective}', must be one of {', '.join(offered)} in a sweep of {KIND[task(options)]}"
        )
    return Sweep(scenario, objective, find_points(scenario, named(options), parameters(options)))


def _draw_sweep(options: argparse.Namespace, sweep: Any, first: Any) -> None:  # noqa: ANN401
    """Write the pictures of a sweep and of its first point that are asked for."""
    from sim.runs import named_traces, replay_parts

    if options.plot is not None:
        _write_plot(sweep, options.plot)
    if options.trace or options.gantt:
        _write_files(options, named_traces(replay_parts(first.strategy, sweep.scenario.on(first.num_gpus))))


def _write_reached(sweep: Any, out: Path) -> None:  # noqa: ANN401
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
    from sim.explore.tuning import tune
    from sim.report.tables import print_choices

    if options.strategy not in (None, "pulse"):
        raise InputError(f"--strategy is '{options.strategy}', but only pulse is tuned")
    if options.batch_size is not None:
        raise InputError("--batch-size is what tune looks for: b * P * G; leave it out")
    return _print(options, tune(training_scenario(options), p2p=options.p2p), print_choices)


def schedule_command(options: argparse.Namespace) -> int:
    """Print a strategy's order."""
    return _print_patches(options) if task(options) == "sample" else _print_passes(options)


def _print_patches(options: argparse.Namespace) -> int:
    """Print a sampler's order: all steps of a run with their exchanges, and the frozen components it includes."""
    from strategies.patching.frozen import with_frozen
    from strategies.plans.actions import format_order
    from strategies.strategy import Phase, guidance_groups

    sampler = make_sampler(options.strategy, parameters(options))
    if options.format == "torch":
        raise InputError(
            f"--format is 'torch', which has no word for patches, and {options.strategy} draws images"
        )
    if options.model is None:
        raise InputError(f"the order of {options.strategy} depends on the model: give --model")
    scenario = sampling_scenario(options)
    sampler.bound(scenario)  # refuses what cannot exist before its order is written out
    run = Phase("run", sampler.plan(scenario), 1, scenario.workload.steps)
    phases = with_frozen(scenario, (run,), guidance_groups(sampler, scenario))
    starts = accumulate((len(phase.plan.collectives) for phase in phases), initial=0)
    parts = [phase.plan.rows(first) for phase, first in zip(phases, starts, strict=False)]
    sys.stdout.write(format_order(chain.from_iterable(row) for row in zip(*parts, strict=True)))
    return 0


def _print_passes(options: argparse.Namespace) -> int:
    """Print the order of a strategy that trains."""
    from sim.runs import replay_parts
    from strategies.plans.actions import StageAction, format_order, format_torch
    from strategies.strategy import Scheduled

    strategy = make_strategy(options.strategy, parameters(options))
    if options.model is not None:
        replayed = replay_parts(strategy, training_scenario(options))
        if len({part.variant.job for part in replayed}) < len(replayed):
            print(
                "sim: this is the iteration without the extra forward pass; see --self-conditioning",
                file=sys.stderr,
            )
        first = {part.variant.job: part.trace for part in reversed(replayed)}
        order = tuple(row for _, trace in sorted(first.items()) for row in trace.plan.order)
    elif isinstance(strategy, Scheduled):
        order = strategy.order()
    else:
        raise InputError(f"the order of {options.strategy} depends on the model: give --model")
    text = format_torch(order) if options.format == "torch" else format_order(order)
    if options.format == "torch" and any(
        not isinstance(a, StageAction) or a.kind == "O" for r in order for a in r
    ):
        print(
            "sim: torch has no word for optimizer steps and frozen layers: they are left out", file=sys.stderr
        )
    sys.stdout.write(text)
    return 0
