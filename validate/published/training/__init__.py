"""Training experiments that papers publish, simulated: each yields the records of some numbers."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from validate.published import clusters
from validate.published.records import Record
from validate.published.training import diffusionpipe, pulse

Experiment = Callable[[], Iterable[Record]]
"""Yields records: for each number that of the base setting first."""
EXPERIMENTS: Final[tuple[Experiment, ...]] = (
    diffusionpipe.frozen_ratios,
    diffusionpipe.synchronisation_shares,
    diffusionpipe.unfilled_bubbles,
    diffusionpipe.useful_share,
    diffusionpipe.eight_nodes,
    diffusionpipe.one_node,
    diffusionpipe.ablation,
    diffusionpipe.cascades,
    pulse.pipeline_volumes,
    pulse.reduction_volumes,
    pulse.two_nodes,
    pulse.eight_nodes,
    pulse.larger_models,
    pulse.longest_stages,
    pulse.partition_speed_ups,
    pulse.degrees,
    pulse.messages,
    diffusionpipe.solution_times,
    clusters.throughputs,
    clusters.encoders,
    clusters.model_flops,
)
WORKERS: Final = 2


def all_records() -> Iterator[Record]:
    """The records of all experiments in their order, made in parallel."""
    with ProcessPoolExecutor(WORKERS) as executor:
        for records in executor.map(_records, EXPERIMENTS):
            yield from records


def _records(experiment: Experiment) -> list[Record]:
    return list(experiment())
