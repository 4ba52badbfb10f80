"""Published numbers beside the simulator's, as far as they are promised to agree."""

from statistics import median

import pytest

from profiles.machines.clusters import cluster_names
from validate.points import fastest, scenario, trained
from validate.published import report, training
from validate.published.clusters import read_runs
from validate.published.ledger import coverage, error_words, line, training_ledger
from validate.published.records import (
    ESTIMATED,
    Record,
    Standing,
    all_published,
    published,
    standing_of,
    the_published,
)
from validate.published.training import EXPERIMENTS
from validate.published.training.models import STACK, with_all_gradients
from validate.published.training.ratios import (
    frozen_ratios,
    slowness,
    synchronisation_share,
    synchronisation_shares,
    unfilled_bubbles,
    useful_share,
)
from validate.published.training.speedups import (
    DRAWS,
    FILLS,
    OVERLAPS,
    ablation,
    by_fill,
    cascades,
    eight_nodes,
    losses_unfilled,
    one_node,
    ratios_over,
    speed_ups,
)

pytestmark = pytest.mark.slow

SWEEPS = {eight_nodes, one_node, ablation, cascades}
HINT = "controlnet-hint-vae"
NOTHING_TO_FILL = "the model folder has no frozen part to fill with"


@pytest.fixture(scope="module")
def sd21_cases():
    return list(speed_ups("sd21", "sd21", 8, 256))


@pytest.fixture(scope="module")
def quick():
    """All records of the experiments that sweep no design space."""
    return [record for run in EXPERIMENTS if run not in SWEEPS for record in run().records]


@pytest.fixture(scope="module")
def cascade():
    return cascades(((8, 256),))


@pytest.fixture(scope="module")
def swept(sd21_cases, cascade):
    """The base records of the others, without the points that only give the range."""
    (controlnet,) = speed_ups(HINT, HINT, 64, 2048, DRAWS[:1])
    filled = by_fill(scenario(HINT, "p4de", 8, 256))
    bubbles = {"sd21": sd21_cases[0].pipe, "controlnet": filled["partial"]}
    return [
        *ratios_over(controlnet, "controlnet"),
        *ratios_over(sd21_cases[0], "sd21"),
        *(Record.of(the_published("Fig. 14", model=of), bubbles[of].bubble_ratio) for of in bubbles),
        *(one for batch in (256, 384) for one in losses_unfilled(filled, batch, HINT)),
        *cascade.records,
    ]


def errors(experiment, **wanted):
    """Predicted less published of the records whose published rows have the wanted values."""
    return [
        p.predicted - p.row.value
        for p in experiment.records
        if all(getattr(p.row, key) == value for key, value in wanted.items())
    ]


def test_every_published_number_of_training_is_in_the_file_once():
    rows = all_published()
    assert len(rows) == len(set(rows)) == 131
    assert {row.source for row in rows} >= {"DiffusionPipe", "DiffusionPipe appendix", "PULSE", "PipeFusion"}


def test_frozen_over_trained_time_grows_with_the_batch_and_most_in_the_reading_of_table_1():
    found = frozen_ratios()
    assert len(found.records) == 12
    ratios = [p.predicted for p in found.records if p.row.model == "sd21"]
    assert ratios == sorted(ratios)
    assert all(abs(p.predicted - p.row.value) <= 0.06 for p in found.records if p.row.model == "sd21")
    hint = [p for p in found.records if p.setting == "controlnet-hint-vae"]
    assert all(abs(p.predicted - p.row.value) <= 0.15 for p in hint)
    other = [p for p in found.records if p.setting == "controlnet"]
    for one, another in zip(hint, other, strict=True):
        assert abs(one.error) < abs(another.error)


def test_the_share_of_gradient_reduction_grows_with_the_gpus_as_in_table_2():
    by_setting = {}
    for record in synchronisation_shares().records:
        by_setting.setdefault(record.setting, []).append(record.predicted)
    assert len(by_setting) == 8
    assert all(len(shares) == 4 and shares == sorted(shares) for shares in by_setting.values())


def test_gradients_in_buckets_take_longer_than_in_one_call_and_most_so_over_nodes():
    ratios = []
    for gpus in (8, 64):
        point = scenario("sd21", "p4de", gpus, 8 * gpus, stack="eager-2023", self_conditioning=0.0)
        seconds = [trained("ddp", point, overlap=how).expected.collective_s for how in ("none", "buckets")]
        ratios.append(seconds[1] / seconds[0])
    assert 1 < ratios[0] < ratios[1]


def test_reducing_the_locked_gradients_too_lengthens_the_reduction():
    shares = [
        synchronisation_share(model, 64, "mixed")
        for model in ("controlnet-hint-vae", with_all_gradients("controlnet-hint-vae", "p4de"))
    ]
    assert shares == sorted(shares)
    assert slowness(shares[0], shares[1]) > 1


def test_reducing_all_gradients_changes_no_time_but_that_of_reduction_and_step():
    plain, every = (
        scenario(model, "p4de", 8, 64, stack=STACK).costs.components[-1]
        for model in ("controlnet-hint-vae", with_all_gradients("controlnet-hint-vae", "p4de"))
    )
    for batch in (1, 8, 32):
        assert every.forward_s(batch) == pytest.approx(plain.forward_s(batch))
        assert every.backward_s(batch) == pytest.approx(plain.backward_s(batch))
    parameters = [c.component.trained_parameters(0, len(c.component.layers)) for c in (plain, every)]
    assert parameters == [361279120, 1220800084]


def test_all_numbers_of_figure_4_are_replayed_within_a_tenth_of_a_point():
    found = unfilled_bubbles()
    assert len({record.row for record in found.records}) == len(found.records) == 48
    assert all(abs(error) <= 0.001 for error in errors(found))


def test_the_best_filled_pipeline_idles_less_than_the_published_5_percent(sd21_cases):
    assert all(case.pipe.bubble_ratio < 0.05 for case in sd21_cases)


def test_gpipe_is_left_as_far_behind_whatever_moves_data_parallelism(sd21_cases):
    assert all(1.25 < case.over(case.gpipe) < 1.5 for case in sd21_cases)


def test_a_reduction_after_the_backward_costs_data_parallelism_throughput(sd21_cases):
    for case in sd21_cases:
        assert set(case.ddp) == set(OVERLAPS)
        assert case.ddp["buckets"].samples_per_s > case.ddp["none"].samples_per_s


def test_zero_3_after_the_backward_gains_at_most_the_share_of_the_step_that_it_divides(sd21_cases):
    """A loop over all tensors makes the step of the stack of early 2023 slow; ZeRO divides it among the GPUs."""
    for case in sd21_cases:
        assert case.zero3.samples_per_s <= 1.05 * case.ddp["buckets"].samples_per_s


def test_a_pipeline_gains_more_over_data_parallelism_if_all_gradients_are_reduced():
    gains = []
    for model in ("controlnet-hint-vae", with_all_gradients("controlnet-hint-vae", "p4de")):
        (case,) = speed_ups("x", model, 64, 2048, [(0.0, "iteration")])
        assert case.over(case.gpipe) > 1.1
        gains.append(case.over(case.ddp["none"]))
    assert gains[1] > gains[0]


def test_filling_bubbles_pays_and_partial_batches_pay_most():
    for model in ("sd21", "controlnet"):
        point = scenario(model, "p4de", 8, 256, self_conditioning=0.0)
        partial, full, none = (fastest(point, "diffusionpipe", fill=fill).samples_per_s for fill in FILLS)
        assert partial > full >= none


def test_the_report_shows_every_experiment_and_every_row(monkeypatch):
    monkeypatch.setattr(training, "EXPERIMENTS", (frozen_ratios,))
    shown = []
    ledger = report.report("train", lambda task, section: shown.append((task, section)))
    (first, table), (_, every) = shown
    assert first == "train"
    assert table.markdown().startswith("### DiffusionPipe, Table 1")
    assert table.markdown().count("| local batch 8 |") == 1
    assert every.title == "Every published number: 8 of 131 predicted"
    assert all(str(row) in every.markdown() for row in all_published())
    assert sum(one.predicted is not None for one in ledger.records) == 8


def test_a_row_without_prediction_is_listed_with_its_reason():
    row = the_published("Table 5", model="cdm-lsun", method="filling")
    (cells,) = [line(one) for one in training_ledger([]).records if one.row == row]
    assert cells[2:] == ["2.5", "-", "-", NOTHING_TO_FILL, "-"]


def test_the_first_prediction_of_a_row_counts_and_the_others_give_the_range():
    row = the_published("6.1", method="diffusionpipe/gpipe", model="sd21")
    found = [Record.of(row, value, setting) for value, setting in ((1.44, "a"), (1.2, "b"), (1.6, "c"))]
    (cells,) = coverage([found]).rows
    assert cells[2:] == ["1.44", "1.44", "+0.0%", "a", "1.2 to 1.6"]


def test_every_row_is_covered_by_an_experiment_or_has_a_reason(quick):
    covered = {record.row for record in quick}
    left = [row for row in all_published() if row not in covered]
    assert {row.item for row in left} == {
        "6.1",
        "Fig. 14",
        "Fig. 15",
        "Table 5",
        "README",
        "MLPerf 5.1",
    }
    unfilled = [row for row in left if row.item == "Table 5"]
    assert [(row.method, row.model) for row in unfilled] == [
        ("filling", "cdm-lsun"),
        ("filling", "cdm-imagenet"),
    ]
    for row in left:
        if row.item in ("Table 5", "README", "MLPerf 5.1", "NeMo"):
            standing, reason = standing_of(row)
            assert standing is Standing.UNCOVERED
            assert reason


def test_every_row_of_training_stands_in_the_ledger_once(quick, swept):
    ledger = training_ledger([*quick, *swept])
    rows = [one.row for one in ledger.records]
    assert rows[: len(all_published())] == list(all_published())
    assert len(rows) == len(set(rows)) == len(all_published()) + len(read_runs())
    reasons = {one.reason for one in ledger.of(Standing.UNCOVERED)}
    assert NOTHING_TO_FILL in reasons
    assert "not predicted" not in reasons
    for one in ledger.records:
        assert (one.standing is Standing.INDEPENDENT) == (one.reason == "")
        assert (one.standing is Standing.UNCOVERED) == (one.predicted is None)
        assert one.standing is not Standing.INDEPENDENT or one.error is not None


def test_what_set_something_or_follows_from_its_definition_is_not_independent(quick):
    ledger = training_ledger(quick)
    fitted = ledger.of(Standing.FITTED)
    assert {one.row.item for one in fitted} >= {"Fig. 4", "Table III", "MLPerf 4.1"}
    assert {one.row.item for one in ledger.of(Standing.FORMULA)} == {"Fig. 4", "3.3"}
    in_view = ledger.of(Standing.IN_VIEW)
    assert {one.row.model for one in in_view if one.row.item == "Table 1"} == {"sd21", "controlnet"}
    assert {one.row.model for one in in_view if one.row.item == "Table 2"} == {"sd21"}
    for one in ledger.of(Standing.INDEPENDENT):
        assert one.row.item not in ("Table 1", "Table III", "VII-C2", "Fig. 4")


MEDIANS = {
    ("Table 1", "sd21"): 0.08,
    ("Table 1", "controlnet"): 0.17,
    ("Table 2", "sd21"): 0.1,
    ("6.1", "sd21"): 0.15,
    ("6.1", "controlnet"): 0.23,
    ("Table III", "uvit-2.7b"): 0.08,
    ("Table III", "sdv2-4.6b"): 0.27,
    ("Table III", "hunyuan-3b"): 0.15,
    ("VII-C2", "hunyuan-1.5b"): 0.001,
    ("VII-C2", "uvit-1b"): 0.25,
    ("VII-C2", "sdv2-1.7b"): 0.45,
    ("MLPerf", "sd21"): 0.06,
    ("MosaicML", "sd21"): 0.05,
    ("ControlNet", "controlnet"): 0.1,
}
"""Bounds on the median relative error of a table's numbers of one model, wider than it is by a quarter or so."""


def test_predictions_of_training_are_no_worse_than_they_were(quick, swept):
    """Bounds from above alone: what gets better breaks none."""
    found = {}
    for one in training_ledger([*quick, *swept]).records:
        if one.error is not None:
            item = one.row.item if one.row.source in ("DiffusionPipe", "PULSE") else one.row.item.split()[0]
            found.setdefault((item, one.row.model), []).append(abs(one.error))
    assert {group: bound for group, bound in MEDIANS.items() if median(found[group]) > bound} == {}


def test_the_share_of_reduction_is_as_near_to_table_2_as_it_was(quick):
    """In points of the iteration; DiffusionPipe does not say which of ControlNet's gradients it reduces."""
    records = [one for one in training_ledger(quick).records if one.row.item == "Table 2"]
    for one in records:
        assert abs(one.predicted - one.row.value) <= {"sd21": 0.03, "controlnet": 0.24}[one.row.model]


def test_layer_times_of_training_are_estimates_as_their_provenance_says():
    pairs = {(row.model, row.machine) for row in all_published()}
    where = {(model, cluster) for model, cluster in pairs if cluster in cluster_names() and model != "-"}
    assert len(where) > 8
    assert all(scenario(*of, 8, 256).costs.provenance == ESTIMATED for of in where)


def test_the_useful_share_of_pipefusion_is_the_printed_one():
    (record,) = useful_share().records
    assert record.predicted == pytest.approx(200 / 203)
    assert record.row.value == round(record.predicted, 3)


def test_a_bound_that_is_printed_holds_or_does_not():
    row = the_published("Fig. 14", model="sd21")
    records = [Record.of(row, value) for value in (0.049, 0.051)]
    assert [error_words(one) for one in records] == ["holds", "does not hold"]
    assert all(one.standing is Standing.APART and one.error is None for one in records)


def test_a_cascade_in_two_directions_is_comparable_to_data_parallelism_side_by_side(cascade):
    (record,) = cascade.records
    assert record.predicted == pytest.approx(1.0, abs=0.2)
    assert len(cascade.section.rows) == 3


def test_a_published_zero_has_no_relative_error():
    (row,) = published("Fig. 15", batch_size=384)
    record = Record.of(row, 0.05)
    assert (record.relative_error, record.standing) == (None, Standing.APART)


def test_a_record_says_why_it_is_not_independent_and_what_is_predicted_unless_it_is_not_covered():
    row = the_published("VII-B")
    with pytest.raises(ValueError, match="is fitted, but the reason is ''"):
        Record(row, 1.5, Standing.FITTED)
    with pytest.raises(ValueError, match="is not covered, but predicted as 1"):
        Record(row, 1.5, Standing.UNCOVERED, "because")


def test_every_quantity_of_training_has_its_unit():
    units = {row.quantity: row.unit for row in all_published()}
    assert units["samples_per_s"] == "samples/s"
    assert units["p2p_MB_per_sample"] == units["communication_MB_per_sample"] == "MiB/sample"
    assert (units["solve_s"], units["micro_batch"], units["speedup"]) == ("s", "samples", "1")
