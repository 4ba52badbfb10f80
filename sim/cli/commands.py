"""Commands: for each subcommand of ``sim`` a function that carries it out.

Matplotlib is imported where it is used, since it is slow.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from profiles.errors import InputError, counted, flag_of
from profiles.outputs import FIGURES, check_ending, check_new, check_writable, whole_file
from sim import api
from sim.cli.console import note
from sim.cli.flags import (
    ASIDE,
    add_question,
    arguments,
    given_parameters,
    named,
    option_values,
    settings_of,
    strategy_flags,
)
from sim.explore.relax import NOTHING_FITS, Question, relax
from sim.explore.store import StoreFile
from sim.explore.workers import on_cluster
from sim.inputs.calibrating import setting
from sim.inputs.experiments import as_toml
from sim.inputs.scenarios import request_of, scenario_of
from sim.interrupts import postponed
from sim.launching.launch import launch, server_line
from sim.outcomes.results import Result
from sim.replay.chrome_trace import write_chrome_trace
from sim.report.balances import balance_blocks
from sim.report.blocks import Block, print_blocks
from sim.report.comparisons import compare
from sim.report.frames import check_out
from sim.report.page import check_plotly
from sim.report.results import result_blocks
from sim.report.serving import load_warning, serving_blocks
from sim.report.views import Serving
from sim.serving.inputs import TRAFFIC
from sim.serving.options import ServingOptions
from sim.serving.serve import write_trace
from strategies.plans.workloads import AUTO

READ: Final = (
    "experiment", "measured_run", "model", "cluster", "device", "stack", "requests", "mix", "service", "price",
    "shapes",
)  # fmt: skip
"""Flags that may name a file to read."""


def run_command(options: argparse.Namespace) -> int:
    """Simulate one point and print its result."""
    if options.print_experiment:
        return print_experiment(options)
    check_files(options)
    result = api.run(strategy=options.strategy, **arguments(options))
    _warn_of_memory(options, result)
    for remark in result.origin.remarks:
        note(f"note: {remark}")
    write_files(options, result)
    if options.report is not None:
        result.write_report(options.report, options.line)
        note(f"wrote {options.report}")
    return print_answer(options, result, lambda: result_blocks(result))


def print_answer(options: argparse.Namespace, answer: Any, blocks: Callable[[], list[Block]]) -> int:  # noqa: ANN401
    """Print an answer as JSON where that is wanted, else its blocks."""
    if options.json:
        print(json.dumps(answer.to_json(), allow_nan=False))
    else:
        print_blocks(blocks(), as_markdown=getattr(options, "format", "") == "markdown")
    return 0


def _warn_of_memory(options: argparse.Namespace, result: Result) -> None:
    """Say by how much a point does not fit, and with which flags it would."""
    if not result.missing_memory:
        return
    relief, parameters = getattr(options, "checkpointing", None) == AUTO, given_parameters(options)
    scenario, runtime = result.origin.scenario, options.runtime
    changes = relax(Question(scenario, [result.strategy], parameters, relief, single=True, runtime=runtime))
    note(f"warning: {result.strategy} does not fit: {result.missing_memory}; {changes or NOTHING_FITS}")


def print_experiment(options: argparse.Namespace) -> int:
    """Print the question with its defaults filled in, for --experiment; nothing is computed."""
    if isinstance(options.gpus, tuple) or "," in options.cluster:
        raise InputError("--print-experiment prints one question: give one number of --gpus, one --cluster")
    values, checkpointing = option_values(options), getattr(options, "checkpointing", None)
    if auto := checkpointing in (None, AUTO):
        values.pop("checkpointing", None)
    where = options.model, options.cluster, options.gpus, values
    task = getattr(options, "task", None)
    runtime = getattr(options, "runtime", None)
    request = request_of(*where, strategies=named(options), task=task, stack=options.stack, runtime=runtime)
    flags = setting(scenario_of(request))
    if request.names is not None:
        flags["strategy"] = ",".join(request.names)
    if options.subcommand == "sweep":  # what is set says the task: ``run`` knows no flag of it
        flags["objective"] = options.objective
        if auto:
            flags.pop("checkpointing", None)
    elif checkpointing == AUTO:
        flags["checkpointing"] = AUTO
    flags |= request.parameters | {name: getattr(options, name, None) for name in ASIDE}
    sys.stdout.write(f"# sim {options.subcommand} --experiment FILE\n{as_toml(flags)}")
    return 0


def check_files(options: argparse.Namespace) -> None:
    """Refuse files that could not be written at the end, and those that the question itself is read from."""
    claimed: dict[Path, str] = {}
    for name in READ:
        if isinstance(read := getattr(options, name, None), str) and Path(read).is_file():
            claimed[Path(read).resolve()] = f"{flag_of(name)} reads"
    for flag in ("--out", "--store", "--trace", "--gantt", "--plot", "--report"):
        path = getattr(options, flag[2:], None)
        if path is None:
            continue
        check_writable(flag, path)
        if (other := claimed.setdefault(path.resolve(), f"{flag} writes")) != f"{flag} writes":
            raise InputError(f"{flag} is '{path}', which {other}")
        match flag:
            case "--gantt" | "--plot":
                check_ending(flag, path, FIGURES)
            case "--report":
                check_ending(flag, path, (".html",))
                if options.subcommand != "serve":
                    check_plotly(flag)
            case "--out":
                check_out(path)


def write_files(options: argparse.Namespace, result: Result) -> None:
    """Write the traces and the pictures of a result, each by its name beside the main one."""
    for name, trace in result.traces.items() if options.trace or options.gantt else ():
        suffix = f"-{name}" if name else ""
        for path in filter(None, (options.trace, options.gantt)):
            target = path.with_name(f"{path.stem}{suffix}{path.suffix}")
            if path is options.trace:
                write_chrome_trace(trace, target)
            else:
                from sim.report.plots.charts import save_figure
                from sim.report.plots.timeline import plot_timeline

                save_figure(plot_timeline(trace, f"{result.title}: {name or _steps_words(trace)}"), target)
            note(f"wrote {target}")


def _steps_words(trace: Any) -> str:  # noqa: ANN401
    """Return the extent of a trace in words: an iteration, or so many steps of a sampler."""
    steps = {op.action.step for row in trace.plan.ops for op in row if hasattr(op.action, "step")}
    return counted(len(steps), "step") if steps else "one iteration"


def launch_command(options: argparse.Namespace) -> int:
    """Print the command or code that starts a point in a runtime."""
    if options.print_experiment:
        return print_experiment(options)
    start = launch(strategy=options.strategy, **arguments(options))
    written = start.text if options.out is None else "".join(f"{path}\n" for path in start.write(options.out))
    for text in start.notes:
        note(f"{start.runtime}: {text}")
    print(written, end="", flush=True)
    for remark in start.remarks:
        note(remark if remark.startswith("warning: ") else f"note: {remark}")
    return 0


def balance_command(options: argparse.Namespace) -> int:
    """Print what training on samples of mixed shapes costs, and what evens them out."""
    found = api.balance(strategy=options.strategy, shapes=options.shapes, **arguments(options))
    return print_answer(options, found, lambda: balance_blocks(found))


def schedule_command(options: argparse.Namespace) -> int:
    """Print a strategy's order."""
    schedule = api.schedule(strategy=options.strategy, format=options.format, **arguments(options))
    for text in schedule.notes:
        note(text)
    sys.stdout.write(schedule.text)
    return 0


def compare_command(options: argparse.Namespace) -> int:
    """Print what changed between two files."""
    comparison = compare(options.before, options.after, question=options.question or ())
    return print_answer(options, comparison, lambda: comparison.blocks)


def merge_command(options: argparse.Namespace) -> int:
    """Make one store of several."""
    check_new(options.out)
    for path in options.stores:
        with StoreFile(path, reads=True) as store:
            store.check()  # before anything is made
    with StoreFile(options.out) as store:
        for path in options.stores:
            note(f"{store.merge(path)} answers from {path}")
        questions = len(list(store.questions()))
    print(f"{options.out}: answers to {counted(questions, 'question')}")
    return 0


SHOWN: Final = (
    "--help", "--stack", "--runtime", "--measured", "--measured-run", "--experiment", "--resolution", "--frames",
    "--steps", "--guidance",
)  # fmt: skip
"""Flags of a question that the help shows as others do; all others of sampling are taken, too."""
HELP: Final = {
    "--model": "a model's name, or a model folder; not with --service",
    "--cluster": "a cluster's name, or a cluster file; several with commas",
    "--gpus": "GPUs of the fleet; of several, such as 1-64, the fewest that hold the SLO (default: one node)",
    "--strategy": "samplers of replicas, with commas (default: the fastest of the exact image)",
}
"""Flags that it shows in words of its own."""


def add_serve(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Add the flags of ``sim serve``."""
    add_question(parser, [*words, "--task", "sample"], "the run of --measured-run", sweeps=True)
    parser.set_defaults(cluster=None)
    own = {flag for name in parser.get_default("named") for flag in strategy_flags(name)}
    for action in parser._actions:
        flag = action.option_strings[-1] if action.option_strings else ""
        action.required = False
        action.help = HELP.get(flag, action.help if flag in (*SHOWN, *own) else argparse.SUPPRESS)
    parser.usage = "sim serve --model MODEL --rate PER_S [--slo SECONDS] [FLAGS]"
    mixes = ", ".join(sorted(path.stem for path in TRAFFIC.glob("*.toml")))
    others = "all other flags of `sim sweep` about sampling are taken, too"
    group = parser.add_argument_group("serving", others)
    for item in fields(ServingOptions):
        settings = settings_of(item)
        settings["help"] += f" (shipped: {mixes})" if item.name == "mix" else ""
        group.add_argument(flag_of(item.name), **settings)


def serve_command(options: argparse.Namespace) -> int:
    """Print the best plan of a fleet, and what else is asked; what is known where it is interrupted."""
    if options.out is not None:
        check_ending("--out", options.out, (".csv",))
    check_files(options)
    question = arguments(options) | {"strategy": named(options)}
    names = (field.name for field in fields(ServingOptions))
    question |= {name: getattr(options, name) for name in names if hasattr(options, name)}
    started: list[Serving] = []
    try:
        with on_cluster(options.dask) as workers:
            serving = api.serve(**question, report=started.append, **workers)
    except KeyboardInterrupt:
        with postponed():
            for known in (known for known in started if known.outcomes):
                note(f"interrupted: the answer is of the {counted(len(known.outcomes), 'plan')} run so far")
                _print(options, known)
        raise
    if words := load_warning(serving):
        note(f"warning: {words}")
    _write(options, serving)
    return _print(options, serving)


def _print(options: argparse.Namespace, serving: Serving) -> int:
    return print_answer(options, serving, lambda: serving_blocks(serving, server_line))


def _write(options: argparse.Namespace, serving: Serving) -> None:
    """Write the requests, the trace, the picture and the report that are wanted."""
    if options.out is not None:
        with whole_file(options.out) as file:
            serving.requests().to_csv(file, index=False)
    if options.trace is not None:
        write_trace(serving.best, options.trace)
    if options.plot is not None:
        from sim.report.plots.charts import save_figure

        save_figure(serving.plot(), options.plot)
    if options.report is not None:
        serving.write_report(options.report, options.line)
    for path in filter(None, (options.out, options.trace, options.plot, options.report)):
        note(f"wrote {path}")
