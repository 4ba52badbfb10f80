"""The command ``links``: the cluster file that fits measured times, and these beside those of that file.

Errors are those of rounds to which the file was not fitted; for logs, which have no rounds, of what it was fitted to.

Times are those of ``sim measure links`` or of nccl-tests, whose logs are read by their headers, and refused where they
are cut short or are something else.

Source: nccl-tests, src/common.cu (the layout), doc/PERFORMANCE.md (algorithm and bus bandwidth). ``size`` is the
larger of the buffers sent and received, which is what ``collective_time`` counts.
"""

import argparse
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from rich.table import Table

from profiles.errors import InputError
from profiles.files import parse_number, read_text
from profiles.machines.clusters import Cluster, Link, read_cluster
from profiles.machines.collectives import Group, bus_volume, collective_time
from profiles.machines.devices import load_device
from profiles.machines.fabrics import FULL, FULL_CURVES, Between, Collectives
from profiles.measuring.fitting.collective_laws import (
    MeasuredCurve,
    fit_between,
    fit_inside,
    law_values,
    measured_operations,
    stand_in_of,
)
from profiles.measuring.fitting.least_squares import Errors, fit_law
from profiles.measuring.launching import check_least, launch, launched_place
from profiles.measuring.writing import Exact, grouped, show, table, toml_text
from profiles.outputs import check_writable, whole_file
from profiles.units import GB, MICROSECOND, FloatArray

PING_PONG: Final = "ping_pong"
"""One message from one device to another: half a round trip. All other operations are those of a cluster file."""
TESTS: Final = {name: name for name in ("all_reduce", "all_gather", "reduce_scatter")} | {
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
"""Operations by the name of their test, less ``_perf``."""
HEADER: Final = {"size", "time", "algbw", "busbw"}
RANK: Final = re.compile(r"^#\s+Rank\s+\d+\s.*?\bon\s+(\S+)\s+device\s+\S+\s+\[\S+\]\s*(.*)", re.MULTILINE)
CLOSE: Final = 0.03
"""Largest relative difference from the printed bus bandwidth, which is rounded; beyond, it is another operation."""

CurveKey = tuple[str, Group]
"""Operation and members, of which there are times by size."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of one call of an operation: ``ping_pong`` of a pair, or one of those of ``collective_time``.

    ``size_bytes`` are as there.
    """

    operation: str
    group: Group
    size_bytes: float
    seconds: float

    @property
    def curve(self) -> CurveKey:
        """Operation and members."""
        return self.operation, self.group

    @property
    def bus_gb_per_s(self) -> float:
        """Bus bandwidth in GB/s, as nccl-tests prints it."""
        factor = 1.0 if self.operation == PING_PONG else bus_volume(self.operation, self.group.size)
        return factor * self.size_bytes / self.seconds / GB


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything that was measured on a machine.

    Links are fitted to ``samples``, of odd rounds, and judged by those ``held_back``, of even rounds; logs
    have none of the latter. ``slowdowns`` are seconds of compute beside a collective over those alone, by
    operation. ``environment`` says in one sentence what ran where.
    """

    devices_per_node: int
    num_nodes: int
    environment: str
    samples: tuple[Sample, ...]
    slowdowns: tuple[tuple[str, float], ...] = ()
    held_back: tuple[Sample, ...] = ()

    def judges(self) -> tuple[Sample, ...]:
        """Samples by which a fit is judged: those held back, or all if none were."""
        return self.held_back or self.samples


def by_curve(samples: Iterable[Sample]) -> dict[CurveKey, list[Sample]]:
    """Samples by operation and members."""
    return grouped(samples, lambda sample: sample.curve)


def seconds_of(samples: Iterable[Sample]) -> FloatArray:
    """Measured seconds."""
    return np.array([sample.seconds for sample in samples])


def read_logs(paths: Sequence[Path]) -> Measurement:
    """Return the measurement in logs of nccl-tests; InputError where one is cut short or no such log."""
    logs = [read_log(path) for path in paths]
    curves = [samples[0].curve for samples, _ in logs]
    groups = [group for _, group in curves]
    tests = ", ".join(f"{name} of {of.size} over {of.num_nodes} nodes" for name, of in curves)
    gpus = ", ".join(sorted({gpu for _, gpu in logs if gpu})) or "not named"
    read = f"logs of nccl-tests, read {date.today().isoformat()} by sim measure links: {tests}"
    size = max(group.size // group.num_nodes for group in groups), max(group.num_nodes for group in groups)
    samples = tuple(sample for of_log, _ in logs for sample in of_log)
    return Measurement(*size, f"{read}; GPU: {gpus}; out-of-place times", samples)


def read_log(path: Path) -> tuple[list[Sample], str]:
    """Return the samples of one log of nccl-tests, and its GPU; InputError as for ``read_logs``."""
    text = read_text(path)
    lines = [(f"{path}:{number}", line) for number, line in enumerate(text.splitlines(), start=1)]
    columns = next((line[1:].split() for _, line in lines if {*line[1:].split()} >= HEADER), None)
    ranks = RANK.findall(text)
    if columns is None or len(ranks) < 2:
        rule = f"{len(ranks)} ranks and {'a' if columns else 'no'} header '# size count type ... time algbw busbw'"
        raise InputError(f"{path}: is no log of nccl-tests of at least 2 ranks: it has {rule}")
    if "Avg bus bandwidth" not in text:
        raise InputError(f"{lines[-1][0]}: ends before the line '# Avg bus bandwidth': cut short")
    hosts = Counter(host for host, _ in ranks)
    if len(set(hosts.values())) > 1:
        rule = "must be equally many on each"
        raise InputError(f"{path}: {len(ranks)} ranks on {len(hosts)} hosts, {rule}")
    operation, group = _operation(path, text), Group(len(ranks), len(hosts))
    rows = [(where, line.split()) for where, line in lines if line.split()[:1] and line.split()[0].isdigit()]
    samples = [_sample(where, columns, words, operation, group) for where, words in rows if words[0] != "0"]
    if not samples:
        raise InputError(f"{path}: has no row of times")
    return samples, ranks[0][1].strip()


def _operation(path: Path, text: str) -> str:
    """Operation by the name that newer logs state, or by the file's name."""
    stated = [line for line in text.splitlines() if line.startswith("#") and "_perf" in line]
    for name in (*stated, path.name):
        for test, operation in TESTS.items():
            if re.search(rf"(?<![a-z]){test}(?![a-z])", name):
                return operation
    known = ", ".join(f"{test}_perf" for test in TESTS)
    raise InputError(f"{path}:1: neither the log nor its file name says which test it is of; known: {known}")


def _sample(where: str, columns: list[str], words: list[str], operation: str, group: Group) -> Sample:
    if len(words) != len(columns):
        raise InputError(f"{where}: has {len(words)} columns, the header has {len(columns)}: cut short?")
    row = dict(reversed(list(zip(columns, words, strict=True))))  # the first times are out of place
    wrong = row.get("#wrong", row.get("wrong", "0"))
    if wrong not in ("0", "N/A"):
        raise InputError(f"{where}: #wrong is {wrong}, must be 0: these results are not to be trusted")
    size, time_us, printed = (parse_number(where, key, row[key]) for key in ("size", "time", "busbw"))
    if time_us == 0:
        raise InputError(f"{where}: time is 0, must be positive")
    sample = Sample(operation, group, size, time_us * MICROSECOND)
    bus = sample.bus_gb_per_s
    if abs(bus - printed) > 0.01 + CLOSE * bus:
        rate = f"{bus_volume(operation, group.size):g} * {size:g} B / {time_us:g} us = {bus:.2f} GB/s"
        raise InputError(f"{where}: busbw is {printed:g}, but {operation} of {group.size} gives {rate}")
    return sample


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
    curves = _collective_curves(measurement.samples)
    inside, between = (
        [of for of in curves if (of.group.num_nodes > 1) == across] for across in (False, True)
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


def predict(cluster: Cluster, sample: Sample) -> float:
    """Simulated seconds of an operation that nothing disturbs."""
    if sample.operation == PING_PONG:  # a message that has all ports on its way to itself
        link = cluster.intra_node if sample.group.num_nodes == 1 else cluster.inter_node
        assert link is not None
        return link.latency_s + link.call_s + sample.size_bytes / link.bandwidth_bytes_per_s
    return collective_time(cluster, sample.operation, sample.size_bytes, sample.group).total_s


def errors_of(cluster: Cluster, samples: Sequence[Sample]) -> Errors:
    """Errors of the simulated times on a cluster."""
    return Errors.of((sample.seconds, predict(cluster, sample)) for sample in samples)


def _ports(measurement: Measurement, name: str, device: str, kind: str, notes: list[str]) -> Cluster:
    """Cluster with its ports' bandwidths; the fixed time of each link still counts as software."""
    slowdowns = [factor for _, factor in measurement.slowdowns]
    inside, samples = Link("ideal", float("inf"), 0.0, 0.0), measurement.samples
    if measurement.devices_per_node > 1:
        inside = _link(samples, 1, kind, notes, measurement.devices_per_node)
    between = _link(samples, 2, "nic", notes) if measurement.num_nodes > 1 else None
    slowdown = max(1.0, median(slowdowns)) if slowdowns else 1.0
    size = measurement.devices_per_node, measurement.num_nodes
    free = Collectives(0.0, FULL_CURVES, FULL)
    of = load_device(device)
    return Cluster(name, measurement.environment, of, *size, slowdown, inside, between, free)


def _link(samples: Sequence[Sample], num_nodes: int, kind: str, notes: list[str], devices: int = 0) -> Link:
    where = "inside a node" if num_nodes == 1 else "between nodes"
    single = _messages(samples, num_nodes)
    if single:
        law = fit_law(np.array([sample.size_bytes for sample in single]), seconds_of(single))
    else:
        laws = [
            fit_law(np.array(curve.sizes) * bus_volume(curve.operation, curve.group.size), curve.seconds)
            for curve in _collective_curves(samples)
            if (curve.group.num_nodes > 1) == (num_nodes > 1)
        ]
        if not laws:
            raise InputError(
                f"nothing was measured {where}: pass send_recv of 2 ranks, or any collective, there"
            )
        law = min(laws, key=lambda law: law.s_per_unit)
        estimate = "an estimate, the bandwidth and fixed time of the fastest collective"
        notes.append(f"messages {where}: not measured; {estimate}")
    if law.s_per_unit <= 0:
        rule = "their times do not grow with their bytes; measure larger ones, or on a quieter machine"
        raise InputError(f"messages {where}: {rule}")
    bandwidth = 1 / law.s_per_unit
    shared = (devices, bandwidth, bandwidth) if kind == PCIE else ()
    return Link(kind, bandwidth, 0.0, law.fixed_s, *shared)


def _collective_curves(samples: Sequence[Sample]) -> list[MeasuredCurve]:
    curves = by_curve(sample for sample in samples if sample.operation != PING_PONG)
    return [MeasuredCurve(*key, [one.size_bytes for one in of], seconds_of(of)) for key, of in curves.items()]


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


def _messages(samples: Iterable[Sample], num_nodes: int) -> list[Sample]:
    """Single messages: ping-pong, else a round of two."""
    pairs = [sample for sample in samples if sample.group == Group(2, num_nodes)]
    chosen = [sample for sample in pairs if sample.operation == PING_PONG]
    return chosen or [sample for sample in pairs if sample.operation == "send_recv"]


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
