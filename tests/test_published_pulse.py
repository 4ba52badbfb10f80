"""PULSE's published numbers beside the simulator's, as far as they are promised to agree."""

from dataclasses import replace

import pytest

from profiles.architectures.models import load_model
from validate.points import scenario
from validate.published.records import published
from validate.published.training.imbalance import gains, longest_stages, partition_speed_ups
from validate.published.training.models import (
    COSTS,
    costs_of,
    in_half_precision,
)
from validate.published.training.solving import solution_times, wave_s
from validate.published.training.throughput import (
    Setting,
    Task,
    base_of,
    by_equation,
    by_replay,
    changed,
    degrees,
    larger_models,
    largest,
    over,
    run,
    two_nodes,
)
from validate.published.training.volumes import (
    messages,
    nearest,
    pipeline_volumes,
    readings,
    reduced,
    volume,
)

pytestmark = pytest.mark.slow

EXACT = 5e-4
"""Relative error below which a printed number is met: its rounding."""


def predicted(experiment, **wanted):
    """The records whose published rows have the wanted values."""
    return [p for p in experiment.records if all(getattr(p.row, k) == v for k, v in wanted.items())]


def test_five_cells_of_table_3_are_on_the_wire_to_the_last_printed_digit():
    exact = {
        (p.row.method, p.row.model, p.row.machine)
        for p in pipeline_volumes().records
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


def test_the_volume_of_hunyuan_grows_exactly_sevenfold_from_two_to_eight_devices():
    two, eight = (p.predicted for p in predicted(messages(), model="hunyuan-1.5b"))
    assert eight == pytest.approx(7 * two)
    assert [f"{two:.1f}", f"{eight:.1f}"] == ["13.6", "95.3"]


def test_the_nearest_reading_is_named():
    (row,) = published("Table III", model="uvit-2.7b", machine="v100-2node", method="pulse")
    best, record = nearest(row, readings(row))
    assert str(best) == "P = 4, both ways"
    assert record.setting == "nearest of 4 conventions: P = 4, both ways"


def test_zero_2_reduces_every_gradient_once_less_its_own_share():
    parameters = load_model("uvit-2.7b").components[0].parameters
    for task in (Task("uvit-2.7b", "v100-2node", 16), Task("uvit-2.7b", "ascend910a-8node", 64)):
        share = (task.num_gpus - 1) / task.num_gpus
        assert reduced(task, 16) == pytest.approx(share * parameters * 2 / 16 / 2**20)


def test_the_volumes_of_zero_2_give_the_micro_batches_away():
    found = {
        model: base_of(Task(model, "v100-2node", 16)) for model in ("uvit-2.7b", "sdv2-4.6b", "hunyuan-3b")
    }
    assert [setting.micro_batch for setting in found.values()] == [16, 32, 2]
    assert [setting.degree for setting in found.values()] == [4, 4, 8]


def test_the_largest_micro_batches_are_the_printed_ones_and_no_smaller_in_half_precision():
    section = degrees()
    assert [p.relative_error for p in predicted(section, quantity="micro_batch")] == [0.0, 0.0]
    task = Task("sdv2-1.7b", "v100-2node", 8)
    for degree, printed in ((2, 16), (4, 32)):
        half = Setting(degree, 1, costs="activations in half precision")
        assert largest(task, half, by_replay).micro_batch >= printed
        assert largest(task, Setting(degree, 1), by_equation).micro_batch == printed


def test_a_deeper_pipeline_of_uvit_is_slower_as_printed():
    two, eight = (p.predicted for p in predicted(degrees(), model="uvit-1b"))
    assert eight / two == pytest.approx(114.7 / 134.7, rel=0.1)


def test_a_larger_uvit_gains_over_the_better_pipeline():
    base, *_ = larger_models().records
    assert base.setting.startswith("P = 4")
    assert base.predicted > 1


def test_the_first_prediction_of_the_two_nodes_is_the_base_setting():
    section = two_nodes()
    first = predicted(section, method="pulse")[0]
    assert first.setting == "P = 4, micro-batch 32; base"
    assert section.section.title.endswith(", P = 4, micro-batch 32")
    assert all(p.predicted > 1 for p in predicted(section, method="pulse/1f1b"))


def test_settings_change_one_thing_of_the_base():
    base = Setting(4, 16)
    names = ("degree", "micro_batch", "placement", "p2p", "costs", "recipe", "collectives")
    for words, setting in changed(base):
        different = [name for name in names if getattr(setting, name) != getattr(base, name)]
        assert len(different) == (words != "base")


def test_what_zero_2_loses_follows_the_efficiency_of_its_collectives():
    task = Task("hunyuan-3b", "ascend910a-8node", 64)
    base = base_of(task)
    line_rate, measured = over(task, base, "zero2"), over(task, replace(base, collectives="p4de"), "zero2")
    assert measured > line_rate


def test_a_setting_that_cannot_exist_gives_no_result():
    assert run(Task("uvit-2.7b", "v100-2node", 16), Setting(16, 1), "1f1b") is not None
    assert run(Task("sdv2-4.6b", "v100-2node", 16), Setting(16, 1), "wave") is None
    assert over(Task("sdv2-4.6b", "v100-2node", 16), Setting(16, 1), "wave") is None


def test_the_more_unequal_the_stages_the_more_the_partition_shortens_the_longest():
    section = longest_stages()
    base, *_ = predicted(section, item="IV-B")
    assert base.setting == f"{COSTS[0]}; P = 4"
    slow = {p.row.item: p.predicted for p in section.records if p.setting == f"{COSTS[-1]}; P = 4"}
    even, *_ = predicted(section, item="IV-A")
    assert slow["IV-A"] > even.predicted > 1
    assert slow["IV-B"] > base.predicted > 0


def test_equation_15_gives_more_than_the_replay():
    section = partition_speed_ups()
    by_setting = {p.setting: p.predicted for p in section.records}
    at = "attention unfused; P = 8; "
    assert by_setting[at + "by Eq. 15"] > by_setting[at + "blocking"] > 1


def test_a_uniform_transformer_gains_next_to_nothing_from_its_partition():
    (gain,) = (g for g in gains(costs_of("uvit-1b")[COSTS[0]], 8, "overlapped") if g.degree == 4)
    assert gain.faster == pytest.approx(1, abs=0.05)


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


def test_assumptions_on_costs_order_the_times_of_layers():
    def forward_s(name):
        costs = costs_of("sdv2-1.7b")[name]
        point = scenario(costs.model, "v100-2node", 8, 8, stack=costs.stack, self_conditioning=0.0)
        return point.costs.components[0].forward_s(8)

    single, half, flop, unfused, slowest = map(forward_s, COSTS)
    assert flop.sum() < half.sum() <= single.sum() < unfused.sum() < slowest.sum()
    assert (unfused >= single - 1e-12).all()


@pytest.mark.parametrize("certificate", [True, False])
def test_the_wave_of_four_devices_is_synthesised_with_proof(certificate):
    _, makespan = wave_s(certificate=certificate)
    assert makespan == 10 * 4 - 4


def test_solution_times_stand_beside_the_published_ones_of_models_with_frozen_parts():
    section = solution_times()
    filled = {p.row.model for p in section.records if p.row.method == "filling"}
    assert filled == {"sd21", "controlnet"}
    partitioned = {p.row.model for p in section.records if p.row.method == "partition"}
    assert partitioned == {"sd21", "controlnet", "cdm-lsun", "cdm-imagenet"}
