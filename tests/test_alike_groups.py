"""Guidance groups, and nodes of a team, that do the same at the same time, of which one is replayed."""

from dataclasses import fields

import pytest

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from sim.outcomes.parts import main_part, measured_parts, replay_parts
from sim.outcomes.runs import weigh
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make as make_sampler
from strategies.sampling_scenario import SamplingScenario

PIPED = {"guidance_degree": 2, "ulysses_degree": 2, "pipeline_degree": 4, "patches": 4}
ALIKE = {
    "nodes of their own": ("mochi", "h100-ib", 16, "hybrid", PIPED, {}),
    "nodes of cards that share switches": (
        "pixart", "l40-pcie-8", 16, "hybrid", {"guidance_degree": 2, "pipeline_degree": 8}, {},
    ),
    "steps that are alike": ("wan2.1-1.3b", "h100-ib", 8, "ulysses", {}, {"guidance": "parallel"}),
    "encoders before and a decoder after": (
        "pixart", "p4de", 16, "hybrid", PIPED, {"include": ("text_encoder", "vae_decoder"), "vae_parallel": 16},
    ),
    "runs that are not steady": ("qwen-image", "p4de", 16, "hybrid", PIPED, {"steps": 8}),
}  # fmt: skip
NODES = {
    "Ulysses over all": ("pixart", "p4de", 16, "ulysses", {}, {"guidance": "batch"}),
    "Ulysses over some nodes": ("pixart", "h100-ib", 32, "usp", {"ulysses_degree": 16, "ring_degree": 2}, {}),
    "rows over some nodes, columns over others": (
        "hunyuanvideo", "p4de", 32, "attention2d", {"rows": 2, "columns": 2, "ulysses_degree": 8}, {},
    ),
    "rows over parts of some nodes": (
        "hunyuanvideo", "p4de", 64, "attention2d", {"rows": 4, "columns": 4, "ulysses_degree": 4}, {},
    ),
    "guidance groups": (
        "qwen-image", "h100-ib", 32, "hybrid", {"guidance_degree": 2, "ulysses_degree": 8, "ring_degree": 2}, {},
    ),
    "guided stages, encoders and decoders on all nodes": (
        "pixart", "p4de", 64, "hybrid",
        {"guidance_degree": 2, "pipeline_degree": 2, "patches": 2, "ring_degree": 4, "ulysses_degree": 4},
        {"include": ("text_encoder", "vae_decoder"), "vae_parallel": 8},
    ),
}  # fmt: skip
"""By what their nodes exchange; of each team one is replayed."""
UNLIKE = {
    "cards of one switch": ("pixart", "l40-pcie-8", 8, "hybrid", {**PIPED, "ulysses_degree": 1}, {}),
    "a ring of nodes whose cards share switches": (
        "pixart", "l40-pcie-8", 16, "usp", {"ulysses_degree": 8, "ring_degree": 2}, {},
    ),
    "predictions in one batch": ("pixart", "p4de", 8, "ulysses", {}, {}),
}  # fmt: skip


def asked(case):
    name, cluster, gpus, sampler, parameters, options = case
    model = load_model(name)
    workload = SamplingWorkload(
        gpus, model.width, model.height, **{"steps": 6, "guidance": model.guidance, **options}
    )
    return make_sampler(sampler, parameters), SamplingScenario(model, load_cluster(cluster), workload)


@pytest.mark.parametrize("name", ALIKE)
def test_what_one_group_does_is_what_all_do(name):
    sampler, scenario = asked(ALIKE[name])
    assert devices_of(sampler, scenario) == scenario.workload.num_gpus // 2
    assert_measured_as_the_whole(sampler, scenario)


@pytest.mark.parametrize("name", NODES)
def test_what_one_node_of_a_team_does_is_what_all_do(name):
    sampler, scenario = asked(NODES[name])
    grid = sampler.layout(scenario).grid
    each = scenario.cluster.devices_per_node
    assert devices_of(sampler, scenario) == grid.guidance * grid.pipeline * each < scenario.workload.num_gpus
    assert_measured_as_the_whole(sampler, scenario)


def devices_of(sampler, scenario):
    return main_part(measured_parts(sampler, scenario)).trace.plan.num_devices


def assert_measured_as_the_whole(sampler, scenario):
    parts, whole = (of(sampler, scenario) for of in (measured_parts, replay_parts))
    found, true = (weigh(sampler, scenario, own) for own in (parts, whole))
    for of in fields(true.expected):
        assert getattr(found.expected, of.name) == pytest.approx(getattr(true.expected, of.name), rel=1e-9)
    for named in ("times", "phases"):
        assert getattr(found, named) == pytest.approx(getattr(true, named), rel=1e-9)
    assert found.stages == true.stages


@pytest.mark.parametrize("name", UNLIKE)
def test_groups_that_share_what_they_wait_for_are_replayed_together(name):
    sampler, scenario = asked(UNLIKE[name])
    parts, whole = (of(sampler, scenario) for of in (measured_parts, replay_parts))
    assert len({main_part(of).trace.plan.num_devices for of in (parts, whole)}) == 1
