"""The command line: ``python -m validate``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sim.cli.console import Parser, guarded
from sim.cli.measuring import add_commands, add_measuring

OWN: Final = Path(__file__).with_name("commands.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    return guarded("validate", _main, list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    return int(options.command(options))


def make_parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    from validate.running.command import add_samplers, add_schedules

    parser = Parser(prog="validate", description="Is it true?")
    commands = parser.add_subparsers(required=True, metavar="command")
    extend = {
        "run": add_schedules,
        "sample": add_samplers,
    }
    add_commands(commands, OWN, "validate", _call, extend)
    add_measuring(commands, "validate")
    return parser


def _call(name: str, options: argparse.Namespace) -> object:
    """Carry out a command; imports are made now, since torch and matplotlib take seconds."""
    run: Any
    match name:
        case "closed-forms":
            from validate.closed_forms.families import run_closed_forms as run
        case "published" | "paper":
            from validate.published import report

            run = report.run_published if name == "published" else report.run_paper
        case "clusters":
            from validate.published.clusters import run_clusters as run
        case "gpu":
            from validate.steps.programme import run_gpu as run
        case "run" | "sample":
            from validate.running import command

            run = command.run_schedule if name == "run" else command.run_sampler
        case "serving":
            from validate.serving.systems import run_serving as run
        case "serve":
            from validate.serving.live import run_serve as run
        case "anchors":
            from validate.fitting.anchors import report_anchors as run
        case "fusing":
            from validate.steps.fusing import print_fusing as run
        case "hosts" | "efficiencies":
            from validate.fitting import boxes

            run = boxes.run_hosts if name == "hosts" else boxes.report_efficiencies
        case "fit-kernels" | "fit-precisions":
            from validate.fitting import precisions
            from validate.fitting.kernels import report as kernels

            run = kernels.report_kernels if name == "fit-kernels" else precisions.run_precisions
        case _:
            from validate.fitting.collective_files import report_collectives as run
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
