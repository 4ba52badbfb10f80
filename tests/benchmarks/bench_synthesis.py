"""Time to order the passes of a wave: list scheduling, its bound, and the proofs.

The targets of the design: 4 devices x 4 micro-batches within 1 s, x 8 within 15 s, both with proof.
"""

import pytest

from strategies.orders.problem import wave_problem
from strategies.orders.synthesis import synthesize


@pytest.mark.parametrize(("degree", "micro_batches"), [(2, 2), (2, 4), (3, 3), (4, 4), (4, 8)])
@pytest.mark.parametrize("certificate", [True, False], ids=["certificate", "programme"])
def test_a_proven_order(benchmark, degree, micro_batches, certificate):
    problem = wave_problem(degree, micro_batches)
    synthesis = benchmark.pedantic(synthesize, args=(problem,), kwargs={"certificate": certificate}, rounds=3)
    assert synthesis.proven


def test_a_proof_that_needs_the_programme(benchmark):
    assert benchmark.pedantic(synthesize, args=(wave_problem(4, 4, 2),), rounds=3).proven
