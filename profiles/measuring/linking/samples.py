"""Times of collectives: measured ones, or those in logs of nccl-tests, which are refused where they are cut short.

Source: nccl-tests, src/common.cu (the layout), doc/PERFORMANCE.md (algorithm and bus bandwidth). ``size`` is the
larger of the buffers sent and received, which is what ``collective_time`` counts.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import numpy as np

from profiles.errors import InputError
from profiles.files import parse_number, read_text
from profiles.machines.collectives import Group, bus_volume
from profiles.measuring.fitting.collective_laws import MeasuredCurve
from profiles.measuring.writing import grouped
from profiles.units import GB, MICROSECOND

TESTS: Final = {name: name for name in ("all_reduce", "all_gather", "reduce_scatter")} | {
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
}
"""Operations by the name of their test, less ``_perf``."""
HEADER: Final = {"size", "time", "algbw", "busbw"}
RANK: Final = re.compile(r"^#\s+Rank\s+\d+\s.*?\bon\s+(\S+)\s+device\s+\S+\s+\[\S+\]\s*(.*)", re.MULTILINE)
CLOSE: Final = 0.03
"""Largest relative difference from the printed bus bandwidth, which is rounded; beyond, it is another operation."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything that was measured on a machine.

    Links are fitted to ``curves``, of odd rounds, and judged by those ``held_back``, of even rounds; logs
    have none of the latter. ``slowdowns`` are seconds of compute beside a collective over those alone, by
    operation. ``environment`` says in one sentence what ran where.
    """

    devices_per_node: int
    num_nodes: int
    environment: str
    curves: tuple[MeasuredCurve, ...]
    slowdowns: tuple[float, ...] = ()
    held_back: tuple[MeasuredCurve, ...] = ()

    def judges(self) -> tuple[MeasuredCurve, ...]:
        """Curves by which a fit is judged: those held back, or all if none were."""
        return self.held_back or self.curves


def merged(curves: Iterable[MeasuredCurve]) -> tuple[MeasuredCurve, ...]:
    """Curves of which none has the operation and the members of another."""
    groups = grouped(curves, lambda curve: (curve.operation, curve.group))
    columns = ((key, zip(*(curve[2:] for curve in alike), strict=True)) for key, alike in groups.items())
    return tuple(MeasuredCurve(*key, *map(np.concatenate, values)) for key, values in columns)


def read_logs(paths: Sequence[Path]) -> Measurement:
    """Return the measurement in logs of nccl-tests; InputError where one is cut short or no such log."""
    logs = [read_log(path) for path in paths]
    curves, groups = [curve for curve, _ in logs], [curve.group for curve, _ in logs]
    tests = ", ".join(
        f"{curve.operation} of {curve.group.size} over {curve.group.num_nodes} nodes" for curve in curves
    )
    gpus = ", ".join(sorted({gpu for _, gpu in logs if gpu})) or "not named"
    read = f"logs of nccl-tests, read {date.today().isoformat()} by sim measure links: {tests}"
    size = max(group.members for group in groups), max(group.num_nodes for group in groups)
    return Measurement(*size, f"{read}; GPU: {gpus}; out-of-place times", merged(curves))


def read_log(path: Path) -> tuple[MeasuredCurve, str]:
    """Return the curve of one log of nccl-tests, and its GPU; InputError as for ``read_logs``."""
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
    times = [_time(where, columns, words, operation, group) for where, words in rows if words[0] != "0"]
    if not times:
        raise InputError(f"{path}: has no row of times")
    sizes, seconds = np.array(times).T
    return MeasuredCurve(operation, group, sizes, seconds), ranks[0][1].strip()


def _operation(path: Path, text: str) -> str:
    """Operation by the name that newer logs state, or by the file's name."""
    stated = [line for line in text.splitlines() if line.startswith("#") and "_perf" in line]
    for name in (*stated, path.name):
        for test, operation in TESTS.items():
            if re.search(rf"(?<![a-z]){test}(?![a-z])", name):
                return operation
    known = ", ".join(f"{test}_perf" for test in TESTS)
    raise InputError(f"{path}:1: neither the log nor its file name says which test it is of; known: {known}")


def _time(
    where: str, columns: list[str], words: list[str], operation: str, group: Group
) -> tuple[float, float]:
    """Bytes and seconds of a row."""
    if len(words) != len(columns):
        raise InputError(f"{where}: has {len(words)} columns, the header has {len(columns)}: cut short?")
    row = dict(reversed(list(zip(columns, words, strict=True))))  # the first times are out of place
    wrong = row.get("#wrong", row.get("wrong", "0"))
    if wrong not in ("0", "N/A"):
        raise InputError(f"{where}: #wrong is {wrong}, must be 0: these results are not to be trusted")
    size, time_us, printed = (parse_number(where, key, row[key]) for key in ("size", "time", "busbw"))
    if time_us == 0:
        raise InputError(f"{where}: time is 0, must be positive")
    bus = bus_volume(operation, group.size) * size / (time_us * MICROSECOND) / GB
    if abs(bus - printed) > 0.01 + CLOSE * bus:
        rate = f"{bus_volume(operation, group.size):g} * {size:g} B / {time_us:g} us = {bus:.2f} GB/s"
        raise InputError(f"{where}: busbw is {printed:g}, but {operation} of {group.size} gives {rate}")
    return size, time_us * MICROSECOND
