"""Mutated inputs of every kind: an answer, or a refusal in one line; no traceback, no hang, nothing raw, no nonsense.

1,000 cases are tried in CI; ``DIFFUSIM_FUZZ=10000 python -m pytest tests/test_fuzz.py`` tries so many, and
``DIFFUSIM_FUZZ_SEED`` others.
"""

import json
import os
import signal
import sys
from shutil import rmtree

import mutated_inputs
import pytest
from mutated_inputs import COMMANDS, KINDS, Case, answers, draw, write_inputs

from profiles.errors import DiffusimError, InputError
from sim.cli.console import guarded
from sim.cli.main import _main
from validate.__main__ import _main as _validate

CASES = int(os.environ.get("DIFFUSIM_FUZZ", "1000"))
SEED = os.environ.get("DIFFUSIM_FUZZ_SEED", "diffusim")
GROUPS = 20
PROGRAMS = {"sim": _main, "validate": _validate}
SIGNED = ("change",)
"""Keys of results whose numbers may be negative."""
ELSEWHERE = (
    "has no rates of its own, and ",
    "must be given",
    " does not run it: ",
    ", but of models it has ",
    "no runtime is known that starts this ",
    "--cache-steps is ",
    " has no factor on products in fp8",
)
"""Words of refusals by files that are right, and ask for what cannot be."""
LONGEST_S = 60
"""Seconds after which a case hangs; on an idle machine none takes one."""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    return tmp_path


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_mutated_input_is_answered_or_refused_in_one_line(elsewhere, capsys, group):
    for number in range(group, CASES, GROUPS):
        seed = f"{SEED} {number}"
        case = draw(seed, elsewhere)
        _try(case, seed, capsys)
        _tidy(elsewhere)


@pytest.mark.slow
def test_a_mutated_configuration_is_counted_or_refused_in_one_line(elsewhere, capsys):
    for number in range(CASES // 40):
        seed = f"{SEED} config {number}"
        _try(draw(seed, elsewhere, "config"), seed, capsys)
        _tidy(elsewhere)


def _try(case, seed, capsys):
    said = f"DIFFUSIM_FUZZ_SEED case {seed!r}: {' '.join(case.words)[:300]!r} ({case.file})"
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"hangs: {said}"))
    signal.alarm(LONGEST_S)
    refused = []
    try:
        run = PROGRAMS[case.program]
        code = guarded(case.program, lambda words: _noting(refused, run, words), case.words)
    except BaseException as error:  # also of pytest.fail, which says itself
        if isinstance(error, Exception):
            raise AssertionError(f"traceback: {said}") from error
        raise
    finally:
        signal.alarm(0)
    out, err = capsys.readouterr()
    assert code in (0, 2), said
    assert all(line.isprintable() for line in err.splitlines()), (said, err)
    if code == 2:
        _check_refusal(out, err, case.program, said)
        _check_file(case, refused, err, said)
        return
    assert case.answer in (None, out), said
    if "--json" in case.words and out.startswith(("{", "[")):
        _check_numbers(json.loads(out, parse_constant=pytest.fail), said)


def _noting(refused, run, words):
    """Do what a command line asks for, and note why it is refused."""
    try:
        return run(words)
    except DiffusimError as error:
        refused.append(error)
        raise


def _check_file(case, refused, err, said):
    """The file that is wrong is named, unless it is right and asks for what cannot be."""
    if not case.file or not any(isinstance(error, InputError) for error in refused):
        return
    line = err.splitlines()[-1]
    elsewhere = any(words in line for words in ELSEWHERE)
    assert case.file in line or case.file.partition("/")[0] in line or elsewhere, (said, line)


def _check_refusal(out, err, program, said):
    *_, line = err.splitlines()
    assert out == "" or "no point of the sweep is feasible" in line, (said, out[:200])
    assert line.startswith(f"{program}: error: "), (said, err)
    assert err.count(": error: ") == 1, (said, err)
    assert len(line) < 2100, (said, line)


def _check_numbers(value, said, key=""):
    """No time, size or ratio of a result is negative, none of a simulated one is missing."""
    if isinstance(value, list):
        for item in value:
            _check_numbers(item, said, key)
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_numbers(item, said, name)
        for name in ("iteration_s", "latency_s"):
            if value.get(name) is not None and f"{name}_low" in value:
                assert value[f"{name}_low"] <= value[name] <= value[f"{name}_high"], said
    elif isinstance(value, float) and key not in SIGNED:
        assert 0 <= value < float("inf"), (said, key, value)
        assert key != "bubble_ratio" or value <= 1, said


def _tidy(folder):
    for path in folder.iterdir():
        if path.name not in ("small", "q.toml", *answers()):
            if path.is_dir():
                rmtree(path)
            else:
                path.unlink()
    write_inputs(folder)  # a case may have written over them


def test_what_is_spoilt_is_answered_before_so_that_nothing_hides_behind_a_refusal(
    elsewhere, capsys, monkeypatch
):
    monkeypatch.setattr(mutated_inputs, "spoil", _left_as_it_is)
    monkeypatch.setattr(mutated_inputs, "spoil_json", _left_as_it_is)
    monkeypatch.setattr(mutated_inputs, "spoil_store", lambda random, path: True)
    for kind in KINDS:
        for number in range(3):
            _answer(draw(f"{kind} {number}", elsewhere, kind), capsys)
            _tidy(elsewhere)
    for line in COMMANDS:
        _answer(Case(line.split()), capsys)
        _tidy(elsewhere)


def _left_as_it_is(random, path, text=None):
    path.write_text(path.read_text(encoding="utf-8") if text is None else text, encoding="utf-8")


def _answer(case, capsys):
    code = guarded(case.program, PROGRAMS[case.program], case.words)
    assert code == 0, (case.words, capsys.readouterr().err)


def test_cases_are_the_same_for_the_same_seed(elsewhere):
    first = draw("a seed", elsewhere)
    _tidy(elsewhere)
    assert draw("a seed", elsewhere) == first
    assert sys.getrecursionlimit() >= 1000
