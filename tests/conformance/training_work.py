"""What a training plan computes and its replicas exchange: every layer, micro-batch and gradient once."""

from collections import Counter
from itertools import chain
from math import ceil, prod

import numpy as np
import pytest
from conformance.checks import Checks
from conformance.training_points import (
    TOLERANCE_S,
    is_sharded,
    keeps_weights,
    kind_of,
    members,
    parts_of,
    shares_step,
    sums_of,
    trained_of,
)
from notation import parse_order

from strategies.plans.actions import FrozenAction, StageAction, format_order

check = Checks()


@check
def every_stage_has_forward_and_backward_of_each_micro_batch_once(point):
    forwards = Counter((a.stage, a.micro_batch) for a in point.actions("F"))
    backwards = Counter((a.stage, a.micro_batch) for a in point.actions("B"))
    input_parts = Counter((a.stage, a.micro_batch) for a in point.actions("I"))
    weight_parts = Counter((a.stage, a.micro_batch) for a in point.actions("W"))
    extras = Counter((a.stage, a.micro_batch) for a in point.actions("E"))
    assert max(forwards.values()) == 1
    assert backwards + input_parts == forwards
    assert input_parts == weight_parts
    assert extras == (forwards if point.scenario.workload.extra_forward else Counter())


@check
def every_layer_of_a_backbone_sees_every_micro_batch(point):
    seen = Counter()
    for action in point.actions("F"):
        stage = point.plan.stages[action.stage]
        seen.update((stage.component, layer) for layer in range(stage.first_layer, stage.last_layer + 1))
    model = point.scenario.model
    assert seen == {
        (backbone, layer): point.micro_batches
        for backbone in model.backbones
        for layer in range(len(model.components[backbone].layers))
    }


@check
def stages_run_on_the_devices_that_hold_them(point):
    for device, _, op, _, _ in point.ops:
        if isinstance(op.action, StageAction):
            assert point.plan.stages[op.action.stage].position == device


@check
def every_stage_with_trained_layers_steps_once_after_its_backwards(point):
    steps = Counter(action.stage for action in point.actions("O"))
    trained = {
        number
        for number, stage in enumerate(point.plan.stages)
        for layer in point.scenario.model.components[stage.component].layers[
            stage.first_layer : stage.last_layer + 1
        ]
        if layer.backward == "full"
    }
    assert steps == dict.fromkeys(trained, 1)
    parts = parts_of(point)
    for *_, op, _, _ in point.ops:
        if kind_of(op) == "O":
            stepped = trained_of(point, op.action.stage) / parts
            step_s = point.scenario.costs.optimizer_s(stepped, point.scenario.workload.recipe)
            assert op.duration_s == pytest.approx(step_s), op
    begins = {op.action.stage: start for *_, op, start, _ in point.ops if kind_of(op) == "O"}
    for *_, op, _, end in point.ops:
        if kind_of(op) in "BIW" and op.action.stage in begins:
            assert end <= begins[op.action.stage] + TOLERANCE_S


@check
def a_tensor_is_written_once(point):
    counts = Counter(
        chain.from_iterable([*op.writes, *(t for _, t in op.early)] for *_, op, _, _ in point.ops)
    )
    assert max(counts.values()) == 1
    assert not set(counts) & {tensor for tensor, _ in point.plan.given}


@check
def the_compute_of_the_backbones_is_that_of_their_layers(point):
    planned = Counter()
    for *_, op, _, _ in point.ops:
        if isinstance(op.action, StageAction):
            planned[op.action.kind.replace("I", "B").replace("W", "B")] += op.duration_s
    model = point.scenario.model
    forward_s, backward_s = (
        sum(
            float(getattr(point.scenario.costs.components[i], direction)(point.local_batch).sum())
            for i in model.backbones
        )
        * point.micro_batches
        for direction in ("forward_s", "backward_s")
    )
    again_s = 0.0 if point.scenario.workload.checkpointing == "none" else forward_s
    assert planned["F"] == pytest.approx(forward_s)
    assert planned["B"] == pytest.approx(backward_s + again_s)
    assert planned["E"] == pytest.approx(forward_s if point.scenario.workload.extra_forward else 0.0)


@check
def every_frozen_layer_sees_the_whole_batch_once(point):
    replicas, model = point.plan.placement.replicas, point.scenario.model
    rooms, ops = Counter(), Counter()
    for _, _, op, _, _ in point.ops:
        if isinstance(op.action, FrozenAction):
            rooms[op.action[:2]] += op.action.samples * replicas
            ops[op.action[:2]] += 1
    layers = [(i, layer) for i in model.frozen for layer in range(len(model.components[i].layers))]
    assert set(rooms) == set(layers)
    for layer in layers:
        # Local batches are rounded up: each op has room for fewer than `replicas` samples too many.
        spare = rooms[layer] - point.group_batch
        assert 0 <= spare <= ops[layer] * (replicas - 1), layer


@check
def frozen_outputs_reach_the_backbone_whole(point):
    model = point.scenario.model
    needed_bytes = sum(
        size
        for backbone in model.backbones
        for i in model.inputs_of(backbone)
        if i in model.frozen
        for _, size in model.reads_of(backbone, i)
    )
    last = {(i, len(model.components[i].layers) - 1) for i in model.frozen}
    kept = [point.plan.tensors[tensor] for tensor, _ in point.plan.kept]
    if point.plan.cross_iteration:
        arriving = [tensor.size_bytes for tensor in kept if tensor.role == "frozen"]
    else:
        arriving = [
            point.plan.tensors[t].size_bytes
            for *_, op, _, _ in point.ops
            if kind_of(op) == "F"
            for t in op.reads
            if point.plan.tensors[t].role == "frozen" and point.plan.tensors[t][1:3] in last
        ]
    assert sum(arriving) == pytest.approx(needed_bytes * point.group_batch / point.plan.placement.replicas)


@check
def frozen_ops_take_what_their_layer_takes(point):
    for *_, op, _, _ in point.ops:
        if isinstance(op.action, FrozenAction):
            component, layer, samples = op.action
            expected_s = point.scenario.costs.components[component].forward_s(samples)[layer]
            assert op.duration_s == pytest.approx(expected_s), op


@check
def the_first_iteration_also_runs_its_own_frozen_work(point):
    local = ceil(point.group_batch / point.plan.placement.group_size)
    frozen_s = sum(
        float(point.scenario.costs.components[i].forward_s(local).sum()) for i in point.scenario.model.frozen
    )
    assert point.plan.prologue_s == pytest.approx(frozen_s if point.plan.cross_iteration else 0.0)


@check
def every_order_reads_back_from_its_text(point):
    assert parse_order(format_order(point.plan.order)) == point.plan.order


@check
def replicas_reduce_the_gradients_of_every_trained_layer_once(point):
    holders, sizes = {}, {}
    for stage in point.plan.stages:
        layers = point.scenario.model.components[stage.component].layers
        for index in range(stage.first_layer, stage.last_layer + 1):
            if layers[index].backward == "full":
                holders.setdefault((stage.component, index), set()).add(stage.position)
                sizes[stage.component, index] = layers[index].parameters
    trained, reduced = Counter(), Counter()
    for layer, positions in holders.items():
        if point.plan.placement.copies * len(positions) > 1:
            trained[tuple(sorted(positions))] += sizes[layer]
    assert all(c.group == tuple(sorted(c.devices)) for c in point.plan.collectives)
    for (first, _), *others in sums_of(point):
        reduced[first.group] += first.size_bytes
        groups = [members(point, collective) for collective in (first, *(c for c, _ in others))]
        assert prod(groups) == point.plan.placement.copies * len(first.group)
        assert all(c.size_bytes == first.size_bytes / groups[0] for c, _ in others)
    each_bytes = point.scenario.workload.recipe.gradient_bytes
    each_bytes *= point.micro_batches if is_sharded(point) else 1
    assert reduced == {p: count * each_bytes for p, count in trained.items() if count}


@check
def sharded_gradients_are_summed_after_every_backward_and_before_the_step(point):
    if not is_sharded(point):
        return
    scatters = {}
    for sums in sums_of(point):
        scatters.update(dict.fromkeys(sums[0][0].reads, (sums[0][0].size_bytes, sums[-1][1])))
    steps = {op.action.stage: start for *_, op, start, _ in point.ops if kind_of(op) == "O"}
    for *_, op, _, _ in point.ops:
        if kind_of(op) != "B":
            continue
        written = [t for t in (*op.writes, *(t for _, t in op.early)) if t in scatters]
        size = sum(scatters[tensor][0] for tensor in written)
        gradient_bytes = point.scenario.workload.recipe.gradient_bytes
        assert size == trained_of(point, op.action.stage) * gradient_bytes, op
        ends = [scatters[tensor][1][1] for tensor in written]
        assert max(ends, default=0.0) <= steps.get(op.action.stage, np.inf) + TOLERANCE_S, op


@check
def weights_are_gathered_before_every_use_or_else_after_the_step(point):
    gathers = [c for c in point.plan.collectives if c.operation == "all_gather"]
    weight_bytes = point.scenario.workload.recipe.weight_bytes
    sizes = {number: trained_of(point, number) * weight_bytes for number in range(len(point.plan.stages))}
    if not is_sharded(point) and not shares_step(point):
        assert not gathers
    elif keeps_weights(point):
        stepped = {t: op.action.stage for *_, op, _, _ in point.ops if kind_of(op) == "O" for t in op.writes}
        found = Counter(stepped[tensor] for c in gathers for tensor in c.reads)
        if shares_step(point):
            sizes = {number: size for number, size in sizes.items() if size}
        assert found == dict.fromkeys(sizes, 1)
        assert {stepped[t]: c.size_bytes for c in gathers for t in c.reads} == sizes
    else:
        written = {tensor: c.size_bytes for c in gathers for tensor in c.writes}
        users = {tensor: [] for tensor in written}
        for *_, op, _, _ in point.ops:
            if kind_of(op) in "FEBIW":
                held = [tensor for tensor in op.reads if tensor in written]
                assert [written[tensor] for tensor in held] == [sizes[op.action.stage]], op
                users[held[0]].append(op.action)
        for of in users.values():  # some are kept from a forward to the backward, none for the next iteration
            assert len({action.stage for action in of}) == 1
            assert "".join(a.kind for a in of) in ("E", "F", "B", "FB", "E" * len(of[:-2]) + "FB")
