"""Inputs of serving: traces, mixes, SLOs and prices, read from files and words."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Final

import profiles
from profiles.costs.resolutions import sides_of
from profiles.errors import InputError, counted
from profiles.files import Row, Table, read_rows
from profiles.names import file_of
from sim.serving.load import Kind, Trace
from sim.serving.options import positive
from strategies.policy import Shape

TRAFFIC: Final = Path(profiles.__file__).parent / "traffic"
"""Mixes that are shipped."""
NEEDED: Final = ("arrival_s", "height", "width", "frames", "steps")
OPTIONAL: Final = ("guidance", "deadline_s", "latency_s")
"""Columns of a trace; a deadline is in seconds after the arrival."""
Alone = Callable[[Shape], float]
"""Seconds of a request alone on the fewest GPUs."""


def slo_s(value: float | str | None, shape: Shape, alone: Alone) -> float:
    """Return the seconds of an SLO: as given, or times the seconds of a request alone; infinite without one.

    Raises:
        InputError: it is neither.
    """
    if value is None:
        return inf
    if isinstance(value, str) and value.endswith("x"):
        return positive("slo", value[:-1]) * alone(shape)
    return positive("slo", value)


def read_mix(name: str, usual: Shape, slo: float | str | None, alone: Alone) -> tuple[Kind, ...]:
    """Return the classes of a mix, a shipped one or a file; what a class does not say is as usual.

    Raises:
        InputError: the file cannot be read, a value breaks its rule, or shares do not add up.
    """
    path = file_of("mix", name, TRAFFIC)
    table = Table.read(path)
    for key in ("title", "source"):
        table.text(key, "-")
    kinds = [_kind_of(of, usual, slo, alone) for of in table.tables("class")]
    table.finish()
    if not kinds:
        raise InputError(f"{path}: has no class")
    total = sum(kind.share for kind in kinds)
    if abs(total - 1) > 1e-6:
        classes = counted(len(kinds), "class", "classes")
        raise InputError(f"{path}: share: those of its {classes} add up to {total:g}, must be 1")
    return tuple(kinds)


def _kind_of(of: Table, usual: Shape, slo: float | str | None, alone: Alone) -> Kind:
    """Return a class of a mix."""
    size, wanted = of.values().get("resolution"), of.values().get("slo", slo)
    for key, value in (("resolution", size), ("slo", wanted)):
        if key in of:
            _ = of.text(key) if isinstance(value, str) else of.positive(key)
    with _naming(of):
        height, width = (usual.height, usual.width) if size is None else sides_of(str(size))
    frames, steps = (of.integer(key, getattr(usual, key), minimum=1) for key in ("frames", "steps"))
    guidance = of.text("guidance") if "guidance" in of else usual.guidance
    shape, share = Shape(height, width, frames, steps, guidance), of.positive("share", maximum=1)
    of.finish()
    with _naming(of):
        return Kind(share, shape, slo_s(wanted, shape, alone))


@contextmanager
def _naming(of: Table | Row) -> Iterator[None]:
    """Let errors name the file."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{of.where}: {error}") from None


def read_trace(path: Path, slo: float | str | None, alone: Alone) -> tuple[tuple[Kind, ...], Trace]:
    """Return the classes of a trace and its requests; a deadline goes before the SLO.

    Raises:
        InputError: the file cannot be read, a value breaks its rule, or arrivals are not sorted.
    """
    kinds: dict[tuple[Shape, float], int] = {}
    known: dict[Shape, float] = {}
    arrivals: list[float] = []
    order: list[int] = []
    latencies: list[float] = []
    for row in read_rows(path, NEEDED, OPTIONAL):
        cells, arrival_s = row.values(), row.number("arrival_s")
        if arrivals and arrival_s < arrivals[-1]:
            raise row.fail("arrival_s", f"must not be before the {arrivals[-1]:g} above it")
        height, width, frames, steps = (row.integer(name, minimum=1) for name in NEEDED[1:])
        shape = Shape(height, width, frames, steps, cells.get("guidance") or "")
        if shape not in known:
            with _naming(row):
                known[shape] = slo_s(slo, shape, alone)
        if cells.get("latency_s"):
            latencies.append(row.positive("latency_s"))
        arrivals.append(arrival_s)
        wanted_s = row.positive("deadline_s") if cells.get("deadline_s") else known[shape]
        order.append(kinds.setdefault((shape, wanted_s), len(kinds)))
    if len(order) < 2:
        raise InputError(f"{path}: must have at least 2 requests")
    if latencies and len(latencies) != len(order):
        raise InputError(f"{path}: latency_s: must be given for every request or for none")
    counts = Counter(order)
    every = tuple(Kind(counts[number] / len(order), *kind) for kind, number in kinds.items())
    since_first_s = tuple(arrival_s - arrivals[0] for arrival_s in arrivals)
    return every, Trace(since_first_s, tuple(order), tuple(latencies))


def prices_of(value: float | str | None, clusters: Sequence[str]) -> Mapping[str, float | None]:
    """Return dollars a GPU-hour by cluster: one number for all, or those of a TOML file.

    Raises:
        InputError: it is none, or a cluster has none.
    """
    if not isinstance(value, str) or not value.endswith(".toml"):
        return dict.fromkeys(clusters, None if value is None else positive("price", value))
    table = Table.read(Path(value))
    return {name: table.positive(name) for name in clusters}
