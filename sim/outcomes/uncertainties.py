"""Uncertainties: what the error of a result is made of."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from profiles.costs.bands import (
    DATA_PARALLEL,
    ONE_GPU,
    PATCHES,
    PIPELINE,
    Band,
    Circumstances,
    Uncertainty,
    load_bands,
)
from profiles.software.stacks import DEFAULT_STACK
from sim.outcomes.measures import Measures
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import AnyScenario


def uncertainty_of(
    scenario: AnyScenario, strategy: str, parameters: Mapping[str, Any], expected: Measures
) -> Uncertainty:
    """The uncertainty of a result; smaller where a run of the same task was measured, as compute is then known."""
    cluster, gpus, sampled = scenario.cluster, scenario.workload.num_gpus, scenario.task == "sample"
    run = Circumstances(
        cluster.device.name,
        scenario.stack.name,
        (strategy, cluster.name, "nodes" if gpus > cluster.devices_per_node else "node"),
        expected.exposed_communication_s / expected.duration_s if expected.duration_s else 0.0,
        timed=scenario.costs.provenance == "measured",
        anchored=bool(sampled and scenario.costs.published.source and scenario.stack.name == DEFAULT_STACK),
    )
    uncertainty = load_bands().uncertainty(method_of(scenario.task, gpus, parameters), run)
    if isinstance(scenario, SamplingScenario) and scenario.band != Band():
        uncertainty = replace(uncertainty, band=uncertainty.band & scenario.band)
    measured = scenario.measured
    return (
        uncertainty
        if measured is None or measured.task != scenario.task
        else uncertainty.after(measured.uncertainty)
    )


def method_of(task: str, num_gpus: int, parameters: Mapping[str, Any]) -> str:
    """The kind of method, of ``profiles.costs.bands.METHODS``, by which GPUs work together."""
    if num_gpus == 1:
        return ONE_GPU
    if task == "sample":
        return PATCHES
    return PIPELINE if (parameters.get("pipeline_degree") or 1) > 1 else DATA_PARALLEL
