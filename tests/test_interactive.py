"""Dials: each turn runs what they say, and draws it."""

import pytest

import sim
from sim.report.plots.interactive import trace_figure

HELD = {"gpus": 8, "batch_size": 64}


@pytest.fixture
def dials():
    return sim.plots.Dials(
        "sd21",
        ["1f1b", "ddp"],
        pipeline_degree=[4, 8],
        micro_batches=[4, 8],
        link=["inter=1x", "inter=0.25x"],
        **HELD,
    )


def drawn(dials):
    """Bars in the picture by kind; kinds without any are left out."""
    return {one.name: len(one.x) for one in dials.figure.data if one.type == "bar"}


def test_a_turn_draws_another_run_and_says_what_it_changed(dials):
    before = dials.result.iteration_s
    assert len(dials.figure.data) == len(trace_figure(dials.result.trace).data)
    dials.dials["micro_batches"].value = 8
    assert dials.result == sim.run(
        "sd21", "1f1b", pipeline_degree=4, micro_batches=8, link="inter=1x", **HELD
    )
    assert drawn(dials)["forward"] == 4 * 8
    change = 100 * (dials.result.iteration_s / before - 1)
    assert f"{change:+.1f} % by this turn" in dials.words.value
    for word in ("an iteration (", "bubble ratio", "samples/s", "of 79."):
        assert word in dials.words.value


def test_dials_of_parameters_that_a_strategy_lacks_rest(dials):
    dials.turn(strategy="ddp")
    assert "pipeline_degree" not in dials.arguments
    assert dials.dials["pipeline_degree"].disabled
    assert dials.result.strategy == "ddp"
    dials.turn(strategy="1f1b")
    assert not dials.dials["pipeline_degree"].disabled


def test_what_cannot_be_run_leaves_the_reason_and_no_picture():
    dials = sim.plots.Dials("sd21", "gpipe", pipeline_degree=[4, 3], micro_batches=4, **HELD)
    assert drawn(dials)
    dials.turn(pipeline_degree=3)
    assert dials.result is None
    assert dials.words.value == "<b>gpus(8) is no multiple of pipeline_degree(3)</b>"
    assert not dials.figure.data
    dials.turn(pipeline_degree=4)
    assert dials.result is not None and drawn(dials)
