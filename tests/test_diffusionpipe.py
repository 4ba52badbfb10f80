"""DiffusionPipe on the real model: what its refinements do to frozen work, and that they never cost time."""

import pytest

from profiles.clusters import load_cluster
from profiles.models import load_model
from sim.engine import simulate
from sim.experiment import replay
from strategies.actions import FrozenAction
from strategies.diffusionpipe import _split
from strategies.network import network_of
from strategies.registry import make_strategy
from strategies.scenario import Scenario, TrainingWorkload


@pytest.fixture(scope="module")
def scenario():
    workload = TrainingWorkload(8, 256, self_conditioning=0.0)
    return Scenario.of(load_model("sd21"), load_cluster("p4de"), workload)


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


@pytest.mark.parametrize(("degree", "micro_batches"), [(2, 2), (2, 4), (4, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize("fill", ["full", "partial"])
def test_of_all_refinements_the_fastest_counts(scenario, degree, micro_batches, fill):
    strategy = pipe(degree, micro_batches, fill)
    _, *complete = refinements(strategy, scenario)
    assert replay(strategy, scenario).end_s == min(trace.end_s for trace in complete)


@pytest.mark.parametrize(("degree", "micro_batches"), [(2, 2), (2, 4), (4, 4), (4, 8), (8, 16)])
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


def test_samples_are_split_by_weight_without_losing_one():
    assert _split(10, [1.0, 1.0, 2.0]) == (2, 3, 5)
    assert _split(7, [0.0, 1.0]) == (0, 7)
    assert sum(_split(101, [0.3, 0.3, 0.4])) == 101
