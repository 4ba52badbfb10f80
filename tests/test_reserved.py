"""What a process reserves beside the bytes of its tensors, and the word for a GPU that it nearly fills."""

import pytest

import sim
from profiles.software.reserved import reserved_bytes, room_bytes
from profiles.units import GB, GIB
from strategies.pipelining.footprint import resident_buffers

FLUX = {"model": "flux-dev", "strategy": "zero2", "gpus": 4, "batch_size": 4, "checkpointing": "block"}


def test_a_gpu_alone_has_no_buffers_of_collectives_and_the_room_is_what_fills_it():
    assert reserved_bytes(10 * GB, 1) == pytest.approx((10.5 * GB, 11.3 * GB, 12.3 * GB))
    assert reserved_bytes(10 * GB, 2) == pytest.approx((10.8 * GB, 12.3 * GB, 13.9 * GB))
    for gpus in (1, 8):
        assert reserved_bytes(room_bytes(80 * GB, gpus), gpus).middle == pytest.approx(80 * GB)
    assert room_bytes(None, 8) is None


def test_what_fits_by_the_middle_estimate_alone_is_nearly_full_and_the_verdict_says_so():
    peak = sim.run("sd21", "ddp", gpus=2, batch_size=16).peak_memory_bytes
    sizes = [size / GIB for size in reserved_bytes(peak, 2)]
    full = {gib: sim.run("sd21", "ddp", gpus=2, batch_size=16, memory=f"{gib:.2f}GiB") for gib in
            (sizes[1] - 0.1, sizes[1] + 0.1, sizes[2] + 0.1)}  # fmt: skip
    assert [(one.fits_memory, one.nearly_full) for one in full.values()] == [
        (False, False), (True, True), (True, False),
    ]  # fmt: skip
    asked = {"gpus": 2, "batch_size": 16, "strategy": "ddp,zero2", "workers": 1}
    verdict = sim.sweep("sd21", memory=f"{sizes[1] + 0.1:.2f}GiB", **asked).verdict
    said = dict(verdict.lines)
    assert verdict.best.nearly_full == ("nearly full" in said["memory"]) == ("with room" in said)
    commands = [block.gives for block in verdict.answer[1:]]
    assert commands == ["start it", *["with room"] * (verdict.roomy is not None)]
    one = {"strategy": "zero2", "gpus": 2, "batch_size": 2, "checkpointing": "block"}  # and none needs less
    middle = reserved_bytes(sim.run("sd21", **one).peak_memory_bytes, 2).middle / GIB
    found = sim.sweep("sd21", **one, memory=f"{middle + 0.1:.2f}GiB", workers=1)
    changes = dict(found.verdict.lines)["with room"].removeprefix(
        "none of the points simulated surely fits; "
    )
    assert sim.launch(found).remarks[-1].endswith(f"with room: {changes}") and changes.endswith(" fits")
    less = sim.run("sd21", **one, scatter_every=2, memory=f"{middle + 0.1:.2f}GiB")
    assert less.nearly_full and "scatter_every` 2" not in changes  # it needs less, and does not surely fit


def test_zero2_keeps_whole_half_precision_gradients_so_that_flux_does_not_fit_four_gpus():
    """The bytes of DeepSpeed's estimate, 4 P + 16 P / N; it ran out of memory (huggingface/diffusers, issue 9484)."""
    result = sim.run(**FLUX)
    layout = result.source.strategy.layout(result.source.scenario)
    held = {buffer.name: buffer.size_bytes for buffer in resident_buffers(layout)}
    trained = held["weights"] / 2
    states = sum(size for name, size in held.items() if name not in ("frozen weights", "recomputed block"))
    assert states == pytest.approx(4 * trained + 16 * trained / 4)
    assert not result.fits_memory
