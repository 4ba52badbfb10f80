"""Bands and trust from published numbers: who sets them, what stays a prior, and the files that are written."""

from dataclasses import replace
from math import log
from shutil import copytree

import pytest

import sim
from profiles.architectures.models import MODELS
from profiles.costs.bands import BANDS, Circumstances, load_bands, read_bands
from profiles.costs.trust import own_misses
from sim.report.results import origin_lines
from validate.published.bands import (
    Miss,
    Misses,
    judged,
    pooled,
    scores_of,
    speedups,
    text_of,
    times_of_models,
    trusts,
    waits,
)
from validate.published.held import Held, coverage_table, scored
from validate.published.records import Conditions, Record, Standing, all_published, authors_of, the_published

A100, L20 = "a100-80gb-sxm", "l20-48gb"
DISTRIFUSION, XDIT = "DistriFusion arXiv 2402.19481", "PipeFusion arXiv 2405.14430v1"


def test_the_shipped_file_is_as_the_command_writes_it(tmp_path):
    path = tmp_path / "bands.toml"
    path.write_text(text_of(load_bands()))
    assert read_bands(path) == load_bands()
    assert path.read_text() == BANDS.read_text()


def latency(predicted, device=A100, kind="sequence", standing=Standing.INDEPENDENT, source=DISTRIFUSION):
    row = replace(
        all_published()[0],
        task="sample",
        quantity="latency_s",
        value=2.0,
        source=source,
        resolution_px="1024",
        machine=device,
    )
    reason = "" if standing is Standing.INDEPENDENT else "why"
    return Record(row, predicted, standing, reason, conditions=Conditions(device, "eager", kind))


def held(after, source=DISTRIFUSION, *, gpus=2, before=0.0):
    run = Circumstances(A100, ("ring",), 0.0, gpus=gpus, link="nvswitch")
    return Held(latency(2.0, source=source), "sdxl", run, before, after)


def misses(part, *errors, where="measured", source="one"):
    return [Miss(part, where, source, error) for error in errors]


def test_a_spread_of_few_rows_is_drawn_toward_that_of_all_and_too_few_leave_the_prior():
    rows = [*misses("compute", *[0.1] * 12), *misses("compute", *[0.3] * 12, where="derived", source="two")]
    anywhere, derived, small, measured, _ = pooled("compute", rows)
    assert (anywhere.where, anywhere.spread, anywhere.rows, anywhere.sources) == ("any", 0.3, 24, 2)
    assert (derived.spread, measured.spread) == (pytest.approx(0.3), pytest.approx((0.1 + 0.3) / 2))
    assert (measured.rows, measured.sources) == (12, 1)
    assert (small.where, small.spread, small.rows) == ("derived small", 0.6, 0)
    (prior,) = pooled("compute", rows[:3])
    assert (prior.rows, prior.source[:7]) == (0, "prior: ")


def test_errors_of_scaling_are_those_of_one_doubling_and_a_kind_of_link_without_rows_has_the_widest():
    rows = [held(error * 4**0.75, gpus=16) for error in (0.1, 0.1, 0.1, 0.1)]
    compute = tuple(misses("compute", *[0.1] * 9))
    bands = Misses(compute, tuple(rows)).bands()
    assert bands.of("sampling") == pytest.approx(0.1)
    worse = [replace(row, run=replace(row.run, link="pcie"), after=2 * row.after) for row in rows]
    known = {one.where: one for one in Misses(compute, (*rows, *worse)).bands().spreads}
    assert known["nic"].spread == known["pcie"].spread > known["nvswitch"].spread
    assert (known["nic"].rows, known["nic"].source[:7]) == (0, "prior: ")
    trained = (miss._replace(gpus=16, base=2) for miss in misses("data parallel", *[0.2] * 4))
    several = Misses((*compute, *trained), ()).bands()
    assert several.of("data parallel", "measured") == pytest.approx(0.2 / (4**1.5 - 1) ** 0.5)


def test_no_source_makes_the_band_that_holds_it():
    rows = [held(0.05, before=0.05)] * 12 + [held(0.3, XDIT, before=0.3)] * 12
    all_misses = Misses(tuple(misses("compute", *[0.01] * 9)), tuple(rows))
    scores = scores_of(all_misses)
    assert [one.inside for one in scores] == [(True, True)] * 12 + [(False, False)] * 12
    wide, narrow = scores[0].scores[1], scores[-1].scores[1]
    assert wide == pytest.approx(2 * 0.3, abs=0.01)
    assert narrow == pytest.approx(2 * 0.05 + 10 * (0.3 - 0.05), abs=0.02)
    table = coverage_table(scores)
    assert table.rows[0][:4] == ["all", "24", "50.0%", "50.0%"]
    assert [row[0] for row in table.rows][-2:] == ["DistriFusion", "xDiT"]


def test_a_band_without_a_miss_scores_its_width():
    bands = Misses((), ()).bands()
    one = scored(held(0.0), bands)
    assert one.inside == (True, True)
    assert one.scores[1] == pytest.approx(
        2
        * log(
            bands.uncertainty("sampling", one.row.run)
            .after(replace(bands.uncertainty("sampling", one.row.run), alike=("single",), own=0.0))
            .band.high
        )
    )


def test_the_error_of_what_is_awaited_is_that_of_exposed_seconds_beside_the_same_compute():
    row = the_published("Table 2", model="controlnet", num_gpus=64)
    (miss,) = waits([Record.of(row, row.value / 2)])
    share = row.value / 2
    assert miss.error == pytest.approx(log((row.value / (1 - row.value)) / (share / (1 - share))))
    assert miss.source == "DiffusionPipe"
    assert [*waits([replace(Record.of(row, 0.3), standing=Standing.FITTED, reason="it set the links")])] == []
    assert [*speedups([Record.of(row, 0.3)], load_bands())] == []


def test_authors_share_their_papers_and_unknown_ones_are_refused():
    assert authors_of(XDIT) == authors_of("xDiT docs/performance/flux.md, Fig. 1 [text]") == "xDiT"
    with pytest.raises(ValueError, match=r"sources\.csv has no authors for source 'x'"):
        authors_of("x")


# Trust.


def test_trust_is_of_independent_times_by_kind_and_family_and_tells_pace_from_scaling():
    in_view = latency(1.0, standing=Standing.IN_VIEW)
    records = [latency(2.2), latency(1.6, source=XDIT), latency(3.0, device=L20), in_view]
    several = Held(records[0], "sdxl", Circumstances(A100, (), 0.0, gpus=2), log(2 / 2.6), log(2 / 2.1))
    derived, measured = trusts(judged(records, [several], load_bands()))
    assert (measured.task, measured.family, measured.kind) == ("sample", "measured", "sequence")
    assert (measured.pace.numbers, measured.pace.worst) == (2, pytest.approx(0.3))
    assert (measured.scaling.numbers, measured.scaling.median) == (1, pytest.approx(0.05))
    assert measured.sources == ("DistriFusion", "xDiT")
    assert measured.sizes == ("1024",)
    assert measured.strategies == ("ulysses", "ring", "usp"), "no row is of Attention2D"
    assert (derived.family, derived.pace.numbers, derived.scaling.numbers) == ("derived", 1, 0)


def test_a_models_own_numbers_are_our_times_over_the_published_by_device():
    records = [latency(2.2), latency(1.6, source=XDIT), latency(3.0, device=L20)]
    records = [replace(of, row=replace(of.row, model="SDXL at 1024")) for of in records]
    faster = replace(records[0], row=replace(records[0].row, quantity="samples_per_s"), predicted=4.0)
    assert [*times_of_models([*records, faster])] == [
        ("sample", "sdxl", A100, "3", "0.5000", "1.1000"),
        ("sample", "sdxl", L20, "1", "1.5000", "1.5000"),
    ]
    words = "qwen-image itself, our time over the published, by device: -3% to +9% on a100-80gb-sxm (5)"
    assert own_misses("sample", "qwen-image", "h100-80gb-sxm") == words
    assert ("trust", words) in origin_lines(sim.run("qwen-image", "single", "h100-nvlink-8", 1, steps=2))


def test_a_folder_has_no_numbers_of_its_own_and_without_kernels_no_times_from_kernels(tmp_path):
    copytree(MODELS / "pixart", tmp_path / "pixart", ignore=lambda *_: ["kernels.csv"])
    lines = dict(origin_lines(sim.run(str(tmp_path / "pixart"), "single", "h100-nvlink-8", 1, steps=2)))
    assert lines["times"].startswith("estimated by rates of the device")
    assert lines["trust"].startswith("one GPU: ")
