"""Laws of kernels are what measured kernels give, and hold for shapes that were left out."""

from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from profiles.costs.kernel_times import LAYOUT
from profiles.machines.devices import DEVICES, load_device
from validate.fitting.kernels import laws, rows
from validate.fitting.kernels.laws import Origin, target, targets
from validate.fitting.kernels.report import Builder, law_text, layout_shares, with_laws
from validate.fitting.kernels.rows import Samples

DATA = Path(__file__).parents[2] / "shared" / "measured"
measured = pytest.mark.skipif(not DATA.is_dir(), reason="needs the measured kernels, ../shared/measured")
NAMED = ("a100-80gb-sxm", "h100-80gb-sxm", "b200-180gb-sxm", "b300", "l40s-48gb")


@cache
def builder() -> Builder:
    return Builder(DATA)


@measured
@pytest.mark.slow
def test_groups_of_shapes_left_out_are_predicted():
    for name, kind in product(NAMED, ("matmul", "attention")):
        fit = builder().of(kind, name).fit
        assert len(fit.fitted) > 1000
        assert fit.left_out.median < 0.10 and fit.left_out.tail < 0.30, (name, kind)


@measured
@pytest.mark.slow
def test_every_committed_device_has_the_laws_that_the_fit_gives():
    for name in targets():
        path = DEVICES / f"{name}.toml"
        assert with_laws(path, law_text(name, builder())) == path.read_text(encoding="utf-8"), name


@measured
def test_what_entered_no_fit_agrees():
    """Azure's FlashAttention-2 on an A100: batch 2, 32 heads of 64 channels, 8192 tokens (pass and mask not stated)."""
    laws = load_device("a100-80gb-sxm").laws
    frame = rows._read(DATA, "attention.csv")
    seen = frame[(frame.source_id == "azureguide:attention") & (frame.kernel == "FlashAttention-2")].iloc[0]
    heads = seen.batch * seen.heads
    predicted = laws.attention.seconds(heads, seen.seq_q, seen.seq_kv, seen.head_dim)
    assert predicted == pytest.approx(seen.latency_us * 1e-6, rel=0.1)
    cubes = rows.products(DATA, "azureguide:A100")
    errors = laws.matmul_s(1, *cubes.shapes) / cubes.seconds - 1
    assert np.median(np.abs(errors)) < 0.06
    assert np.abs(errors).max() < 0.25


def made(values: dict[str, float]) -> Samples:
    """Samples that a law gives, of 600 shapes."""
    shapes = tuple(np.exp(np.random.default_rng(0).uniform(4, 10, (3, 600))).round())
    empty = Samples(shapes, np.ones(600), np.arange(600.0) // 5)
    return Samples(shapes, laws.product_seconds(values, empty), empty.groups)


@measured
def test_laying_out_anew_costs_what_networks_timed_in_both_layouts_give():
    shares = layout_shares(DATA)
    assert LAYOUT["forward"] == pytest.approx(shares["forward"], abs=0.005)
    assert [LAYOUT["data"], LAYOUT["weight"]] == pytest.approx([shares["gradient"]] * 2, abs=0.005)


def test_a_fit_recovers_the_law_that_its_samples_were_made_with():
    values = {"fixed_us": 4.0, "TFLOP_per_s": 220.0, "GB_per_s": 1200.0, "chain_us": 0.1, "ramp": 90.0}
    fit = laws.fit_products(made(values | laws.PLAIN), target("a100-80gb-sxm"), {}, Origin())
    assert dict(fit.values) == pytest.approx(values, rel=1e-3)
    assert fit.left_out.worst < 1e-3
    assert not fit.bound


def test_a_pace_above_the_peak_rests_on_it_and_is_said_to():
    values = {"fixed_us": 4.0, "TFLOP_per_s": 400.0, "GB_per_s": 1200.0, "chain_us": 0.1, "ramp": 90.0}
    fit = laws.fit_products(made(values | laws.PLAIN), target("a100-80gb-sxm"), {}, Origin())
    assert fit.values["TFLOP_per_s"] == pytest.approx(312, rel=1e-3)
    assert fit.bound == ["TFLOP_per_s"]
    assert fit.values["TFLOP_per_s"] <= 312 * (1 + 1e-12)


def test_measured_rows_with_empty_cells_are_left_out_and_copies_count_once(tmp_path):
    (tmp_path / "gemm.csv").write_text(
        "device,dtype,m,n,k,layout,latency_us,op,source_id\n"
        "a,bf16,16,32,64,TN,4.0,,one:x\n"
        "a,bf16,16,32,64,TN,4.0,,one:x/copy\n"
        "a,bf16,16,32,64,TN,6.0,,one:x\n"
        "a,bf16,16,32,,TN,5.0,,one:x\n"
        "a,bf16,16,32,128,TN,,,one:x\n"
        "a,bf16,16,32,256,NN,7.0,,one:x\n"
        "a,bf16,16,32,512,TN,8.0,,two:x\n",
        encoding="utf-8",
    )
    samples = rows.products(tmp_path, "one:x")
    assert [shape.tolist() for shape in samples.shapes] == [[16, 16], [32, 32], [64, 256]]
    assert samples.seconds.tolist() == pytest.approx([4e-6, 7e-6])
    assert len(rows.products(tmp_path, "one:x", "data")) == 1
