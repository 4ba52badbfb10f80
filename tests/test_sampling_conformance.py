"""What holds for every sampler: the suite that a new file in ``strategies/`` is tested by at once.

Points that a sampler offers are replayed on small models and clusters. The checks look at the plan and the trace
alone, and derive for themselves what must follow.
"""

import json
from collections import Counter, defaultdict
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from profiles.components import Exchange
from profiles.errors import InfeasibleError
from profiles.synthetic import equal_blocks_transformer
from sim.measures import Measures, in_turn
from sim.replay.engine import simulate
from sim.replay.memory import memory_events, peak_memory_bytes, resident_bytes
from sim.runs import replay_parts, run_point
from strategies.parameters import check_parameters
from strategies.plans.actions import CollectiveAction, Piece, format_order, parse_order
from strategies.plans.network import Network
from strategies.plans.worklist import evaluate
from strategies.registry import all_samplers, make_sampler

SAMPLERS = list(all_samplers())
MOST_POINTS = 6
"""Of one sampler on one scenario: evenly spread over those that it offers, the first and the last among them."""
TOLERANCE_S = 1e-9
ROUNDING = 1e-12
UNEVEN_S = [0.11, 0.32, 0.27, 0.18, 0.41, 0.09, 0.23, 0.36]


# Models: seconds per sample and layer.


def plain(make):
    return equal_blocks_transformer(7, 0.1, parameters=10**6, saved_bytes=1e6)


def with_text(make):
    return equal_blocks_transformer(6, 0.2, text_tokens=64, heads=4)


def with_skips(make):
    return equal_blocks_transformer(8, 0.1, text_tokens=16, skips=True)


def launched(make):
    """Costs by the rates of a device: every class of work, and launches."""
    model = equal_blocks_transformer(5, text_tokens=32)
    (transformer,) = model.components
    work = {"matmul_flop": 3e11, "attention_flop": 2e11, "moved_bytes": 1e8, "kernels": 10}
    layers = tuple(replace(layer, **work) for layer in transformer.layers)
    return replace(model, components=(replace(transformer, layers=layers, times=()),))


def convolved(make):
    """A U-Net of two levels, whose patches need rows, statistics, keys and values of one another."""
    names = ["conv_in", "resnet", "downsample", "attention", "upsample", "resnet", "attention", "conv_out"]
    kinds = {
        "resnet": [("statistics", 64), ("halo", 512), ("reduce", 4096)],
        "attention": [("key_value", 2048), ("reduce", 1024), ("reduce", 1024)],
        "downsample": [("halo", 512), ("reduce", 1024)],
        "upsample": [("halo", 256), ("reduce", 4096)],
    }
    component = make.component("unet", UNEVEN_S, output_bytes=8192.0, parameters=10**6)
    return make.model(
        replace(
            component,
            image_tokens=256,
            layers=tuple(replace(layer, name=n) for layer, n in zip(component.layers, names, strict=True)),
            exchanges=tuple(
                Exchange(i, kind, elements, 8 if kind == "key_value" else 0)
                for i, name in enumerate(names)
                for kind, elements in kinds.get(name, ())
            ),
        )
    )


# Clusters.


def free(make):
    return make.cluster()


def latency_only(make):
    """No port is ever shared, and nothing slows compute down: the worklist evaluator tells the same."""
    return make.cluster(make.link("nvswitch", float("inf"), 0.01, 0.02), devices_per_node=8, call_s=0.03)


def node(make):
    return make.cluster(
        make.link("nvswitch", 1e6, 0.01, 0.02), devices_per_node=8, slowdown=1.6, call_s=0.03, efficiency=0.7
    )


def nodes(make):
    return make.cluster(
        make.link("nvswitch", 1e7, 0.001), make.link("nic", 2e5, 0.05, 0.01), devices_per_node=2, slowdown=1.3
    )


def pcie(make):
    link = make.link(
        "pcie",
        5e5,
        0.01,
        0.01,
        switch_size=2,
        switch_bandwidth_bytes_per_s=4e5,
        host_bandwidth_bytes_per_s=3e5,
    )
    return make.cluster(link, devices_per_node=8, slowdown=1.2)


def rated(make):
    return make.cluster(make.link("nvswitch", 1e9, 1e-5, 1e-5), devices_per_node=8, memory_bytes_per_s=1e9)


SCENARIOS = {
    "one gpu": (plain, free, {"num_gpus": 1, "steps": 3, "guidance": "batch"}),
    "one step": (plain, free, {"num_gpus": 4, "steps": 1}),
    "one step fewer than the warm-up of most": (with_text, node, {"num_gpus": 2, "steps": 2}),
    "free links": (plain, free, {"num_gpus": 4, "steps": 4}),
    "guidance in the batch, latency only": (
        with_text, latency_only, {"num_gpus": 4, "steps": 5, "guidance": "batch"},
    ),
    "guidance in parallel, latency only": (
        plain, latency_only, {"num_gpus": 8, "steps": 4, "guidance": "parallel"},
    ),
    "text, guidance in parallel, one node": (
        with_text, node, {"num_gpus": 4, "steps": 5, "guidance": "parallel"},
    ),
    "skips, one node": (with_skips, node, {"num_gpus": 4, "steps": 3, "guidance": "batch"}),
    "skips, two images, small nodes": (with_skips, nodes, {"num_gpus": 8, "steps": 4, "batch_size": 2}),
    "two images, guidance in parallel, pcie": (
        plain, pcie, {"num_gpus": 8, "steps": 3, "batch_size": 2, "guidance": "parallel"},
    ),
    "twice as wide as high, pcie": (with_text, pcie, {"num_gpus": 2, "steps": 4, "width": 512}),
    "costs by rates": (launched, rated, {"num_gpus": 4, "steps": 5, "guidance": "batch"}),
    "u-net, free links": (convolved, free, {"num_gpus": 2, "steps": 4}),
    "u-net, one node": (convolved, node, {"num_gpus": 4, "steps": 4, "guidance": "batch"}),
    "u-net, guidance in parallel, latency only": (
        convolved, latency_only, {"num_gpus": 4, "steps": 5, "guidance": "parallel"},
    ),
}  # fmt: skip


class Point:
    """One sampler on one scenario: its whole run, and the same phase by phase."""

    def __init__(self, sampler, scenario):
        self.sampler, self.scenario = sampler, scenario
        self.plan = sampler.plan(scenario)
        self.network = Network(self.plan.placement)
        self.trace = simulate(self.plan, self.network)
        self.phases = replay_parts(sampler, scenario)

    def __repr__(self):
        return str(self.sampler)

    def ops(self):
        """Every op with its device, index, start and end."""
        for device, ops in enumerate(self.plan.ops):
            spans = self.trace.busy(device)
            assert len(spans) == len(ops)
            for index, (op, (start, end)) in enumerate(zip(ops, spans, strict=True)):
                yield device, index, op, start, end

    @property
    def iterations(self):
        """How often the plan goes over images: once a step, unless the sampler iterates on several at once."""
        count = getattr(self.sampler, "iterations", None)
        return count(self.scenario) if count else self.scenario.workload.steps

    @property
    def warmup_steps(self):
        """Steps in which the data of the step before are not used; all of them, where there is no such setting."""
        stages = getattr(self.sampler, "pipeline_degree", 2)
        return getattr(self.sampler, "warmup_steps", None) if stages != 1 else None

    def is_displaced(self, step):
        return self.warmup_steps is not None and step >= self.warmup_steps


def offered(name, scenario):
    """Some of the points that a sampler offers, from the first to the last, and those with another choice."""
    try:
        found = list(all_samplers()[name].candidates(scenario))
    except InfeasibleError:
        return []
    picked = {round(i) for i in np.linspace(0, len(found) - 1, min(MOST_POINTS, len(found)))}
    return [other for i in sorted(picked) for other in neighbours(found[i], scenario)]


def neighbours(sampler, scenario):
    """The point itself, and with each other choice; of the warm-up, all and none."""
    yield sampler
    for field in fields(sampler):
        for choice in field.metadata["choices"]:
            if choice != getattr(sampler, field.name):
                yield replace(sampler, **{field.name: choice})
    if hasattr(sampler, "warmup_steps"):
        yield replace(sampler, warmup_steps=0)
        yield replace(sampler, warmup_steps=scenario.workload.steps)


@pytest.fixture(scope="module")
def points_of(make):
    """Return the replayed points of a sampler on a scenario; each is made once."""

    def points(name, scenario_name):
        model, cluster, workload = SCENARIOS[scenario_name]
        scenario = make.sampling(model(make), cluster(make), **workload)
        found = []
        for sampler in dict.fromkeys(offered(name, scenario)):
            try:
                found.append(Point(sampler, scenario))
            except InfeasibleError:
                continue
        return found

    return cache(points)


@pytest.fixture(params=SCENARIOS)
def scenario_name(request):
    return request.param


@pytest.fixture(params=SAMPLERS)
def sampler_name(request):
    return request.param


@pytest.fixture
def points(points_of, sampler_name, scenario_name):
    return points_of(sampler_name, scenario_name)


def test_every_sampler_offers_points_that_exist(points_of, sampler_name):
    found = [point for name in SCENARIOS for point in points_of(sampler_name, name)]
    assert found
    assert {type(point.sampler).name for point in found} == {sampler_name}


def test_what_is_offered_is_valid_and_offered_once(make, sampler_name, scenario_name):
    model, cluster, workload = SCENARIOS[scenario_name]
    scenario = make.sampling(model(make), cluster(make), **workload)
    try:
        found = list(all_samplers()[sampler_name].candidates(scenario))
    except InfeasibleError:
        return
    assert len(found) == len(set(found))
    for sampler in found:
        assert check_parameters(sampler) == sampler


def test_the_fields_of_every_sampler_describe_themselves(sampler_name):
    sampler = make_sampler(sampler_name, {})
    for field in fields(sampler):
        assert field.metadata["help"]
        assert not field.metadata["choices"] or getattr(sampler, field.name) in field.metadata["choices"]


# Who computes what.


def test_the_stages_hold_every_layer_once_in_order(points):
    for point in points:
        ranges = [(stage.first_layer, stage.last_layer) for stage in point.plan.stages]
        assert (ranges[0][0], ranges[-1][1]) == (0, len(point.scenario.backbone.layers) - 1), point
        for (_, last), (first, _) in pairwise(ranges):
            assert first == last + 1, point


def test_every_patch_of_every_step_passes_every_stage_on_as_many_devices(points):
    """The devices of a stage divide into guidance groups and teams; each patch is on all of them, or on its own."""
    for point in points:
        devices = defaultdict(set)
        for device, _, op, _, _ in point.ops():
            devices[op.action].add(device)
        stages = range(len(point.plan.stages))
        for step in range(point.iterations):
            patches = {action.patch for action in devices if action.step == step}
            assert patches == set(range(len(patches))), point
            found = {(a.stage, a.patch): on for a, on in devices.items() if a.step == step}
            assert found.keys() == {(stage, patch) for stage in stages for patch in patches}, point
            assert len({len(on) for on in found.values()}) == 1, point
            shared = {stage: set.union(*(found[stage, patch] for patch in patches)) for stage in stages}
            assert set.union(*shared.values()) == set(range(point.plan.num_devices)), point
            for one, other in pairwise(stages):
                assert not shared[one] & shared[other], point


def test_work_is_conserved(points):
    """In each step a stage computes all layers for all predictions; tokens of the text once per patch."""
    for point in points:
        scenario, workload = point.scenario, point.scenario.workload
        if scenario.cluster.device.rates is not None:
            continue  # launches, and what each patch repeats, are in the tests of the costs
        if hasattr(point.sampler, "iterations"):
            continue  # a step is computed several times; the work of an iteration is in the sampler's own tests
        done, patches = Counter(), defaultdict(set)
        for *_, op, _, _ in point.ops():
            done[op.action.stage, op.action.step] += op.duration_s * point.plan.placement.copies
            patches[op.action.stage, op.action.step].add(op.action.patch)
        layers_s = scenario.costs.forward_s(0, workload.batch_size * workload.predictions)
        for (number, step), seconds in done.items():
            stage = point.plan.stages[number]
            whole_s = layers_s[stage.first_layer : stage.last_layer + 1].sum()
            text = 1 - scenario.extent.image
            repeated = scenario.extent.image + text * len(patches[number, step])
            assert seconds == pytest.approx(whole_s * repeated, rel=1e-9), (point, number, step)


def test_no_device_computes_two_things_at_once_and_each_in_order(points):
    for point in points:
        for device, ops in enumerate(point.plan.ops):
            spans = point.trace.busy(device)
            for (_, end), (start, _) in pairwise(spans):
                assert end <= start + TOLERANCE_S, (point, device)
            turns = [(op.action.step, op.action.patch) for op in ops]
            assert turns == sorted(turns), (point, device)


# What is read, and when.


def written_steps(point):
    """The step whose data each tensor holds; those given from the start have none."""
    plan = point.plan
    steps = {}
    for ops in plan.ops:
        for op in ops:
            for tensor in (*op.writes, *(tensor for _, tensor in op.early)):
                steps[tensor] = op.action.step
    for collective in plan.collectives:
        of = {steps[tensor] for tensor in collective.reads}
        assert len(of) <= 1, (point, "a collective mixes steps")
        for tensor in collective.writes:
            steps[tensor] = min(of, default=-1)
    return steps


def test_nothing_is_read_before_it_has_arrived(points):
    for point in points:
        plan, trace = point.plan, point.trace
        written_s = {}
        for _, _, op, _, end in point.ops():
            written_s.update(dict.fromkeys(op.writes, end))
        for collective, (start, end) in zip(plan.collectives, trace.collectives, strict=True):
            for tensor in collective.reads:
                assert written_s[tensor] <= start + TOLERANCE_S, (point, collective)
            written_s.update(dict.fromkeys(collective.writes, end))
        for device, _, op, start, _ in point.ops():
            for tensor in op.reads:
                assert written_s[tensor] <= start + TOLERANCE_S, (point, op)
                slot = trace.wiring.slots.get((tensor, device))
                if slot is not None:
                    assert trace.arrived[slot] <= start + TOLERANCE_S, (point, op)


def test_what_is_read_is_of_this_step_or_the_last(points):
    """Only displaced steps read keys and values of the step before; latents and gathered outputs are always its."""
    for point in points:
        steps = written_steps(point)
        for device, index, op, _, _ in point.ops():
            step = op.action.step
            first = index == 0 or point.plan.ops[device][index - 1].action[1:] != op.action[1:]
            for tensor in op.reads:
                read = steps[tensor]
                assert step - 1 <= read <= step, (point, op)
                if read < step and not point.is_displaced(step):
                    assert first, (point, op, "a synchronous step reads old data inside")


def test_every_stage_waits_for_the_one_before_it_and_the_first_for_the_last(points):
    """A patch enters a stage on the hidden state of the same step and patch, and the first stage on its latents."""
    for point in points:
        if len(point.plan.stages) == 1:
            continue
        wrote = {t: op.action for *_, op, _, _ in point.ops() for t in op.writes}
        for device, index, op, _, _ in point.ops():
            stage, patch, step = op.action
            ops = point.plan.ops[device]
            if index and ops[index - 1].action == op.action:
                continue
            names = [(point.plan.tensors[t].role, wrote[t]) for t in op.reads if t in wrote]
            if stage:
                assert [a for role, a in names if role == "hidden"] == [(stage - 1, patch, step)], (point, op)
            elif step:
                last = len(point.plan.stages) - 1
                before = [(a.stage, a.step) for role, a in names if role == "latents"]
                whole = point.is_displaced(step) and not point.is_displaced(step - 1)
                assert before == ([(last, step - 1)] if not whole or patch == 0 else []), (point, op)


# The run and its phases.


def exactness_of(point):
    """Where groups share a node's port or a PCIe host, which is served first may differ from step to step."""
    cluster = point.scenario.cluster
    return 1e-3 if cluster.inter_node else 5e-3 if cluster.intra_node.kind == "pcie" else 1e-9


def test_the_phases_take_what_the_whole_run_takes(points):
    for point in points:
        whole, times = point.trace, [part.phase.times for part in point.phases]
        parts = in_turn([Measures.of(part.trace) for part in point.phases], times)
        assert parts.duration_s == pytest.approx(whole.end_s, rel=exactness_of(point)), point
        assert parts.p2p_bytes == pytest.approx(whole.p2p_bytes), point
        assert parts.collective_bytes == pytest.approx(whole.collective_bytes), point
        assert parts.peak_memory_bytes == pytest.approx(peak_memory_bytes(whole).max()), point
        assert sum(phase.times * phase.steps for _, phase, _ in point.phases) == point.iterations


def test_no_run_beats_the_bound(points):
    for point in points:
        assert 0 < point.sampler.bound(point.scenario) <= point.trace.end_s * (1 + ROUNDING), point


def test_no_run_is_faster_than_its_compute_on_all_devices(points):
    for point in points:
        total_s = sum(op.duration_s for ops in point.plan.ops for op in ops)
        busiest_s = max(sum(op.duration_s for op in ops) for ops in point.plan.ops)
        assert total_s / point.plan.num_devices <= busiest_s * (1 + ROUNDING), point
        assert busiest_s <= point.trace.end_s * (1 + ROUNDING), point


def test_orders_print_and_read_back(points):
    for point in points:
        assert parse_order(format_order(point.plan.order)) == point.plan.order, point


def test_rows_with_pieces_and_exchanges_read_back_and_say_no_more_and_no_less_than_the_plan(points):
    for point in points:
        rows = point.plan.rows()
        assert parse_order(format_order(rows)) == rows, point
        for device, row in enumerate(rows):
            entries = [entry for entry in row if not isinstance(entry, CollectiveAction)]
            assert len(entries) == len(set(entries)), point
            actions = tuple(entry.action if isinstance(entry, Piece) else entry for entry in entries)
            assert actions == point.plan.order[device], point
            own = [
                CollectiveAction(collective.operation, number)
                for number, collective in enumerate(point.plan.collectives)
                if device in collective.devices
            ]
            assert [entry for entry in row if isinstance(entry, CollectiveAction)] == own, point


def test_two_replays_are_identical_to_the_bit(points):
    for point in points:
        again = simulate(point.sampler.plan(point.scenario))
        assert (again.starts, again.ends, again.arrived) == (
            point.trace.starts, point.trace.ends, point.trace.arrived,
        ), point  # fmt: skip


def test_without_contention_the_worklist_evaluator_tells_the_same(points):
    for point in points:
        if point.scenario.cluster.intra_node.bandwidth_bytes_per_s < float("inf"):
            continue
        other = evaluate(point.plan, point.network)
        assert other.end_s == pytest.approx(point.trace.end_s, rel=ROUNDING), point
        for ours, theirs in zip(point.trace.ends, other.ends, strict=True):
            assert ours == pytest.approx(theirs, rel=ROUNDING), point
        assert other.collective_bytes == point.trace.collective_bytes, point
        assert other.p2p_bytes == pytest.approx(point.trace.p2p_bytes), point


# Memory.


def test_memory_is_never_negative_and_what_is_kept_stays(points):
    for point in points:
        devices, _, changes = memory_events(point.trace)
        largest = max(1.0, float(peak_memory_bytes(point.trace).max()))
        for device in range(point.plan.num_devices):
            held = np.cumsum(changes[devices == device])
            assert not len(held) or held.min() >= -1e-9 * largest, (point, device)
            assert not len(held) or held[-1] == pytest.approx(0.0, abs=1e-9 * largest), (point, device)


def test_every_device_holds_its_weights(points):
    for point in points:
        held = resident_bytes(point.trace)
        parameters = sum(layer.parameters for layer in point.scenario.backbone.layers)
        names = [{buffer.name for buffer in buffers} for buffers in point.plan.resident]
        assert all("weights" in of for of in names), point
        weights = sum(
            buffer.size_bytes
            for buffers in point.plan.resident
            for buffer in buffers
            if buffer.name == "weights"
        )
        assert weights >= 2 * parameters * (1 - ROUNDING), point
        assert (peak_memory_bytes(point.trace) >= held).all(), point


# Results.


def test_results_are_plain_json_and_reproduce_themselves(points):
    for point in points[:2]:
        result = run_point(point.sampler, point.scenario)
        given = json.loads(json.dumps(result.to_json()))
        parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in given["parameters"].items()}
        again = run_point(make_sampler(given["strategy"], parameters), point.scenario)
        assert again.to_json() == result.to_json(), point
        assert given["latency_s"] == pytest.approx(point.trace.end_s, rel=max(1e-3, exactness_of(point))), (
            point
        )
        assert 0 <= given["bubble_ratio"] < 1, point


def test_more_steps_take_longer(points):
    for point in points[:2]:
        workload = point.scenario.workload
        more = replace(point.scenario, workload=replace(workload, steps=workload.steps + 1))
        assert run_point(point.sampler, more).latency_s > point.trace.end_s, point
