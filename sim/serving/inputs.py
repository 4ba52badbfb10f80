"""Inputs of serving: traces, mixes, SLOs and prices, read from files and words."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Final

import profiles
from profiles.costs.resolutions import sides_of
from profiles.errors import InputError, counted
from profiles.files import Table, read_rows
from profiles.names import file_of
from sim.serving.load import Kind, Trace
from sim.serving.options import positive
from strategies.policy import Shape

TRAFFIC: Final = Path(profiles.__file__).parent / "traffic"
"""Mixes that are shipped."""
NEEDED: Final = ("arrival_s", "height", "width", "frames", "steps")
OPTIONAL: Final = ("guidance", "deadline_s", "latency_s")
"""Columns of a trace; a deadline is in seconds after the arrival."""


def slo_of(value: float | str | None) -> tuple[float, bool]:
    """Return the number of an SLO, and whether it counts times alone in place of seconds; infinite without one."""
    times = isinstance(value, str) and value.endswith("x")
    return (inf if value is None else positive("slo", str(value)[:-1] if times else value)), times


def read_mix(name: str, usual: Shape, slo: float | str | None) -> list[Kind]:
    """Return the classes of a mix, a shipped one or a file; what a class does not say is as usual."""
    table = Table.read(file_of("mix", name, TRAFFIC))
    for key in ("title", "source"):
        table.text(key, "-")
    kinds = [_kind_of(of, usual, slo) for of in table.tables("class")]
    table.finish()
    if not kinds:
        raise InputError(f"{table.where}: has no class")
    total = sum(kind.share for kind in kinds)
    if abs(total - 1) > 1e-6:
        classes = counted(len(kinds), "class", "classes")
        raise InputError(f"{table.where}: share: those of its {classes} add up to {total:g}, must be 1")
    return kinds


def _kind_of(of: Table, usual: Shape, slo: float | str | None) -> Kind:
    """Return a class of a mix."""
    size, wanted = of.values().get("resolution"), of.values().get("slo", slo)
    for key, value in (("resolution", size), ("slo", wanted)):
        if key in of:
            _ = of.text(key) if isinstance(value, str) else of.positive(key)
    frames, steps = (of.integer(key, getattr(usual, key), minimum=1) for key in ("frames", "steps"))
    guidance = of.text("guidance") if "guidance" in of else usual.guidance
    share = of.positive("share", maximum=1)
    of.finish()
    try:
        height, width = (usual.height, usual.width) if size is None else sides_of(str(size))
        number, times = slo_of(wanted)
    except InputError as error:
        raise InputError(f"{of.where}: {error}") from None
    return Kind(share, Shape(height, width, frames, steps, guidance), number, times, of.where)


def read_trace(path: Path, slo: float | str | None) -> tuple[list[Kind], Trace]:
    """Return the classes of a trace and its requests; a deadline goes before the SLO."""
    usual, first = slo_of(slo), dict[tuple[Shape, float, bool], tuple[int, str]]()
    order: list[int] = []
    arrivals, latencies = list[float](), list[float]()
    for row in read_rows(path, NEEDED, OPTIONAL):
        cells, arrival_s = row.values(), row.number("arrival_s")
        if arrivals and arrival_s < arrivals[-1]:
            raise row.fail("arrival_s", f"must not be before the {arrivals[-1]:g} above it")
        arrivals.append(arrival_s)
        height, width, frames, steps = (row.integer(name, minimum=1) for name in NEEDED[1:])
        shape = Shape(height, width, frames, steps, cells.get("guidance") or "")
        wanted = (row.positive("deadline_s"), False) if cells.get("deadline_s") else usual
        order.append(first.setdefault((shape, *wanted), (len(first), row.where))[0])
        if cells.get("latency_s"):
            latencies.append(row.positive("latency_s"))
    if len(order) < 2:
        raise InputError(f"{path}: must have at least 2 requests")
    if latencies and len(latencies) != len(order):
        raise InputError(f"{path}: latency_s: must be given for every request or for none")
    counts = Counter(order)
    kinds = [Kind(counts[number] / len(order), *kind, where) for kind, (number, where) in first.items()]
    since_first_s = tuple(arrival_s - arrivals[0] for arrival_s in arrivals)
    return kinds, Trace(since_first_s, tuple(order), tuple(latencies))


def prices_of(value: float | str | None, clusters: Sequence[str]) -> Mapping[str, float | None]:
    """Return dollars a GPU-hour by cluster: one number for all, or those of a TOML file."""
    if not isinstance(value, str) or not value.endswith(".toml"):
        return dict.fromkeys(clusters, None if value is None else positive("price", value))
    table = Table.read(Path(value))
    return {name: table.positive(name) for name in clusters}
