"""Two directions on the same positions: Chimera's closed forms, two backbones, their orders and bounds."""

import pytest

from strategies.linear import one_forward_one_backward_order
from strategies.ordering import Chain, Problem, list_schedule


@pytest.mark.parametrize("backward_s", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("degree", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("micro_batches", [1, 3, 4, 9])
def test_longest_tail_first_within_the_limits_of_1f1b_is_1f1b(degree, micro_batches, backward_s):
    problem = Problem(
        forward_s=(1.0,) * degree,
        backward_s=(backward_s,) * degree,
        positions=tuple(range(degree)),
        chains=(Chain(tuple(range(degree)), tuple(range(micro_batches))),),
        forward_lag_s=(0.1,) * degree,
        backward_lag_s=(0.2,) * degree,
        in_flight=tuple(range(degree, 0, -1)),
    )
    order = list_schedule(problem, "longest-tail").rows
    assert order == one_forward_one_backward_order(degree, micro_batches)
