"""DiffusionPipe on real models: what its refinements do to frozen work, and two backbones against one another."""

import pytest

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from sim.outcomes.parts import replay
from sim.replay.engine import simulate
from strategies.plans.actions import FrozenAction
from strategies.plans.network import network_of
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make as make_strategy
from strategies.scenario import Scenario


@pytest.fixture(scope="module")
def scenario():
    workload = TrainingWorkload(8, 256, self_conditioning=0.0)
    return Scenario(load_model("sd21"), load_cluster("p4de"), workload)


def refinements(strategy, scenario):
    """The traces of the unfilled plan, the filled one and the balanced one."""
    trace = simulate(strategy.plan(scenario), network_of(scenario, strategy.plan(scenario).placement))
    traces = [trace]
    while (plan := strategy.refine(scenario, trace)) is not trace.plan:
        trace = simulate(plan)
        traces.append(trace)
    return traces


def pipe(degree, micro_batches, fill):
    return make_strategy(
        "diffusionpipe", {"pipeline_degree": degree, "micro_batches": micro_batches, "fill": fill}
    )


def frozen_samples(trace):
    """For each (component, layer) the samples of all positions together."""
    found = {}
    for ops in trace.plan.ops:
        for op in ops:
            if isinstance(op.action, FrozenAction):
                key = op.action[:2]
                found[key] = found.get(key, 0) + op.action.samples
    return found


def test_the_unfilled_plan_is_filled_then_balanced_then_left_alone(scenario):
    unfilled, filled, balanced = refinements(pipe(2, 4, "partial"), scenario)
    assert frozen_samples(unfilled) == {}
    group_batch = 256 * 2 // 8
    assert set(frozen_samples(filled).values()) == {group_batch}
    assert set(frozen_samples(balanced)) == set(frozen_samples(filled))
    assert set(frozen_samples(balanced).values()) == {group_batch}


def test_balancing_lets_the_positions_end_together(scenario):
    _, filled, balanced = refinements(pipe(2, 4, "partial"), scenario)

    def spread_s(trace):
        ends = [ends[-1] for ends in trace.ends]
        return max(ends) - min(ends)

    assert spread_s(balanced) < spread_s(filled)
    assert balanced.end_s < filled.end_s


@pytest.mark.parametrize(("degree", "micro_batches"), [(2, 2), (8, 16)])
@pytest.mark.parametrize("fill", ["full", "partial"])
def test_inside_a_node_filling_never_costs_time(scenario, degree, micro_batches, fill):
    filled = replay(pipe(degree, micro_batches, fill), scenario).end_s
    assert filled < replay(pipe(degree, micro_batches, "none"), scenario).end_s


def test_the_optimizer_step_does_not_wait_for_work_that_no_bubble_took(scenario):
    _, *_, balanced = refinements(pipe(2, 4, "partial"), scenario)
    for position, ops in enumerate(balanced.plan.ops):
        (step,) = [i for i, op in enumerate(ops) if str(op.action).endswith("O")]
        late_s = balanced.starts[position][step] - balanced.collectives[position][1]
        assert 0 <= late_s < 0.05


# Several backbones.


@pytest.fixture(scope="module")
def conditioned(make):
    """Two backbones that read what one frozen encoder makes of the whole batch."""
    encoder = make.component("encoder", [0.11, 0.3, 0.02, 0.16], trainable=False, output_bytes=1e6)
    first = make.component("first", [0.2, 0.3, 0.1, 0.4, 0.2], inputs=["encoder"], parameters=10**6)
    second = make.component("second", [0.3, 0.1, 0.2, 0.1], inputs=["encoder"], parameters=10**6)
    cluster = make.cluster(make.link("nvswitch", 1e9, 0.001))
    return make.scenario(make.model(encoder, first, second), cluster, 8, 64)


def test_frozen_layers_fill_the_bubbles_between_two_directions(conditioned):
    unfilled, filled, *_ = refinements(pipe(4, 4, "partial"), conditioned)
    assert set(frozen_samples(filled).values()) == {64 * 4 // 8}
    row = filled.plan.ops[0]
    last = max(i for i, op in enumerate(row) if str(op.action)[1] == "B")
    assert any(isinstance(op.action, FrozenAction) for op in row[:last])
    none, partial = (replay(pipe(4, 4, fill), conditioned).end_s for fill in ("none", "partial"))
    assert unfilled.end_s <= partial < none
