"""What is kept for a backward and what is recomputed before it: blocks, blocks without their attention, stages."""

from dataclasses import replace

import numpy as np
import pytest

from profiles.architectures.components import Layer
from profiles.architectures.kernels import Kernel
from profiles.architectures.models import load_model
from profiles.costs.layers import ComponentCosts
from profiles.machines.clusters import load_cluster
from profiles.machines.devices import load_device
from profiles.software.stacks import load_stack
from sim.outcomes.parts import replay
from sim.outcomes.runs import bound
from sim.replay.memory import memory_events, peak_memory_bytes, resident_bytes
from strategies.pipelining.footprint import saved_bytes
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make as make_strategy
from strategies.scenario import Scenario

HIDDEN, SAVED = 3.0, 100.0


def chain(make, layers=6, **rest):
    """Equal layers of 1 s forward and 2 s backward, each a block of its own."""
    shape = {"output_bytes": HIDDEN, "saved_bytes": SAVED, **rest}
    return make.model(make.component("unet", [1.0] * layers, **shape))


def peak_beside_state(strategy, scenario):
    """Bytes at the peak beyond weights, gradients and optimizer states, which weigh nothing here."""
    return float(peak_memory_bytes(replay(strategy, scenario)).max())


def kept(make, model, strategy, checkpointing="block", gpus=1, batch_size=1):
    """Bytes that one micro-batch keeps in each stage."""
    layout = strategy.layout(
        make.scenario(model, make.cluster(), gpus, batch_size, checkpointing=checkpointing)
    )
    return [saved_bytes(layout, stage) for stage in layout.stages]


def pipeline(name, degree, micro_batches=1, **rest):
    return make_strategy(name, {"pipeline_degree": degree, "micro_batches": micro_batches, **rest})


@pytest.mark.parametrize(("layers", "together"), [(1, 1), (5, 1), (5, 2), (6, 3), (6, 6)])
def test_blocks_of_a_chain_cost_one_forward_more_and_keep_their_inputs_beside_what_runs_again(
    make, layers, together
):
    ddp, model = make_strategy("ddp", {}), chain(make, layers)
    how = "block" if together == 1 else f"block:{together}"
    plain, blocks = (make.scenario(model, make.cluster(), 1, 1, checkpointing=of) for of in ("none", how))
    assert replay(ddp, plain).end_s == layers * 3.0
    assert replay(ddp, blocks).end_s == layers * 4.0 == bound(ddp, blocks)
    assert peak_beside_state(ddp, plain) == layers * SAVED
    segments, most = -(-layers // together), min(layers, together)
    assert (
        peak_beside_state(ddp, blocks) == (segments - 1) * HIDDEN + most * SAVED
    )  # nothing is read from outside


def test_what_runs_again_together_is_gathered_together(make):
    model = chain(make, 6, parameters=8)
    scenario = make.scenario(model, make.cluster(), 2, 2, checkpointing="block:2")
    plan = make_strategy("fsdp", {}).plan(scenario)
    sizes = [of.size_bytes for of in plan.collectives if of.operation == "all_gather"]
    assert sizes == 5 * [2 * 8 * scenario.workload.recipe.weight_bytes]  # the last stays for its backward


@pytest.mark.parametrize(("name", "in_flight"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [6, 6, 6, 6])])
def test_in_a_pipeline_each_micro_batch_in_flight_keeps_the_inputs_of_its_blocks(make, name, in_flight):
    scenario = make.scenario(chain(make, 8), make.cluster(), 4, 6, checkpointing="block")
    trace = replay(pipeline(name, 4, 6), scenario)
    blocks = [1, 2, 2, 2]  # with an input of their own: the first reads nothing
    again = [SAVED, *3 * [SAVED - HIDDEN]]  # beyond the input, which is among what a block saves
    held = [count * each * HIDDEN + own for count, each, own in zip(in_flight, blocks, again, strict=True)]
    own = [tensor for tensor in trace.plan.tensors if tensor.role == "saved"]
    assert {tensor.size_bytes for tensor in own} == {HIDDEN, 2 * HIDDEN}
    devices, _, changes, tensors = memory_events(trace)
    for device, expected in enumerate(held):
        saved = [
            change if trace.plan.roles[tensor] == "saved" else 0.0
            for at, change, tensor in zip(devices, changes, tensors, strict=True)
            if at == device
        ]
        assert np.cumsum(saved).max() + resident_bytes(trace)[device] == expected


def test_a_local_skip_is_kept_once_where_both_its_ends_lie_on_one_device(make):
    model = chain(make, 8, skips=[(0, 7), (1, 6), (2, 5), (3, 4)])
    local, relayed = (
        kept(make, model, pipeline("pulse", 2, 1, skip_route=route), gpus=2) for route in ("local", "relay")
    )
    # Layers 0 and 1, 2 and 3, 4 and 5, 6 and 7. The skip 3->4 is the hidden state; 1->6 leaves with the last layer of a
    # stage, which does not keep it; the tensors of 2->5 and 0->7 are inputs of blocks where they were made.
    assert local == [HIDDEN, 2 * HIDDEN, 2 * HIDDEN, 2 * HIDDEN + HIDDEN]
    assert relayed == [HIDDEN, 2 * HIDDEN, 2 * HIDDEN + HIDDEN, 2 * HIDDEN + 2 * HIDDEN]


def test_units_of_one_device_keep_together_what_one_stage_of_them_all_would(make):
    rest = {"skips": [(0, 5), (2, 4)], "blocks": [0, 0, 1, 1, 2, 2], "carried_bytes": 0.5}
    model = chain(make, 6, parameters=5 * 10**7, **rest)
    scenario = make.scenario(model, make.cluster(), 1, 1, checkpointing="block")
    plans = [make_strategy(name, {}).plan(scenario) for name in ("zero3", "ddp")]
    units, whole = ([t.size_bytes for t in plan.tensors if t.role == "saved"] for plan in plans)
    assert len(units) > 1
    assert sum(units) == sum(whole)


# Attention.

HEADS, TOKENS, HEAD_DIM = 4, 256, 32
LEFT = 2.0 * HEADS * TOKENS * HEAD_DIM + 4 * HEADS * TOKENS  # the output in half, the sums in single


def transformer(layers=3):
    """A backbone of equal blocks: two products around attention, counted."""
    width = HEADS * HEAD_DIM
    rows = {"m": TOKENS, "image_m": TOKENS}
    kernels = (
        Kernel("matmul", 2, 1, **rows, n=width, k=width, weight_bytes=2.0 * width**2),
        Kernel("attention", 1, HEADS, **rows, n=TOKENS, image_n=TOKENS, k=HEAD_DIM, written_bytes=LEFT),
        Kernel("dispatch", 1),
    )
    model = load_model("pixart")
    backbone = model.components[model.backbones[0]]
    own = tuple(
        Layer(i, f"block{i}", 2 * width**2, "full", 0.0, 1e9, 1e8, 1e6, 3, 1000.0, 5 * LEFT)
        for i in range(layers)
    )
    left_out = {"inputs": (), "exchanges": (), "half_kernels": (), "carried_bytes": 0.0}
    small = replace(backbone, layers=own, kernels=(kernels,) * layers, **left_out)
    return replace(model, components=(small,), anchors=())


def test_selective_runs_all_but_attention_again_and_keeps_what_attention_leaves(make):
    device, stack = load_device("a100-80gb-sxm"), replace(load_stack(), forward_operator_s=0.0)
    costs = ComponentCosts(transformer().components[0], device, stack=stack)
    forward_s, own_s = costs.forward_s(8), costs.attention_s(8)
    assert costs.recomputed_s(8) == pytest.approx(forward_s)
    assert costs.recomputed_s(8, attention=False) == pytest.approx(forward_s - own_s)
    assert np.all(own_s > 0.05 * forward_s)
    assert costs.attention_bytes.tolist() == [LEFT] * 3


def test_selective_peaks_at_inputs_attention_and_the_rest_of_one_block():
    found = {each: peak_state(each, transformer()) for each in ("none", "block", "selective")}
    flying = 1000.0 + LEFT  # gradients of a block's output and of the largest tensor within
    assert found["none"] == 3 * 5 * LEFT + flying
    assert found["block"] == 3 * 1000.0 + 5 * LEFT + flying
    assert found["selective"] == 3 * 1000.0 + 3 * LEFT + 4 * LEFT + flying


def peak_state(checkpointing, model):
    scenario = Scenario(model, load_cluster("p4de"), TrainingWorkload(1, 1, checkpointing=checkpointing))
    trace = replay(make_strategy("ddp", {}), scenario)
    state = 18 * model.components[0].parameters
    return float(peak_memory_bytes(trace).max()) - state
