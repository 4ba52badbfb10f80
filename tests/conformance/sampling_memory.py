"""What a sampling plan holds: weights all the time, and nothing that it does not let go of."""

import numpy as np
import pytest
from conformance.checks import Checks
from conformance.sampling_points import ROUNDING

from sim.replay.memory import memory_events, peak_memory_bytes, resident_bytes

check = Checks()


@check
def memory_is_never_negative_and_what_is_kept_stays(point):
    devices, _, changes = memory_events(point.trace)
    largest = max(1.0, float(peak_memory_bytes(point.trace).max()))
    for device in range(point.plan.num_devices):
        held = np.cumsum(changes[devices == device])
        assert not len(held) or held.min() >= -1e-9 * largest, device
        assert not len(held) or held[-1] == pytest.approx(0.0, abs=1e-9 * largest), device


@check
def every_device_holds_its_weights(point):
    held = resident_bytes(point.trace)
    parameters = sum(layer.parameters for layer in point.scenario.backbone.layers)
    names = [{buffer.name for buffer in buffers} for buffers in point.plan.resident]
    assert all("weights" in of for of in names)
    weights = sum(
        buffer.size_bytes for buffers in point.plan.resident for buffer in buffers if buffer.name == "weights"
    )
    assert weights >= 2 * parameters * (1 - ROUNDING)
    assert (peak_memory_bytes(point.trace) >= held).all()
