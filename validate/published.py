"""Published measurements beside what the simulator says: Stable Diffusion 2.1 in DiffusionPipe.

Every number is computed when asked for; where a number was used to set a rate or an efficiency, the table says so.

Source: Tian et al., DiffusionPipe (arXiv 2405.01248), Tables 1 and 2, section 6.1, Fig. 14.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from profiles.clusters import load_cluster
from profiles.files import Row, read_rows
from profiles.models import load_model
from sim.experiment import TrainingResult, run_training
from sim.sweep import Sweep, find_points, run_sweep
from strategies.registry import make_strategy
from strategies.scenario import Scenario, TrainingWorkload

PUBLISHED: Final = Path(__file__).parent / "published" / "diffusionpipe.csv"
COLUMNS: Final = ("item", "model", "cluster", "num_gpus", "method", "batch_size", "metric", "value", "note")
FILLS: Final = ("partial", "full", "none")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One published number beside the simulated one."""

    what: str
    published: float
    simulated: float

    @property
    def relative_error(self) -> float:
        """Simulated over published, less one."""
        return self.simulated / self.published - 1


def published_rows(item: str) -> list[Row]:
    """Return the published rows of one table, figure or section."""
    return [row for row in read_rows(PUBLISHED, COLUMNS) if row.text("item") == item]


def scenario(num_gpus: int, batch_size: int, **options: Any) -> Scenario:  # noqa: ANN401
    """Return Stable Diffusion 2.1 on p4de."""
    return Scenario.of(
        load_model("sd21"), load_cluster("p4de"), TrainingWorkload(num_gpus, batch_size, **options)
    )


def frozen_ratios() -> Iterator[Comparison]:
    """Yield Table 1: forward time of the frozen part over forward and backward time of the trained part."""
    costs = scenario(1, 1).costs.components
    frozen, trained = costs[:-1], costs[-1]
    for row in published_rows("Table 1"):
        batch = row.integer("batch_size")
        frozen_s = sum(float(part.forward_s(batch).sum()) for part in frozen)
        trained_s = float((trained.forward_s(batch) + trained.backward_s(batch)).sum())
        yield Comparison(f"local batch {batch}", row.number("value"), frozen_s / trained_s)


def synchronisation_shares(memory_recipe: str) -> Iterator[Comparison]:
    """Yield Table 2: share of an iteration of data parallelism in which gradients are reduced, after the backward."""
    for row in published_rows("Table 2"):
        gpus = row.integer("num_gpus")
        result = run_training(
            make_strategy("ddp", {"overlap": "none"}),
            scenario(gpus, row.integer("batch_size"), self_conditioning=0.0, memory_recipe=memory_recipe),
        )
        share = result.expected.collective_s / result.expected.iteration_s
        yield Comparison(f"{gpus} GPUs", row.number("value"), share)


def best(point: Scenario, strategy: str, **fixed: Any) -> TrainingResult:  # noqa: ANN401
    """Return the fastest point of a strategy that fits."""
    sweep = Sweep(point, "throughput", find_points(point, [strategy], fixed))
    run_sweep(sweep, workers=1)
    result = sweep.ranked()[0].result
    assert result is not None
    return result


@dataclass(frozen=True, slots=True)
class SpeedUp:
    """Best throughputs, in samples per second, under one choice of what moves them.

    Attributes:
        overlap: when DDP reduces its gradients.
        self_conditioning: probability of the extra forward pass.
        draw: who draws it.
        filled: the best DiffusionPipe by what is filled.
        gpipe: GPipe with 2 stages and 4 micro-batches.
        ddp: the best data parallelism.
    """

    overlap: str
    self_conditioning: float
    draw: str
    filled: dict[str, TrainingResult]
    gpipe: TrainingResult
    ddp: TrainingResult

    def over(self, other: TrainingResult) -> float:
        """Return DiffusionPipe's throughput over another's."""
        return self.filled["partial"].samples_per_s / other.samples_per_s


def speed_ups() -> Iterator[SpeedUp]:
    """Yield section 6.1 and Fig. 14: 8 GPUs, batch 256, under each choice that moves the ratios."""
    for probability, draw in ((0.0, "iteration"), (0.5, "iteration"), (0.5, "rank")):
        point = scenario(8, 256, self_conditioning=probability, self_conditioning_draw=draw)
        filled = {fill: best(point, "diffusionpipe", fill=fill) for fill in FILLS}
        gpipe = best(point, "gpipe", pipeline_degree=2, micro_batches=4)
        for overlap in ("buckets", "none"):
            yield SpeedUp(overlap, probability, draw, filled, gpipe, best(point, "ddp", overlap=overlap))


def print_published() -> None:
    """Print all comparisons as Markdown tables."""
    _print_comparisons(
        "Table 1: frozen over trained time (used in the fit of the rates)", {"simulated": frozen_ratios()}
    )
    recipes = {"fp32 gradients": "mixed", "fp16 gradients": "mixed-fp16-gradient"}
    shares = {name: synchronisation_shares(recipe) for name, recipe in recipes.items()}
    _print_comparisons(
        "Table 2: share of the gradient reduction in an iteration of DDP (its ratios set p4de's efficiencies)",
        shares,
    )
    print("\n### Section 6.1 and Fig. 14: 8 GPUs, batch 256, best (P, M) of each\n")
    print("| self-conditioning | DDP reduces | DiffusionPipe, samples/s | bubble | over GPipe | over DDP |")
    print("|---|---|---|---|---|---|")
    over = {row.text("method"): row.number("value") for row in published_rows("6.1")}
    (below,) = (row.number("value") for row in published_rows("Fig. 14"))
    gpipe, ddp = over["diffusionpipe/gpipe"], over["diffusionpipe/ddp"]
    print(f"| published | | | < {below:.0%} | {gpipe:g} | {ddp:g} |")
    for case in speed_ups():
        print(_speed_up_row(case))


def _print_comparisons(title: str, columns: dict[str, Iterator[Comparison]]) -> None:
    print(f"\n### {title}\n\n| | published | {' | '.join(columns)} |\n|---|---|{'---|' * len(columns)}")
    for items in zip(*columns.values(), strict=True):
        simulated = " | ".join(f"{item.simulated:.1%}" for item in items)
        print(f"| {items[0].what} | {items[0].published:.1%} | {simulated} |")


def _speed_up_row(case: SpeedUp) -> str:
    winner = case.filled["partial"]
    drawn = "none" if not case.self_conditioning else f"{case.self_conditioning:g}, drawn by {case.draw}"
    reduced = "in buckets" if case.overlap == "buckets" else "after the backward"
    rates = ", ".join(f"{fill} {_rate(case.filled[fill])}" for fill in FILLS)
    return (
        f"| {drawn} | {reduced} | {rates} | {winner.bubble_ratio:.1%} |"
        f" {case.over(case.gpipe):.2f} | {case.over(case.ddp):.2f} |"
    )


def _rate(result: TrainingResult) -> str:
    """Return the throughput of a point and its (P, M)."""
    shape = f"P {result.parameters['pipeline_degree']}, M {result.parameters['micro_batches']}"
    return f"{result.samples_per_s:.1f} ({shape})"
