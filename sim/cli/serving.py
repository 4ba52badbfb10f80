"""Serving: the command ``sim serve``: the best way to divide GPUs among the requests of a load."""

import argparse
from collections.abc import Sequence
from dataclasses import fields
from typing import Final

from profiles.errors import counted, flag_of
from profiles.outputs import check_ending, whole_file
from sim import api
from sim.cli.commands import check_files, print_answer
from sim.cli.console import note
from sim.cli.flags import add_question, arguments, named, settings_of, strategy_flags
from sim.explore.workers import on_cluster
from sim.interrupts import postponed
from sim.launching.launch import server_line
from sim.report.serving import load_warning, serving_blocks
from sim.report.views import Serving
from sim.serving.inputs import TRAFFIC
from sim.serving.options import ServingOptions
from sim.serving.outcomes import write_trace

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
    names = (of.name for of in fields(ServingOptions))
    question |= {name: getattr(options, name) for name in names if hasattr(options, name)}
    started: list[Serving] = []
    try:
        with on_cluster(options.dask) as workers:
            serving = api.serve(**question, report=started.append, **workers)
    except KeyboardInterrupt:
        with postponed():
            for known in (of for of in started if of.outcomes):
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
