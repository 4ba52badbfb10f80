"""Long runs of the sampler, continued from where their steps repeat one another, and large steps from their layers."""

from dataclasses import fields, replace

import pytest

from profiles.architectures.models import load_model
from profiles.architectures.shares import Share
from profiles.machines.clusters import load_cluster
from sim.outcomes import parts
from sim.outcomes.measures import Measures
from sim.outcomes.parts import main_part, measured_parts, replay_parts
from sim.outcomes.runs import run_point, weigh
from sim.outcomes.steady import FIRST_STEPS, LONG_STEPS, with_all_layers, with_all_steps
from strategies.patching.alike_layers import KEPT
from strategies.patching.patch_pipeline import written_before
from strategies.plans.network import Network
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make_sampler
from strategies.sampling_scenario import SamplingScenario

STEPS = {"a pipeline": 321, "a pipeline on two nodes": 161, "guided, with exchanges": 161}
"""Of runs that come to repeat their steps late, because hosts lead by many of them or ports fill up; others take 50."""
RUNS = {
    "a pipeline": ("a100-nvlink-8", 8, 1024, "pipefusion", {"patches": 8}),
    "a pipeline on two nodes": ("l40-pcie-8", 16, 1024, "pipefusion", {"patches": 16, "pipeline_degree": 16}),
    "receives posted late": ("l20-pcie-8", 4, 1024, "pipefusion", {"patches": 4, "receive": "after"}),
    "guided, with exchanges": (
        "l40-pcie-8", 16, 1024, "hybrid",
        {"guidance_degree": 2, "ulysses_degree": 2, "pipeline_degree": 4, "patches": 4},
    ),
    "a ring": ("l20-pcie-8", 8, 2048, "hybrid", {"ring_degree": 2, "pipeline_degree": 4, "patches": 8}),
    "tensors": ("l20-pcie-8", 8, 2048, "hybrid", {"tensor_degree": 2, "pipeline_degree": 4, "patches": 4}),
}  # fmt: skip


def point(name, steps=None):
    cluster, gpus, pixels, sampler, parameters = RUNS[name]
    workload = SamplingWorkload(gpus, pixels, pixels, steps or STEPS.get(name, 50))
    scenario = SamplingScenario(load_model("pixart"), load_cluster(cluster), workload)
    return make_sampler(sampler, parameters), scenario


@pytest.mark.parametrize("name", RUNS)
def test_a_continued_run_is_the_whole_run(name):
    asked = point(name)
    parts = measured_parts(*asked)
    assert main_part(parts).continued is not None
    assert main_part(parts).phase.steps == asked[1].workload.steps
    found, whole = (weigh(*asked, own) for own in (parts, replay_parts(*asked)))
    for of in fields(whole.expected):
        assert getattr(found.expected, of.name) == pytest.approx(getattr(whole.expected, of.name), rel=1e-9)
    assert found.times["step_s"] == pytest.approx(whole.times["step_s"], rel=1e-9)
    assert found.stages == whole.stages


@pytest.mark.parametrize("steps", [10, LONG_STEPS])
def test_runs_that_are_not_long_or_of_which_bounds_do_not_tell_when_they_are_steady_are_replayed_whole(steps):
    asked = point("a pipeline", steps)
    assert asked[0].settled_steps(asked[1]) == 0
    assert run_point(*asked) == weigh(*asked, replay_parts(*asked))


DRAWN = {
    "guided, with exchanges": (
        "mochi",
        16,
        {"guidance_degree": 2, "ulysses_degree": 4, "pipeline_degree": 2},
    ),
    "a ring and tensors": ("flux-dev", 16, {"ring_degree": 2, "tensor_degree": 2, "pipeline_degree": 4}),
    "more patches than stages": (
        "hunyuanvideo",
        8,
        {"pipeline_degree": 4, "patches": 8, "ulysses_degree": 2},
    ),
}


def test_a_step_that_waits_for_a_message_of_one_that_is_not_steady_is_no_measure_of_others():
    workload = SamplingWorkload(16, 1024, 1024, 39, guidance="batch")
    scenario = SamplingScenario(load_model("mochi"), load_cluster("p4de"), workload)
    sampler = make_sampler("hybrid", {"pipeline_degree": 4, "tensor_degree": 2, "ulysses_degree": 2})
    parts, whole = (of(sampler, scenario) for of in (measured_parts, replay_parts))
    assert main_part(parts).continued is not None
    found, true = (weigh(sampler, scenario, own).expected for own in (parts, whole))
    assert found.exposed_communication_s == pytest.approx(true.exposed_communication_s, rel=1e-9)


@pytest.mark.parametrize("name", DRAWN)
def test_a_run_of_twenty_steps_is_continued_where_what_bounds_it_tells_when_it_is_steady(name):
    model, gpus, degrees = DRAWN[name]
    model = load_model(model)
    workload = SamplingWorkload(gpus, model.width, model.height, 20, guidance=model.guidance)
    sampler, scenario = (
        make_sampler("hybrid", degrees),
        SamplingScenario(model, load_cluster("p4de"), workload),
    )
    parts = measured_parts(sampler, scenario)
    assert main_part(parts).continued is not None
    assert max(op.action.step for op in main_part(parts).trace.plan.ops[0]) < 14
    found, whole = (weigh(sampler, scenario, own) for own in (parts, replay_parts(sampler, scenario)))
    for of in fields(whole.expected):
        assert getattr(found.expected, of.name) == pytest.approx(getattr(whole.expected, of.name), rel=1e-9)
    assert found.times["step_s"] == pytest.approx(whole.times["step_s"], rel=1e-9)


@pytest.mark.parametrize("name", RUNS)
def test_what_is_written_before_a_step_is_all_of_the_steps_before_it(name):
    sampler, scenario = point(name)
    plan = sampler.plan(scenario.with_steps(6))
    for step in (4, 5):
        *ops, collectives, tensors = written_before(plan, 5 - step)
        for row, count in zip(plan.ops, ops, strict=True):
            assert row[count - 1].action.step == step - 1 < step == row[count].action.step
        rows = (row[count:] for row, count in zip(plan.ops, ops, strict=True))
        writes = [tensor for row in rows for op in row for tensor in op.writes]
        reads = [of.reads[0] for of in plan.collectives]
        assert tensors == min(writes)
        assert all(tensor < tensors for tensor in reads[:collectives])
        assert all(tensor >= tensors for tensor in reads[collectives:])


def test_a_sampler_that_repeats_one_step_is_not_replayed_more_than_once(monkeypatch):
    replayed, simulate = [], parts.simulate
    monkeypatch.setattr(parts, "simulate", lambda *asked: replayed.append(asked) or simulate(*asked))
    _, scenario = point("a pipeline", 50)
    assert measured_parts(make_sampler("ulysses", {}), scenario)
    assert len(replayed) == 1


def test_the_bound_of_a_long_run_stays_below_it():
    for name in RUNS:
        sampler, scenario = point(name, 1000)
        assert 0.5 < sampler.bound(scenario) / run_point(sampler, scenario).latency_s <= 1


def test_a_step_that_takes_longer_is_no_repetition(monkeypatch):
    """A thousandth of a second within the steps compared, or a host that falls behind, is enough."""
    sampler, scenario = point("a pipeline")
    trace = run_of(sampler, scenario, 72)
    network = Network(trace.plan.placement)
    assert with_all_steps(trace, 1, network) is not None
    starts = [list(row) for row in trace.starts]
    starts[3][written_before(trace.plan, 1)[3] - 1] += 1e-3
    assert with_all_steps(replace(trace, starts=starts), 1, network) is None
    busy = replace(
        trace.plan, ops=tuple(tuple(op._replace(host_s=1.0) for op in row) for row in trace.plan.ops)
    )
    behind = replace(trace, wiring=replace(trace.wiring, plan=busy))
    assert with_all_steps(behind, 1, network) is None
    monkeypatch.setattr(parts, "with_all_steps", lambda *asked: None)
    assert main_part(measured_parts(sampler, scenario)).continued is None


def run_of(sampler, scenario, steps):
    return main_part(replay_parts(sampler, scenario.with_steps(steps))).trace


def test_a_run_with_one_more_step_measures_as_its_replay():
    sampler, scenario = point("a ring")
    trace = run_of(sampler, scenario, 24)
    found = with_all_steps(trace, 3, Network(trace.plan.placement))
    whole = Measures.of(run_of(sampler, scenario, 27))
    for of in fields(whole):
        assert getattr(found, of.name) == pytest.approx(getattr(whole, of.name), rel=1e-9)


def test_what_bounds_a_run_tells_how_many_steps_are_replayed_first(monkeypatch):
    asked, simulate = [], parts.simulate
    monkeypatch.setattr(parts, "simulate", lambda plan, *rest: asked.append(plan) or simulate(plan, *rest))
    sampler, scenario = point("a pipeline", 1000)
    assert measured_parts(sampler, scenario)
    assert sampler.settled_steps(scenario) > FIRST_STEPS
    assert len(asked) <= 2
    assert make_sampler("distrifusion", {}).settled_steps(scenario) == 0


LARGE = {
    "Ulysses and a ring": ("flux-dev", 24, "usp", {"ulysses_degree": 8, "ring_degree": 3}),
    "tensors and a ring": ("flux-dev", 32, "hybrid", {"tensor_degree": 8, "ring_degree": 4}),
    "guided rows and columns": ("pixart", 128, "attention2d", {"rows": 8, "columns": 8}),
}  # fmt: skip


def large(name, pixels=2048):
    model, gpus, sampler, parameters = LARGE[name]
    model = load_model(model)
    workload = SamplingWorkload(
        gpus, pixels, pixels, guidance="parallel" if model.name == "pixart" else "none"
    )
    return make_sampler(sampler, parameters), SamplingScenario(model, load_cluster("p4de"), workload)


@pytest.mark.parametrize("name", LARGE)
def test_a_large_step_without_most_of_its_alike_layers_measures_as_the_whole_step(name):
    sampler, scenario = large(name)
    left_out = sum(stretch.omitted for stretch in sampler.shortened(scenario).stretches)
    assert left_out > len(scenario.backbone.layers) / 2
    parts, whole = (of(sampler, scenario) for of in (measured_parts, replay_parts))
    assert main_part(parts).continued is not None
    found, true = (weigh(sampler, scenario, own) for own in (parts, whole))
    for of in fields(true.expected):
        assert getattr(found.expected, of.name) == pytest.approx(getattr(true.expected, of.name), rel=1e-9)
    assert found.times["step_s"] == pytest.approx(true.times["step_s"], rel=1e-9)
    assert found.stages == true.stages


@pytest.mark.parametrize(
    ("name", "share"),
    [("Ulysses and a ring", Share(ulysses=8, ring=3)), ("tensors and a ring", Share(tensor=8, ring=4))],
)
def test_a_large_step_without_most_of_its_alike_layers_computes_what_all_of_them_take(name, share):
    sampler, scenario = large(name)
    stack = replace(scenario.stack, forward_operator_s=0.0, backward_operator_s=0.0)
    scenario = replace(scenario, cluster=replace(scenario.cluster, overlap_slowdown=1.0), stack=stack)
    parts = measured_parts(sampler, scenario)
    assert main_part(parts).continued is not None
    layers_s = scenario.costs.gpu_s(scenario.backbone_index, 1, share)
    busy_s = weigh(sampler, scenario, parts).expected.busy_s
    assert busy_s == pytest.approx(scenario.workload.steps * layers_s.sum(), rel=1e-9)


def test_layers_that_do_not_repeat_one_another_or_wait_for_their_host_are_no_measure_of_others():
    sampler, scenario = large("Ulysses and a ring")
    short = sampler.shortened(scenario)
    network = Network(short.phase.plan.placement)
    trace = parts.simulate(short.phase.plan, network)
    assert with_all_layers(trace, short.stretches, network) is not None
    ends = [list(row) for row in trace.ends]
    ends[5][short.stretches[0].windows[0].ops[KEPT - 1]] += 1e-6
    assert with_all_layers(replace(trace, ends=ends), short.stretches, network) is None
    sampler, scenario = large("Ulysses and a ring", pixels=512)
    short = sampler.shortened(scenario)
    trace = parts.simulate(short.phase.plan, network)
    assert with_all_layers(trace, short.stretches, network) is None
    whole = main_part(measured_parts(sampler, scenario)).trace
    assert len(whole.plan.ops[0]) > 2 * len(trace.plan.ops[0])


def test_a_step_that_is_not_large_is_replayed_whole():
    sampler, scenario = point("a ring")
    assert make_sampler("ulysses", {}).shortened(scenario) is None
    assert sampler.shortened(scenario) is None
