"""Uncertainties: what the error of a result is made of, and the constants of which only a range is known."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from profiles.costs.bands import (
    DATA_PARALLEL,
    PIPELINE,
    SAMPLING,
    Band,
    Circumstances,
    Uncertainty,
    load_bands,
)
from profiles.machines.clusters import Cluster
from profiles.machines.collectives import RANK_STEPS_CHANGES, Group, collective_law
from profiles.machines.hosts import Host
from profiles.software.stacks import DEFAULT_STACK
from sim.outcomes.measures import Measures
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import AnyScenario, AnyStrategy


def uncertainty_of(
    strategy: AnyStrategy, scenario: AnyScenario, parameters: Mapping[str, Any], expected: Measures
) -> Uncertainty:
    """Return the uncertainty of a result; smaller where a run of the same task was measured."""
    cluster, gpus = scenario.cluster, scenario.workload.num_gpus
    link = (cluster.inter_node if gpus > cluster.devices_per_node else None) or cluster.intra_node
    run = Circumstances(
        cluster.device.name,
        (strategy.name, cluster.name, "nodes" if gpus > cluster.devices_per_node else "node"),
        expected.exposed_communication_s / expected.duration_s if expected.duration_s else 0.0,
        timed=scenario.costs.provenance == "measured",
        gpus=gpus,
        link=link.kind,
        ranges=tuple(_ranges(strategy, scenario, parameters, expected)),
    )
    if isinstance(scenario, SamplingScenario):
        workload = scenario.workload
        run = replace(
            run,
            anchored=bool(scenario.costs.published.source and scenario.stack.name == DEFAULT_STACK),
            step_s=expected.duration_s / workload.steps,
            pixels=workload.batch_size * workload.height * workload.width * scenario.backbone.frames,
        )
    pipelined = (parameters.get("pipeline_degree") or 1) > 1
    method = SAMPLING if scenario.task == "sample" else PIPELINE if pipelined else DATA_PARALLEL
    uncertainty = load_bands().uncertainty(method, run)
    if scenario.band != Band():
        uncertainty = replace(uncertainty, band=uncertainty.band & scenario.band)
    measured = scenario.measured
    if measured is None or measured.task != scenario.task:
        return uncertainty
    return uncertainty.after(measured.uncertainty)


def _ranges(
    strategy: AnyStrategy, scenario: AnyScenario, parameters: Mapping[str, Any], expected: Measures
) -> Iterator[Band]:
    """Yield the band of each constant of which only a range is known."""
    if not expected.duration_s:
        return
    cluster, gpus = scenario.cluster, scenario.workload.num_gpus
    exposed = expected.exposed_communication_s / expected.duration_s
    yield from _host_range(cluster.host, expected.dispatch_s / expected.duration_s)
    if strategy.awaits == "all_gather" and (parameters.get("shard_size") or gpus) > cluster.devices_per_node:
        if not cluster.gathers_measured:
            yield Band(*(1 + change * exposed for change in RANK_STEPS_CHANGES))
    elif strategy.awaits == "all_to_all" and isinstance(scenario, SamplingScenario):
        yield from _socket_range(
            cluster, parameters.get("ulysses_degree") or scenario.gpus_per_prediction, exposed
        )


def _host_range(host: Host, share: float) -> Iterator[Band]:
    """Yield the band of a host that fills a share of the run.

    A run takes no less than its host does, and a faster host saves no more than it takes. Where it does not fill the
    run even at its slowest, it does not count.
    """
    low, high = (end / host.slowness if host.slowness else 0.0 for end in (host.low, host.high))
    if share * high > 1:
        yield Band(1 - min(1.0, share) * (1 - low), share * high)


def _socket_range(cluster: Cluster, members: int, exposed: float) -> Iterator[Band]:
    """Yield the band of all-to-alls in a node that fill a share of the run, where a socket may hold fewer or more."""
    link = cluster.intra_node
    if link.other_socket_size and 1 < members <= cluster.devices_per_node:
        other = replace(cluster, intra_node=replace(link, socket_size=link.other_socket_size))
        one_s, other_s = (
            collective_law(of, "all_to_all", Group(members, 1)).device_port_s_per_byte
            for of in (cluster, other)
        )
        factor = 1 + exposed * (other_s / one_s - 1)
        yield Band(min(1.0, factor), max(1.0, factor))
