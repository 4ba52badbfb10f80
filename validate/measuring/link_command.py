"""The command ``links``: measure, or read logs; fit; write the cluster file; say how well it fits."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from profiles.devices import load_device
from profiles.errors import InputError
from validate.launching import check_count, launch, launched_place
from validate.writing import write_file

if TYPE_CHECKING:
    from validate.fitting.link_samples import Measurement

MAX_MIB: Final = 64


def add_links_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to those of ``python -m validate``."""
    links = commands.add_parser(
        "links",
        help="measure the links between ranks, or read logs of nccl-tests, into a cluster file",
        description="Run it under torchrun for your own ranks (NCCL where each has a GPU, else gloo). Without, it "
        "starts --ranks processes over gloo on this machine.",
    )
    links.add_argument(
        "--output", type=Path, metavar="FILE", required=True, help="write the cluster file here"
    )
    links.add_argument(
        "--device", required=True, metavar="NAME", help="device of the cluster, one of those shipped"
    )
    links.add_argument("--name", help="of the cluster (default: the name of the file)")
    links.add_argument(
        "--nccl-tests", type=Path, nargs="+", metavar="FILE", help="read these logs, measure nothing"
    )
    links.add_argument(
        "--ranks", type=int, default=2, help="processes to start without torchrun (default: 2)"
    )
    links.add_argument("--backend", choices=("gloo", "nccl"), help="default: nccl where each rank has a GPU")
    links.add_argument(
        "--kind", choices=("nvswitch", "pcie"), default="nvswitch", help="of the links inside a node"
    )
    links.add_argument(
        "--switch-size", type=int, default=0, metavar="N", help="devices under one switch, of --kind pcie"
    )
    links.add_argument(
        "--max-mib", type=int, default=MAX_MIB, metavar="MIB", help=f"largest size (default: {MAX_MIB})"
    )
    links.add_argument(
        "--samples", type=Path, metavar="FILE", help="write every measured median here, as CSV"
    )
    links.set_defaults(run=run_links)


def run_links(options: argparse.Namespace) -> None:
    """Run the command, as a launcher's rank, or as what starts the ranks, or on logs."""
    _check(options)
    if options.nccl_tests:
        from validate.fitting.link_samples import read_logs  # noqa: PLC0415

        _conclude(read_logs(options.nccl_tests), options)
        return
    place = launched_place()
    check_count(place.num_ranks if place else options.ranks)
    if place is None:
        measurement = launch(options.ranks, _measure, options.backend or "gloo", options.max_mib)[0]
    else:
        measurement = _measure(options.backend, options.max_mib)
    if measurement:
        _conclude(measurement, options)


def _check(options: argparse.Namespace) -> None:
    """Refuse what would fail after minutes of measuring."""
    from validate.fitting.link_report import check_output  # noqa: PLC0415

    load_device(options.device)
    if options.max_mib < 1:
        raise InputError(f"--max-mib is {options.max_mib}, must be at least 1")
    check_output("--output", options.output)
    if options.samples:
        check_output("--samples", options.samples)
    _check_apart(options)
    _check_switches(options)


def _check_apart(options: argparse.Namespace) -> None:
    """Refuse to write one file over another."""
    files = [("--output", options.output), ("--samples", options.samples)]
    files += [("--nccl-tests", log) for log in options.nccl_tests or ()]
    taken: dict[Path, str] = {}
    for flag, path in files:
        other = taken.setdefault(path.resolve(), flag) if path else flag
        if other != flag:
            raise InputError(f"{flag} {path}: is the file of {other} too, must be another")


def _check_switches(options: argparse.Namespace) -> None:
    from validate.fitting.pairs import Wiring  # noqa: PLC0415  importing scipy takes a while

    place = None if options.nccl_tests else launched_place()
    wiring = Wiring(options.kind, options.switch_size)
    if not options.nccl_tests:
        wiring.check(place.devices_per_node if place else options.ranks)


def _measure(backend: str | None, max_mib: int) -> "Measurement | None":
    """What the ranks measure together, of which this process is one; nothing but on rank 0."""
    from validate.measuring.link_times import measure  # noqa: PLC0415  importing torch takes seconds

    place = launched_place()
    assert place is not None
    return measure(place, backend, max_mib * 2**20)


def _conclude(measurement: "Measurement", options: argparse.Namespace) -> None:
    """Fit, write, and print how the file's cluster stands to what was measured."""
    from validate.fitting.link_report import (  # noqa: PLC0415
        cluster_text,
        print_links,
        write_cluster,
    )
    from validate.fitting.link_samples import sample_text  # noqa: PLC0415
    from validate.fitting.links import fit_links  # noqa: PLC0415  importing scipy takes a while
    from validate.fitting.pairs import Wiring  # noqa: PLC0415

    wiring = Wiring(options.kind, options.switch_size)
    found = fit_links(measurement, options.name or options.output.stem, options.device, wiring)
    cluster = write_cluster(options.output, cluster_text(found, bool(measurement.slowdowns)))
    if options.samples:
        write_file(options.samples, sample_text(measurement), "--samples")
    print_links(measurement, cluster, found.notes)
    print(f"wrote {options.output}")
