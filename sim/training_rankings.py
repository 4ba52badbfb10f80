"""The table of a training sweep: its best points, and the best of each strategy."""

from typing import Final

from rich.table import Table

from profiles.units import GIB
from sim.experiment import TrainingResult
from sim.points import Point
from sim.standings import SHAPE, front, shown, tried
from sim.sweep import Sweep
from sim.tables import milliseconds
from strategies.registry import baselines

BEST: Final = 10
"""Rows of the table of the best."""


def training_table(sweep: Sweep, simulated: list[Point]) -> Table:
    """Return the best points of a sweep, and the best of each strategy among them."""
    scenario, workload = sweep.scenario, sweep.scenario.workload
    compared = baselines("train")
    table = Table(
        "#", "strategy", "P", "M", "D", "more", "iteration", "samples/s", f"over {' or '.join(compared)}", "bubble",
        "peak memory",
        title=f"{scenario.model.title} on {workload.num_gpus} GPUs of {scenario.cluster.name}, batch"
        f" {workload.batch_size}",
    )  # fmt: skip
    results = [point.result for point in simulated if isinstance(point.result, TrainingResult)]
    against = [result for result in results if result.strategy in compared]
    baseline = max(against, key=lambda result: result.samples_per_s, default=None)
    if sweep.objective == "memory":  # the fastest is not among them for sure
        baseline = None
    values_of = tried(sweep)
    best = front(simulated) if sweep.objective == "pareto" else []
    if best:
        table.caption = "* no point beats it in both throughput and memory"
    for rank, point in shown(simulated, best or simulated[:BEST]):
        assert isinstance(point.result, TrainingResult)
        varied = {key for key, values in values_of[point.name].items() if len(values) > 1}
        mark = " *" if any(point is other for other in best) else ""
        table.add_row(f"{rank}{mark}", *_best_row(point.result, baseline, varied))
    return table


def _best_row(result: TrainingResult, baseline: TrainingResult | None, varied: set[str]) -> list[str]:
    more = [
        value if isinstance(value, str) else f"{key.replace('_', '-')} {value}"
        for key, value in result.parameters.items()
        if key in varied and key not in SHAPE
    ]
    return [
        result.strategy,
        *(str(result.parameters.get(key, "-")) for key in SHAPE),
        " ".join(more),
        milliseconds(result.expected.iteration_s),
        f"{result.samples_per_s:,.1f}",
        "-" if baseline is None else f"{result.samples_per_s / baseline.samples_per_s:.2f}",
        f"{result.bubble_ratio:.1%}",
        f"{result.expected.peak_memory_bytes / GIB:.1f} GiB",
    ]
