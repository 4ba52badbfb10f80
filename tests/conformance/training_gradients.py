"""What replicas exchange: gradients of every trained layer, and the parts of sharded states."""

from collections import Counter
from math import prod

import numpy as np
from conformance.checks import Checks
from conformance.training_points import (
    TOLERANCE_S,
    is_sharded,
    keeps_weights,
    kind_of,
    members,
    shares_step,
    sums_of,
    trained_of,
)

check = Checks()


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
        for (
            actions
        ) in users.values():  # some are kept from a forward to the backward, none for the next iteration
            assert len({action.stage for action in actions}) == 1
            assert "".join(action.kind for action in actions) in (
                "E",
                "F",
                "B",
                "FB",
                "E" * len(actions[:-2]) + "FB",
            )
