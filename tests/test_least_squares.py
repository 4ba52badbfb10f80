"""One least squares fits rates and links alike, and one record holds their errors."""

import numpy as np
import pytest

from profiles.measuring.fitting.least_squares import Errors, fit_law, least_squares

COLUMNS = np.array([[1.0, 0.0], [0.0, 1e9], [1.0, 1e9]])
AIM = COLUMNS @ [3.0, 2e-9]


def test_unknowns_of_very_different_size_come_back_and_none_is_negative():
    assert least_squares(COLUMNS, AIM, np.ones_like) == pytest.approx([3.0, 2e-9], rel=1e-12)
    assert least_squares(COLUMNS, COLUMNS @ [3.0, -2e-9], np.ones_like)[1] == 0.0


def test_weights_are_renewed_until_the_solution_settles():
    """Weights of one over the residual give the median of five numbers, where equal ones give their mean."""
    numbers = np.array([1.0, 2.0, 3.0, 10.0, 100.0])
    column = np.ones((5, 1))

    def weigh(made):
        return np.maximum(np.abs(made - numbers), 1e-6) ** -0.5

    assert least_squares(column, numbers, weigh, rounds=1) == pytest.approx([23.2])
    assert least_squares(column, numbers, weigh) == pytest.approx([3.0], abs=1e-3)


def test_a_law_is_told_from_its_times_even_if_one_is_disturbed():
    volumes = 4.0 ** np.arange(5, 14)
    seconds = 50e-6 + volumes / 4e9
    seconds[3] *= 5
    law = fit_law(volumes, seconds)
    assert (law.fixed_s, 1 / law.s_per_unit) == pytest.approx((50e-6, 4e9), rel=1e-3)


def test_errors_are_relative_and_together_those_of_the_sum():
    errors = Errors.of([(1.0, 2.0), (10.0, 9.0), (4.0, 4.0)])
    assert len(errors) == 3
    assert errors.relative == pytest.approx([1.0, -0.1, 0.0])
    assert (errors.mean, errors.median, errors.worst) == pytest.approx((1.1 / 3, 0.1, 1.0))
    assert errors.together == pytest.approx(0.0)
    assert not Errors.of([])
