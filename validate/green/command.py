"""The command ``python -m validate green``."""

import argparse
from pathlib import Path
from typing import Any

from sim.cli.flags import integer, number

REHEARSED_MICRO_BATCHES, MICRO_BATCHES = 4, 8


def add_green_parser(commands: Any) -> None:  # noqa: ANN401
    """Offer the command."""
    parser = commands.add_parser("green", help="measure pipelines on disjoint green contexts of one GPU")
    add = parser.add_argument
    add("--output", type=Path, metavar="DIR", required=True, help="write green-DEVICE.csv here")
    add("--rehearse", action="store_true", help="with threads of the CPU and tiny layers")
    add("--model", default="sd21", help="model whose structure is trained (default: sd21)")
    add("--schedules", metavar="NAME,NAME", help="default: gpipe,1f1b,wave,bidirectional,diffusionpipe")
    add("--partitions", type=integer, default=4, help="pipeline degree (default: 4)")
    add("--sms", type=integer, help="multiprocessors of each (default: as many as possible)")
    add("--micro-batches", type=integer, help="default: 8; of a rehearsal 4")
    add("--samples", type=integer, default=4, help="of a micro-batch (default: 4)")
    add("--link-ms", type=number, default=1.0, help="what each message takes (default: 1)")
    add("--rounds", type=integer, default=10, help="iterations that count (default: 10)")
    add("--no-graphs", action="store_true", help="enqueue kernel by kernel")
    add("--name", help="of the device; default: the GPU's, or cpu")
    parser.set_defaults(run=_green)


def _green(options: argparse.Namespace) -> None:
    from validate.green.programme import (  # noqa: PLC0415  importing torch takes seconds
        SCHEDULES,
        Programme,
        check_programme,
        report_green,
    )

    default = REHEARSED_MICRO_BATCHES if options.rehearse else MICRO_BATCHES
    programme = Programme(
        options.model, SCHEDULES if options.schedules is None else tuple(options.schedules.split(",")),
        options.partitions, options.sms, default if options.micro_batches is None else options.micro_batches,
        options.samples, options.link_ms / 1e3, options.rounds, not options.no_graphs, options.rehearse,
    )  # fmt: skip
    check_programme(programme)
    report_green(options.output, programme, options.name)
