"""The space around a sweep: many scenarios, the best of each strategy on each, and the Pareto front of one."""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product, repeat
from typing import Any, TypeVar

from profiles.clusters import Cluster
from profiles.models import Model
from sim.explore.points import find_points
from sim.explore.sweep import Sweep, run_sweep
from sim.explore.workers import script_aside
from strategies.scenario import Scenario, TrainingWorkload

R = TypeVar("R", bound=Mapping[str, Any])


def grid(
    models: Iterable[Model],
    clusters: Iterable[Cluster],
    num_gpus: Iterable[int],
    samples_per_gpu: Iterable[int],
    **options: Any,  # noqa: ANN401
) -> list[Scenario]:
    """The scenarios of all combinations, the last varying fastest.

    Args:
        models: what is trained.
        clusters: on what.
        num_gpus: on how many GPUs.
        samples_per_gpu: batch sizes, in samples per GPU.
        options: further fields of ``TrainingWorkload``, the same for all.

    Raises:
        InputError: a cluster is too small, or an option breaks its rule.
    """
    return [
        Scenario(model, cluster, TrainingWorkload(gpus, gpus * samples, **options))
        for model, cluster, gpus, samples in product(models, clusters, num_gpus, samples_per_gpu)
    ]


def scaled_cluster(cluster: Cluster, *, intra_node: float = 1.0, inter_node: float = 1.0) -> Cluster:
    """A cluster with the bandwidth of its links multiplied; latencies, call times and efficiencies stay.

    Args:
        cluster: the cluster.
        intra_node: factor of the bandwidth inside a node.
        inter_node: factor of the bandwidth between nodes.

    Raises:
        InputError: a factor is not positive, or there is no link between nodes.
    """
    return cluster.scaled(intra_node=intra_node, inter_node=inter_node)


def best_of_each(
    scenarios: Sequence[Scenario], names: Sequence[str] | None = None, workers: int | None = None
) -> list[dict[str, Any]]:
    """The fastest point of each strategy on each scenario; nothing else is simulated to the end.

    Args:
        scenarios: what is swept over, one after the other.
        names: strategies; by default all.
        workers: processes; by default one per core.

    Returns:
        Rows under the public keys, and ``samples_per_gpu``; scenarios in their order, strategies best first. A
        strategy without a feasible point has one infeasible row, which says why.
    """
    workers = min(workers or os.cpu_count() or 1, len(scenarios))
    if workers <= 1:
        found = list(map(_best_rows, scenarios, repeat(names)))
        return [item for items in found for item in items]
    largest_first = sorted(range(len(scenarios)), key=lambda i: -scenarios[i].workload.num_gpus)
    with ProcessPoolExecutor(workers) as executor, script_aside():
        futures = {i: executor.submit(_best_rows, scenarios[i], names) for i in largest_first}
        return [item for i in range(len(scenarios)) for item in futures[i].result()]


def _best_rows(scenario: Scenario, names: Sequence[str] | None) -> list[dict[str, Any]]:
    sweep = Sweep(scenario, "throughput", find_points(scenario, names), top=1)
    run_sweep(sweep, workers=1)
    per_gpu = scenario.workload.batch_size / scenario.workload.num_gpus
    return [row | {"samples_per_gpu": per_gpu} for row in sweep.rows(best_of_each=True)]


def sweep_front(
    scenario: Scenario, names: Sequence[str] | None = None, workers: int | None = None
) -> list[dict[str, Any]]:
    """The points of a scenario, simulated as far as its Pareto front of throughput and memory needs.

    Args:
        scenario: what is swept over.
        names: strategies; by default all.
        workers: processes; by default one per core.
    """
    sweep = Sweep(scenario, "pareto", find_points(scenario, names))
    run_sweep(sweep, workers=workers)
    return sweep.rows()


def pareto_front(rows: Iterable[R]) -> list[R]:
    """The rows that fit and that no other beats in memory and throughput, by memory.

    Args:
        rows: results under their public keys; rows that were not simulated, or are not recommended, are left out.
    """
    fitting = (
        item
        for item in rows
        if "peak_memory_bytes" in item and item.get("fits_memory", True) and item.get("recommended", True)
    )
    front: list[R] = []
    for item in sorted(fitting, key=lambda item: (item["peak_memory_bytes"], -samples_per_s(item))):
        if not front or samples_per_s(item) > samples_per_s(front[-1]):
            front.append(item)
    return front


def samples_per_s(item: Mapping[str, Any]) -> float:
    """The throughput of a result; an image's latency gives that of sampling."""
    if "samples_per_s" in item:
        return float(item["samples_per_s"])
    return float(item["batch_size"] / item["latency_s"])
