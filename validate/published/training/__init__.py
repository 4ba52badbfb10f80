"""Experiments on training that papers print, run again; each is one table and some records."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from validate.published.training import imbalance, ratios, solving, speedups, throughput, volumes
from validate.published.training.experiment import Experiment

EXPERIMENTS: Final[tuple[Callable[[], Experiment], ...]] = (
    ratios.frozen_ratios,
    ratios.synchronisation_shares,
    ratios.unfilled_bubbles,
    ratios.useful_share,
    speedups.eight_nodes,
    speedups.one_node,
    speedups.ablation,
    speedups.cascades,
    volumes.pipeline_volumes,
    volumes.reduction_volumes,
    throughput.two_nodes,
    throughput.eight_nodes,
    throughput.larger_models,
    imbalance.longest_stages,
    imbalance.partition_speed_ups,
    throughput.degrees,
    volumes.messages,
    solving.solution_times,
)
WORKERS: Final = 2


def made(experiments: Sequence[Callable[[], Experiment]] | None = None) -> Iterator[Experiment]:
    """The experiments in their order, made side by side."""
    with ProcessPoolExecutor(WORKERS) as executor:
        asked = EXPERIMENTS if experiments is None else experiments
        for future in [executor.submit(one) for one in asked]:
            yield future.result()
