"""Rules that values keep, each at its edge: what just keeps one passes, what just breaks it is refused."""

from math import inf, nan

import numpy as np
import pytest

from profiles import checks
from profiles.errors import InputError


@pytest.mark.parametrize("value", [0, 0.0, 1e308, np.float64(2.0), np.int64(3)])
def test_finite_numbers_from_zero_on_pass(value):
    checks.check_numbers("law", scale=value)


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (inf, "must be finite"),
        (nan, "must be finite"),
        (-1e-300, "must not be negative"),
        (True, "must be a number"),
        ("1", "must be a number"),
    ],
)
def test_other_numbers_are_refused(value, rule):
    with pytest.raises(InputError, match=f"^law: scale is .*, {rule}$"):
        checks.check_numbers("law", scale=value)


def test_positive_numbers_end_at_the_most_that_is_allowed():
    checks.check_positive("link", most=2.0, rate=2.0)
    checks.check_positive("link", rate=inf)
    for value, rule in (
        (0.0, "be positive"),
        (nan, "be positive"),
        (2.1, "be at most 2"),
        (False, "be a number"),
    ):
        with pytest.raises(InputError, match=f"^link: rate is .*, must {rule}$"):
            checks.check_positive("link", most=2.0, rate=value)


def test_counts_begin_with_the_least_that_is_allowed():
    checks.check_counts("workload", least=1, gpus=1)
    checks.check_counts("workload", gpus=np.int64(0))
    for value, rule in ((0, "be at least 1"), (True, "be an integer"), (1.0, "be an integer")):
        with pytest.raises(InputError, match=f"^workload: gpus is .*, must {rule}$"):
            checks.check_counts("workload", least=1, gpus=value)


def test_an_index_is_below_the_count():
    checks.check_index("skip", "source", 2, 3, "layers")
    for value, rule in ((3, "be below 3, the layers"), (-1, "be at least 0")):
        with pytest.raises(InputError, match=f"^skip: source is {value}, must {rule}$"):
            checks.check_index("skip", "source", value, 3, "layers")


def test_a_sum_rounds_at_every_step():
    assert (
        checks.sum_in_order([1.0, 1e100, 1.0, -1e100]) == 0.0
    )  # 2.0 where what rounding drops is carried along
    assert checks.sum_in_order([]) == 0
