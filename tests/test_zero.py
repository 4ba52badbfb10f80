"""ZeRO: what is exchanged, when, and what lies on each GPU, by closed forms on layers that are units of their own."""

from dataclasses import replace

import pytest

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from profiles.software.stacks import load_stack
from sim.outcomes.parts import replay
from sim.outcomes.runs import least_memory_bytes
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes, resident_bytes
from strategies.pipelining.cutting import cut_units
from strategies.registry import make as make_strategy
from strategies.scenario import Scenario, TrainingWorkload
from strategies.training.replicas import UNIT_PARAMETERS

GPUS, UNITS = 4, 3
WIRE = 1e9
"""Bytes per second of each port."""
SHARE = (GPUS - 1) / GPUS
GATHER_S = 2 * UNIT_PARAMETERS * SHARE / WIRE
"""Gathering the half-precision weights of one unit."""
SCATTER_S = 4 * UNIT_PARAMETERS * SHARE / WIRE
"""Scattering the fp32 gradients of one unit."""
STEP_S = (4 + 2 + 2 * 12) * UNIT_PARAMETERS / GPUS / 1e10
"""The step of one unit's part: gradient read, weight written, state read and written, at 10 GB/s."""
SAVED_BYTES = 7e6


@pytest.fixture
def scenario(make):
    """Three layers of 1 s forward and 2 s backward per sample and one unit's parameters, on four GPUs."""

    def build(
        num_gpus=GPUS, batch_size=8, forward_s=1.0, units=UNITS, slowdown=1.0, frozen_s=None, bandwidth=WIRE,
        component=None, **workload,
    ):  # fmt: skip
        frozen = []
        if frozen_s is not None:
            frozen.append(make.component("encoder", [frozen_s], trainable=False, parameters=10**6))
        unet = make.component(
            "unet", [forward_s] * units, inputs=[one.name for one in frozen], saved_bytes=SAVED_BYTES,
            parameters=UNIT_PARAMETERS, **(component or {}),
        )  # fmt: skip
        cluster = make.cluster(
            make.link("nvswitch", bandwidth), devices_per_node=8, slowdown=slowdown, memory_bytes_per_s=1e10
        )
        return make.scenario(make.model(*frozen, unet), cluster, num_gpus, batch_size, **workload)

    return build


def zero(stage, **parameters):
    return make_strategy(f"zero{stage}", parameters)


# Times.


@pytest.mark.parametrize(("extra_forward", "micro_batches"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("stage", [2, 3])
def test_without_overlap_compute_and_communication_add_up(scenario, stage, micro_batches, extra_forward):
    point = zero(stage, overlap="none", micro_batches=micro_batches)
    asked = scenario(frozen_s=0.25).with_extra_forward(extra_forward)
    # Two samples on each GPU.
    compute_s = 2 * (0.25 + UNITS * (4.0 if extra_forward else 3.0)) + UNITS * STEP_S
    gathers = 1 if stage == 2 else micro_batches * (3 if extra_forward else 2)
    expected_s = compute_s + UNITS * (gathers * GATHER_S + micro_batches * SCATTER_S)
    assert replay(point, asked).end_s == pytest.approx(expected_s)
    assert point.bound(asked) == pytest.approx(expected_s)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_zero2_hides_all_buckets_but_the_last_and_then_gathers(scenario, micro_batches):
    point = zero(2, micro_batches=micro_batches, bucket_MB=100)
    expected_s = 2 * UNITS * 3.0 + SCATTER_S + UNITS * (STEP_S + GATHER_S)
    assert replay(point, scenario()).end_s == pytest.approx(expected_s)
    assert 0.97 * expected_s < point.bound(scenario()) <= expected_s * (1 + 1e-12)


def test_by_default_zero2_scatters_half_a_billion_gradients_at_once(scenario):
    asked = scenario(units=12)
    sizes = [c.size_bytes for c in zero(2).plan(asked).collectives if c.operation == "reduce_scatter"]
    assert sizes == [4 * 10 * UNIT_PARAMETERS, 4 * 2 * UNIT_PARAMETERS]


@pytest.mark.parametrize("overlap", ["none", "buckets"])
def test_zero2_sharded_over_some_scatters_among_them_and_sums_the_parts_over_the_others(scenario, overlap):
    point = zero(2, shard_size=2, overlap=overlap, bucket_MB=100)
    unit_s = 4 * UNIT_PARAMETERS / WIRE
    # Half of the gradients are scattered; half of each GPU's half is sent and half received to sum it over two.
    scatter_s, sum_s = unit_s / 2, unit_s / 2
    last_s = scatter_s + sum_s if overlap == "buckets" else UNITS * (scatter_s + sum_s)
    expected_s = 2 * UNITS * 3.0 + last_s + UNITS * (2 * STEP_S + 2 * UNIT_PARAMETERS / WIRE / 2)
    trace = replay(point, scenario())
    assert trace.end_s == pytest.approx(expected_s)
    assert 0.97 * expected_s < point.bound(scenario()) <= expected_s * (1 + 1e-12)
    assert resident_bytes(trace).tolist() == [UNITS * UNIT_PARAMETERS * (4 + 16 / 2)]


@pytest.mark.parametrize(("micro_batches", "frozen_s"), [(1, None), (2, 0.25)])
def test_zero3_waits_for_a_unit_used_twice_in_a_row_for_the_first_and_for_the_last_scatter(
    scenario, micro_batches, frozen_s
):
    point = zero(3, micro_batches=micro_batches)
    compute_s = 2 * ((frozen_s or 0.0) + UNITS * 3.0) + UNITS * STEP_S
    expected_s = compute_s + 2 * micro_batches * GATHER_S + SCATTER_S
    assert replay(point, scenario(frozen_s=frozen_s)).end_s == pytest.approx(expected_s)
    assert 0.97 * expected_s < point.bound(scenario(frozen_s=frozen_s)) <= expected_s


def test_zero3_gathers_the_next_unit_when_the_one_before_is_freed(scenario):
    trace = replay(zero(3), scenario())
    ends = dict(zip(map(str, trace.plan.order[0]), trace.ends[0], strict=True))
    starts = [
        start
        for collective, (start, _) in zip(trace.plan.collectives, trace.collectives, strict=True)
        if collective.operation == "all_gather"
    ]
    # The second follows the first on the wire; the last unit's backward has it gathered again after its forward.
    first_two = [0.0, GATHER_S]
    freed = [ends["0F0"], ends["2F0"], ends["2F0"] + GATHER_S, ends["2B0"]]
    assert starts == pytest.approx([*first_two, *freed])


@pytest.mark.parametrize(
    "parameters", [{}, {"shard_size": 4, "bucket_MB": 288}, {"micro_batches": 4, "scatter_every": 2}]
)
def test_zero2_copies_each_bucket_into_what_is_scattered_before_that_begins(parameters):
    asked = Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 32))
    point = make_strategy("zero2", parameters)
    plan = point.plan(asked)
    (stage,) = plan.stages
    scatters = [c for c in plan.collectives if c.operation == "reduce_scatter"]
    rounds = point.micro_batches // point.scatter_every
    copied_s = asked.costs.components[stage.component].copied_s
    each_s = sum(copied_s(c.size_bytes * 6 / 4, 1) for c in scatters) / rounds
    backwards = [op for op in plan.ops[0] if op.action[:2] == (0, "B")]
    assert backwards[-1].duration_s == pytest.approx(stage.backward_s + each_s)
    end_s = simulate(plan).end_s
    assert end_s * 0.9 < point.bound(asked) <= end_s * (1 + 1e-12)


# Memory.


@pytest.mark.parametrize(("overlap", "micro_batches"), [("buckets", 2), ("none", 1)])
def test_zero2_holds_a_bucket_or_all_gradients_beside_the_activations(scenario, overlap, micro_batches):
    point = zero(2, overlap=overlap, micro_batches=micro_batches, bucket_MB=100)
    trace = replay(point, scenario())
    trained, local = UNITS * UNIT_PARAMETERS, 2 // micro_batches
    state = trained * (4 + 16 / GPUS)  # as DeepSpeed's estimator: whole half-precision gradients
    whole = 1 if overlap == "buckets" else UNITS
    expected = state + UNITS * local * SAVED_BYTES + whole * 4 * UNIT_PARAMETERS
    assert resident_bytes(trace).tolist() == [state]
    assert peak_memory_bytes(trace).tolist() == [expected]
    assert least_memory_bytes(point, scenario()) == expected


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_zero3_holds_two_units_and_the_gradients_of_one_beside_the_activations(scenario, micro_batches):
    trace = replay(zero(3, micro_batches=micro_batches), scenario())
    state = UNITS * UNIT_PARAMETERS * 18 / GPUS
    activations = UNITS * (2 // micro_batches) * SAVED_BYTES
    # When the last unit's backward ends it still has its weights, the unit before has been gathered.
    expected = state + activations + (2 * 2 + 4) * UNIT_PARAMETERS
    assert resident_bytes(trace).tolist() == [state]
    assert peak_memory_bytes(trace).tolist() == [expected]
    least = least_memory_bytes(zero(3, micro_batches=micro_batches), scenario())
    assert least == expected - 2 * UNIT_PARAMETERS


# Units.


@pytest.mark.parametrize(
    ("sizes", "blocks", "boundaries"),
    [
        ([0.5, 0.5, 1.0], [0, 1, 2], (0, 2, 3)),
        ([2.0, 2.0, 0.5, 0.25], [0, 0, 1, 2], (0, 4)),
        ([1.0, 0.5, 1.0, 0.5], [0, 1, 2, 3], (0, 1, 4)),
        ([0.0, 1.0, 0.0, 1.0, 0.0], [0, 1, 2, 3, 4], (0, 2, 5)),
    ],
)
def test_units_are_whole_blocks_of_enough_parameters(make, sizes, blocks, boundaries):
    component = make.component("unet", [1.0] * len(sizes), blocks=blocks)
    parameters = [int(size * UNIT_PARAMETERS) for size in sizes]
    layers = [replace(layer, parameters=own) for layer, own in zip(component.layers, parameters, strict=True)]
    component = replace(component, layers=tuple(layers))
    cut = cut_units(make.scenario(make.model(component), make.cluster(), 1, 1), 0, UNIT_PARAMETERS)
    assert (cut.boundaries, cut.positions) == (boundaries, (0,) * (len(boundaries) - 1))


def test_what_is_sharded_is_cast_in_no_pass():
    workload = TrainingWorkload(8, 64)
    scenario = Scenario(load_model("sd21"), load_cluster("p4de"), workload, stack=load_stack("eager"))
    assert scenario.stack.cast_weights
    kept = replace(scenario, stack=replace(scenario.stack, cast_weights=False))
    forward_s, kept_s, replicated_s = (
        sum(stage.forward_s for stage in make_strategy(name, {}).plan(of).stages)
        for name, of in (("zero3", scenario), ("zero3", kept), ("ddp", scenario))
    )
    assert forward_s == kept_s < replicated_s
