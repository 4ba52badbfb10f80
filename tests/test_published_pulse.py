"""PULSE's published numbers beside the simulator's, as far as they are promised to agree."""

from dataclasses import replace

import pytest

from profiles.architectures.models import load_model
from validate.published.training.diffusionpipe import solution_times, wave_s
from validate.published.training.models import (
    in_half_precision,
)
from validate.published.training.pulse import (
    Setting,
    Task,
    by_equation,
    by_replay,
    degrees,
    largest,
    pipeline_volumes,
    reduced,
    volume,
)

pytestmark = pytest.mark.slow

EXACT = 5e-4
"""Relative error below which a printed number is met: its rounding."""


def predicted(experiment, **wanted):
    """The records whose published rows have the wanted values."""
    return [p for p in experiment if all(getattr(p.row, k) == v for k, v in wanted.items())]


def test_five_cells_of_table_3_are_on_the_wire_to_the_last_printed_digit():
    exact = {
        (p.row.method, p.row.model, p.row.machine)
        for p in pipeline_volumes()
        if abs(p.relative_error) < EXACT
    }
    assert exact >= {
        ("pulse", "uvit-2.7b", "v100-2node"),
        ("pulse", "uvit-2.7b", "ascend910a-8node"),
        ("pulse", "hunyuan-3b", "v100-2node"),
        ("pulse", "hunyuan-3b", "ascend910a-8node"),
        ("1f1b", "uvit-2.7b", "v100-2node"),
    }


def test_hidden_states_are_counted_as_the_paper_counts_them():
    task = Task("uvit-2.7b", "v100-2node", 16)
    hidden = 258 * 2048 * 4 / 2**20
    assert volume(task, "pulse", 4) == pytest.approx({"forwards": 6 * hidden, "both ways": 12 * hidden})
    assert volume(task, "pulse", 8)["forwards"] == pytest.approx(14 * hidden)
    assert volume(task, "1f1b", 4)["forwards"] == pytest.approx(51 * hidden)
    assert volume(task, "wave", 4)["both ways"] == pytest.approx(156 * hidden)


def test_what_is_carried_travels_forwards_only():
    task = Task("hunyuan-1.5b", "v100-2node", 8)
    model = load_model("hunyuan-1.5b").components[0]
    found = volume(task, "pulse", 2)
    assert 2 * found["forwards"] - found["both ways"] == pytest.approx(2 * model.carried_bytes / 2**20)


def test_zero_2_reduces_every_gradient_once_less_its_own_share():
    parameters = load_model("uvit-2.7b").components[0].parameters
    for task in (Task("uvit-2.7b", "v100-2node", 16), Task("uvit-2.7b", "ascend910a-8node", 64)):
        share = (task.num_gpus - 1) / task.num_gpus
        assert reduced(task, 16) == pytest.approx(share * parameters * 2 / 16 / 2**20)


def test_the_largest_micro_batches_are_the_printed_ones_and_no_smaller_in_half_precision():
    section = list(degrees())
    assert [p.relative_error for p in predicted(section, quantity="micro_batch")] == [0.0, 0.0]
    task = Task("sdv2-1.7b", "v100-2node", 8)
    for degree, printed in ((2, 16), (4, 32)):
        half = Setting(degree, 1, costs="activations in half precision")
        assert largest(task, half, by_replay).micro_batch >= printed
        assert largest(task, Setting(degree, 1), by_equation).micro_batch == printed


def test_half_precision_halves_bytes_and_nothing_else():
    single, half = load_model("uvit-1b").components[0], in_half_precision("uvit-1b").components[0]
    for before, after in zip(single.layers, half.layers, strict=True):
        assert 2 * after.output_bytes == before.output_bytes
        assert 2 * after.saved_bytes == before.saved_bytes
        assert (
            replace(
                after,
                output_bytes=before.output_bytes,
                saved_bytes=before.saved_bytes,
                moved_bytes=before.moved_bytes,
            )
            == before
        )


@pytest.mark.parametrize("certificate", [True, False])
def test_the_wave_of_four_devices_is_synthesised_with_proof(certificate):
    _, makespan = wave_s(certificate=certificate)
    assert makespan == 10 * 4 - 4


def test_solution_times_stand_beside_the_published_ones_of_models_with_frozen_parts():
    section = list(solution_times())
    filled = {p.row.model for p in section if p.row.method == "filling"}
    assert filled == {"sd21", "controlnet"}
    partitioned = {p.row.model for p in section if p.row.method == "partition"}
    assert partitioned == {"sd21", "controlnet", "cdm-lsun", "cdm-imagenet"}
