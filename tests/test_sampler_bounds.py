"""Bounds of samplers: never above a result, and close to it."""

from math import prod

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import sim
from profiles.errors import InfeasibleError, InputError
from sim.outcomes.runs import bound

DEGREES = ("guidance_degree", "ulysses_degree", "ring_degree", "pipeline_degree", "tensor_degree")


def run(strategy, **options):
    """A result and its bound in seconds; points that do not exist are not drawn."""
    try:
        result = sim.run("wan2.1-1.3b", strategy=strategy, **options)
    except (InfeasibleError, InputError):  # more GPUs than the cluster has, or heads that do not divide
        assume(False)
    source = result.source
    return result.times["latency_s"], bound(source.strategy, source.scenario)


@given(
    st.tuples(st.sampled_from([1, 2]), *[st.sampled_from([1, 2, 3, 4])] * 4).filter(
        lambda d: 1 < prod(d) <= 48
    ),
    st.sampled_from(["h100-ib", "l20-pcie-8", "ascend910a-8node"]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([(1, 0), (2, 2), (6, 1)]),
    st.sampled_from(["eager", "compiled"]),
)
@example((2, 2, 2, 3, 3), "h100-ib", 1, (6, 1), "eager")
@example((1, 4, 1, 4, 3), "h100-ib", 1, (6, 1), "compiled")
@example((2, 2, 2, 1, 1), "l20-pcie-8", 1, (2, 2), "compiled")
@example((1, 4, 2, 1, 1), "l20-pcie-8", 1, (2, 2), "compiled")
@example((1, 1, 1, 4, 2), "l20-pcie-8", 4, (6, 1), "eager")
@example((1, 2, 2, 2, 2), "ascend910a-8node", 1, (2, 2), "eager")
@settings(max_examples=15)
def test_no_run_of_a_grid_ends_before_its_bound(degrees, cluster, times, steps, stack):
    options = dict(zip(DEGREES, degrees, strict=True))
    if degrees[3] > 1:
        options |= {"patches": times * degrees[3], "warmup_steps": steps[1]}
    result_s, bound_s = run(
        "hybrid", gpus=prod(degrees), cluster=cluster, steps=steps[0], stack=stack, **options
    )
    assert bound_s <= result_s


@pytest.mark.parametrize(
    ("strategy", "degrees", "least"),
    [
        ("hybrid", {"guidance_degree": 2, "ulysses_degree": 2, "ring_degree": 2, "pipeline_degree": 2}, 0.9),
        ("usp", {"ulysses_degree": 4, "ring_degree": 4}, 0.75),
        ("attention2d", {"rows": 2, "columns": 4, "ulysses_degree": 2}, 0.7),
        ("hybrid", {"tensor_degree": 4, "ring_degree": 4}, 0.7),
        ("pipefusion", {"pipeline_degree": 16, "patches": 16}, 0.7),
    ],
)
def test_bounds_are_close_to_results(strategy, degrees, least):
    result_s, bound_s = run(strategy, gpus=16, steps=10, **degrees)
    assert least * result_s < bound_s <= result_s
