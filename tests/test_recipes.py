"""Memory recipes: bytes per trained parameter, and what an optimizer step moves."""

import pytest

from profiles.software.recipes import RECIPES, recipe_of

SIZES = {
    **{"mixed": 18, "mixed-fp16-gradient": 16, "pulse": 14, "fp32": 16},
    **{"adam8bit": 2 + 4 + 4 + 2 * (1 + 4 / 256), "adafactor": 2 + 4 + 4 + 0.008},
}


STEPS = {
    "mixed": 4 + 2 + 2 * 12,  # gradient read, weight written, master and moments read and written
    "mixed-fp16-gradient": 2 + 2 + 2 * 12,
    "fp32": 4 + 2 * 4 + 2 * 8,  # the weight is its own master: read and written
    "adam8bit": 4 + 2 + 8 + 4.0625,
    "adafactor": 68 + 2,
}


def parameter_bytes(recipe):
    return recipe.weight_bytes + recipe.gradient_bytes + recipe.optimizer_bytes + recipe.ema_bytes


def test_a_trained_parameter_takes_the_documented_bytes_and_a_step_moves_them_as_often_as_they_are_used():
    assert {name: parameter_bytes(RECIPES[name]) for name in SIZES} == pytest.approx(SIZES)
    assert {name: RECIPES[name].step_bytes for name in STEPS} == pytest.approx(STEPS)


def test_a_moving_average_is_a_copy_in_single_precision_updated_in_each_step():
    for name in RECIPES:
        plain, averaged = recipe_of(name, "none"), recipe_of(name, "fp32")
        assert plain == RECIPES[name]
        assert parameter_bytes(averaged) == parameter_bytes(plain) + 4
        master = plain.master_bytes or plain.weight_bytes
        assert (
            averaged.step_bytes == plain.step_bytes + master + 2 * 4
        )  # weight read, average read and written
