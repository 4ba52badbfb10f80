"""From stages and an order to a plan: what crosses a cut, what is saved, reduced, stepped and kept."""

import pytest

from sim.replay.engine import simulate
from strategies.orders.named import gpipe_order, one_forward_one_backward_order
from strategies.pipelining.builder import PipelineBuilder
from strategies.pipelining.layout import Layout
from strategies.pipelining.reduction import reduce_and_step
from strategies.pipelining.stages import Cut, Shape
from strategies.pipelining.units import BUCKET_BYTES
from strategies.plans.actions import format_order
from strategies.registry import make as make_strategy


@pytest.fixture
def build(make):
    """Return a function from a model to the plan of its last component, cut into equal stages."""

    def plan(
        model, degree, micro_batches=1, batch_size=None, num_gpus=None, cross_iteration=False, **workload
    ):
        scenario = make.scenario(
            model, make.cluster(), num_gpus or degree, batch_size or micro_batches, **workload
        )
        component = len(model.components) - 1
        layers = len(model.components[component].layers)
        cut = Cut(component, tuple(range(0, layers + 1, layers // degree)))
        rows = one_forward_one_backward_order(degree, micro_batches)
        shape = Shape(degree, micro_batches, degree)
        builder = PipelineBuilder(Layout(scenario, shape, (cut,)), rows, cross_iteration=cross_iteration)
        return builder.build(reduce_and_step)

    return plan


def sizes(plan, role):
    """Bytes of the tensors of one role, by stage and micro-batch."""
    return {(t.stage, t.number): t.size_bytes for t in plan.tensors if t.role == role}


# Orders.


def test_gpipe_runs_all_forwards_then_all_backwards():
    assert format_order(gpipe_order(2, 3)) == "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2\n"


def test_1f1b_fills_alternates_and_drains():
    assert format_order(one_forward_one_backward_order(3, 4)) == (
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3\n1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3\n2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3\n"
    )


# What crosses a cut.


def test_extra_forwards_send_what_forwards_send_and_feed_their_output_back(make, build):
    unet = make.component("unet", [1.0] * 2, output_bytes=1.0, carried_bytes=0.25, parameters=1)
    plan = build(make.model(unet), 2, micro_batches=2, extra_forward=True)
    assert sizes(plan, "extra hidden") == sizes(plan, "hidden") == {(0, 0): 1.25, (0, 1): 1.25}
    assert sizes(plan, "feedback") == {(1, 0): 1.0, (1, 1): 1.0}
    assert format_order(plan.order).splitlines()[0] == "0E0 0E1 0F0 0F1 0B0 0B1 0O"


# Reduction and optimizer.


def test_buckets_are_ready_layer_by_layer_from_the_back(make):
    bucket = BUCKET_BYTES // 4
    unet = make.component("unet", [1.0, 0.5, 0.25, 0.25], parameters=bucket)
    plan = make_strategy("ddp", {}).plan(make.scenario(make.model(unet), make.cluster(), 2, 2))
    backward = plan.ops[0][1]
    assert [offset_s for offset_s, _ in backward.early] == [0.5, 1.0, 2.0, 4.0]
    assert [c.size_bytes for c in plan.collectives] == [BUCKET_BYTES] * 4
    plan = make_strategy("ddp", {"bucket_MB": 50}).plan(make.scenario(make.model(unet), make.cluster(), 2, 2))
    assert [c.size_bytes for c in plan.collectives] == [2 * BUCKET_BYTES] * 2


# Frozen work around a pipeline.


@pytest.fixture
def conditioned(make):
    encoder = make.component("encoder", [1.0, 1.0], trainable=False, output_bytes=3.0)
    return make.model(encoder, make.component("unet", [1.0] * 2, inputs=["encoder"], parameters=1))


def test_frozen_work_of_the_iteration_itself_runs_first(build, conditioned):
    plan = build(conditioned, 2, micro_batches=2)
    assert format_order(plan.order) == "X0.0:1 X0.1:1 0F0 0F1 0B0 0B1 0O\nX0.0:1 X0.1:1 1F0 1B0 1F1 1B1 1O\n"
    assert (plan.given, plan.kept, plan.prologue_s) == ((), (), 0.0)
    # Micro-batch 1 was encoded by position 1.
    assert simulate(plan).p2p_bytes == 3.0


def test_frozen_work_of_the_next_iteration_runs_last_and_its_output_is_kept(build, conditioned):
    plan = build(conditioned, 2, micro_batches=2, cross_iteration=True)
    assert format_order(plan.order) == "0F0 0F1 0B0 0B1 X0.0:1 X0.1:1 0O\n1F0 1B0 1F1 1B1 X0.0:1 X0.1:1 1O\n"
    assert {plan.tensors[tensor].size_bytes for tensor, device in plan.given if device == 0} == {3.0}
    assert [(plan.tensors[tensor].size_bytes, device) for tensor, device in plan.kept] == [(3.0, 0), (3.0, 0)]
    assert plan.prologue_s == 2.0
