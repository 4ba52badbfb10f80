"""One least squares fits rates and links alike; one loader reads their tables, one record holds their errors."""

from pathlib import Path

import numpy as np
import pytest

from profiles.measuring.fitting import least_squares as module
from profiles.measuring.fitting.layer_times import PLACE_RULES, QUANTILE_RULES
from profiles.measuring.fitting.least_squares import Errors, least_squares

COLUMNS = np.array([[1.0, 0.0], [0.0, 1e9], [1.0, 1e9]])
AIM = COLUMNS @ [3.0, 2e-9]
ROOM = Path(module.__file__).parents[1]


def alike(values):
    return np.ones(len(AIM))


def test_unknowns_of_very_different_size_come_back():
    found = least_squares(COLUMNS, AIM, alike)
    assert found.values == pytest.approx([3.0, 2e-9], rel=1e-12)
    assert not found.bound.any()
    assert found.condition == pytest.approx(np.linalg.cond(COLUMNS))


def test_nothing_is_negative_and_what_a_bound_holds_is_said():
    found = least_squares(COLUMNS, COLUMNS @ [3.0, -2e-9], alike)
    assert found.values[1] == 0.0
    assert found.bound.tolist() == [False, True]
    above = least_squares(COLUMNS, AIM, alike, lower=np.array([0.0, 5e-9]))
    assert above.values[1] == 5e-9 and above.bound.tolist() == [False, True]
    below = least_squares(COLUMNS, AIM, alike, upper=np.array([1.0, np.inf]))
    assert below.values[0] == pytest.approx(1.0) and below.bound.tolist() == [True, False]


def test_a_solver_that_ends_a_rounding_below_a_bound_gives_nothing_negative(monkeypatch):
    solve = module.lsq_linear

    def below(*arguments, **options):
        found = solve(*arguments, **options)
        found.x = np.where(found.active_mask != 0, found.x - 4e-15, found.x)
        return found

    monkeypatch.setattr(module, "lsq_linear", below)
    found = least_squares(COLUMNS, COLUMNS @ [3.0, -2e-9], alike)
    assert any(found.bound)
    assert all(value >= 0 for value in found.values)


def test_weights_are_renewed_until_the_solution_settles():
    """Weights of one over the residual give the median of five numbers, where equal ones give their mean."""
    numbers = np.array([1.0, 2.0, 3.0, 10.0, 100.0])

    def weigh(values):
        return np.ones(5) if values is None else np.maximum(np.abs(values - numbers), 1e-6) ** -0.5

    column = np.ones((5, 1))
    assert least_squares(column, numbers, weigh, rounds=1).values == pytest.approx([23.2])
    assert least_squares(column, numbers, weigh).values == pytest.approx([3.0], abs=1e-3)


def test_errors_are_relative_and_together_those_of_the_sum():
    errors = Errors.of([(1.0, 2.0), (10.0, 9.0), (4.0, 4.0)])
    assert len(errors) == 3
    assert errors.relative == pytest.approx([1.0, -0.1, 0.0])
    assert (errors.median, errors.worst) == pytest.approx((0.1, 1.0))
    assert errors.mean == pytest.approx(1.1 / 3)
    assert errors.together == pytest.approx(0.0)
    assert not Errors.of([])


RULES = {
    "quantity": QUANTILE_RULES["quantity"],
    "batch_size": PLACE_RULES["batch_size"],
    "p50_ms": QUANTILE_RULES["p50_ms"],
    "component": PLACE_RULES["component"],
}
