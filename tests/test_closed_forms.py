"""Closed forms through the real command: all hold, and a planted error in the engine turns them red."""

from dataclasses import replace

import pytest

from sim import engine
from validate.__main__ import main
from validate.closed_forms import frozen, pipelines, report, samplers, volumes
from validate.closed_forms.forms import Form
from validate.closed_forms.report import FAMILIES, closed_forms, summary


@pytest.fixture(scope="module")
def forms():
    return closed_forms()


def test_every_form_holds_within_its_tolerance(forms):
    assert [form for form in forms if not form.holds] == []


def test_every_family_gives_values_and_every_strategy_with_a_closed_form_is_among_them(forms):
    assert len(forms) > 300
    families = {form.family.partition(":")[0] for form in forms}
    assert {"gpipe", "1f1b", "interleaved", "zero-bubble", "bidirectional", "wave", "pulse"} <= families
    methods = {form.setting.partition(",")[0] for form in forms if form.family.startswith("Bytes")}
    assert methods == {"tensor", "distrifusion", "ring", "ulysses", "pipefusion"}


def test_values_are_those_that_the_papers_print(forms):
    def value(family, setting):
        return next(f.simulated for f in forms if f.family == family and f.setting == setting)

    assert value("1f1b: bubble ratio", "P = 4, M = 8") == pytest.approx(3 / 11)
    assert value("wave: bubble ratio", "P = 4, M = 4") == pytest.approx(12 / 36)
    assert value("PipeFusion: useful share", "N = 4, M = 4, S = 50") == pytest.approx(0.985, abs=5e-4)
    share = next(
        f.setting for f in forms if f.setting.startswith("sd21") and f.setting.endswith("S = 4, M = 1")
    )
    assert value("DiffusionPipe, Fig. 4: bubble ratio", share) == pytest.approx(0.676, abs=1e-3)


def test_the_command_prints_a_line_per_family_and_succeeds(capsys):
    assert main(["closed-forms"]) == 0
    printed = capsys.readouterr().out
    assert "all hold" in printed
    assert "| 1f1b: bubble ratio |" in printed


def test_all_values_are_printed_when_asked_for(capsys, monkeypatch):
    monkeypatch.setattr(report, "closed_forms", lambda: [*pipelines.wave()])
    assert main(["closed-forms", "--all"]) == 0
    assert capsys.readouterr().out.count("| P = 8, M = 8 |") == 3


def wrong():
    return [Form("made", "here", "1 + 1", 2.0, 2.1, "nobody"), Form("made", "here", "0", 0.0, 0.0, "nobody")]


def test_a_value_beyond_its_tolerance_fails_the_command_and_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(report, "closed_forms", wrong)
    assert main(["closed-forms"]) == 1
    printed = capsys.readouterr().out
    assert "1 do not hold" in printed
    assert "| here | 1 + 1 | 2 | 2.1 | +5.0e-02 | NO |" in printed


def test_errors_are_relative_but_where_the_formula_says_zero():
    first, second = wrong()
    assert (round(first.error, 12), first.holds) == (0.05, False)
    assert (second.error, second.holds) == (0.0, True)
    assert replace(first, tolerance=0.06).holds
    assert not replace(second, simulated=0.1).holds


@pytest.mark.parametrize(
    "family", [pipelines.linear, pipelines.zero_bubble, pipelines.chimera, pipelines.wave, frozen.figure_4]
)
def test_an_engine_that_shortens_operations_is_caught(monkeypatch, family):
    """Every op of a plan takes a percent less for its first stage: no formula of equal stages holds any more."""
    pipelines._replayed.cache_clear()
    faulty = fault(monkeypatch)
    assert any(not form.holds for form in family())
    assert faulty
    pipelines._replayed.cache_clear()


def fault(monkeypatch):
    """Plant the fault where training plans are replayed; returns the list of plans that it touched."""
    from validate.closed_forms import forms as module  # noqa: PLC0415  beside what it replaces

    touched = []

    def replay(strategy, scenario):
        plan = strategy.plan(scenario)
        rows = tuple(
            tuple(replace(op, duration_s=0.99 * op.duration_s) for op in row) for row in plan.ops[:1]
        )
        touched.append(plan)
        return engine.simulate(replace(plan, ops=(*rows, *plan.ops[1:])))

    monkeypatch.setattr(module, "replay", replay)
    return touched


def test_a_lost_message_is_caught(monkeypatch):
    monkeypatch.setattr(volumes, "_forwards", lambda trace: 0.9 * trace.p2p_bytes / 2)
    assert all(not form.holds for form in volumes.skips())


def test_families_are_functions_of_nothing_and_summaries_count_them(forms):
    assert samplers.pipefusion in FAMILIES
    section = summary(forms)
    assert sum(int(row[2]) for row in section.rows) == len(forms)
