"""What a sampling plan computes, in which order, and of which step the data are that it reads."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest
from conformance.checks import Checks
from conformance.sampling_points import TOLERANCE_S
from notation import parse_order

from strategies.plans.actions import CollectiveAction, Piece, format_order

check = Checks()


@check
def the_stages_hold_every_layer_once_in_order(point):
    ranges = [(stage.first_layer, stage.last_layer) for stage in point.plan.stages]
    assert (ranges[0][0], ranges[-1][1]) == (0, len(point.scenario.backbone.layers) - 1)
    for (_, last), (first, _) in pairwise(ranges):
        assert first == last + 1


@check
def every_patch_of_every_step_passes_every_stage_on_as_many_devices(point):
    """The devices of a stage divide into guidance groups and teams; each patch is on all of them, or on its own."""
    devices = defaultdict(set)
    for device, _, op, _, _ in point.ops:
        devices[op.action].add(device)
    stages = range(len(point.plan.stages))
    for step in range(point.iterations):
        patches = {action.patch for action in devices if action.step == step}
        assert patches == set(range(len(patches)))
        found = {(a.stage, a.patch): on for a, on in devices.items() if a.step == step}
        assert found.keys() == {(stage, patch) for stage in stages for patch in patches}
        assert len({len(on) for on in found.values()}) == 1
        shared = {stage: set.union(*(found[stage, patch] for patch in patches)) for stage in stages}
        assert set.union(*shared.values()) == set(range(point.plan.num_devices))
        for one, other in pairwise(stages):
            assert not shared[one] & shared[other]


@check
def work_is_conserved(point):
    """In each step a stage computes all layers for all predictions; tokens of the text once per patch."""
    scenario, workload = point.scenario, point.scenario.workload
    if scenario.cluster.device.laws is not None:
        return  # launches, and what each patch repeats, are in the tests of the costs
    if hasattr(point.sampler, "iterations"):
        return  # a step is computed several times; the work of an iteration is in the sampler's own tests
    done, patches = Counter(), defaultdict(set)
    for *_, op, _, _ in point.ops:
        done[op.action.stage, op.action.step] += op.duration_s * point.plan.placement.copies
        patches[op.action.stage, op.action.step].add(op.action.patch)
    layers_s = scenario.costs.forward_s(0, workload.batch_size * workload.predictions)
    for (number, step), seconds in done.items():
        stage = point.plan.stages[number]
        whole_s = layers_s[stage.first_layer : stage.last_layer + 1].sum()
        text = 1 - scenario.extent.image
        repeated = scenario.extent.image + text * len(patches[number, step])
        assert seconds == pytest.approx(whole_s * repeated, rel=1e-9), (number, step)


@check
def no_device_computes_two_things_at_once_and_each_in_order(point):
    for device, ops in enumerate(point.plan.ops):
        spans = point.trace.busy(device)
        for (_, end), (start, _) in pairwise(spans):
            assert end <= start + TOLERANCE_S, device
        turns = [(op.action.step, op.action.patch) for op in ops]
        assert turns == sorted(turns), device


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
        assert len(of) <= 1, (collective, "a collective mixes steps")
        for tensor in collective.writes:
            steps[tensor] = min(of, default=-1)
    return steps


@check
def what_is_read_is_of_this_step_or_the_last(point):
    """Only displaced steps read keys and values of the step before; latents and gathered outputs are always its."""
    steps = written_steps(point)
    for device, index, op, _, _ in point.ops:
        step = op.action.step
        first = index == 0 or point.plan.ops[device][index - 1].action[1:] != op.action[1:]
        for tensor in op.reads:
            read = steps[tensor]
            assert step - 1 <= read <= step, op
            if read < step and not point.is_displaced(step):
                assert first, (op, "a synchronous step reads old data inside")


@check
def every_stage_waits_for_the_one_before_it_and_the_first_for_the_last(point):
    """A patch enters a stage on the hidden state of the same step and patch, and the first stage on its latents."""
    if len(point.plan.stages) == 1:
        return
    wrote = {t: op.action for *_, op, _, _ in point.ops for t in op.writes}
    for device, index, op, _, _ in point.ops:
        stage, patch, step = op.action
        ops = point.plan.ops[device]
        if index and ops[index - 1].action == op.action:
            continue
        names = [(point.plan.tensors[t].role, wrote[t]) for t in op.reads if t in wrote]
        if stage:
            assert [a for role, a in names if role == "hidden"] == [(stage - 1, patch, step)], op
        elif step:
            last = len(point.plan.stages) - 1
            before = [(a.stage, a.step) for role, a in names if role == "latents"]
            whole = point.is_displaced(step) and not point.is_displaced(step - 1)
            assert before == ([(last, step - 1)] if not whole or patch == 0 else []), op


@check
def orders_print_and_read_back(point):
    assert parse_order(format_order(point.plan.order)) == point.plan.order


@check
def rows_with_pieces_and_exchanges_say_no_more_and_no_less_than_the_plan(point):
    rows = point.plan.rows()
    assert parse_order(format_order(rows)) == rows
    for device, row in enumerate(rows):
        entries = [entry for entry in row if not isinstance(entry, CollectiveAction)]
        assert len(entries) == len(set(entries))
        actions = tuple(entry.action if isinstance(entry, Piece) else entry for entry in entries)
        assert actions == point.plan.order[device]
        own = [
            CollectiveAction(collective.operation, number)
            for number, collective in enumerate(point.plan.collectives)
            if device in collective.devices
        ]
        assert [entry for entry in row if isinstance(entry, CollectiveAction)] == own
