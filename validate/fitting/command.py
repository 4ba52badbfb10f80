"""The commands that fit, as the command line offers them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_fitting_parsers(commands: "Commands") -> None:
    """Add the commands that fit what stands in shipped files."""
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    anchors = commands.add_parser("anchors", help="read the one-GPU latencies that sampling starts from")
    what = "write anchors.csv into the model folders of this folder (profiles/models)"
    anchors.add_argument("--output", type=Path, metavar="DIR", help=what)
    anchors.set_defaults(run=_run, fits="anchors")
    efficiencies = commands.add_parser("efficiencies", help="fit the links of an 8-card PCIe machine")
    efficiencies.add_argument("--output", **file, help="write the lines of the cluster file here")
    efficiencies.set_defaults(run=_run, fits="efficiencies")
    kernels = commands.add_parser("fit-kernels", help="fit devices' laws of kernels to measured kernels")
    kernels.add_argument(
        "--device", nargs="+", default=[], metavar="NAME", help="default: all that are known"
    )
    what = "folder of measured kernels (default: ../shared/measured)"
    kernels.add_argument("--data", type=Path, metavar="DIR", default=Path("../shared/measured"), help=what)
    kernels.add_argument("--write", action="store_true", help="write the laws into profiles/devices")
    kernels.set_defaults(run=_run, fits="fit-kernels")
    collectives = commands.add_parser(
        "fit-collectives", help="fit the collectives of cluster files to measured NCCL times"
    )
    folder = Path("../shared/measured")
    what = "folder of measurements (default ../shared/measured)"
    collectives.add_argument("--data", type=Path, metavar="DIR", default=folder, help=what)
    collectives.add_argument("--write", action="store_true", help="write the shipped cluster files")
    collectives.set_defaults(run=_run_collectives)
    what = "fit a device's rates to measured times of layers"
    calibrate = commands.add_parser("calibrate", aliases=["fit"], help=what)
    what = "names or folders of what was measured"
    calibrate.add_argument("--model", required=True, nargs="+", help=what)
    calibrate.add_argument("--times", required=True, nargs="+", **file, help="times/DEVICE.csv")
    calibrate.add_argument("--device", required=True, metavar="NAME", help="of the device to calibrate")
    calibrate.add_argument("--output", **file, help="write the device file here")
    calibrate.set_defaults(run=_run, fits="calibrate")


def _run_collectives(options: argparse.Namespace) -> None:
    from validate.fitting.collective_report import report_collectives  # noqa: PLC0415  scipy takes a while

    report_collectives(options.data, write=options.write)


def _run(options: argparse.Namespace) -> None:
    from validate.fitting import anchors, calibration, efficiencies  # noqa: PLC0415  scipy takes a while

    match options.fits:
        case "anchors":
            anchors.report_anchors(options.output)
        case "efficiencies":
            efficiencies.report_efficiencies(options.output)
        case "fit-kernels":
            from validate.fitting.kernels.report import report_kernels  # noqa: PLC0415  pandas takes a while

            report_kernels(options.device, options.data, write=options.write)
        case "calibrate":
            calibration.report_calibration(options.model, options.times, options.device, options.output)
