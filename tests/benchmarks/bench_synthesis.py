"""Time to order the passes of a wave: list scheduling, its bound, and the proofs.

The targets of the design: 4 devices x 4 micro-batches within 1 s, x 8 within 15 s, both with proof.
"""

from dataclasses import replace

import pytest

from strategies.orders.list_scheduling import list_schedule, lower_bound_s
from strategies.orders.pattern import extend
from strategies.orders.problem import wave_problem
from strategies.orders.synthesis import synthesize


@pytest.mark.parametrize(("degree", "micro_batches"), [(4, 4), (4, 8), (8, 8), (8, 64)])
def test_list_scheduling(benchmark, degree, micro_batches):
    benchmark(list_schedule, wave_problem(degree, micro_batches))


@pytest.mark.parametrize(("degree", "micro_batches"), [(4, 4), (4, 8), (8, 8), (8, 64)])
def test_the_lower_bound(benchmark, degree, micro_batches):
    benchmark(lower_bound_s, wave_problem(degree, micro_batches))


def test_list_scheduling_where_devices_are_full(benchmark):
    problem = wave_problem(8, 64)
    capped = replace(problem, held_bytes=(1.0,) * 16, capacity_bytes=(12.0,) * 8)
    benchmark.pedantic(list_schedule, args=(capped,), rounds=3)


@pytest.mark.parametrize(("degree", "micro_batches"), [(2, 2), (2, 4), (3, 3), (4, 4), (4, 8)])
@pytest.mark.parametrize("certificate", [True, False], ids=["certificate", "programme"])
def test_a_proven_order(benchmark, degree, micro_batches, certificate):
    problem = wave_problem(degree, micro_batches)
    synthesis = benchmark.pedantic(synthesize, args=(problem,), kwargs={"certificate": certificate}, rounds=3)
    assert synthesis.proven


def test_a_proof_that_needs_the_programme(benchmark):
    assert benchmark.pedantic(synthesize, args=(wave_problem(4, 4, 2),), rounds=3).proven


def test_carrying_a_pattern_over(benchmark):
    small, larger = wave_problem(4, 8), wave_problem(8, 64)
    benchmark(extend, small, list_schedule(small), larger)
