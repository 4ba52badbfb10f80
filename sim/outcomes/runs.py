"""Runs: one strategy on one scenario, replayed part by part, its result, and what its error is made of."""

from collections.abc import Iterator, Mapping, Sequence
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
from sim.outcomes.contents import inputs_of
from sim.outcomes.measures import Measures, expectation, in_turn, side_by_side, together_s
from sim.outcomes.parts import Part, main_part, measured_parts, parts_by, variants
from sim.outcomes.results import Result, Source
from strategies.parameters import fields_in
from strategies.plans.actions import PatchAction
from strategies.plans.plan import Plan
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import AnyScenario, AnyStrategy, is_seamless


def run_point(strategy: AnyStrategy, scenario: AnyScenario) -> Result:
    """Return the result of one strategy on one scenario."""
    return weigh(strategy, scenario, measured_parts(strategy, scenario))


def with_source(
    result: Result, strategy: AnyStrategy, scenario: AnyScenario, remarks: Sequence[str] = ()
) -> Result:
    """Return a result whose traces are replayed when they are asked for, with remarks and the hashes of its inputs."""
    remarks = (*remarks, *strategy.remarks(scenario))
    return replace(result, source=Source(strategy, scenario, remarks), inputs=inputs_of(scenario))


def bound(strategy: AnyStrategy, scenario: AnyScenario, *, ordered: bool = False) -> float:
    """Return seconds that the expected iteration, or run, of a point cannot undercut: for any order, or its own."""
    by_job: dict[int, float] = {}
    for variant in variants(strategy, scenario):
        bound_of = variant.strategy.order_bound if ordered else variant.strategy.bound
        expected_s = variant.probability * bound_of(variant.scenario)
        by_job[variant.job] = by_job.get(variant.job, 0.0) + expected_s
    return together_s(list(by_job.values()))


def coarse_bounds(strategy: AnyStrategy, scenario: AnyScenario) -> tuple[float, float]:
    """Return seconds and bytes that a point cannot undercut, whatever its order and cuts; 0 where nobody knows."""
    seconds, sizes = zip(
        *(job.strategy.coarse_bounds(job.scenario) for job in strategy.jobs(scenario)), strict=True
    )
    return together_s(seconds), max(sizes)


def least_memory_bytes(strategy: AnyStrategy, scenario: AnyScenario) -> float:
    """Return bytes that the fullest device of a point cannot do without; 0 where its strategy does not know."""
    return max(job.strategy.least_memory_bytes(job.scenario) for job in strategy.jobs(scenario))


def weigh(strategy: AnyStrategy, scenario: AnyScenario, parts: Sequence[Part]) -> Result:
    """Return the result of a point from its replayed parts."""
    jobs = parts_by(parts, lambda variant: variant.job)
    expected = side_by_side([_of_job(of_job) for of_job in jobs])
    return result_of(
        strategy,
        scenario,
        times=_times(parts, expected),
        expected=expected,
        stages=tuple(_stages(jobs)),
        phases=_phases_of(parts),
    )


def result_of(
    strategy: AnyStrategy,
    scenario: AnyScenario,
    *,
    times: Mapping[str, float],
    expected: Measures,
    stages: tuple[Mapping[str, Any], ...],
    phases: Mapping[str, float],
) -> Result:
    """Return the result of a point from what its replay gave; all else follows from the scenario."""
    workload, parameters = scenario.workload, parameters_of(strategy)
    return Result(
        task=scenario.task,
        model=scenario.model_name,
        cluster=scenario.cluster_name,
        stack=scenario.stack_name,
        num_gpus=workload.num_gpus,
        strategy=strategy.name,
        parameters=parameters,
        batch_size=workload.batch_size,
        num_backbones=len(scenario.model.backbones),
        asked=scenario.asked,
        options=scenario.options,
        times=times,
        expected=expected,
        stages=stages,
        phases=phases,
        device_memory_bytes=scenario.cluster.device.memory_bytes,
        provenance=scenario.costs.provenance,
        seamless=is_seamless(strategy),
        departures=scenario.departures,
        uncertainty=uncertainty_of(strategy, scenario, parameters, expected),
        compute_factor=scenario.calibration.factor,
    )


def parameters_of(strategy: AnyStrategy) -> dict[str, Any]:
    """Return the parameters of a strategy by name."""
    return {item.name: getattr(strategy, item.name) for item in fields_in(type(strategy))}


def _of_job(parts: Sequence[Part]) -> Measures:
    by_variant = parts_by(parts, id)
    measured = [
        in_turn([part.measures for part in phases], [part.phase.times for part in phases])
        for phases in by_variant
    ]
    occurring = [phases[0].variant for phases in by_variant]
    return expectation(measured, [v.probability for v in occurring], [v.share for v in occurring])


def _times(parts: Sequence[Part], expected: Measures) -> dict[str, float]:
    """Return the durations of a result under their public keys."""
    if parts[0].variant.scenario.task == "sample":
        return {"latency_s": expected.duration_s, "step_s": steady_step_s(parts)}
    return {"iteration_s": expected.duration_s, "first_iteration_s": expected.first_s}


def _phases_of(parts: Sequence[Part]) -> dict[str, float]:
    """Return seconds and peak memory of the phases of a run; none where only denoising steps run."""
    by_name: dict[str, list[Part]] = {}
    for part in parts:
        by_name.setdefault("denoise" if part.phase.steps else part.phase.name, []).append(part)
    if len(by_name) == 1:
        return {}
    values: dict[str, float] = {}
    for name, phases in by_name.items():
        values[f"{name}_s"] = sum(part.phase.times * part.measures.duration_s for part in phases)
        values[f"{name}_peak_memory_bytes"] = max(part.measures.peak_memory_bytes for part in phases)
    return values


def steady_step_s(parts: Sequence[Part]) -> float:
    """Return the seconds of a steady step: the last phase, or the last step of that phase."""
    main = main_part(parts)
    phase, trace = main.phase, main.trace
    if phase.steps == 1:
        return main.measures.duration_s
    ends: dict[int, float] = {}
    for ops, times in zip(trace.plan.ops, trace.ends, strict=True):
        for op, end in zip(ops, times, strict=True):
            if isinstance(op.action, PatchAction):
                ends[op.action.step] = max(ends.get(op.action.step, 0.0), end)
    *_, before, last = (ends[step] for step in sorted(ends))
    return last - before


def _stages(jobs: Sequence[Sequence[Part]]) -> Iterator[dict[str, Any]]:
    """Yield the stages of each job with their devices; its GPUs come after those of the jobs before it."""
    for of_job in jobs:
        variant, phase, *_ = next(part for part in of_job if part.phase.steps)
        first_gpu = variant.job * variant.scenario.workload.num_gpus
        for stage, devices in zip(phase.plan.stages, _devices(phase.plan), strict=True):
            yield {
                "devices": tuple(first_gpu + gpu for gpu in devices),
                "first_layer": stage.first_layer,
                "last_layer": stage.last_layer,
                "forward_s": stage.forward_s,
                "backward_s": stage.backward_s,
                "parameters": stage.parameters,
            }


def _devices(plan: Plan) -> list[list[int]]:
    """Return for each stage the GPUs that hold it; in sampling those whose ops are of it."""
    if not (plan.ops[0] and isinstance(plan.ops[0][0].action, PatchAction)):
        return [plan.placement.devices(stage.position) for stage in plan.stages]
    actions = [ops[0].action if ops else None for ops in plan.ops]
    return [
        [device for device, act in enumerate(actions) if isinstance(act, PatchAction) and act.stage == number]
        for number in range(len(plan.stages))
    ]


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
            collective_law(machine, "all_to_all", Group(members, 1)).device_port_s_per_byte
            for machine in (cluster, other)
        )
        factor = 1 + exposed * (other_s / one_s - 1)
        yield Band(min(1.0, factor), max(1.0, factor))
