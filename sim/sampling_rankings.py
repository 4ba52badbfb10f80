"""The tables of a sampling sweep: the best of each method, and the best of all."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.table import Table

from profiles.units import GIB
from sim.points import Point
from sim.sampling import SamplingResult
from sim.standings import front, shown
from sim.sweep import Sweep

COLUMNS: Final = (
    "#", "strategy", "GPUs", "degrees", "patches", "latency", "over one GPU", "GPU-s per image", "bubble",
    "peak memory",
)  # fmt: skip


def strategies_table(sweep: Sweep, simulated: list[Point]) -> Table:
    """Return the best point of each strategy."""
    workload, model = sweep.scenario.workload, sweep.scenario.model
    title = f"best of each strategy: {model.title}, on up to {workload.num_gpus} GPUs of {sweep.scenario.cluster.name}"
    return _table(simulated, shown(simulated, []), title)


def top_table(sweep: Sweep, simulated: list[Point]) -> Table:
    """Return the best points; those of the Pareto front where that is asked for."""
    if sweep.objective == "pareto":
        chosen = {id(point) for point in front(simulated)}
        best = [(rank, point) for rank, point in enumerate(simulated, 1) if id(point) in chosen]
        return _table(simulated, best, "no point beats these in both latency and memory")
    return _table(simulated, enumerate(simulated[: sweep.top], 1), f"best by {sweep.objective}")


def _table(simulated: list[Point], ranks: Iterable[tuple[int, Point]], title: str) -> Table:
    table = Table(*COLUMNS, title=title)
    one = next((point.result for point in simulated if point.num_gpus == 1), None)
    ranks = list(ranks)
    if seams := sorted({point.name for _, point in ranks if not point.seamless}):
        table.caption = f"{', '.join(seams)}: seams show, so not recommended, and ranked last"
    for rank, point in ranks:
        assert isinstance(point.result, SamplingResult)
        speedup = "-" if one is None else f"{point.result.samples_per_s / one.samples_per_s:.2f}"
        table.add_row(str(rank), *_row(point.result, speedup))
    return table


def _row(result: SamplingResult, speedup: str) -> list[str]:
    return [
        result.strategy,
        str(result.num_gpus),
        _degrees(result.parameters),
        str(result.parameters.get("patches") or "-"),
        f"{result.expected.latency_s:,.3f} s",
        speedup,
        f"{result.gpu_s_per_sample:,.2f}",
        f"{result.bubble_ratio:.1%}",
        f"{result.expected.peak_memory_bytes / GIB:.1f} GiB",
    ]


def _degrees(parameters: Mapping[str, Any]) -> str:
    """Return the degrees above 1, in words."""
    named = (
        (key.removesuffix("_degree"), value) for key, value in parameters.items() if key.endswith("_degree")
    )
    return ", ".join(f"{name} {value}" for name, value in named if value is not None and value > 1) or "-"
