"""ParaDiGMS: windows of steps, published counts, and what an iteration takes."""

from math import ceil

import pytest

from profiles.errors import InfeasibleError
from sim.outcomes.runs import run_point
from strategies.registry import make as make_sampler
from strategies.sampling.paradigms import ParaDiGMS
from validate.equal_blocks import equal_blocks_transformer

LAYERS, LAYER_S = 4, 0.1


def sampling(make, gpus=8, steps=50, link=None, call_s=0.0, **workload):
    cluster = make.cluster(link or make.link("ideal"), devices_per_node=8, call_s=call_s)
    return make.sampling(equal_blocks_transformer(LAYERS, LAYER_S), cluster, gpus, steps=steps, **workload)


@pytest.mark.parametrize(
    ("steps", "window", "iterations"), [(25, 8, 14), (50, 8, 13), (200, 27, 16), (1000, 47, 44)]
)
def test_published_runs_take_their_published_iterations(make, steps, window, iterations):
    """Printed are 16 and 44; 657 and 721 T of MACs are 97 and 107 evaluations of 6.763 T, eight at a time."""
    scenario = sampling(make, steps=steps)
    assert ParaDiGMS(window).layout(scenario).num_steps == iterations
    assert ParaDiGMS().layout(scenario).num_steps == iterations


@pytest.mark.parametrize("steps", [1, 5, 77, 1000])
def test_a_run_takes_no_more_iterations_than_steps_and_no_window_converges_more_than_itself(make, steps):
    scenario = sampling(make, gpus=1, steps=steps)
    counts = [ParaDiGMS(window).layout(scenario).num_steps for window in range(1, min(steps, 100) + 1)]
    assert counts[0] == steps
    assert counts == sorted(counts, reverse=True)
    assert all(n * window >= steps for window, n in enumerate(counts, 1))


@pytest.mark.parametrize(("guidance", "gpus", "window"), [("none", 4, 8), ("batch", 8, 20), ("batch", 1, 3)])
def test_on_free_links_an_iteration_takes_the_fullest_share_of_the_window(make, gpus, window, guidance):
    scenario = sampling(make, gpus=gpus, guidance=guidance, batch_size=3)
    samples = ceil(window / gpus) * 3 * (2 if guidance == "batch" else 1)
    sampler = ParaDiGMS(window)
    drawing = run_point(sampler, scenario)
    assert drawing.step_s == pytest.approx(samples * LAYERS * LAYER_S)
    assert drawing.latency_s == pytest.approx(sampler.layout(scenario).num_steps * drawing.step_s)
    assert drawing.latency_s == pytest.approx(sampler.bound(scenario))


def test_each_iteration_gathers_the_predictions_of_the_window_before_the_next(make):
    bandwidth, call_s = 1e6, 0.5
    scenario = sampling(make, gpus=4, link=make.link("nvswitch", bandwidth), call_s=call_s, guidance="batch")
    sampler = ParaDiGMS(8)
    drawing = run_point(sampler, scenario)
    sent = 3 / 4 * 8 * 2 * scenario.output_bytes
    compute_s = 2 * 2 * LAYERS * LAYER_S
    iterations = sampler.layout(scenario).num_steps
    assert drawing.step_s == pytest.approx(compute_s + sent / bandwidth + call_s)
    assert drawing.latency_s == pytest.approx(iterations * drawing.step_s)
    assert drawing.expected.collective_bytes == pytest.approx(iterations * 4 * sent)
    assert drawing.expected.p2p_bytes == 0


def test_what_cannot_be_is_refused_with_its_numbers(make):
    for parameters, workload, message in (
        ({"window": 4}, {}, r"window\(4\) is below gpus\(8\)"),
        ({"window": 51}, {}, r"window\(51\) exceeds steps\(50\)"),
        ({}, {"steps": 7}, r"gpus\(8\) exceed steps\(7\)"),
        ({"tolerance": 0.5}, {}, r"tolerance\(0.5\) is not 0.1, the only one with published iterations"),
        ({}, {"guidance": "parallel"}, "guidance parallel divides each step's predictions"),
        ({}, {"guidance": "sequential"}, "guidance sequential divides each step's predictions"),
    ):
        sampler, scenario = make_sampler("paradigms", parameters), sampling(make, **workload)
        for ask in (sampler.plan, sampler.phases, sampler.bound):
            with pytest.raises(InfeasibleError, match=message):
                ask(scenario)
