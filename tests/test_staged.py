"""Several stages per position: what moves, what is summed, what waits, whatever the order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InfeasibleError
from sim.replay.engine import simulate
from strategies.bounds.pipelines import staged_bound
from strategies.pipelining.builder import PipelineBuilder, posted_in_time
from strategies.pipelining.cutting import refuse_distant_skips
from strategies.pipelining.layout import Layout
from strategies.pipelining.reduction import reduce_and_step
from strategies.pipelining.stages import Cut, Shape
from strategies.plans.actions import BACKWARD, FORWARD, StageAction


def fill_and_drain(layout):
    """All forwards as a wave front, then all backwards: an order that every layout can carry out."""
    rows = [[] for _ in range(layout.shape.degree)]
    for kind in (FORWARD, BACKWARD):
        actions = []
        for stage, seat in enumerate(layout.seats):
            depth = stage - seat.first if kind == FORWARD else seat.last - stage
            actions += [(depth + m, -depth, stage, m) for m in layout.micro_batches(seat.cut)]
        for _, _, stage, m in sorted(actions):
            rows[layout.stages[stage].position].append(StageAction(stage, kind, m))
    return rows


def folded(degree):
    """Positions of a wave: down and up again."""
    return (*range(degree), *reversed(range(degree)))


def around(degree):
    """Positions of two chunks: down, and once more from the start."""
    return (*range(degree), *range(degree))


def both_ways(backbones, degree, micro_batches, boundaries):
    """Cuts of two chains that run against one another."""
    half = micro_batches // 2
    one = backbones[0] == backbones[1]
    return [
        Cut(backbones[0], boundaries, tuple(range(degree)), (0, half) if one else None),
        Cut(backbones[1], boundaries, tuple(reversed(range(degree))), (half, micro_batches) if one else None),
    ]


def unet(make, blocks, name="unet", **rest):
    skips = [(i, blocks - 1 - i) for i in range(blocks // 2)]
    return make.component(name, [1.0] * blocks, output_bytes=1.0, skips=skips, parameters=10, **rest)


def layout_of(make, kind, degree, micro_batches, route="relay", num_gpus=None, cluster=None, **workload):
    blocks = 4 * degree
    encoder = make.component("encoder", [0.5], trainable=False, output_bytes=4.0)
    first = unet(make, blocks, inputs=["encoder"])
    second = unet(make, blocks, name="second", inputs=["encoder"])
    model = make.model(encoder, first, *([second] if kind == "two backbones" else []))
    gpus = num_gpus or degree
    scenario = make.scenario(
        model, cluster or make.cluster(), gpus, micro_batches * gpus // degree, **workload
    )
    halves = tuple(range(0, blocks + 1, 2))
    cuts = {
        "wave": [Cut(1, halves, folded(degree))],
        "chunks": [Cut(1, halves, around(degree))],
        "both ways": both_ways((1, 1), degree, micro_batches, halves[::2]),
        "two backbones": both_ways((1, 2), degree, micro_batches, halves[::2]),
    }[kind]
    return Layout(scenario, Shape(degree, micro_batches, degree), tuple(cuts), route)


KINDS = ["wave", "chunks", "both ways", "two backbones"]


def test_a_skip_between_two_devices_goes_straight_to_its_reader(make):
    chain = make.component("unet", [1.0] * 4, output_bytes=1.0, skips=[(0, 2)])
    scenario = make.scenario(make.model(chain), make.cluster(), 4, 1)
    layout = Layout(scenario, Shape(4, 1, 4), (Cut(0, (0, 1, 2, 3, 4)),), "local")
    plan = PipelineBuilder(layout, fill_and_drain(layout)).build(reduce_and_step)
    trace = simulate(plan)
    assert trace.p2p_bytes == 2 * (3 + 1)
    sent = {(t.source, t.target) for t in trace.wiring.transfers if t is not None}
    assert {(0, 2), (2, 0)} <= sent
    with pytest.raises(InfeasibleError, match="a skip from stage 0 to 2 leads from position 0 to 2"):
        refuse_distant_skips(layout)


def test_stages_of_equal_layers_sum_their_gradients_over_all_that_hold_them(make):
    layout = layout_of(make, "both ways", 4, 4, num_gpus=8)
    plan = PipelineBuilder(layout, fill_and_drain(layout)).build(reduce_and_step)
    assert sorted(c.group for c in plan.collectives) == [(0, 3), (0, 3), (1, 2), (1, 2)]
    assert {c.size_bytes for c in plan.collectives} == {4 * 10 * 4.0}
    assert {len(c.reads) for c in plan.collectives} == {2}
    trace = simulate(plan)
    assert trace.collective_bytes == 4 * 2 * 3 * 160.0  # rings of four: each sends 2 * 3 / 4 of the whole


@settings(max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    degree=st.sampled_from([2, 4]),
    micro_batches=st.sampled_from([2, 4, 6]),
    route=st.sampled_from(["relay", "local"]),
    blocking=st.booleans(),
    extra=st.booleans(),
)
def test_no_order_deadlocks_or_undercuts_the_bound(make, kind, degree, micro_batches, route, blocking, extra):
    cluster = make.cluster(make.link("nvswitch", 20.0, 0.1, 0.05))
    layout = layout_of(make, kind, degree, micro_batches, route, 2 * degree, cluster, extra_forward=extra)
    trace = simulate(
        PipelineBuilder(layout, fill_and_drain(layout), blocking=blocking).build(reduce_and_step)
    )
    bound_s = staged_bound(layout)
    assert 0 < bound_s <= trace.end_s * (1 + 1e-12)


def test_a_receive_is_posted_at_the_first_pause_after_the_tensor_is_written(make):
    plan = make.plan(
        [
            [make.op("0F0", 2.0, writes="a"), make.op("0F1", 2.0)],
            [make.op("1F5", 1.0), make.op("1F6", 2.5), make.op("1F7", 1.0), make.op("1F0", 1.0, reads="a")],
        ]
    )
    assert posted_in_time(plan) == {(0, 1): 1}
