"""The commands of this package, as the command line offers them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.errors import InputError
from validate.counting.config_files import add_sources, asked_of, check_alone, read_config

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_profiling_parsers(commands: "Commands") -> None:
    """Add ``profile`` and ``gpu`` to the commands."""
    _add_profile(commands)
    _add_gpu(commands)


def _add_profile(commands: "Commands") -> None:
    parser = commands.add_parser("profile", help="time every layer of a model on this machine")
    add_sources(parser, "architecture to build, or a tiny one: tiny-sd, ...")
    parser.add_argument("--device", required=True, help="cpu or cuda")
    parser.add_argument("--batch-sizes", required=True, metavar="N,N", help="samples per pass")
    parser.add_argument("--height", type=int, metavar="PIXELS", help="default: the model's own")
    parser.add_argument("--width", type=int, metavar="PIXELS", help="default: the model's own")
    parser.add_argument("--components", metavar="NAME,NAME", help="default: all")
    parser.add_argument("--name", help="of the device; default: cpu, or the GPU's")
    _add_settings(parser)
    parser.add_argument("--output", type=Path, metavar="DIR", required=True, help="model folder to write to")
    parser.set_defaults(run=_profile)


def _add_gpu(commands: "Commands") -> None:
    parser = commands.add_parser(
        "gpu", help="profile, calibrate, and predict steps that are then measured (pipelines: green)"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", required=True, help="goes on where it was left")
    parser.add_argument("--name", help="of the device; default: the GPU's")
    parser.add_argument("--rehearse", action="store_true", help="with tiny models on one thread of the CPU")
    parser.set_defaults(run=_gpu)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", help="default: float32 on a CPU, bfloat16 on a GPU")
    parser.add_argument("--warmup", type=int, default=3, metavar="ROUNDS", help="that do not count (3)")
    parser.add_argument("--rounds", type=int, default=10, metavar="ROUNDS", help="that count (10)")
    parser.add_argument(
        "--limit-s", type=float, default=600.0, metavar="SECONDS", help="per component and batch size (600)"
    )
    parser.add_argument(
        "--clock", default="wall", help="of a CPU: wall (default), or thread where others run too"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="of the CPU; default: torch's")


def _profile(options: argparse.Namespace) -> None:
    from validate.measuring.passes import Settings  # noqa: PLC0415  importing torch takes seconds
    from validate.measuring.profiler import profile, report_profile  # noqa: PLC0415  as above

    _set_threads(options.threads)
    settings = Settings(
        batch_sizes=_integers("batch-sizes", options.batch_sizes),
        dtype=options.dtype or ("bfloat16" if options.device == "cuda" else "float32"),
        warmup=options.warmup,
        rounds=options.rounds,
        limit_s=options.limit_s,
        clock=options.clock,
    )
    if options.config is None:
        check_alone(options)
        model = options.model
    else:
        model = [read_config(path) for path in options.config], asked_of(options, "float16")
    found = profile(
        model,
        options.device,
        settings,
        height=options.height,
        width=options.width,
        components=tuple(options.components.split(",")) if options.components else (),
        name=options.name,
        output=options.output,
    )
    report_profile(found, options.output)


def _gpu(options: argparse.Namespace) -> None:
    from validate.measuring.programme import ONE_GPU, REHEARSAL, report_gpu  # noqa: PLC0415  as above

    if options.rehearse:
        _set_threads(1)
    report_gpu(options.output, REHEARSAL if options.rehearse else ONE_GPU, options.name)


def _set_threads(threads: int | None) -> None:
    import torch  # noqa: PLC0415  as above

    if threads is not None:
        if threads < 1:
            raise InputError(f"--threads is {threads}, must be at least 1")
        torch.set_num_threads(threads)


def _integers(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{flag} is '{text}', must be integers with commas between them") from None
