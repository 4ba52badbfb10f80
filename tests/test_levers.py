"""Levers scale what they scale: steps that are skipped, products and weights in fp8, exchanges in fp8."""

from dataclasses import replace

import numpy as np
import pytest
from making import refused

import sim
from profiles.architectures.models import load_model
from profiles.costs.bands import Band
from profiles.errors import InfeasibleError
from profiles.machines.clusters import load_cluster
from profiles.machines.devices import load_device
from profiles.software.levers import HALF, SMALLER, device_in, element_bytes, products_in
from sim.outcomes.runs import bound, run_point
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make as make_sampler
from strategies.sampling_scenario import SamplingScenario
from validate.equal_blocks import equal_blocks_transformer

B200 = "b200-180gb-sxm"


def flux(**levers):
    asked = SamplingWorkload(4, 1024, 1024, steps=4, guidance="embedded", **levers)
    return SamplingScenario(load_model("flux-dev"), load_cluster("p5"), asked)


@pytest.mark.parametrize("precision", SMALLER)
def test_products_in_fewer_bits_run_by_their_law_and_cost_a_cast_along_rows_and_for_weights_along_columns(
    precision,
):
    device = load_device(B200)
    faster, products = device_in(device, precision).laws, products_in(precision, device)
    shape = heads, m, n, k = np.array([[1.0], [4096.0], [3072.0], [12288.0]])
    size, of, rate = (element_bytes(precision), faster.smaller, device.laws.memory.pointwise_bytes_per_s)
    for part, rows, columns, inner, cast_bytes in (
        ("forward", m, n, k, products.cast_bytes * m * k),
        ("data", m, k, n, products.cast_bytes * m * n),
        ("weight", n, k, m, size * m * (n + k)),
    ):
        moved = size * inner * (rows + columns) + 2 * rows * columns
        seconds = getattr(device.laws.matmul, part) * of.law.seconds(heads, rows, columns, inner, moved)
        assert faster.matmul_s(*shape, part=part) == pytest.approx(seconds + cast_bytes / rate)
        assert faster.matmul_s(*shape, part=part) < 0.8 * device.laws.matmul_s(*shape, part=part)
    for other in ((1, 31, 3072, 3072), (1, 4096, 16, 3072), (24, 4096, 3072, 3072)):
        assert faster.matmul_s(*other) == device.laws.matmul_s(*other)
    assert device_in(device, HALF) is device


def test_training_in_fewer_bits_is_faster_in_graphs_and_slower_where_casts_wait_for_the_host_or_follow_each_gather():
    """All published: MLPerf 5.1 on 16 B200 in mxfp8, a LoRA of FLUX on one in fp8, images by Wan 14B on 8 H100."""
    many = {"cluster": "b200-ib", "gpus": 16, "batch_size": 512, "resolution": 256, "frozen": "cached"}
    one = {"cluster": "b200-ib", "gpus": 1, "batch_size": 1, "resolution": 512, "trainable": "lora:16"}

    def gain(precision, *arguments, **asked):
        half, fewer = (sim.run(*arguments, precision=of, **asked) for of in (HALF, precision))
        assert fewer.high_s / fewer.iteration_s > half.high_s / half.iteration_s  # engines differ
        return fewer.samples_per_s / half.samples_per_s, fewer.peak_memory_bytes - half.peak_memory_bytes

    faster, copies = gain("mxfp8", "flux-schnell", "zero2", stack="fused-graphs", shard_size=8, **many)
    assert 1.25 < faster < 1.4
    assert 0.7 < copies / (2 * 1.03125 * 11.9e9) < 0.75  # all but what modulates
    slower, none = gain("fp8", "flux-dev", "ddp", stack="inductor", checkpointing="block", **one)
    assert 0.75 < slower < 0.9
    assert none == 0
    few = {"cluster": "h100-nvlink-8", "gpus": 8, "batch_size": 8, "resolution": "832x480", "frames": 1}
    slower, _ = gain("fp8", "wan2.1-14b", "fsdp", frozen="cached", **few)
    assert 0.98 < slower < 1


def test_fp8_halves_the_weights_and_widens_the_band():
    half, fp8 = flux(), flux(precision="fp8")
    plain, fast = (run_point(make_sampler("ulysses", {}), scenario) for scenario in (half, fp8))
    backbone = half.backbone.parameters
    assert plain.peak_memory_bytes - fast.peak_memory_bytes == pytest.approx(backbone)
    of = half.backbone_index
    gpu_s = [float(scenario.costs.components[of].gpu_s(1).sum()) for scenario in (half, fp8)]
    assert 1.05 < gpu_s[0] / gpu_s[1] < 1.5
    assert fp8.band.low < 1 < fp8.band.high
    assert fast.high_s / fast.latency_s > plain.high_s / plain.latency_s
    assert half.band == Band()
    (encoder, *_) = half.encoders
    assert list(half.costs.forward_s(encoder, 1)) == list(fp8.costs.forward_s(encoder, 1))


def test_an_exchange_in_fp8_sends_half():
    half, fp8 = (
        run_point(make_sampler("ulysses", {}), flux(all_to_all=of)).expected.collective_bytes
        for of in ("half", "fp8")
    )
    ring = [run_point(make_sampler("ring", {}), flux(all_to_all=of)).expected for of in ("half", "fp8")]
    assert ring[0] == ring[1]
    assert 0.5 < fp8 / half < 0.501  # the prediction is gathered as it is


def test_steps_that_are_skipped_cost_nothing(make):
    model = equal_blocks_transformer(2, 0.1)
    skipping, shorter = (
        make.sampling(model, make.cluster(), 4, **asked)
        for asked in ({"steps": 10, "cache_steps": 0.4}, {"steps": 6})
    )
    sampler = make_sampler("ulysses", {})
    found, plain = (run_point(sampler, scenario) for scenario in (skipping, shorter))
    assert found.expected == plain.expected
    assert (found.asked["steps"], found.options["cache_steps"]) == (10, 0.4)
    assert bound(sampler, skipping) == bound(sampler, shorter) <= found.latency_s


@pytest.mark.parametrize("name", ["pipefusion", "distrifusion", "paradigms"])
def test_what_lives_on_the_step_before_skips_none(make, name):
    scenario = make.sampling(equal_blocks_transformer(4, 0.1), make.cluster(), 2, steps=8, cache_steps=0.25)
    with pytest.raises(InfeasibleError, match=r"cache_steps\(0.25\)"):
        make_sampler(name, {}).bound(scenario)


def test_what_a_point_does_not_heed_is_refused_where_it_is_asked_for_alone_and_not_in_a_sweep():
    asked = {"model": "flux-dev", "cluster": "p5", "gpus": 4, "steps": 2}
    assert sim.run(strategy="ulysses", heads="padded", all_to_all="fp8", **asked).latency_s > 0
    found = sim.sweep(strategy=("ring", "ulysses"), heads="padded", workers=1, **asked)
    assert {point.name for point in found if point.status == "simulated"} == {"ring", "ulysses"}


def test_a_device_without_fp8_and_a_cache_that_nobody_published_are_refused():
    with refused("device a100-80gb-sxm has no measured products in fp8; choose from"):
        replace(flux(precision="fp8"), cluster=load_cluster("p4de"))
