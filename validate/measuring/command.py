"""The commands that measure, as the command line offers them: ``profile``, ``gpu`` and ``links``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from profiles.devices import load_device
from profiles.errors import InputError
from sim.outputs import check_writable
from validate.counting.config_files import add_sources, asked_of, check_alone, read_config
from validate.launching import check_least, launch, launched_place
from validate.writing import write_file

if TYPE_CHECKING:
    from validate.fitting.link_samples import Measurement

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]
    Flags = dict[str, dict[str, Any]]

MAX_MIB: Final = 64
ROUNDS: Final = {"type": int, "metavar": "ROUNDS"}
PIXELS: Final = {"type": int, "metavar": "PIXELS", "help": "default: the model's own"}
FILE: Final = {"type": Path, "metavar": "FILE"}
LIMIT: Final = {"type": float, "default": 600.0, "metavar": "SECONDS"}
PROFILE: Final["Flags"] = {
    "--device": {"required": True, "help": "cpu or cuda"},
    "--batch-sizes": {"required": True, "metavar": "N,N", "help": "samples per pass"},
    "--height": PIXELS,
    "--width": PIXELS,
    "--components": {"metavar": "NAME,NAME", "help": "default: all"},
    "--name": {"help": "of the device; default: cpu, or the GPU's"},
    "--dtype": {"help": "default: float32 on a CPU, bfloat16 on a GPU"},
    "--warmup": {**ROUNDS, "default": 3, "help": "that do not count (3)"},
    "--rounds": {**ROUNDS, "default": 10, "help": "that count (10)"},
    "--limit-s": {**LIMIT, "help": "per component and batch size (600)"},
    "--clock": {"default": "wall", "help": "of a CPU: wall (default), or thread where others run too"},
    "--threads": {"type": int, "metavar": "N", "help": "of the CPU; default: torch's"},
    "--output": {"type": Path, "metavar": "DIR", "required": True, "help": "model folder to write to"},
}
GPU: Final["Flags"] = {
    "--output": {"type": Path, "metavar": "DIR", "required": True, "help": "goes on where it was left"},
    "--name": {"help": "of the device; default: the GPU's"},
    "--rehearse": {"action": "store_true", "help": "with tiny models on one thread of the CPU"},
}
LINKS: Final["Flags"] = {
    "--output": {**FILE, "required": True, "help": "write the cluster file here"},
    "--device": {"required": True, "metavar": "NAME", "help": "device of the cluster, one of those shipped"},
    "--name": {"help": "of the cluster (default: the name of the file)"},
    "--nccl-tests": {**FILE, "nargs": "+", "help": "read these logs, measure nothing"},
    "--ranks": {"type": int, "default": 2, "help": "processes to start without torchrun (default: 2)"},
    "--backend": {"choices": ("gloo", "nccl"), "help": "default: nccl where each rank has a GPU"},
    "--kind": {"choices": ("nvswitch", "pcie"), "default": "nvswitch", "help": "of the links inside a node"},
    "--max-mib": {
        "type": int,
        "default": MAX_MIB,
        "metavar": "MIB",
        "help": f"largest size (default: {MAX_MIB})",
    },
    "--samples": {**FILE, "help": "write every measured median here, as CSV"},
}


def add_measuring_parsers(commands: "Commands") -> None:
    """Add ``profile``, ``gpu`` and ``links`` to the commands."""
    profile = commands.add_parser("profile", help="time every layer of a model on this machine")
    add_sources(profile, "architecture to build, or a tiny one: tiny-sd, ...")
    gpu = commands.add_parser("gpu", help="profile, calibrate, and predict steps that are then measured")
    links = commands.add_parser(
        "links",
        help="measure the links between ranks, or read logs of nccl-tests, into a cluster file",
        description="Run it under torchrun for your own ranks (NCCL where each has a GPU, else gloo). Without, it "
        "starts --ranks processes over gloo on this machine.",
    )
    for parser, flags, run in ((profile, PROFILE, _profile), (gpu, GPU, _gpu), (links, LINKS, _links)):
        for flag, options in flags.items():
            parser.add_argument(flag, **options)
        parser.set_defaults(run=run)


def _profile(options: argparse.Namespace) -> None:
    from validate.measuring.passes import Settings  # noqa: PLC0415  importing torch takes seconds
    from validate.measuring.profiler import profile, report_profile  # noqa: PLC0415  as above

    _set_threads(options.threads)
    settings = Settings(
        batch_sizes=_integers("batch-sizes", options.batch_sizes),
        dtype=options.dtype or ("bfloat16" if options.device == "cuda" else "float32"),
        **{key: getattr(options, key) for key in ("warmup", "rounds", "limit_s", "clock")},
    )
    if options.config is None:
        check_alone(options)
        model = options.model
    else:
        model = [read_config(path) for path in options.config], asked_of(options, "float16")
    components = tuple(options.components.split(",")) if options.components else ()
    asked = {key: getattr(options, key) for key in ("height", "width", "name", "output")}
    found = profile(model, options.device, settings, components=components, **asked)
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


def _links(options: argparse.Namespace) -> None:
    """Measure, as a launcher's rank or as what starts the ranks, or read logs; fit, write, and say how well it fits."""
    from validate.fitting.link_samples import read_logs  # noqa: PLC0415  importing scipy takes a while

    place = None if options.nccl_tests else launched_place()
    _check_links(options)
    measurement: Measurement | None
    if options.nccl_tests:
        measurement = read_logs(options.nccl_tests)
    else:
        check_least(("--ranks", place.num_ranks if place else options.ranks, 2))
        if place is None:
            measurement = launch(options.ranks, _measure, options.backend or "gloo", options.max_mib)[0]
        else:
            measurement = _measure(options.backend, options.max_mib)
    if measurement:
        _conclude(measurement, options)


def _check_links(options: argparse.Namespace) -> None:
    """Refuse what would fail after minutes of measuring, and to write one file over another."""
    load_device(options.device)
    if options.max_mib < 1:
        raise InputError(f"--max-mib is {options.max_mib}, must be at least 1")
    files = [("--output", options.output), ("--samples", options.samples)]
    for flag, path in files:
        if path:
            check_writable(flag, path)
    taken: dict[Path, str] = {}
    for flag, path in (*files, *(("--nccl-tests", log) for log in options.nccl_tests or ())):
        other = taken.setdefault(path.resolve(), flag) if path else flag
        if other != flag:
            raise InputError(f"{flag} {path}: is the file of {other} too, must be another")


def _measure(backend: str | None, max_mib: int) -> "Measurement | None":
    """What the ranks measure together, of which this process is one; nothing but on rank 0."""
    from validate.measuring.link_times import measure  # noqa: PLC0415  importing torch takes seconds

    place = launched_place()
    assert place is not None
    return measure(place, backend, max_mib * 2**20)


def _conclude(measurement: "Measurement", options: argparse.Namespace) -> None:
    """Fit, write, and print how the file's cluster stands to what was measured."""
    from validate.fitting.link_report import cluster_text, print_links, write_cluster  # noqa: PLC0415
    from validate.fitting.link_samples import sample_text  # noqa: PLC0415
    from validate.fitting.links import fit_links  # noqa: PLC0415

    found = fit_links(measurement, options.name or options.output.stem, options.device, options.kind)
    cluster = write_cluster(options.output, cluster_text(found, bool(measurement.slowdowns)))
    if options.samples:
        write_file(options.samples, sample_text(measurement), "--samples")
    print_links(measurement, cluster, found.notes)
    print(f"wrote {options.output}")
