"""The engine against closed forms, the worklist evaluator and a plain SimPy model of shared ports."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import evaluate

from profiles.errors import DeadlockError
from sim.replay.engine import CHUNK_S, simulate
from strategies.orders.named import gpipe_order, one_forward_one_backward_order
from strategies.plans.actions import BACKWARD, FORWARD
from strategies.plans.network import Network
from strategies.plans.placement import Placement
from strategies.plans.plan import Op, Plan, Tensor

ORDERS = {"gpipe": gpipe_order, "1f1b": one_forward_one_backward_order}

repeatable = settings(derandomize=True, max_examples=150)


def pipeline(order, placement, forward_s, backward_s, hidden_bytes=0.0, blocking=False):
    """A plan of stages with these seconds, in this order; both directions carry the same bytes."""
    degree = len(order)
    tensors, numbers = [], {}

    def tensor(role, stage, micro_batch, size_bytes):
        key = (role, stage, micro_batch)
        if key not in numbers:
            numbers[key] = len(tensors)
            tensors.append(Tensor(role, stage, micro_batch, size_bytes))
        return numbers[key]

    def op(stage, kind, micro_batch):
        saved = tensor("saved", stage, micro_batch, 0.0)
        before = [tensor("hidden", stage - 1, micro_batch, hidden_bytes)] if stage else []
        if kind == FORWARD:
            after = [tensor("hidden", stage, micro_batch, hidden_bytes)] if stage + 1 < degree else []
            return tuple(before), (saved, *after)
        after = [tensor("gradient", stage + 1, micro_batch, hidden_bytes)] if stage + 1 < degree else []
        before = [tensor("gradient", stage, micro_batch, hidden_bytes)] if stage else []
        return (saved, *after), tuple(before)

    durations_s = {FORWARD: forward_s, BACKWARD: backward_s}
    ops = tuple(tuple(Op(a, durations_s[a.kind][a.stage], *op(*a)) for a in row) for row in order)
    return Plan(ops, tuple(tensors), placement, resident=((),) * degree, blocking=blocking)


def line(cluster, degree):
    """One pipeline with a GPU for each position."""
    return Placement(cluster, degree, degree, degree)


# When receives are posted.


def test_a_message_waits_for_its_receive_to_be_posted(make):
    cluster = make.cluster(make.link("nvswitch", bandwidth=1.0))
    rows = [
        [make.op("0F0", 1.0, writes="a")],
        [make.op("1F0", 4.0), make.op("1F1", 2.0), make.op("1F2", 1.0, "a")],
    ]
    sizes = {"a": 2.0}
    assert simulate(make.plan(rows, cluster=cluster, sizes=sizes)).sent == (1.0,)
    posted = make.plan(rows, cluster=cluster, sizes=sizes, posted_after={("a", 1): 1})
    assert (simulate(posted).sent, simulate(posted).starts[1]) == ((6.0,), (0.0, 4.0, 8.0))


def test_a_blocking_device_waits_for_what_it_sends(make):
    cluster = make.cluster(make.link("nvswitch", bandwidth=1.0))
    rows = [
        [make.op("0F0", 1.0, writes="a"), make.op("0F1", 1.0)],
        [make.op("1F5", 4.0), make.op("1F0", 1.0, "a")],
    ]
    sizes = {"a": 2.0}
    assert simulate(make.plan(rows, cluster=cluster, sizes=sizes)).starts == ((0.0, 1.0), (0.0, 4.0))
    blocking = simulate(make.plan(rows, cluster=cluster, sizes=sizes, blocking=True))
    assert blocking.starts == ((0.0, 6.0), (0.0, 6.0))


# Against the worklist evaluator, wherever no port is shared.

seconds = st.floats(0.01, 3.0)


@st.composite
def stages(draw):
    """Forward and backward seconds of each stage, and the number of micro-batches."""
    degree = draw(st.integers(1, 6))
    times = st.lists(seconds, min_size=degree, max_size=degree)
    return draw(times), draw(times), draw(st.integers(1, 9))


@repeatable
@given(stages(), st.sampled_from(sorted(ORDERS)), st.floats(0.0, 4.0), st.booleans())
def test_with_any_latency_the_engine_equals_the_worklist(make, times, order, latency_s, blocking):
    forward_s, backward_s, micro_batches = times
    degree = len(forward_s)
    placement = line(make.cluster(make.link(latency_s=latency_s)), degree)
    rows = ORDERS[order](degree, micro_batches)
    plan = pipeline(rows, placement, forward_s, backward_s, hidden_bytes=1.0, blocking=blocking)
    assert_same_times(simulate(plan), evaluate(plan, Network(placement)))


@repeatable
@given(stages(), st.sampled_from(sorted(ORDERS)), st.floats(0.0, 1.0))
def test_with_ports_held_no_longer_than_any_op_the_engine_equals_the_worklist(make, times, order, share):
    # In 1F1B with two positions, and in GPipe with any, no two messages then ever meet in a port.
    forward_s, backward_s, micro_batches = times
    degree = len(forward_s) if order == "gpipe" else min(2, len(forward_s))
    placement = line(make.cluster(make.link("nvswitch", bandwidth=1.0, latency_s=0.2)), degree)
    rows = ORDERS[order](degree, micro_batches)
    shortest_s = min(forward_s[:degree] + backward_s[:degree])
    plan = pipeline(rows, placement, forward_s, backward_s, hidden_bytes=share * shortest_s)
    assert_same_times(simulate(plan), evaluate(plan, Network(placement)))


def times_of(trace):
    spans = sum(trace.collectives, ())
    return [*trace.starts, *trace.ends, *trace.early, trace.sent, trace.arrived, spans]


def assert_same_times(trace, expected):
    for found, wanted in zip(times_of(trace), times_of(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)
    assert trace.end_s == pytest.approx(expected.end_s, abs=1e-9)
    assert trace.p2p_bytes == expected.p2p_bytes


# Against a plain SimPy model, where ports are shared.


class PlainModel:
    """Every port a Resource of its own, every message a process that holds its ports."""

    def __init__(self, plan):
        self.env, self.plan, self.network = simpy.Environment(), plan, Network(plan.placement)
        self.ports = {}
        self.arrivals = {}
        self.readers = {}
        writers = {t: device for device, ops in enumerate(plan.ops) for op in ops for t in op.writes}
        for device, ops in enumerate(plan.ops):
            for tensor in (tensor for op in ops for tensor in op.reads):
                if writers[tensor] != device and device not in self.readers.setdefault(tensor, []):
                    self.readers[tensor].append(device)
                    self.arrivals[tensor, device] = self.env.event()
        self.starts = [[] for _ in plan.ops]

    def run(self):
        for device in range(len(self.plan.ops)):
            self.env.process(self.device(device))
        self.env.run()
        return self.starts

    def device(self, device):
        for op in self.plan.ops[device]:
            yield self.env.all_of(self.arrivals[t, device] for t in op.reads if (t, device) in self.arrivals)
            self.starts[device].append(self.env.now)
            yield self.env.timeout(op.duration_s)
            for tensor in op.writes:
                for reader in self.readers.get(tensor, []):
                    self.env.process(self.message(tensor, device, reader))

    def message(self, tensor, source, target):
        route = self.network.route(source, target)
        size_bytes = self.plan.tensors[tensor].size_bytes
        requests = []
        for port, hold_s_per_byte in route.ports:
            resource = self.ports.setdefault(port, simpy.Resource(self.env))
            requests.append((resource, resource.request(), hold_s_per_byte))
        yield self.env.all_of([request for _, request, _ in requests])
        for resource, request, hold_s_per_byte in requests:
            self.env.process(self.release(resource, request, size_bytes * hold_s_per_byte))
        yield self.env.timeout(size_bytes * route.wire_s_per_byte + route.delay_s)
        self.arrivals[tensor, target].succeed()

    def release(self, resource, request, after_s):
        yield self.env.timeout(after_s)
        resource.release(request)


def pcie(make, bandwidth):
    return make.link(
        "pcie", bandwidth, 0.05, 0.02, switch_size=2,
        switch_bandwidth_bytes_per_s=0.8 * bandwidth, host_bandwidth_bytes_per_s=1.2 * bandwidth,
    )  # fmt: skip


def shared_placements(make):
    """Pipelines whose messages meet in ports: in a node's, a switch's, the host's, or those of folded replicas."""
    nodes = make.cluster(make.link("nvswitch", 2.0, 0.1), make.link("nic", 1.0, 0.3), devices_per_node=2)
    big_nodes = make.cluster(make.link("nvswitch", 2.0, 0.1), make.link("nic", 4.0, 0.3), devices_per_node=4)
    return {
        "small nodes": Placement(nodes, 8, 8, 8),
        "replicated positions": Placement(nodes, 8, 8, 4),
        "data inner": Placement(nodes, 8, 4, 4, data_inner=True),
        "data inner, big nodes": Placement(big_nodes, 16, 4, 4, data_inner=True),
        "pcie": Placement(make.cluster(pcie(make, 1.0)), 8, 8, 8),
        "pcie, replicated": Placement(make.cluster(pcie(make, 2.0)), 8, 8, 4),
        "nvswitch": Placement(make.cluster(make.link("nvswitch", 0.5, 0.1)), 6, 6, 6),
    }


@pytest.mark.parametrize("order", ORDERS)
def test_shared_ports_behave_like_a_resource_each(make, order):
    for (name, placement), seed in product(shared_placements(make).items(), range(3)):
        random = np.random.default_rng(seed)
        degree, micro_batches = placement.num_positions, int(random.integers(1, 9))
        forward_s, backward_s = random.uniform(0.1, 2.0, size=(2, degree))
        rows = ORDERS[order](degree, micro_batches)
        plan = pipeline(rows, placement, forward_s, backward_s, hidden_bytes=random.uniform(0.0, 2.0))
        for starts, expected in zip(simulate(plan).starts, PlainModel(plan).run(), strict=True):
            np.testing.assert_allclose(starts, expected, rtol=0, atol=1e-9, err_msg=f"{name}, seed {seed}")


# Compute beside collectives.


def reducing(make, rows, reductions, slowdown=1.5, bandwidth=1.0, call_s=0.0, **rest):
    """A plan of one position on two GPUs, whose all-reduce of b bytes takes b seconds at a bandwidth of 1."""
    cluster = make.cluster(
        make.link("nvswitch", bandwidth), devices_per_node=2, slowdown=slowdown, call_s=call_s
    )
    return make.plan(rows, placement=Placement(cluster, 2, 1, 1), collectives=reductions, **rest)


@pytest.mark.parametrize(
    ("bytes_", "end_s"),
    [
        (0.0, 3.0),  # nothing to overlap with
        (1.0, 1.0 + 1.0 + (2.0 - 1.0 / 1.5)),  # one second beside it does 1 / 1.5 of work
        (3.0, 1.0 + 3.0),  # beside it throughout, both end together
        (6.0, 1.0 + 6.0),  # compute is done before it
    ],
)
def test_compute_beside_a_collective_takes_longer_by_the_overlap(make, bytes_, end_s):
    rows = [[make.op("0B0", 1.0, writes="g"), make.op("0F1", 2.0)]]
    trace = simulate(reducing(make, rows, [((0,), bytes_, 0, "g", "r")]))
    assert trace.end_s == pytest.approx(end_s, abs=1e-12)
    assert trace.ends[0][1] == pytest.approx(min(end_s, 4.0), abs=1e-12)


def test_a_collective_that_begins_within_an_op_slows_its_rest(make):
    # Half of 2 s is done when 1 s of all-reduce begins; it does 1 / 2 of a second of work meanwhile.
    rows = [[make.op("0B0", 2.0, early=[(1.0, "g")])]]
    trace = simulate(reducing(make, rows, [((0,), 1.0, 0, "g", "r")], slowdown=2.0))
    assert trace.collectives == (pytest.approx((1.0, 2.0)),)
    assert trace.ends == ((pytest.approx(2.5),),)


# Early writes.


def test_an_early_tensor_leaves_before_its_op_ends(make):
    cluster = make.cluster(make.link("nvswitch", bandwidth=1.0))
    rows = [
        [make.op("0F0", 4.0, early=[(1.0, "a")], writes="b")],
        [make.op("1F0", 1.0, "a"), make.op("1F1", 1.0, "b")],
    ]
    plan = make.plan(rows, cluster=cluster, sizes={"a": 1.0, "b": 1.0})
    assert simulate(plan).starts == ((0.0,), (2.0, 5.0))
    assert_same_times(simulate(plan), evaluate(plan, Network(plan.placement)))


def test_the_communication_stream_keeps_its_order(make):
    # The second reduction could start at 1 s, but stands behind the first, which is ready at 3 s.
    rows = [[make.op("0B0", 1.0, writes="late"), make.op("0B1", 2.0, writes="first")]]
    reductions = [((0,), 1.0, 0, "first", "r"), ((0,), 1.0, 0, "late", "s")]
    trace = simulate(reducing(make, rows, reductions, slowdown=1.0))
    assert trace.collectives == (pytest.approx((3.0, 4.0)), pytest.approx((4.0, 5.0)))


# Collectives that read what other collectives wrote.


@st.composite
def chained_collectives(draw):
    """Rows of seconds, and collectives (devices, bytes, what it reads: an op's tensor or an earlier result)."""
    count = draw(st.integers(2, 4))
    seconds = [draw(st.lists(st.integers(0, 8), min_size=1, max_size=3)) for _ in range(count)]
    collectives, results = [], []
    for number in range(draw(st.integers(1, 6))):
        devices = draw(st.sets(st.integers(0, count - 1), min_size=2))
        known = [f"t{d}.{i}" for d in devices for i in range(len(seconds[d]))]
        known += [name for name, at in results if at & devices]
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        size_bytes = float(draw(st.integers(0, 5)))
        collectives.append((tuple(sorted(devices)), size_bytes, None, " ".join(reads), f"r{number}"))
        results.append((f"r{number}", devices))
    return seconds, collectives


@repeatable
@given(chained_collectives())
def test_collectives_that_read_one_another_run_as_the_worklist_says(make, case):
    seconds, collectives = case
    rows = [
        [make.op(f"{d}B{i}", float(s), writes=f"t{d}.{i}") for i, s in enumerate(row)]
        for d, row in enumerate(seconds)
    ]
    rows[0].append(make.op("0O", 1.0, " ".join(name for devices, *_, name in collectives if 0 in devices)))
    cluster = make.cluster(make.link("nvswitch", 1.0), call_s=0.25)
    plan = make.plan(rows, cluster=cluster, collectives=collectives)
    assert_same_times(simulate(plan), evaluate(plan, Network(plan.placement)))


@pytest.mark.parametrize(
    ("name", "reductions"),
    [
        ("x", [((0, 1), "g", "r"), ((0, 1), "x", "q")]),
        ("r", [((0, 1), "r", "q"), ((0, 1), "g", "r")]),
        ("r", [((0, 1), "g r", "r")]),
        ("r", [((0, 1), "g", "r"), ((2, 3), "r", "q")]),
    ],
)
def test_a_collective_that_can_never_have_what_it_reads_is_refused(make, name, reductions):
    rows = [[make.op(f"{d}B0", 1.0, writes="g" if d == 0 else "")] for d in range(4)]
    plan = make.plan(
        rows, collectives=[(devices, 1.0, None, reads, writes) for devices, reads, writes in reductions]
    )
    for replay in (simulate, lambda plan: evaluate(plan, Network(plan.placement))):
        with pytest.raises(DeadlockError, match=rf"^deadlock: all_reduce waits for {name} 0\.0, which no "):
            replay(plan)


def test_a_message_gets_its_turn_between_two_chunks(make):
    # Position 0 reduces for 10 chunks from 0 on; its message of half a chunk is sent in the middle of the third.
    cluster = make.cluster(make.link("nvswitch", bandwidth=1.0), devices_per_node=4)
    rows = [
        [make.op("0B0", 0.0, writes="g"), make.op("0B1", 2.5 * CHUNK_S, writes="a")],
        [make.op("1F0", 0.0, "a")],
    ]
    plan = make.plan(
        rows, placement=Placement(cluster, 4, 2, 2), sizes={"a": 0.5 * CHUNK_S},
        collectives=[((0,), 10 * CHUNK_S, 0, "g", "r")],
    )  # fmt: skip
    trace = simulate(plan)
    slot = trace.wiring.slots[plan.ops[1][0].reads[0], 1]
    assert trace.sent[slot] == pytest.approx(3.0 * CHUNK_S)
    assert trace.collectives == (pytest.approx((0.0, 10.5 * CHUNK_S)),)


@pytest.mark.parametrize("streams", [(0, 0), (0, 1)])
def test_two_collectives_of_one_port_take_as_long_side_by_side_as_in_turn(make, streams):
    cluster = make.cluster(make.link("nvswitch", bandwidth=1.0), devices_per_node=4)
    rows = [[make.op("0B0", 0.0, writes="g h")], []]
    reductions = [((0,), 10 * CHUNK_S, 0, "g", "r"), ((0,), 10 * CHUNK_S, 0, "h", "s")]
    plan = make.plan(rows, placement=Placement(cluster, 4, 2, 2), collectives=reductions)
    collectives = [of._replace(stream=number) for of, number in zip(plan.collectives, streams, strict=True)]
    assert simulate(replace(plan, collectives=tuple(collectives))).end_s == pytest.approx(20 * CHUNK_S)


def test_a_deadlock_names_what_every_stuck_device_waits_for(make):
    rows = [
        [make.op("0F0", 1.0, "c", "a")],
        [make.op("1F0", 1.0, "a", "b")],
        [make.op("2F0", 1.0), make.op("2F1", 1.0, "b", "c")],
        [make.op("3F0", 1.0)],
    ]
    plan = make.plan(rows)
    message = (
        r"^deadlock: device 0 waits in 0F0 for c 0\.0; device 1 waits in 1F0 for a 0\.0;"
        r" device 2 waits in 2F1 for b 0\.0$"
    )
    with pytest.raises(DeadlockError, match=message):
        simulate(plan)
    with pytest.raises(DeadlockError, match=message):
        evaluate(plan, Network(plan.placement))
