"""The command ``links`` and its outputs: the cluster file, and measured bandwidths and times beside those of that file.

Errors are those of rounds to which the file was not fitted; for logs, which have no rounds, of what it was fitted to.
"""

import argparse
import textwrap
from pathlib import Path
from typing import Final

from rich.table import Table

from profiles.errors import InputError
from profiles.machines.clusters import Cluster, Link, read_cluster
from profiles.machines.devices import load_device
from profiles.measuring.fitting.collective_laws import law_values
from profiles.measuring.launching import check_least, launch, launched_place
from profiles.measuring.linking.fits import PCIE, LinkFit, errors_of, fit_links
from profiles.measuring.linking.samples import Measurement, by_curve, read_logs
from profiles.measuring.tables import show, table
from profiles.measuring.writing import Exact, toml_text
from profiles.outputs import check_writable, whole_file
from profiles.units import GB, MICROSECOND

CURVE_COLUMNS: Final = (
    "operation", "ranks", "nodes", "least us", "bus GB/s at most", "median error", "worst", "at bytes",
)  # fmt: skip


def _curve_table(measurement: Measurement, cluster: Cluster) -> Table:
    """Measured times, and how far the file's cluster is from them."""
    what = "times held back from the fit" if measurement.held_back else "times"
    rows = []
    for (operation, group), samples in by_curve(measurement.judges()).items():
        errors, at_most = errors_of(cluster, samples), max(sample.bus_gb_per_s for sample in samples)
        worst = int(abs(errors.relative).argmax())
        cells = [f"{errors.measured.min() / MICROSECOND:.1f}", f"{at_most:.3g}"]
        cells += [f"{100 * errors.median:.1f} %", f"{100 * errors.relative[worst]:+.0f} %"]
        cells.append(f"{samples[worst].size_bytes:.0f}")
        rows.append([operation, f"{group.size}", f"{group.num_nodes}", *cells])
    return table(f"{what}, and what the cluster file makes of them", CURVE_COLUMNS, rows, left=("operation",))


def judged_line(measurement: Measurement, cluster: Cluster) -> str:
    """Errors of all times by which the file is judged, and whether it was fitted to them."""
    errors = errors_of(cluster, measurement.judges())
    if measurement.held_back:
        return (
            f"held back (even rounds; the file is fitted to the odd ones): {errors}, of {len(errors)} times"
        )
    return f"nothing was held back: {errors}, of {len(errors)} times that the file is fitted to"


def cluster_text(fit: LinkFit, slowdown_measured: bool) -> str:
    """Text of a cluster file, with the notes on the fit as comments."""
    cluster = fit.cluster
    values: dict[str, object] = {"name": cluster.name, "source": cluster.source}
    values |= {"device": cluster.device.name, "devices_per_node": cluster.devices_per_node}
    values["max_nodes"] = cluster.max_nodes
    remark = "" if slowdown_measured else "  # not measured"
    values["overlap_slowdown"] = Exact(f"{cluster.overlap_slowdown:.4g}{remark}")
    values["intra_node"] = _link_values(cluster.intra_node)
    if cluster.inter_node:
        values["inter_node"] = _link_values(cluster.inter_node)
    law = cluster.collectives
    values["collectives"] = {"call_us": law.call_s / MICROSECOND, **law_values(law)}
    notes = (textwrap.fill(note, 118, initial_indent="# ", subsequent_indent="# ") for note in fit.notes)
    return "\n".join((toml_text(values, ".4g"), *notes)).rstrip("\n") + "\n"


def _link_values(link: Link) -> dict[str, object]:
    if link.kind == "ideal":  # one device per node: nothing runs inside it
        return {"kind": "ideal"}
    values: dict[str, object] = {"kind": link.kind, "bandwidth_GB_per_s": link.bandwidth_bytes_per_s / GB}
    values |= {"latency_us": link.latency_s / MICROSECOND, "call_us": link.call_s / MICROSECOND}
    if link.kind == PCIE:
        values["switch_size"] = link.switch_size
        for name in ("switch", "host"):
            bandwidth = getattr(link, f"{name}_bandwidth_bytes_per_s")
            values[f"{name}_bandwidth_GB_per_s"] = bandwidth / GB
    return values


def write_cluster(path: Path, text: str) -> Cluster:
    """The cluster of a file, which is written only if it reads back."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
        return read_cluster(partial)


def run_links(options: argparse.Namespace) -> None:
    """Measure, as a rank or by starting ranks, or read logs; then fit, write, and print how well it fits."""
    place = None if options.nccl_tests else launched_place()
    load_device(options.device)  # refused before minutes of measuring
    check_least(("--max-mib", options.max_mib, 1))
    check_writable("--output", options.output)
    if options.output.resolve() in map(Path.resolve, options.nccl_tests or ()):
        raise InputError(f"--output {options.output}: is one of the logs, must be another file")
    measurement: Measurement | None
    if options.nccl_tests:
        measurement = read_logs(options.nccl_tests)
    elif place:
        check_least(("--ranks", place.num_ranks, 2))
        measurement = _measure(options.backend, options.max_mib)
    else:
        check_least(("--ranks", options.ranks, 2))
        measurement = launch(options.ranks, _measure, options.backend or "gloo", options.max_mib)[0]
    if measurement:
        fit = fit_links(measurement, options.name or options.output.stem, options.device, options.kind)
        cluster = write_cluster(options.output, cluster_text(fit, bool(measurement.slowdowns)))
        show(120, _curve_table(measurement, cluster), judged_line(measurement, cluster), *fit.notes)
        print(f"wrote {options.output}")


def _measure(backend: str | None, max_mib: int) -> Measurement | None:
    """Return the measurement of all ranks together; None on all ranks but 0."""
    from profiles.measuring.linking.times import measure  # noqa: PLC0415  importing torch takes seconds

    place = launched_place()
    assert place is not None
    return measure(place, backend, max_mib * 2**20)
