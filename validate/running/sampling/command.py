"""The command ``python -m validate sample``."""

import argparse
from dataclasses import MISSING
from typing import TYPE_CHECKING, Any

from sim.cli.flags import PARAMETER, add_parameters, integer
from validate.running.sampling.settings import FAULTS, GUIDANCES, RUNNABLE, Settings

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_sample_parser(commands: "Commands") -> None:
    """Offer the command; under ``torchrun`` each of its processes is a rank, else they are started here."""
    parser = commands.add_parser(
        "sample", help="draw with a small transformer on several ranks, in the order of a plan"
    )
    parser.add_argument(
        "--strategy", required=True, choices=RUNNABLE, metavar="NAME", help=", ".join(RUNNABLE)
    )
    parser.add_argument("--ranks", type=integer, default=2, help="processes, one per device (default: 2)")
    parser.add_argument("--steps", type=integer, default=8, help="denoising steps (default: 8)")
    parser.add_argument(
        "--guidance",
        choices=GUIDANCES,
        default="none",
        help="both predictions in one batch, or one (default: none)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="gloo or NCCL (default: cpu)"
    )
    parser.add_argument("--plant", choices=FAULTS, help="plant a fault, which the comparison must find")
    add_parameters(parser, RUNNABLE)
    parser.set_defaults(run=_sample)


def _sample(options: argparse.Namespace) -> None:
    from validate.running.sampling.report import report_sample  # noqa: PLC0415  importing torch takes seconds

    report_sample(
        Settings(
            strategy=options.strategy,
            ranks=options.ranks,
            steps=options.steps,
            parameters=_parameters(options),
            guidance=options.guidance,
            device=options.device,
            fault=options.plant,
        )
    )


def _parameters(options: argparse.Namespace) -> tuple[tuple[str, Any], ...]:
    """What was given for the sampler's own fields."""
    return tuple(
        (name.removeprefix(PARAMETER), value)
        for name, value in vars(options).items()
        if name.startswith(PARAMETER) and value is not MISSING
    )
