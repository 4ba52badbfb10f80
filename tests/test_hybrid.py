"""Hybrids: each degree alone is the method of its name, and products are what their parts say."""

from dataclasses import astuple, replace
from math import prod

import pytest

from sim.outcomes.runs import run_point
from strategies.registry import make as make_sampler
from strategies.sampling.hybrid import Hybrid
from strategies.sampling.pipefusion import PipeFusion
from validate.equal_blocks import equal_blocks_transformer

LAYERS, ROWS, HIDDEN = 8, 16, 64
LINEAR_S, ATTENTION_S = 0.75, 0.25


def blocks():
    """Blocks of a second at the rates of the device; a quarter is attention."""
    model = equal_blocks_transformer(LAYERS, rows=ROWS, hidden_size=HIDDEN, heads=8, parameters=10**6)
    (transformer,) = model.components
    work = {"matmul_flop": LINEAR_S * 1e12, "attention_flop": ATTENTION_S * 1e12}
    layers = tuple(replace(layer, **work) for layer in transformer.layers)
    return replace(model, components=(replace(transformer, layers=layers, times=()),))


def free(make):
    return make.cluster(memory_bytes_per_s=1e9)


def node(make):
    link = make.link("nvswitch", 1e6, 1e-3, 2e-3)
    return make.cluster(link, slowdown=1.4, call_s=3e-3, efficiency=0.8, memory_bytes_per_s=1e9)


def sampling(make, gpus, cluster=free, **workload):
    return make.sampling(blocks(), cluster(make), gpus, **{"steps": 4, **workload})


@pytest.mark.parametrize(
    ("degree", "sampler"),
    [
        ("ulysses_degree", make_sampler("ulysses", {"keys_values": "freed"})),
        ("ring_degree", make_sampler("ring", {"keys_values": "freed"})),
        ("tensor_degree", make_sampler("tensor", {})),
        ("pipeline_degree", PipeFusion()),
    ],
)
def test_one_degree_alone_is_the_method_of_its_name(make, degree, sampler):
    for workload in ({"guidance": "none"}, {"guidance": "batch"}):
        scenario = sampling(make, 4, node, **workload)
        hybrid, alone = (run_point(s, scenario).expected for s in (Hybrid(**{degree: 4}), sampler))
        assert hybrid == alone


def test_ulysses_and_ring_together_are_usp(make):
    scenario = sampling(make, 8, node)
    usp = make_sampler("usp", {"ulysses_degree": 2, "ring_degree": 4, "keys_values": "freed"})
    assert run_point(Hybrid(ulysses_degree=2, ring_degree=4), scenario).expected == (
        run_point(usp, scenario).expected
    )


def test_gpus_left_over_draw_the_other_images_at_the_same_time(make):
    several = run_point(Hybrid(ulysses_degree=4), sampling(make, 8, node, batch_size=2)).expected
    one = run_point(Hybrid(ulysses_degree=4), sampling(make, 4, node)).expected
    assert several.duration_s == pytest.approx(one.duration_s)
    assert several.collective_bytes == pytest.approx(2 * one.collective_bytes)
    assert several.peak_memory_bytes == one.peak_memory_bytes


@pytest.mark.parametrize("inner", ["ulysses_degree", "ring_degree", "tensor_degree"])
def test_in_a_pipeline_each_stage_is_as_fast_as_its_team(make, inner):
    """On free links: M patches a step, each on L / N layers, divided by the team."""
    stages, team, patches, steps, warmup = 2, 4, 4, 4, 1
    hybrid = Hybrid(pipeline_degree=stages, patches=patches, warmup_steps=warmup, **{inner: team})
    latency_s = run_point(hybrid, sampling(make, stages * team)).latency_s
    image_s = LAYERS * (LINEAR_S + ATTENTION_S) / team
    displaced = patches * (steps - warmup) + stages - 1
    assert latency_s == pytest.approx(warmup * image_s + displaced * image_s / stages / patches)


def test_candidates_are_products_of_the_gpus(make):
    scenario = sampling(make, 8, guidance="batch", batch_size=2)
    seen = set()
    for hybrid in Hybrid.candidates(scenario):
        degrees = astuple(hybrid)[:5]
        assert 8 % prod(degrees) == 0
        assert sum(degree > 1 for degree in (*degrees, 8 // prod(degrees))) >= 2
        seen.add((*degrees, 8 // prod(degrees)))
    assert {(2, 1, 1, 4, 1, 1), (1, 2, 2, 2, 1, 1), (1, 1, 1, 2, 4, 1), (2, 2, 1, 1, 1, 2)} <= seen
