"""What a training plan holds: parameters and states all the time, activations no longer than they are needed."""

import numpy as np
import pytest
from conformance.checks import Checks
from conformance.training_points import ROUNDING, is_sharded, keeps_weights, parts_of, shares_step

from sim.outcomes.runs import least_memory_bytes
from sim.replay.memory import memory_events, peak_memory_bytes, resident_bytes

check = Checks()
check_whole = Checks()
"""Checks of whole points: a strategy with all the iterations and jobs that occur."""


@check
def memory_never_falls_below_what_stays_and_ends_there(point):
    devices, times, changes = memory_events(point.trace)
    for device in range(point.plan.num_devices):
        own = devices == device
        held = np.cumsum(changes[own])
        assert np.all(np.diff(times[own]) >= 0)
        assert np.all(held >= -1e-3), device
        assert not len(held) or held[-1] == pytest.approx(0.0, abs=1e-3), device
    assert np.all(peak_memory_bytes(point.trace) >= resident_bytes(point.trace))


@check
def all_parameters_are_resident(point):
    model, recipe = point.scenario.model, point.scenario.workload.recipe
    frozen = sum(model.components[i].parameters for i in model.frozen)
    for device, resident in enumerate(resident_bytes(point.trace)):
        held = {(s.component, i) for s in point.plan.stages if s.position == device
                for i in range(s.first_layer, s.last_layer + 1)}  # fmt: skip
        layers = [model.components[component].layers[i] for component, i in held]
        trained = sum(layer.parameters for layer in layers if layer.backward == "full")
        locked = sum(layer.parameters for layer in layers) - trained
        own = recipe.optimizer_bytes / (point.plan.placement.copies if shares_step(point) else 1)
        state_bytes = trained * (recipe.gradient_bytes + own)
        weight_bytes = trained * recipe.weight_bytes
        if is_sharded(point):
            parts = parts_of(point)
            state_bytes /= parts
            weight_bytes /= 1 if keeps_weights(point) else parts
        if "weights" not in {buffer.name for buffer in point.plan.resident[device]}:
            assert recipe.master_bytes and not keeps_weights(point)  # what is gathered is cast from masters
            weight_bytes = 0
        needed = state_bytes + weight_bytes + 2 * (frozen + locked)
        assert resident >= needed * (1 - ROUNDING), device
        if point.scenario.workload.checkpointing == "none":
            assert resident == pytest.approx(needed), device


@check_whole
def no_result_takes_less_memory_than_its_strategy_says(whole):
    peak_bytes = max(float(peak_memory_bytes(point.trace).max()) for _, point in whole.parts)
    least = least_memory_bytes(whole.strategy, whole.scenario)
    held = max(job.strategy.held_bytes(job.scenario) for job in whole.strategy.jobs(whole.scenario))
    assert least <= held <= peak_bytes * (1 + ROUNDING)
