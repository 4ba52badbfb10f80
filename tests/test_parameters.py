"""Parameters: a strategy checks itself whenever one is made."""

from dataclasses import fields, replace

import numpy as np
import pytest

import sim
from profiles.errors import InputError, in_flags
from strategies.parameters import completed
from strategies.registry import strategies_of

CLASSES = {**strategies_of("train"), **strategies_of("sample")}
DECLARED = [(name, item.name) for name, cls in CLASSES.items() for item in fields(cls)]


def test_every_field_of_every_strategy_checks_itself():
    for name, field in DECLARED:
        declared = CLASSES[name].__dataclass_fields__[field].metadata
        wrong = {"Nonsense": f"is 'Nonsense', must be one of {', '.join(declared['choices'] or ())}"}
        if not declared["choices"]:
            wrong = {object(): "is <object"}
        if declared["kind"] is int:
            wrong = {
                -1: "is -1, must be a",
                "4": "is '4', must be a",
                1.5: "is 1.5, must be a",
                True: "is True, must",
                (1, 1): "is (1, 1), must be an",
            }
        for value, problem in wrong.items():
            with pytest.raises(InputError) as refused:
                CLASSES[name](**{field: value})
            assert str(refused.value).startswith(f"{field} {problem}")
            assert in_flags(refused.value.message).startswith(f"--{field.replace('_', '-')} {problem}")
    with pytest.raises(InputError, match=r"^keys_values is 'keep', must be one of freed, kept$"):
        replace(CLASSES["ulysses"](), keys_values="keep")
    with pytest.raises(InputError, match=r"^layers is"):
        CLASSES["pipefusion"](layers=(4, "4"))


def test_only_what_takes_its_value_from_another_field_is_filled_in():
    gpipe = CLASSES["gpipe"](4, 8)
    assert gpipe.group_size is None
    assert completed(gpipe) == CLASSES["gpipe"](4, 8, 4)
    whole = CLASSES["gpipe"](4, 8, 8)
    assert completed(whole) is whole


@pytest.mark.parametrize("value", [False, np.False_, "false"])
def test_a_choice_of_true_and_false_may_be_given_as_a_value_in_a_run_and_in_a_sweep(value):
    asked = {"gpus": 8, "batch_size": 8, "reshard": value}
    assert sim.run("sd21", "fsdp", **asked).parameters["reshard"] == "false"
    swept = sim.sweep("sd21", strategy="fsdp", **asked)
    assert {point.parameters["reshard"] for point in swept.points} == {"false"}
    with pytest.raises(InputError, match=r"^micro_batches is True, must be an integer$"):
        sim.run("sd21", "fsdp", gpus=8, micro_batches=True)
