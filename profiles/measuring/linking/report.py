"""The command ``links``: the cluster file that fits measured times, and these beside those of that file.

Errors are those of rounds to which the file was not fitted; for logs, which have no rounds, of what it was fitted to.
"""

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from rich.table import Table

from profiles.errors import InputError
from profiles.machines.clusters import Cluster, Link, read_cluster
from profiles.machines.devices import load_device
from profiles.machines.fabrics import FULL, FULL_CURVES, Between, Collectives
from profiles.measuring.fitting.collective_laws import (
    PING_PONG,
    MeasuredCurve,
    errors_of,
    fit_between,
    fit_inside,
    law_values,
    measured_operations,
    stand_in_of,
)
from profiles.measuring.fitting.least_squares import fit_law
from profiles.measuring.launching import check_least, launch, launched_place
from profiles.measuring.linking.samples import Measurement, read_logs
from profiles.measuring.writing import Exact, show, table, toml_text
from profiles.outputs import check_writable, whole_file
from profiles.units import GB, MICROSECOND

NVSWITCH: Final = "nvswitch"
PCIE: Final = "pcie"
BOUND: Final = 0.999
"""Share of the bandwidth of single messages from which on a fitted share is at its bound."""


class LinkFit(NamedTuple):
    """A fitted cluster, and notes on what was not measured, was bounded or does not fit, one sentence each."""

    cluster: Cluster
    notes: tuple[str, ...]


def fit_links(measurement: Measurement, name: str, device: str, kind: str = NVSWITCH) -> LinkFit:
    """Cluster that fits the measured times; InputError where they do not determine a link.

    A PCIe link is fitted by its ports alone: what devices share shows in the efficiencies of groups.
    """
    notes = list[str]()
    cluster = _ports(measurement, name, device, kind, notes)
    curves = [curve for curve in measurement.curves if curve.operation != PING_PONG]
    inside, between = (
        [curve for curve in curves if (curve.group.num_nodes > 1) == across] for across in (False, True)
    )
    if not curves:
        notes.append("collectives: not measured; as fast as their ports allow")
    if inside:
        cluster = fit_inside(cluster, inside)
        cluster = replace(cluster, intra_node=_split(cluster.intra_node, cluster.collectives))
        notes += _law_notes(cluster.collectives, inside, "")
    if between:
        cluster = fit_between(cluster, between)
        law, link = cluster.collectives.between, cluster.inter_node
        assert law is not None and link is not None
        cluster = replace(cluster, inter_node=_split(link, law))
        notes += _law_notes(law, between, " between nodes")
    return LinkFit(cluster, tuple(notes))


def _ports(measurement: Measurement, name: str, device: str, kind: str, notes: list[str]) -> Cluster:
    """Cluster with its ports' bandwidths; the fixed time of each link still counts as software."""
    inside, curves = Link("ideal", float("inf"), 0.0, 0.0), measurement.curves
    if measurement.devices_per_node > 1:
        inside = _link(curves, 1, kind, notes, measurement.devices_per_node)
    between = _link(curves, 2, "nic", notes) if measurement.num_nodes > 1 else None
    slowdown = max(1.0, median(measurement.slowdowns or (1.0,)))
    size = measurement.devices_per_node, measurement.num_nodes
    free = Collectives(0.0, FULL_CURVES, FULL)
    gpu = load_device(device)
    return Cluster(name, measurement.environment, gpu, *size, slowdown, inside, between, free)


def _link(
    curves: Sequence[MeasuredCurve], num_nodes: int, kind: str, notes: list[str], devices: int = 0
) -> Link:
    """Link by the times of single messages: ping-pong, else a round of two; else by the fastest collective."""
    where = "inside a node" if num_nodes == 1 else "between nodes"
    here = [curve for curve in curves if (curve.group.num_nodes > 1) == (num_nodes > 1)]
    if not here:
        raise InputError(f"nothing was measured {where}: pass send_recv of 2 ranks, or any collective, there")
    pairs = {curve.operation: curve for curve in here if curve.group.size == 2}
    single = pairs.get(PING_PONG) or pairs.get("send_recv")
    laws = [fit_law(curve.bus_bytes, curve.seconds) for curve in ([single] if single else here)]
    law = min(laws, key=lambda law: law.s_per_unit)
    if not single:
        estimate = "an estimate, the bandwidth and fixed time of the fastest collective"
        notes.append(f"messages {where}: not measured; {estimate}")
    if law.s_per_unit <= 0:
        rule = "their times do not grow with their bytes; measure larger ones, or on a quieter machine"
        raise InputError(f"messages {where}: {rule}")
    bandwidth = 1 / law.s_per_unit
    shared = (devices, bandwidth, bandwidth) if kind == PCIE else ()
    return Link(kind, bandwidth, 0.0, law.fixed_s, *shared)


def _split(link: Link, law: Collectives | Between) -> Link:
    """Link whose messages take a step on the wire; the rest of their fixed time is software."""
    latency_s = min(law.step_s or 0.0, link.call_s)
    return replace(link, latency_s=latency_s, call_s=link.call_s - latency_s)


def _law_notes(law: Collectives | Between, curves: Sequence[MeasuredCurve], where: str) -> Iterator[str]:
    """Operations that were not measured, and shares at their bound."""
    measured = measured_operations(curves)
    for operation, points in law.efficiency:
        if operation not in measured:
            stand_in = stand_in_of(operation, measured, between=isinstance(law, Between))
            yield f"{operation}{where}: not measured; as {stand_in}"
        elif any(share > BOUND for _, share in points):
            yield f"{operation}{where}: bounded by the bandwidth of single messages"


CURVE_COLUMNS: Final = (
    "operation", "ranks", "nodes", "least us", "bus GB/s at most", "median error", "worst", "at bytes",
)  # fmt: skip


def _curve_table(measurement: Measurement, cluster: Cluster) -> Table:
    """Measured times, and how far the file's cluster is from them."""
    what = "times held back from the fit" if measurement.held_back else "times"
    rows = []
    for curve in measurement.judges():
        errors, at_most = errors_of(cluster, [curve]), float((curve.bus_bytes / curve.seconds).max()) / GB
        worst = int(abs(errors.relative).argmax())
        cells = [f"{errors.measured.min() / MICROSECOND:.1f}", f"{at_most:.3g}"]
        cells += [f"{100 * errors.median:.1f} %", f"{100 * errors.relative[worst]:+.0f} %"]
        cells.append(f"{curve.sizes[worst]:.0f}")
        rows.append([curve.operation, f"{curve.group.size}", f"{curve.group.num_nodes}", *cells])
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
        values |= {"switch_size": link.switch_size}
        values["switch_bandwidth_GB_per_s"] = link.switch_bandwidth_bytes_per_s / GB
        values["host_bandwidth_GB_per_s"] = link.host_bandwidth_bytes_per_s / GB
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
