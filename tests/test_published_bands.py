"""Bands from published numbers: who sets them, what stays a prior, and the file that is written."""

from dataclasses import replace
from math import exp, log

import pytest

from profiles.architectures.models import load_model
from profiles.costs.bands import BANDS, FEWEST, Band, load_bands, read_bands
from profiles.costs.layers import one_gpu_s
from profiles.machines.devices import load_device
from validate.__main__ import main
from validate.published.bands import (
    Miss,
    alone,
    bands_of,
    elsewhere,
    on_one,
    speedups,
    text_of,
    trainings,
    waits,
)
from validate.published.clusters import SETS, read_runs
from validate.published.records import Record, Standing, the_published
from validate.published.sampling.rows import DISTILLED
from validate.published.sampling.runs import runs

A100, L40 = "a100-80gb-sxm", "l40-48gb"


def misses(*ratios, method="one GPU", device=A100, exposed=0.0):
    return [Miss(device, "eager", method, ratio, "made", exposed) for ratio in ratios]


def test_the_shipped_file_is_as_the_command_writes_it(tmp_path):
    path = tmp_path / "bands.toml"
    path.write_text(text_of(load_bands()))
    assert read_bands(path) == load_bands()
    assert path.read_text() == BANDS.read_text()


def test_few_numbers_make_no_band_and_leave_the_prior():
    known = bands_of(misses(*[1.5] * (FEWEST - 1)), [2.0] * (FEWEST - 1), load_bands())
    assert all(
        one.stack == "any" and not one.rows and one.source.startswith("prior: ") for one in known.evidence
    )
    assert known.exposed == load_bands().exposed
    assert len(known.evidence) == 10


def test_numbers_make_the_band_of_their_family_stack_and_method():
    known = bands_of([*misses(0.8, 0.9, 1.1, 1.3), *misses(0.5, 0.6, 1.2, 2.0, device=L40)], [], load_bands())
    assert known.of("measured", "eager", "one GPU").band == Band(0.8, 1.3)
    assert known.of("derived", "eager", "one GPU").band == Band(0.5, 2.0)
    assert known.of("derived", "eager", "one GPU").rows == 4
    assert known.of("measured", "compiled", "one GPU").band == Band(0.8, 1.3)
    assert known.of("derived", "compiled", "one GPU").band == Band(0.5, 2.0)
    assert known.of("measured", "compiled", "pipeline").rows == 0


def test_a_stack_of_which_nothing_is_known_takes_what_the_bands_of_others_span():
    other = [replace(miss, stack="compiled") for miss in misses(0.7, 1.0, 1.0, 1.1)]
    known = bands_of([*misses(0.8, 0.9, 1.1, 1.3), *other], [], load_bands())
    spanned = known.of("measured", "mine", "one GPU")
    assert (spanned.band, spanned.rows) == (Band(0.7, 1.3), 8)
    assert known.of("derived", "mine", "one GPU") == replace(spanned, family="derived")


def test_a_method_is_judged_where_little_is_awaited_if_there_are_such_numbers():
    quiet = misses(0.9, 1.0, 1.0, 1.1, method="pipeline", exposed=0.05)
    loud = misses(0.5, 2.0, method="pipeline", exposed=0.5)
    assert bands_of([*quiet, *loud], [], load_bands()).of("measured", "eager", "pipeline").band == Band(
        0.9, 1.1
    )
    assert bands_of([*quiet[1:], *loud], [], load_bands()).of("measured", "eager", "pipeline").band == Band(
        0.5, 2.0
    )


def test_the_error_of_what_is_awaited_is_that_of_exposed_seconds_beside_the_same_compute():
    row = the_published("Table 2", model="controlnet", num_gpus=64)
    (found,) = waits([Record.of(row, row.value / 2)])
    share = row.value / 2
    assert found == pytest.approx((row.value / (1 - row.value)) / (share / (1 - share)))
    assert waits([replace(Record.of(row, 0.3), standing=Standing.FITTED, reason="it set the links")]) == []
    assert bands_of([], [0.5, 2.0, 2.0, 2.0], load_bands()).exposed.spread == pytest.approx(log(4) / 2)


def test_a_speedup_that_is_predicted_too_small_is_a_pipeline_predicted_too_slow():
    row = the_published("6.1", model="controlnet", num_gpus=64, method="diffusionpipe/ddp")
    (found,) = speedups([Record.of(row, row.value * exp(-0.1))])
    assert (found.method, found.device) == ("pipeline", A100)
    assert found.ratio == pytest.approx(exp(-0.1))
    assert (
        list(speedups([replace(Record.of(row, 1.0), standing=Standing.IN_VIEW, reason="it chose a variant")]))
        == []
    )


def test_training_within_a_node_is_of_compute_and_across_nodes_of_data_parallelism():
    found = list(
        trainings(replace(run, cluster="p4de", device="") for run in read_runs() if run.name[0] == "M")
    )
    small, large = (
        [run for run in read_runs() if run.name[0] == "M" and (run.asked["gpus"] == 64) == many]
        for many in (False, True)
    )
    judged = [run for run in small if run.role != SETS]
    assert [miss.method for miss in found].count("one GPU") == len(judged)
    assert 0 < [miss.method for miss in found].count("data parallel") <= len(large)
    assert {miss.stack for miss in found} == {"eager-2023", "compiled"}
    mosaic = [run for run in read_runs() if run.name == "MosaicML online 512 px"]
    near, far = (replace(run, cluster="p4de", device="") for run in mosaic)
    of_node, of_nodes = trainings([far, near])
    assert of_node.ratio == near.predicted() / near.samples_per_s
    assert of_nodes.ratio == pytest.approx(far.predicted() / far.samples_per_s / of_node.ratio)


def test_one_gpu_is_judged_by_latencies_that_scale_nothing():
    found = list(alone())
    model = load_model("pixart")
    anchor = next(a for a in model.anchors if a.device == A100)
    ratio = anchor.latency_s / one_gpu_s(model, load_device(A100), anchor)
    assert any(miss.device == A100 and miss.ratio == ratio for miss in found)
    assert len(found) > 40 and all(miss.method == "one GPU" for miss in found)


def test_bands_need_the_numbers_of_both_tasks(capsys, tmp_path):
    assert main(["published", "--task", "train", "--bands", str(tmp_path / "bands.toml")]) == 2
    assert "--task is 'train', but --bands is of both tasks: leave it out" in capsys.readouterr().err


def test_a_latency_that_two_sources_print_tells_how_far_one_gpu_is_from_another():
    found = list(elsewhere())
    seconds = sorted(
        a.latency_s for a in load_model("sd3-medium").anchors if (a.device, a.height) == (A100, 1024)
    )
    for ratio in (seconds[0] / seconds[1], seconds[1] / seconds[0]):
        assert any(miss.ratio == pytest.approx(ratio) for miss in found)
    assert {miss.method for miss in found} == {"anchored"}


def test_latencies_of_one_gpu_that_set_nothing_judge_the_anchor_they_start_from_or_compute():
    judged = runs(lambda row: row.num_gpus == 1 and row["model"] == DISTILLED)
    found = list(on_one(judged))
    assert {(miss.stack, miss.method) for miss in found} == {("eager", "anchored"), ("compiled", "one GPU")}
    assert len(found) == sum(run.record.standing is Standing.INDEPENDENT for run in judged)
