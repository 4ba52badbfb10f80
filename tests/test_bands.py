"""Bands of errors and trust: quantiles, two errors together, and what a comparison of two estimates can tell."""

from dataclasses import replace
from math import hypot, log, nextafter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from profiles.costs.bands import (
    ANY,
    PARTS,
    Band,
    Bands,
    Circumstances,
    Shape,
    Spread,
    Uncertainty,
    load_bands,
    spread_between,
)
from profiles.costs.trust import COLUMNS, TRUST, Errors, Trust, read_trust, trust_of
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from profiles.machines.devices import device_names
from strategies.registry import strategies_of
from validate.published.bands import at_one, errors_of, spread_of

shares = st.floats(0.0, 1.0)
spreads = st.floats(0.0, 2.0)
uncertainties = st.builds(
    Uncertainty,
    shared=spreads,
    own=spreads,
    repeat=st.just(0.01),
    exposed=shares,
    alike=st.sampled_from([("ddp", "p4de", "node"), ("gpipe", "p4de", "node"), ("ddp", "p4de", "nodes")]),
)


@given(st.lists(st.floats(-2.0, 2.0), min_size=1, max_size=30))
def test_a_spread_holds_eight_of_ten_errors(errors):
    spread = spread_of(errors)
    inside = sum(abs(error) <= nextafter(spread, 9) for error in errors)
    assert inside >= 0.8 * len(errors) - 1


def test_runs_of_one_strategy_over_the_same_links_differ_by_awaited_data_alone():
    one = Uncertainty(shared=0.5, own=0.5, repeat=0.03, exposed=0.10, alike=("ddp", "p4de", "node"))
    other = replace(one, exposed=0.14)
    assert spread_between(one, other) == pytest.approx(0.05)
    across = replace(other, alike=("ddp", "p4de", "nodes"))
    assert spread_between(one, across) == pytest.approx(hypot(0.03, 0.5, 0.5, 0.04 * 0.5))


def spread(part, where, size):
    return Spread(part, where, size, 0, 0, "a prior")


KNOWN = Bands(
    ("made",),
    ("ideal",),
    (),
    Shape(0.5, 0.01),
    (
        spread("repeat", ANY, 0.0),
        spread("exposed", ANY, 0.5),
        spread("anchored", ANY, 0.04),
        spread("compute", ANY, 0.3),
        spread("compute", "measured", 0.1),
        spread("compute", "measured small", 0.2),
        spread("training", ANY, 0.1),
        spread("pipeline", ANY, 0.2),
        spread("sampling", ANY, 0.06),
        spread("sampling", "pcie", 0.07),
    ),
)
RUN = Circumstances("made", ("gpipe", "p4de", "node"), 0.2, gpus=2)


def test_the_band_of_a_method_is_that_of_compute_and_what_it_and_its_exposed_communication_add():
    uncertainty = KNOWN.uncertainty("pipeline", RUN)
    assert log(uncertainty.band.high) == pytest.approx(hypot(0.1, 0.2, 0.2 * 0.5))
    assert log(uncertainty.band.low) == pytest.approx(-log(uncertainty.band.high))
    assert (uncertainty.shared, uncertainty.own) == (0.1, pytest.approx(hypot(0.2, 0.1)))


def test_sampling_errs_the_more_the_more_gpus_and_the_shorter_a_step_and_by_its_link():
    one = KNOWN.uncertainty("sampling", replace(RUN, link="pcie"))
    assert one.own == pytest.approx(0.07)
    assert log(one.band.high) == pytest.approx(0.1), "no less than one GPU"
    eight = KNOWN.uncertainty("sampling", replace(RUN, gpus=8, step_s=1 / 16))
    assert eight.own == pytest.approx(hypot(0.06 * 3**0.5, 0.16))
    assert log(eight.band.high) == pytest.approx(eight.own)
    assert at_one(KNOWN.shape, eight.own, SimpleNamespace(gpus=8, step_s=1 / 16)) == pytest.approx(0.06)


@given(
    st.integers(1, 64),
    st.floats(0.01, 100.0),
    st.sampled_from(["nvswitch", "mesh", "pcie", "nic"]),
    st.booleans(),
)
def test_no_band_of_sampling_is_narrower_than_that_of_one_gpu_or_of_measured_links(gpus, step_s, link, small):
    bands = load_bands()
    run = Circumstances(
        "l40-48gb", ("ring",), 0.0, gpus=gpus, link=link, step_s=step_s, pixels=1e6 * (2 - small)
    )
    several = bands.uncertainty("sampling", run).band
    assert several.high >= bands.uncertainty("sampling", replace(run, gpus=1)).band.high
    assert bands.of("sampling", "nic") >= max(bands.of("sampling", one) for one in ("nvswitch", "pcie"))


def test_one_gpu_has_the_error_of_compute_alone_and_less_where_compute_is_published():
    alone = replace(RUN, gpus=1)
    assert log(KNOWN.uncertainty("sampling", alone).band.high) == pytest.approx(0.1)
    assert KNOWN.uncertainty("sampling", replace(alone, pixels=1024**2)).shared == 0.2
    anchored = KNOWN.uncertainty("sampling", replace(alone, anchored=True))
    assert (anchored.shared, anchored.own) == (0.04, 0)
    assert KNOWN.uncertainty("sampling", replace(alone, device="other")).shared == 0.3
    assert KNOWN.uncertainty("sampling", replace(alone, device="other", timed=True)).shared == 0.1


def test_after_a_measured_run_the_error_of_scaling_stays_but_between_like_runs_only_the_doublings_between():
    several = KNOWN.uncertainty("sampling", replace(RUN, gpus=4))
    alone = KNOWN.uncertainty("sampling", replace(RUN, gpus=1, alike=("single",), exposed=0.2))
    assert log(several.after(alone).band.high) == pytest.approx(several.own)
    kept = replace(several, repeat=0.01)
    assert log(kept.after(kept).band.high) == pytest.approx(0.01)
    two = replace(KNOWN.uncertainty("sampling", RUN), repeat=0.01)
    assert log(kept.after(two).band.high) == pytest.approx(hypot(0.01, (several.own**2 - two.own**2) ** 0.5))


def test_a_constant_of_which_only_a_range_is_known_widens_the_band_also_after_calibration():
    ranged = KNOWN.uncertainty("sampling", replace(RUN, ranges=(Band(0.8, 1.25),)))
    plain = KNOWN.uncertainty("sampling", RUN)
    assert log(ranged.band.high) == pytest.approx(hypot(log(plain.band.high), log(1.25)))
    alone = KNOWN.uncertainty("sampling", replace(RUN, gpus=1, alike=("single",), exposed=0.2))
    assert log(ranged.after(alone).band.low) == pytest.approx(-hypot(ranged.own, log(1.25)))
    assert ranged.after(ranged).band == Band()


def test_sockets_that_nobody_looked_at_and_gathers_that_nobody_measured_widen_the_band():
    box = load_cluster("l20-pcie-8")
    other = replace(box, intra_node=replace(box.intra_node, socket_size=4))
    here, there = (sim.run("pixart", "ulysses", of, 4) for of in (box, other))
    assert here.uncertainty.ranges.low == pytest.approx(there.latency_s / here.latency_s, rel=0.02)
    assert here.uncertainty.ranges.high == 1
    assert there.uncertainty.ranges == Band()
    gathered = {"gpus": 64, "batch_size": 512, "stack": "compiled"}
    assert sim.run("sd21", "fsdp", "h100-ib", **gathered).uncertainty.ranges.high > 1.1
    assert sim.run("sd21", "fsdp", "h100-ib", shard_size=8, **gathered).uncertainty.ranges == Band()
    assert sim.run("sd21", "fsdp", "p5", **gathered).uncertainty.ranges == Band()


@pytest.mark.parametrize("method", ["pipeline", "sampling"])
@pytest.mark.parametrize("pixels", [5e5, 4e6])
def test_the_less_is_measured_of_a_device_the_wider_is_its_band(method, pixels):
    bands, run = load_bands(), replace(RUN, gpus=1, pixels=pixels)
    measured, derived, stated = (
        bands.uncertainty(method, replace(run, device=name)).band.high
        for name in ("h100-80gb-sxm", "h800-80gb-sxm", "mi300x-192gb")
    )
    assert measured <= derived < stated
    assert log(stated) > 0.2418  # what shares of data sheets differ by, alone
    assert bands.family("mi300x-192gb", timed=True) == "measured"  # layers that were timed are


def test_a_device_that_is_no_hardware_has_no_error():
    assert KNOWN.uncertainty("pipeline", replace(RUN, device="ideal")).band == Band()


def test_the_shipped_bands_know_every_part_and_name_devices_that_are_shipped():
    bands = load_bands()
    for part in PARTS:
        assert 0 < bands.of(part) < 3
    assert {*bands.measured, *bands.exact, *bands.stated} <= set(device_names())
    assert all(
        one.source.startswith(("prior: ", "MLPerf" if one.part == "repeat" else "python -m"))
        for one in bands.spreads
    )
    assert all((one.rows == 0) == one.source.startswith("prior: ") for one in bands.spreads)


def written(tmp_path, *lines):
    path = tmp_path / "trust.csv"
    path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n", encoding="utf-8")
    return path


def test_the_shipped_file_names_strategies_that_exist_each_kind_once():
    trusts = read_trust(TRUST)
    assert trusts
    keys = [(one.task, one.family, one.kind) for one in trusts]
    assert len(set(keys)) == len(keys)
    for one in trusts:
        assert set(one.strategies) <= {*strategies_of("train"), *strategies_of("sample")}
        assert one.sources
        assert one.models
        assert one.pace.numbers + one.scaling.numbers > 0


def test_what_no_published_number_is_of_says_so():
    trust = trust_of("train", "a100-80gb-sxm", "a-strategy-of-ones-own", 8)
    near = trust_of("train", "a100-80gb-sxm", "ddp", 8)
    assert trust == Trust("train", "measured", "a-strategy-of-ones-own", nearest=near)
    assert str(trust) == (
        "not validated: no published run of a-strategy-of-ones-own on such GPUs to compare with; data parallel:"
        f" {near.words}"
    )


def test_a_trust_names_sources_models_and_sizes_and_tells_pace_from_scaling():
    of = ("sample", "measured", "patches", ("sync-patch",), ("DistriFusion", "xDiT"), ("pixart", "sdxl"))
    trust = Trust(*of, ("1024", "4096"), errors_of([0.1, -0.2]), Errors(4, 0.0123, 0.2))
    assert str(trust) == (
        "patches: 6 published numbers from 2 sources (pixart, sdxl at 1024 to 4096 px); scaling: median error 1.2%,"
        " worst 20%"
    )
    assert errors_of([0.1, -0.2]) == Errors(2, pytest.approx(0.15), 0.2)
    assert str(replace(trust, sizes=("480P", "720x480"), pace=Errors())).startswith(
        "patches: 4 published numbers from 2 sources (pixart, sdxl at 480P, 720x480); scaling"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "nothing,measured,pipeline,spp,a,b,1,1,0.1,0.2,0,0,0",
            "task is 'nothing', must be one of train, sample",
        ),
        ("train,measured,pipeline,spp,a,b,1,1,nan,0.2,0,0,0", "pace_median"),
    ],
)
def test_a_broken_file_is_refused_by_line(tmp_path, line, message):
    with pytest.raises(InputError, match=r"trust.csv:2: .*") as caught:
        read_trust(written(tmp_path, line))
    assert message in str(caught.value)
