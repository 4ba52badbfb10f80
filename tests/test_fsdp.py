"""FSDP: what is exchanged, when, and what lies on each GPU, by closed forms on layers that are units of their own."""

from collections import Counter
from dataclasses import replace
from math import lcm

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import evaluate

from profiles.architectures.components import divided_parameters
from profiles.architectures.models import load_model
from profiles.errors import InfeasibleError
from profiles.machines.clusters import load_cluster
from sim.outcomes.parts import replay
from sim.outcomes.runs import least_memory_bytes, run_point
from sim.replay.memory import peak_memory_bytes, resident_bytes
from strategies.pipelining.mesh import Mesh
from strategies.pipelining.units import packed_s, unpacked_s
from strategies.plans.network import Network
from strategies.plans.placement import Placement, Subgroup
from strategies.plans.plan import Collective
from strategies.registry import make as make_strategy
from strategies.scenario import Scenario, TrainingWorkload
from validate.equal_blocks import equal_blocks_transformer

GPUS, UNITS, PARAMETERS = 4, 5, 10**6
WIRE = 1e9
"""Bytes per second of each port."""
SAVED_BYTES = 7e6


def fsdp(**parameters):
    return make_strategy("fsdp", parameters)


@pytest.fixture
def scenario(make):
    """Five layers of 1 s forward and 2 s backward per sample and a million parameters each, on four GPUs."""

    def build(num_gpus=GPUS, batch_size=8, bandwidth=WIRE, slowdown=1.0, num_units=UNITS, **workload):
        unet = make.component(
            "unet", [1.0] * num_units, saved_bytes=SAVED_BYTES, parameters=PARAMETERS, output_bytes=3e6
        )
        cluster = make.cluster(make.link("nvswitch", bandwidth), devices_per_node=8, slowdown=slowdown)
        return make.scenario(make.model(unet), cluster, num_gpus, batch_size, **workload)

    return build


@pytest.fixture
def team(make):
    """A transformer of three blocks that work 1 s each per sample, on eight GPUs of one node."""

    def build(num_gpus=8, batch_size=8, bandwidth=WIRE, heads=8, text_tokens=0, **workload):
        model = equal_blocks_transformer(
            3, 1.0, parameters=PARAMETERS, saved_bytes=SAVED_BYTES, heads=heads, text_tokens=text_tokens
        )
        cluster = make.cluster(make.link("nvswitch", bandwidth), devices_per_node=8)
        return make.scenario(model, cluster, num_gpus, batch_size, **workload)

    return build


def sent(point, asked):
    """Bytes that each GPU sends."""
    return run_point(point, asked).expected.collective_bytes / asked.workload.num_gpus


def ring_share(size):
    return (size - 1) / size


# Bytes on the wire.


@pytest.mark.parametrize(
    ("micro_batches", "reshard", "gathers"), [(2, "true", 2 * UNITS - 1), (1, "false", UNITS)]
)
def test_each_micro_batch_gathers_all_units_twice_but_the_last(scenario, micro_batches, reshard, gathers):
    point = fsdp(reshard=reshard, micro_batches=micro_batches)
    expected = micro_batches * ring_share(GPUS) * (2 * gathers + 4 * UNITS) * PARAMETERS
    assert sent(point, scenario()) == pytest.approx(expected)


def test_a_shard_size_of_one_is_ddp(scenario):
    for parameters in ({}, {"micro_batches": 2}):
        ddp = run_point(make_strategy("ddp", parameters), scenario()).expected
        assert run_point(fsdp(shard_size=1, **parameters), scenario()).expected == ddp
    assert fsdp(shard_size=1).bound(scenario()) == make_strategy("ddp", {}).bound(scenario())


# Times.


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_all_is_hidden_but_the_first_gather_and_the_last_scatter_of_each_micro_batch(scenario, micro_batches):
    point = fsdp(micro_batches=micro_batches)
    wire_s = ring_share(GPUS) * (2 + 4) * PARAMETERS / WIRE
    expected_s = 2 * 3.0 * UNITS + micro_batches * wire_s
    assert replay(point, scenario()).end_s == pytest.approx(expected_s)
    assert 0.99 * expected_s < point.bound(scenario()) <= expected_s


def test_gathers_run_two_units_ahead_forwards_and_one_backwards(scenario):
    trace = replay(fsdp(), scenario())
    ends = dict(zip(map(str, trace.plan.order[0]), trace.ends[0], strict=True))
    spans = zip(trace.plan.collectives, trace.collectives, strict=True)
    starts = [start for collective, (start, _) in spans if collective.operation == "all_gather"]
    gather_s, scatter_s = (ring_share(GPUS) * size * PARAMETERS / WIRE for size in (2, 4))
    forwards = [0.0, gather_s, 2 * gather_s, ends["0F0"], ends["1F0"]]
    backwards = [ends["4F0"], *(ends[f"{unit}B0"] + scatter_s for unit in (4, 3, 2))]
    assert starts == pytest.approx([*forwards, *backwards])


def test_a_backward_waits_until_the_gradients_before_the_last_are_scattered(scenario):
    asked = scenario(bandwidth=1e5)  # 30 s a scatter, 15 s a gather, 4 s a backward
    trace = replay(fsdp(reshard="false"), asked)
    starts = dict(zip(map(str, trace.plan.order[0]), trace.starts[0], strict=True))
    scatters = [end for c, (_, end) in zip(trace.plan.collectives, trace.collectives, strict=True)
                if c.operation == "reduce_scatter"]  # fmt: skip
    assert [starts[f"{unit}B0"] for unit in (2, 1, 0)] == pytest.approx(scatters[:3])


@pytest.mark.parametrize(("reshard", "gathered"), [("true", True), ("false", False)])
def test_weights_are_copied_out_of_their_buffer_and_gradients_into_theirs(reshard, gathered):
    cluster = replace(load_cluster("p4de"), overlap_slowdown=1.0)  # as on a critical path
    asked = Scenario(load_model("flux-dev"), cluster, TrainingWorkload(8, 8))
    plan = fsdp(reshard=reshard).plan(asked)
    stage, copied_s = plan.stages[1], asked.costs.components[plan.stages[1].component].copied_s
    durations = {str(op.action): op.duration_s for op in plan.ops[0]}
    out_s, in_s = copied_s(4 * stage.parameters, 1), copied_s(6 * stage.parameters, 1)
    assert out_s > 0
    assert durations["1F0"] == pytest.approx(stage.forward_s + out_s)
    assert durations["1B0"] == pytest.approx(stage.backward_s + gathered * out_s + in_s)
    path_s = evaluate(plan, Network(plan.placement)).end_s
    assert 0.9 * path_s < fsdp(reshard=reshard).bound(asked) <= path_s * (1 + 1e-12)


DEGREES = [(2, "ulysses", 1), (4, "ring", 1), (1, "ulysses", 2), (2, "ring", 2), (2, "ulysses", 4)]


@pytest.mark.parametrize(("context", "way", "tensor"), DEGREES)
def test_the_bound_is_near_the_critical_path_and_never_above_it(team, context, way, tensor):
    for bandwidth, checkpointing, least in ((1e5, "none", 0.7), (1e7, "block", 0.8)):
        asked = team(bandwidth=bandwidth, checkpointing=checkpointing)
        for rest in ({}, {"shard_size": 1}, {"reshard": "false"}):
            count = context * tensor
            point = fsdp(
                context_degree=context, context=way, tensor_degree=tensor, micro_batches=count, **rest
            )
            plan = point.plan(asked)
            path_s = evaluate(plan, Network(plan.placement)).end_s
            if context * tensor > 1 or "shard_size" not in rest:
                assert least * path_s < point.bound(asked) <= path_s * (1 + 1e-12)
            assert point.bound(asked) <= replay(point, asked).end_s * (1 + 1e-12)


@pytest.mark.parametrize("trainable", ["all", "lora:16"])
@pytest.mark.parametrize("name", ["fsdp", "ddp", "zero2", "zero3"])
def test_the_bound_knows_that_exchanges_slow_compute_down(name, trainable):
    asked = Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 64, trainable=trainable))
    point = make_strategy(name, {})
    assert 0.965 < point.bound(asked) / replay(point, asked).end_s <= 1 + 1e-12


@pytest.mark.parametrize("rest", [{}, {"shard_size": 2}, {"shard_size": 8, "reshard": "false"}])
def test_where_adapters_train_few_units_the_bound_is_below_the_critical_path_and_all_sums_are_awaited(rest):
    cluster = replace(load_cluster("l40s-ib"), overlap_slowdown=1.0)
    asked = Scenario(load_model("sd21"), cluster, TrainingWorkload(16, 16, trainable="lora:256"))
    plan = fsdp(**rest).plan(asked)
    path_s = evaluate(plan, Network(plan.placement)).end_s
    assert 0.7 * path_s < fsdp(**rest).bound(asked) <= path_s * (1 + 1e-12)
    last = next(c for c in reversed(plan.collectives) if c.operation in ("reduce_scatter", "all_reduce"))
    assert set(last.writes) <= {read for op in plan.ops[0] for read in op.reads}


# Memory.


def test_when_its_backward_ends_the_last_unit_has_weights_or_room_for_gradients_and_the_one_before(scenario):
    trace = replay(fsdp(), scenario())
    expected = UNITS * PARAMETERS * 16 / GPUS + UNITS * 2 * SAVED_BYTES + (2 + 2 + 4) * PARAMETERS
    assert peak_memory_bytes(trace).tolist() == [expected]
    assert least_memory_bytes(fsdp(), scenario()) == expected - 2 * PARAMETERS


def test_without_resharding_all_weights_lie_there_at_once(scenario):
    trace = replay(fsdp(reshard="false"), scenario())
    expected = UNITS * PARAMETERS * (16 / GPUS + 2) + UNITS * 2 * SAVED_BYTES + (2 + 4 - 2) * PARAMETERS
    assert peak_memory_bytes(trace).tolist() == [expected]
    assert least_memory_bytes(fsdp(reshard="false"), scenario()) == expected


# Teams.


@pytest.mark.parametrize(("context", "way", "tensor"), DEGREES)
def test_a_team_divides_activations_and_states(team, context, way, tensor):
    point = fsdp(context_degree=context, context=way, tensor_degree=tensor)
    size = context * tensor
    trace = replay(point, team(batch_size=8 // size))
    assert resident_bytes(trace).tolist() == [3 * PARAMETERS * 16 / 8]
    saved = [t.size_bytes for t in trace.plan.tensors if t.role == "saved"]
    whole = 2 * 2 * ELEMENTS / context  # of what is gathered for each pair of matrices all tokens are kept
    assert saved == pytest.approx([SAVED_BYTES / size + whole * (1 - 1 / tensor)] * 3)
    gathered = {t.size_bytes for t in trace.plan.tensors if t.role == "gathered"}
    assert gathered == {2 * PARAMETERS / tensor}


ELEMENTS = 16 * 16 * 64
"""Of the hidden state of one sample."""


def exchanged(point, asked, operation, stream):
    plan = point.plan(asked)
    found = [c for c in plan.collectives if (c.operation, c.stream) == (operation, stream)]
    return sum(c.size_bytes for c in found), sum(c.calls for c in found)


@pytest.mark.parametrize("checkpointing", ["none", "selective"])
def test_the_pieces_of_a_pass_add_up_to_it_whether_or_not_its_attention_is_exchanged(checkpointing):
    workload, model = TrainingWorkload(8, 4, checkpointing=checkpointing), load_model("z-image-turbo")
    whole = model.components[model.backbones[0]]
    kept = tuple(of for of in whole.exchanges if of.kind != "key_value" or of.layer % 2)
    parts = tuple(replace(of, exchanges=kept) if of is whole else of for of in model.components)
    asked = Scenario(replace(model, components=parts), load_cluster("p4de"), workload)
    point = fsdp(context_degree=2, context="ring", tensor_degree=2, reshard="false")
    layout, durations = point.layout(asked), Counter()
    for op in point.plan(asked).ops[0]:
        durations[op.action[:2]] += op.duration_s
    attending = {of.layer for of in layout.component(layout.stages[0]).exchanges if of.kind == "key_value"}
    assert any(of.first_layer not in attending for of in layout.stages)
    for unit, stage in enumerate(layout.stages):
        forward_s = stage.forward_s + unpacked_s(layout, unit)
        backward_s = stage.backward_s + packed_s(layout, unit, layout.parameters[unit])
        assert durations[unit, "F"] == pytest.approx(forward_s)
        assert durations[unit, "B"] == pytest.approx(backward_s)


def test_ulysses_exchanges_four_tensors_of_each_attention_forwards_and_backwards(team):
    point = fsdp(context_degree=4, micro_batches=2)
    size, calls = exchanged(point, team(), "all_to_all", 2)
    assert calls == 2 * 3 * 8
    assert size == pytest.approx(2 * 3 * 8 * 2 * 2 * ELEMENTS / 4)  # two samples at a time


def test_a_ring_passes_keys_and_values_on_and_backwards_their_gradients_until_they_are_home(team):
    point = fsdp(context_degree=4, context="ring")
    size, calls = exchanged(point, team(), "send_recv", 2)
    assert calls == 3 * (3 + 3 + 4)
    both = 2 * 4 * ELEMENTS / 4  # keys and values of four samples on one of four GPUs
    assert size == pytest.approx(3 * both * ((3 + 3) * 2 + 4 * 4))


def test_tensor_parallelism_gathers_and_scatters_around_each_pair_of_matrices(team):
    point, asked = fsdp(tensor_degree=2), team()
    gathers, scatters = (exchanged(point, asked, of, 3) for of in ("all_gather", "reduce_scatter"))
    whole = 2 * 2 * ELEMENTS  # two samples on each pair of GPUs
    assert gathers == (pytest.approx(3 * 2 * 2 * whole), 3 * 2 * 2)
    assert scatters == (pytest.approx(3 * 2 * 2 * whole), 3 * 2 * 2)


def test_tensor_parallelism_divides_matrices_that_tokens_pass_and_sums_gradients_of_all_else():
    model = load_model("sd3-medium")
    (index,) = model.backbones
    layers, of = model.components[index].layers, [fsdp(tensor_degree=t, shard_size=2) for t in (1, 4)]
    asked = Scenario(model, load_cluster("p4de"), TrainingWorkload(8, 8))
    one, four = (sum(p.layout(asked).parameters) for p in of)
    matrices = sum(divided_parameters(model.components[index], layer) for layer in range(len(layers)))
    assert one == sum(layer.parameters for layer in layers)
    assert four == one - matrices * 3 / 4
    block = [1536**2 * n for n in (4, 8, 4, 8)]  # of image and text: attention, and the feed-forward
    assert divided_parameters(model.components[index], 1) == sum(block)
    plan = of[1].plan(asked)
    held = {buffer.name: buffer.size_bytes for buffer in plan.resident[0]}
    assert held["optimizer"] == pytest.approx(12 * four / 2)
    summed = sum(c.size_bytes for c in plan.collectives if (c.operation, c.stream) == ("all_reduce", 3))
    assert summed == pytest.approx(2 * (one - matrices))
    scattered = sum(
        c.size_bytes for c in plan.collectives if c.operation == "reduce_scatter" and not c.stream
    )
    assert scattered == pytest.approx(4 * four)


# Groups.


def test_subgroups_beside_one_another_share_the_ports_of_their_node(make):
    cluster = make.cluster(make.link("nvswitch", 1e9), make.link("nic", 1e8), devices_per_node=4)
    placement = Placement(cluster, 8, 1, 1)
    across = Collective("all_reduce", (0,), 1e6, (0,), (), (0,), subgroup=Subgroup(2, 4))
    route = Network(placement).collective(across)
    assert placement.groups((0,), (0,), Subgroup(2, 4)) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert route.wire_s == pytest.approx(4 * 1e6 / 1e8)
    assert route.sent_bytes == 8 * 1e6
    inside = Network(placement).collective(across._replace(subgroup=Subgroup(4, 1)))
    assert inside.wire_s == pytest.approx(1.5 * 1e6 / 1e9)
    assert inside.sent_bytes == 8 * 1.5e6


@given(*[st.sampled_from([1, 2, 4])] * 3, st.sampled_from([1, 2]))
def test_every_gpu_is_once_in_a_group_of_each_axis(replicas, shards, context, tensor):
    degrees = Mesh(replicas, shards, context, tensor)
    gpus = replicas * shards * context * tensor
    placement = Placement(load_cluster("ideal"), gpus, 1, 1)
    for subgroup in (degrees.sharding, degrees.replication, degrees.contexts, degrees.tensors):
        groups = placement.groups((0,), (0,), subgroup)
        assert sorted(rank for group in groups for rank in group) == list(range(gpus))
        assert lcm(*map(len, groups)) == subgroup.size
    assert degrees.sharding.size * degrees.replication.size * degrees.tensors.size == gpus


# Legality.


@pytest.mark.parametrize(
    ("degrees", "words"),
    [
        ({"context_degree": 16}, r"24 heads, context_degree 16 \(ulysses\): 24 % 16 = 8"),
        (
            {"context_degree": 4, "tensor_degree": 4},
            r"24 heads, context_degree 4 \(ulysses\) \* tensor_degree 4 = 16: 24 % 16 = 8",
        ),
        (
            {"shard_size": 16, "context_degree": 2},
            r"shard_size\(16\) \* context_degree\(2\) = 32 does not divide",
        ),
        (
            {"micro_batches": 3},
            r"batch_size\(16\) / \(gpus\(16\) \* micro_batches\(3\)\) = 0.333333 is not whole",
        ),
    ],
)
def test_what_does_not_divide_is_refused_with_its_numbers(degrees, words):
    scenario = Scenario(load_model("flux-dev"), load_cluster("p4de"), TrainingWorkload(16, 16))
    with pytest.raises(InfeasibleError, match=words):
        fsdp(**degrees).plan(scenario)


def test_a_u_net_is_divided_neither_by_context_nor_by_tensor():
    scenario = Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 8))
    for degrees in ({"context_degree": 2}, {"tensor_degree": 2}):
        with pytest.raises(InfeasibleError, match=r"needs a transformer, .* has \d+ convolutions"):
            fsdp(**degrees).plan(scenario)
    offered = list(fsdp().candidates(scenario))
    assert offered
    assert {point.group_size for point in offered} == {1}
