"""Closed forms through the real command: all hold, and errors planted in engine, network and memory turn them red."""

from collections import Counter

import pytest

from sim.replay import engine, memory
from validate.__main__ import main
from validate.closed_forms import families
from validate.closed_forms.families import Form, closed_forms


@pytest.fixture(scope="module")
def forms():
    return closed_forms()


def test_every_form_holds_within_its_tolerance(forms):
    assert [form for form in forms if not form.holds] == []


def wrong():
    return [Form("made", "here", "1 + 1", 2.0, 2.1, "nobody"), Form("made", "here", "0", 0.0, 0.0, "nobody")]


def test_a_value_beyond_its_tolerance_fails_the_command_and_is_shown(capsys, monkeypatch):
    monkeypatch.setattr(families, "closed_forms", wrong)
    assert main(["closed-forms"]) == 1
    printed = capsys.readouterr().out
    assert "1 do not hold" in printed
    assert "| here | 1 + 1 | 2 | 2.1 | +5.0e-02 | NO |" in printed


def again():
    """The forms that do not hold, by family, and the families of which none does."""
    forms = closed_forms()
    every = Counter(form.family for form in forms)
    wrong = Counter(form.family for form in forms if not form.holds)
    return wrong, {family for family in every if wrong[family] == every[family]}


@pytest.mark.long
def test_slower_messages_are_caught_by_every_time_and_a_memory_that_frees_nothing_by_what_is_held(
    monkeypatch, forms
):
    """Only where more patches than stages are under way does PipeFusion's period hide what a message takes."""
    legs = engine._legs

    def slower(*network):
        ways = legs(*network)
        return [way if way is engine.SIGNAL else (way[0], way[1] + 0.1) for way in ways]

    monkeypatch.setattr(engine, "_legs", slower)
    uses = memory._uses

    def kept(trace):
        yield from ((tensors, devices, trace.end_s) for tensors, devices, _ in uses(trace))

    monkeypatch.setattr(memory, "_uses", kept)
    wrong, whole = again()
    held = {f"{name}: activations held" for name in ("1f1b", "interleaved", "zero-bubble", "bidirectional")}
    timed = {form.family for form in forms if form.family.endswith((": seconds", "ratio", "time", "share"))}
    period = "PipeFusion: seconds of a step in the long run"
    assert set(wrong) == {*timed, period, *held}
    assert whole - held == timed
    assert sum(wrong[family] for family in {*timed, period}) == 154
    assert wrong[period] == 7


@pytest.mark.long
def test_an_engine_that_loses_a_message_is_caught_by_every_volume(monkeypatch):
    """The engine's wiring lacks a hidden state; of what is sent, only what collectives send is still right."""
    wire = engine.wire

    def losing(plan):
        wiring = wire(plan)
        for slot, transfer in enumerate(wiring.transfers):
            if transfer is not None and "gradient" not in plan.tensors[transfer.tensor].role:
                wiring.sources[slot] = None
                break
        return wiring

    monkeypatch.setattr(engine, "wire", losing)
    wrong, whole = again()
    assert whole == {"PULSE: bytes of one sample forwards"}
    assert set(wrong) == {*whole, "Bytes that a device sends in a step", "hybrid: bytes of messages"}
    assert wrong["hybrid: bytes of messages"] == sum(
        form.family == "hybrid: bytes of messages" and form.expected > 0 for form in families.hybrid()
    )
    assert wrong["Bytes that a device sends in a step"] == sum(
        form.setting.startswith("pipefusion") for form in families.sent_bytes()
    )
