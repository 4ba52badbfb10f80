"""Mutated calls of the Python names: an answer that prints itself, or a refusal of one line; no traceback.

200 are tried in CI; ``DIFFUSIM_FUZZ`` and ``DIFFUSIM_FUZZ_SEED`` ask for more, and for others, as of ``test_fuzz.py``.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest
from mutated_inputs import write_inputs

import sim
from profiles.errors import DiffusimError, DiffusimWarning, InputError
from sim.inputs.scenarios import OPTION_NAMES, OPTIONS
from strategies.registry import strategies_of
from strategies.strategy import AnyStrategy

CASES = int(os.environ.get("DIFFUSIM_FUZZ", "1000")) // 5
SEED = os.environ.get("DIFFUSIM_FUZZ_SEED", "diffusim")
GROUPS = 4
LONGEST = 2100
VALUES = (
    None, True, False, 0, 1, -1, 2, 3, 1.5, 2.0, -0.5, float("nan"), float("inf"), 2**31, 2**70, 10**5000,
    -(10**5000), (10**5000,), "", "x", "2", "1,2", "none", "all", "full", "auto", "\0", "\x1b[31m", "y" * 5000, "é",
    "64x64", (256, 512), [], [1, 2], (2,), {}, {"a": 1}, {1, 2}, b"\xff", object(), int, range(3), len, 1j,
    Path("x"), Path("small"), iter([1]), np.int64(2), np.float64(0.5), "h100-ib", "ideal", "r.toml", "rows.csv",
    np.array([1, 2]), np.array(["none", "full"]), np.array([]), np.array(2), pd.DataFrame({"a": [1]}), pd.NA,
)  # fmt: skip
"""What stands in the place of an argument."""
KINDS = {
    int: (1, 2, 2, 4, 8),
    float: (0.1, 0.5, 2.0),
    tuple: ((1, 1), (8, 8), (14, 14)),
    str: ("x",),
}
"""Values of parameters that are no choice, by their kind."""
WANTED = ("throughput", "latency", "memory", "pareto", "cost")
RUNTIMES = ("accelerate", "deepspeed", "fsdp2", "diffusers", "xdit", "torch-pipelining")
COUNTS = ([2, 4], (4, 2, 2), range(2, 5, 2), [2, "x"], [1.5], [2, None], [[2]])
OTHERS = (
    "cluster", "stack", "gpus", "task", "objective", "top", "exhaustive", "workers", "store", "report", "executor",
    "strategy", "model", "measured", "measured_run", "runtime", "format", "batchsize", "piepline_degree",
)  # fmt: skip
"""Arguments that are neither options nor parameters; the last two are mistyped."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_mutated_call_is_answered_or_refused_in_one_line(tmp_path, monkeypatch, group):
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    answered = 0
    for number in range(group, CASES, GROUPS):
        seed = f"{SEED} {number}"
        answered += _try(f"DIFFUSIM_FUZZ_SEED case {seed!r}", *_draw(Random(seed)))
    assert answered > CASES / GROUPS / 10


HUGE = 10**5000
"""A number of more digits than Python prints."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sim.run("sd21", "ddp", gpus=HUGE),
            "gpus is an integer of more digits than are read, must be at",
        ),
        (
            lambda: sim.run("sd21", "ddp", batch_size=2 * 10**12),
            "batch_size is 2000000000000, must be at most",
        ),
        (
            lambda: sim.run("sd21", "ddp", nodes=HUGE),
            "nodes is an integer of more digits than are read, must be",
        ),
        (
            lambda: sim.run("sd21", "ddp", memory=HUGE),
            "memory is an integer of more digits than are read, must be",
        ),
        (
            lambda: sim.run("sd21", "ddp", resolution="9" * 5000),
            r"resolution is '9+ \.\.\. 9+', must be pixels",
        ),
        (
            lambda: sim.sweep("sd21", task=HUGE),
            "task is an integer of more digits than are read, must be one of",
        ),
        (
            lambda: sim.sweep("sd21", objective=HUGE),
            "objective is an integer of more digits than are read, must be",
        ),
        (lambda: sim.run(HUGE, "ddp"), "model is an integer of more digits than are read, must be a name"),
        (
            lambda: sim.run("sd21", "ddp", measured={"step_s": HUGE}),
            "measured is step_s=an integer of more digits",
        ),
        (lambda: sim.run("sd21", "ddp", runtime=3), "unknown runtime 3; choose from"),
        (lambda: sim.run("sd21\x1b[31m", "ddp"), r"sd21\\x1b\[31m"),
        (lambda: sim.sweep("sd21", gpus=2, report=3), "report is 3, must be a function of a stage"),
        (lambda: sim.sweep("sd21", gpus=2, exhaustive="no"), "exhaustive is 'no', must be True or False"),
        (
            lambda: sim.sweep("sd21", gpus=2, executor=""),
            "executor is '', must be a concurrent.futures.Executor",
        ),
        (
            lambda: sim.sweep("sd21", gpus=(2, HUGE)),
            "gpus is 2, an integer of more digits than are read, of which an integer of more digits than are read must",
        ),
        (lambda: sim.sweep("sd21", gpus=2, store=3), "store is 3, must be a file"),
        (lambda: sim.compare("\0", "rows.csv"), r"'\\x00' holds a NUL character, which no path does"),
        (lambda: sim.compare("rows.csv", "rows.csv", question=7), "question is 7, must be the beginnings"),
    ],
)
def test_a_call_with_what_no_command_line_can_say_is_refused_by_name(tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    with pytest.raises(DiffusimError, match=message) as refusal:
        call()
    assert str(refusal.value).isprintable()


def test_an_array_is_taken_as_the_list_of_its_numbers():
    asked = {"gpus": 2, "steps": 2, "patches": 2, "pipeline_degree": 2}
    assert (
        sim.run("pixart", "pipefusion", layers=np.array([13, 15]), **asked).latency_s
        == sim.run("pixart", "pipefusion", layers=[13, 15], **asked).latency_s
    )


class Contrary:
    """What can neither be compared nor shown."""

    __hash__ = None

    def __eq__(self, other):
        raise ValueError("no comparison")

    def __repr__(self):
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    "value", [np.array(["none", "full"]), pd.DataFrame({"a": [1, 2]}), pd.NA, Contrary()]
)
@pytest.mark.parametrize("task", ["train", "sample"])
def test_what_compares_with_no_word_is_refused_by_the_argument(task, value):
    asked = {"model": "sd21", "gpus": 2} if task == "train" else {"model": "pixart", "gpus": 2, "steps": 2}
    words = {"run": ("stack", "runtime"), "schedule": ("format",)}
    words["sweep"] = ("strategy", "task", "objective", "runtime", "top", "exhaustive", "workers", "executor")
    calls = [(verb, name) for verb, names in words.items() for name in names]
    for verb, name in [*calls, *(("run", name) for name in OPTIONS[task])]:
        given = asked | (
            {} if verb == "sweep" else {"strategy": "ddp" if task == "train" else "distrifusion"}
        )
        with pytest.raises(InputError, match=name) as refusal:
            getattr(sim, verb)(**given | {name: value})
        assert str(refusal.value).isprintable()


def _try(said: str, words: str, call: Callable[[], Any]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DiffusimWarning)
            call()
    except DiffusimError as error:
        line = str(error)
        assert line.isprintable(), (said, words, line)
        assert len(line) < LONGEST, (said, words, line)
        return False
    except Exception as error:
        raise AssertionError(f"traceback: {said}: {words}") from error
    return True


def _draw(random: Random) -> tuple[str, Callable[[], Any]]:
    """A call in words, and what does it and prints what comes."""
    verb = random.choice(("run", "run", "launch", "schedule", "sweep", "calibrate", "compare"))
    given = _compared(random) if verb == "compare" else _asked(random, verb)
    return f"{verb}({_words(given)})", lambda: ASKED[verb](given)


def _asked(random: Random, verb: str) -> dict[str, Any]:
    task = random.choice(("train", "sample"))
    name, cls = random.choice(list(strategies_of(task).items()))
    given: dict[str, Any] = {"strategy": random.choice((name, cls)), "gpus": random.choice((2, 4, 4, 8))}
    given["model"] = "small" if task == "train" else "pixart"
    given |= {"batch_size": 32} if task == "train" else {"steps": random.choice((2, 4))}
    given |= {item.name: _value(random, item) for item in fields(cls) if random.randrange(8) == 0}
    if verb == "calibrate":
        given["measured"] = random.choice(
            ({"step_s": 0.1}, {"latency_s": 2.0}, "images_per_s=3", {"step_s": 0})
        )
    if verb == "sweep":
        given |= _swept(random, cls)
    for _ in range(random.choice((0, 0, 1, 2))):
        given[random.choice((*OPTION_NAMES, *OTHERS))] = random.choice(VALUES)
    return given


def _value(random: Random, item: Any) -> object:
    rules = item.metadata
    return random.choice(rules.get("choices") or KINDS.get(rules.get("kind"), VALUES))


def _swept(random: Random, cls: type[AnyStrategy]) -> dict[str, Any]:
    found: dict[str, Any] = {"workers": 1}
    if random.randrange(3) == 0:
        found["gpus"] = random.choice(COUNTS)
    if random.randrange(3) == 0:
        found["runtime"] = random.choice(RUNTIMES)
    if random.randrange(2) == 0:
        found["objective"] = random.choice(WANTED)
    if random.randrange(4) == 0:
        found["strategy"] = random.choice(([cls, "ddp"], f"{cls.name},zzz", [cls()], cls()))
    return found


def _compared(random: Random) -> dict[str, Any]:
    sides = "rows.csv", "s.db", "r.json", "rows.json", sim.run("small", "ddp", gpus=2, batch_size=8)
    before, after = (random.choice((*sides * 20, *VALUES)) for _ in range(2))
    question = {} if random.randrange(3) else {"question": random.choice(VALUES)}
    return {"before": before, "after": after, **question}


def _words(given: dict[str, Any]) -> str:
    """The arguments, of which some are too long a number to be printed."""
    longest = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return ", ".join(f"{name}={value!r:.100}" for name, value in given.items())
    finally:
        sys.set_int_max_str_digits(longest)


def _run(given: dict[str, Any]) -> None:
    result = sim.run(**given)
    _print(result)
    answer = result.to_json()
    assert answer["peak_memory_bytes"] > 0
    json.dumps(answer, allow_nan=False)


def _sweep(given: dict[str, Any]) -> None:
    found = sim.sweep(**given)
    _print(found)
    json.dumps(found.rows(), allow_nan=False)
    found.frame()


def _compare(given: dict[str, Any]) -> None:
    found = sim.compare(**given)
    _print(found)
    json.dumps(found.to_json(), allow_nan=False)
    found.frame()


def _print(answer: object) -> None:
    for show in (str, repr, lambda one: one._repr_html_()):
        show(answer)


ASKED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "run": _run,
    "sweep": _sweep,
    "compare": _compare,
    "launch": lambda given: str(sim.launch(**given)),
    "schedule": lambda given: str(sim.schedule(**given)),
    "calibrate": lambda given: str(sim.calibrate(**given)),
}
