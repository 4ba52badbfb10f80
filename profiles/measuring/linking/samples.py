"""Link samples: times measured on the links of a machine, by ``sim measure links`` or by nccl-tests.

Logs of nccl-tests are read by their headers, and refused where they are cut short or are something else.

Source: nccl-tests, src/common.cu (the layout), doc/PERFORMANCE.md (algorithm and bus bandwidth). ``size`` is the
larger of the buffers sent and received, which is what ``collective_time`` counts.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from profiles.costs.layers import FloatArray
from profiles.errors import InputError
from profiles.files import parse_number, read_text
from profiles.machines.collectives import Group, bus_volume
from profiles.measuring.machine import NOT_KNOWN
from profiles.measuring.tables import grouped
from profiles.measuring.writing import csv_text
from profiles.units import GB, MICROSECOND

PING_PONG: Final = "ping_pong"
"""One message from one device to another: half a round trip. All other operations are those of a cluster file."""
COLUMNS: Final = (
    *("operation", "group_size", "num_nodes", "pair", "beside_compute", "held_back"),
    *("size_bytes", "us"),
)
TESTS: Final = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
"""Operations by the name of their test, less ``_perf``."""
HEADER: Final = {"size", "time", "algbw", "busbw"}
NOISE: Final = re.compile(r"NCCL (INFO|WARN|VERSION|TRACE)|^NCCL version")
RANK: Final = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s+\S+\s+\[\S+\]\s*(.*)")
CLOSE: Final = 0.03
"""Largest relative difference from the printed bus bandwidth, which is rounded; beyond, it is another operation."""

CurveKey = tuple[str, Group]
"""Operation and members, of which there are times by size."""
Line = tuple[str, str]
"""File and number of a line, and its text."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of one call of an operation: ``ping_pong`` of a pair, or one of those of ``collective_time``.

    ``size_bytes`` are as there; ``beside_compute`` says that every device computed meanwhile.
    """

    operation: str
    group: Group
    size_bytes: float
    seconds: float
    beside_compute: bool = False
    pair: tuple[int, ...] = ()

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

    Links are fitted to ``samples``, of odd rounds, and judged by those ``held_back``, of even rounds without compute;
    logs have none of the latter. ``slowdowns`` are seconds of compute beside a collective over those alone, by
    operation; ``other_cores`` the cores that other programs kept busy on the busiest node, NaN where that is not known.
    ``environment`` says in one sentence what ran where.
    """

    devices_per_node: int
    num_nodes: int
    environment: str
    samples: tuple[Sample, ...]
    slowdowns: tuple[tuple[str, float], ...] = ()
    other_cores: float = NOT_KNOWN
    held_back: tuple[Sample, ...] = ()

    def idle(self) -> list[Sample]:
        """Samples without compute beside them."""
        return [sample for sample in self.samples if not sample.beside_compute]

    def judges(self) -> list[Sample]:
        """Idle samples by which a fit is judged: those held back, or all if none were."""
        return list(self.held_back) or self.idle()


def by_curve(samples: Iterable[Sample]) -> dict[CurveKey, list[Sample]]:
    """Samples by operation and members."""
    return grouped(samples, lambda sample: sample.curve)


def by_pair(samples: Iterable[Sample]) -> dict[tuple[int, ...], list[Sample]]:
    """Ping-pong samples of each pair."""
    return grouped((s for s in samples if s.operation == PING_PONG and s.pair), lambda sample: sample.pair)


def seconds_of(samples: Iterable[Sample]) -> FloatArray:
    """Measured seconds."""
    return np.array([sample.seconds for sample in samples])


def sample_text(measurement: Measurement) -> str:
    """Samples as CSV."""
    rows: list[list[object]] = []
    for samples, held_back in ((measurement.samples, "no"), (measurement.held_back, "yes")):
        for one in samples:
            pair, beside = "-".join(map(str, one.pair)), "yes" if one.beside_compute else "no"
            where = [one.operation, one.group.size, one.group.num_nodes, pair, beside, held_back]
            rows.append([*where, f"{one.size_bytes:.0f}", f"{one.seconds / MICROSECOND:.3f}"])
    return csv_text(COLUMNS, rows)


class Log(NamedTuple):
    """One log of nccl-tests: its operation, its ranks and its rows."""

    operation: str
    group: Group
    gpu: str
    samples: tuple[Sample, ...]


def read_logs(paths: Sequence[Path]) -> Measurement:
    """The measurement in logs of nccl-tests; InputError where one is cut short, no such log, or of too few ranks."""
    logs = [read_log(path) for path in paths]
    gpus = sorted({log.gpu for log in logs if log.gpu})
    tests = ", ".join(f"{log.operation} of {log.group.size} over {log.group.num_nodes} nodes" for log in logs)
    read = f"logs of nccl-tests, read {date.today().isoformat()} by sim measure links: {tests}"
    environment = f"{read}; GPU: {', '.join(gpus) or 'not named'}; out-of-place times"
    size = (
        max(log.group.size // log.group.num_nodes for log in logs),
        max(log.group.num_nodes for log in logs),
    )
    return Measurement(*size, environment, tuple(sample for log in logs for sample in log.samples))


def read_log(path: Path) -> Log:
    """The measurement in one log of nccl-tests; InputError as for ``read_logs``."""
    lines = [(f"{path}:{number}", line) for number, line in enumerate(read_text(path).splitlines(), start=1)]
    comments = (at for at, (_, line) in enumerate(lines) if line.startswith("#"))
    header = next((at for at in comments if set(lines[at][1].split()) >= HEADER), None)
    if header is None:
        where = lines[0][0] if lines else f"{path}:1"
        raise InputError(f"{where}: no log of nccl-tests: no header '# size count type ... time algbw busbw'")
    columns = lines[header][1].lstrip("# ").split()
    where, units = lines[header + 1] if header + 1 < len(lines) else lines[header]
    if not units.startswith("#") or "(B)" not in units or "(us)" not in units:
        raise InputError(f"{where}: expected the units, '# (B) (elements) ... (us) (GB/s) (GB/s)'")
    ranks = [match for _, line in lines[:header] if (match := RANK.match(line))]
    if len(ranks) < 2:
        raise InputError(f"{lines[header][0]}: names {len(ranks)} ranks above its header, needs at least 2")
    group = _group(lines[header][0], [rank[2] for rank in ranks])
    operation = _operation(path, [line for _, line in lines])
    rows = _rows(lines[header + 2 :], columns, where)
    if not rows:
        raise InputError(f"{lines[-1][0]}: ends without a row of times")
    samples = tuple(_sample(where, row, operation, group) for where, row in rows if row["size"] != "0")
    return Log(operation, group, ranks[0][3].strip(), samples)


def _group(where: str, hosts: list[str]) -> Group:
    num_nodes = len(set(hosts))
    if len(hosts) % num_nodes or any(hosts.count(host) * num_nodes != len(hosts) for host in set(hosts)):
        raise InputError(f"{where}: {len(hosts)} ranks on {num_nodes} hosts, must be equally many on each")
    return Group(len(hosts), num_nodes)


def _operation(path: Path, lines: list[str]) -> str:
    """Operation by the name that newer logs state, or by the file's name."""
    stated = [line for line in lines if line.startswith("#") and "_perf" in line]
    for text in (*stated, path.name):
        for test, operation in TESTS.items():
            if re.search(rf"(?<![a-z]){test}(?![a-z])", text):
                return operation
    known = ", ".join(f"{test}_perf" for test in TESTS)
    raise InputError(f"{path}:1: neither the log nor its file name says which test it is of; known: {known}")


def _rows(lines: list[Line], columns: list[str], header: str) -> list[tuple[str, dict[str, str]]]:
    """Rows from the header to the summary, each as a mapping with its first (out-of-place) times."""
    rows: list[tuple[str, dict[str, str]]] = []
    for where, line in lines:
        words = line.split()
        if line.startswith("#"):
            if "Avg bus bandwidth" in line:
                return rows
            continue
        if not words or NOISE.search(line):
            continue
        if len(words) != len(columns):
            raise InputError(f"{where}: has {len(words)} columns, the header has {len(columns)}: cut short?")
        rows.append((where, dict(reversed(list(zip(columns, words, strict=True))))))
    where = lines[-1][0] if lines else header
    raise InputError(f"{where}: ends before the line '# Avg bus bandwidth': cut short")


def _sample(where: str, row: dict[str, str], operation: str, group: Group) -> Sample:
    wrong = row.get("#wrong", row.get("wrong", "0"))
    if wrong not in ("0", "N/A"):
        raise InputError(f"{where}: #wrong is {wrong}, must be 0: these results are not to be trusted")
    size = parse_number(where, "size", row["size"], minimum=1, whole=True)
    seconds = parse_number(where, "time", row["time"]) * MICROSECOND
    if seconds == 0:
        raise InputError(f"{where}: time is 0, must be positive")
    printed = parse_number(where, "busbw", row["busbw"])
    sample = Sample(operation, group, size, seconds)
    bus = sample.bus_gb_per_s
    if abs(bus - printed) > 0.01 + CLOSE * bus:
        rate = f"{bus_volume(operation, group.size):g} * {size:g} B / {seconds / MICROSECOND:g} us = {bus:.2f} GB/s"
        raise InputError(f"{where}: busbw is {printed:g}, but {operation} of {group.size} gives {rate}")
    return sample
