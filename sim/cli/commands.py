"""Commands: one function for each subcommand of ``sim``; ``sim.cli.main`` parses the flags.

What takes long to import is imported where it is used.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError, counted, in_flags
from sim import api
from sim.cli.requests import ASIDE, arguments, given, given_parameters, named
from sim.inputs.calibrating import setting
from sim.inputs.limits import check_swept
from sim.inputs.measured_runs import calibrated
from sim.inputs.scenarios import Request, check_known, scenario_of
from sim.outcomes.results import Result
from strategies.plans.workloads import AUTO
from strategies.scenario import Scenario

FIGURES: Final = (".png", ".svg", ".pdf")


def run_command(options: argparse.Namespace) -> int:
    """Simulate one point and print its result."""
    if options.print_experiment:
        return print_experiment(options)
    check_files(options)
    result = api.run(strategy=options.strategy, **arguments(options))
    _warn_of_memory(options, result)
    for remark in result.source.remarks if result.source else ():
        print(f"sim: note: {remark}", file=sys.stderr)
    write_files(options, result)
    if options.report is not None:
        result.write_report(options.report, options.line)
        print(f"sim: wrote {options.report}", file=sys.stderr)
    if options.json:
        print(json.dumps(result.to_json(), allow_nan=False))
    else:
        from sim.report.tables import print_result

        print_result(result, markdown=options.format == "markdown")
    return 0


def launch_command(options: argparse.Namespace) -> int:
    """Print what starts a point in a runtime."""
    if options.print_experiment:
        return print_experiment(options)
    from sim.launching.launch import launch

    found = launch(strategy=options.strategy, **arguments(options))
    for remark in found.remarks:
        print(f"sim: note: {remark}", file=sys.stderr)
    for note in found.notes:
        print(f"sim: {found.runtime}: {note}", file=sys.stderr)
    sys.stdout.write(found.text)
    return 0


def print_experiment(options: argparse.Namespace) -> int:
    """Print the question that was asked, with what it leaves to defaults, for --experiment; nothing is computed."""
    from sim.inputs.experiments import as_toml

    if isinstance(options.gpus, tuple):
        raise InputError("--print-experiment prints one question: give one number of --gpus")
    strategies = None if (names := named(options)) is None else tuple(names)
    own, auto = given(options), getattr(options, "checkpointing", None) in (None, AUTO)
    if auto:
        own.pop("checkpointing", None)
    where = options.model, options.cluster, options.gpus, strategies, own
    request = Request(*where, getattr(options, "task", None), options.stack)
    check_known(request)
    scenario, command = scenario_of(request), options.asked
    flags = setting(scenario)
    if request.names is not None:
        flags["strategy"] = ",".join(request.names)
    if command == "sweep":  # what is set says the task: ``run`` knows no flag of it
        flags["objective"] = options.objective
        if auto:
            flags.pop("checkpointing", None)
    elif getattr(options, "checkpointing", None) == AUTO:
        flags["checkpointing"] = AUTO
    flags |= request.parameters | {name: getattr(options, name, None) for name in ASIDE}
    sys.stdout.write(f"# sim {command} --experiment FILE\n{as_toml(flags)}")
    return 0


def _warn_of_memory(options: argparse.Namespace, result: Result) -> None:
    """Say by how much a point does not fit, and with which flags it would."""
    if not result.missing_memory or result.source is None:
        return
    from sim.explore.relax import NOTHING_FITS, Question, relax

    relief, own = getattr(options, "checkpointing", None) == AUTO, given_parameters(options)
    scenario, runtime = result.source.scenario, getattr(options, "runtime", None)
    changes = relax(Question(scenario, [result.strategy], own, relief, single=True, runtime=runtime))
    words = f"{result.strategy} does not fit: {result.missing_memory}; {changes or NOTHING_FITS}"
    print(f"sim: warning: {in_flags(words)}", file=sys.stderr)


def check_files(options: argparse.Namespace) -> None:
    """Refuse files that could not be written at the end."""
    from profiles.outputs import check_writable

    claimed: dict[Path, str] = {}
    for flag in ("--out", "--store", "--trace", "--gantt", "--plot", "--report"):
        path = getattr(options, flag[2:], None)
        if path is None:
            continue
        check_writable(flag, path)
        if (other := claimed.setdefault(path.resolve(), flag)) != flag:
            raise InputError(f"{flag} is '{path}', which {other} writes")
        if flag in ("--gantt", "--plot") and path.suffix.lower() not in FIGURES:
            raise InputError(f"{flag} is '{path}', must end in {', '.join(FIGURES)}")
        if flag == "--report":
            _check_report(path)


def _check_report(path: Path) -> None:
    from sim.report.page import check_ending, check_plotly

    check_ending("--report", path)
    check_plotly("--report")


def write_files(options: argparse.Namespace, result: Result) -> None:
    """Write the traces and the pictures of a result, each by its name beside the main one."""
    if options.trace is None and options.gantt is None:
        return
    for name, trace in result.traces.items():
        suffix = f"-{name}" if name else ""
        for path, write in ((options.trace, _write_trace), (options.gantt, _write_gantt)):
            if path is not None:
                target = path.with_name(f"{path.stem}{suffix}{path.suffix}")
                write(trace, target, f"{result.title}: {name or _steps_words(trace)}")
                print(f"sim: wrote {target}", file=sys.stderr)


def _steps_words(trace: Any) -> str:  # noqa: ANN401
    """What a trace is of: an iteration, or so many steps of a sampler."""
    steps = {op.action.step for row in trace.plan.ops for op in row if hasattr(op.action, "step")}
    return counted(len(steps), "step") if steps else "one iteration"


def _write_trace(trace: Any, path: Path, title: str) -> None:  # noqa: ANN401
    from sim.replay.chrome_trace import write_chrome_trace

    write_chrome_trace(trace, path)


def _write_gantt(trace: Any, path: Path, title: str) -> None:  # noqa: ANN401
    from sim.report.plots.charts import save_figure
    from sim.report.plots.timeline import plot_timeline

    save_figure(plot_timeline(trace, title), path)


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
    check_swept(scenario)
    print_choices(tune(scenario, p2p=options.p2p), options.json)
    return 0


def schedule_command(options: argparse.Namespace) -> int:
    """Print a strategy's order."""
    schedule = api.schedule(strategy=options.strategy, format=options.format, **arguments(options))
    for note in schedule.notes:
        print(f"sim: {note}", file=sys.stderr)
    sys.stdout.write(schedule.text)
    return 0
