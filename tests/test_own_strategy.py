"""A strategy of one's own as a script or a notebook gives it: as a class, or made, without a package."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

import sim
from profiles.errors import InputError
from strategies import registry
from strategies.plans.actions import BACKWARD, FORWARD, parse_action
from strategies.templates.linear_pipeline import LinearPipeline
from strategies.training.gpipe import GPipe

TOY = Path(__file__).parent / "data" / "toy_pipeline.py"
SMALL = {"gpus": 4, "batch_size": 16, "self_conditioning": 0.0}


@pytest.fixture(autouse=True)
def given(monkeypatch):
    """Let each test begin with no strategy given."""
    kept = {}
    monkeypatch.setattr(registry, "_given", kept)
    return kept


def written(**own):
    """Pairs, as a cell of a notebook makes it, with what is its own."""
    space = {"__name__": __name__}
    exec(compile(TOY.read_text(encoding="utf-8"), "a cell", "exec"), space)
    return type("Pairs", (space["Pairs"],), {"__slots__": (), "__module__": __name__, **own})


def test_a_class_with_its_parameters_beside_it_is_the_strategy_that_they_make():
    pairs = written()
    made = sim.run("sd21", pairs(pipeline_degree=4, micro_batches=4), **SMALL)
    beside = sim.run("sd21", pairs, pipeline_degree=4, micro_batches=4, **SMALL)
    assert made.iteration_s == beside.iteration_s
    assert made.strategy == beside.strategy == "pairs"


def test_a_class_is_swept_beside_names_by_parameters_that_the_sweep_finds():
    found = sim.sweep("sd21", strategy=[written(), "gpipe"], workers=1, **SMALL)
    points = {
        name: {str(p.parameters) for p in found.points if p.name == name} for name in ("pairs", "gpipe")
    }
    assert {text.replace(", 'optimizer': 'replicated'", "") for text in points["gpipe"]} >= points["pairs"]
    assert len(points["pairs"]) > 4
    assert found.best_of("pairs").iteration_s > 0


def test_a_class_alone_is_swept_and_known_by_its_name_from_then_on_where_it_is_named():
    assert {point.name for point in sim.sweep("sd21", strategy=written(), workers=1, **SMALL).points} == {
        "pairs"
    }
    assert sim.run("sd21", "pairs", **SMALL).strategy == "pairs"
    registry._of_task.cache_clear()
    assert "pairs" not in registry.strategies_of("train")


def test_a_class_that_is_written_again_takes_the_place_of_the_first(given):
    sim.run("sd21", written(), **SMALL)
    again = written()
    sim.run("sd21", again, **SMALL)
    assert given == {"pairs": again}


@pytest.mark.parametrize("name", ["gpipe", "pairs"])
def test_a_class_with_the_name_of_another_is_refused_and_the_other_stays(name, given):
    first = written()
    sim.run("sd21", first, **SMALL)
    with pytest.raises(InputError, match=f"^two strategies are named {name}: .* and .*Other$"):
        sim.run("sd21", written(name=name, __qualname__="Other"), **SMALL)
    assert given == {"pairs": first}


def test_a_strategy_with_its_parameters_is_not_swept_but_pointed_to_its_class():
    words = (
        r"^GPipe\(.*\) is given, but a sweep finds the parameters itself: give the class, strategy=GPipe, or "
    )
    for asked in (GPipe(), ["1f1b", GPipe()]):
        with pytest.raises(InputError, match=words):
            sim.sweep("sd21", strategy=asked, **SMALL)


def test_what_is_no_strategy_or_lacks_its_order_is_refused():
    @dataclass(frozen=True, slots=True)
    class Unordered(LinearPipeline):
        name: ClassVar[str] = "unordered"

    with pytest.raises(InputError, match=r"Unordered does not define order$"):
        sim.run("sd21", Unordered, **SMALL)
    for asked in (int, 5):
        with pytest.raises(
            InputError, match=rf"^strategy is {re.escape(repr(asked))}, must be a name or a strategy$"
        ):
            sim.sweep("sd21", strategy=asked, **SMALL)


def test_a_strategy_that_stands_in_no_file_is_not_kept_in_a_store(tmp_path):
    with pytest.raises(InputError, match=r"^strategy Pairs stands in no file: a store must tell"):
        sim.sweep(
            "sd21", strategy=written(__module__="nowhere"), store=tmp_path / "kept.sqlite", workers=1, **SMALL
        )


F = parse_action(f"0{FORWARD}0")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            lambda rows: tuple(() for _ in rows),
            "row 0 of the order is empty, must hold its forwards and backwards",
        ),
        (lambda rows: (*rows[:3], ()), "row 3 of the order is empty, must hold its forwards and backwards"),
        (lambda rows: rows[:3], "the order has 3 rows, must have one for each of pipeline_degree(4)"),
        (lambda rows: (*rows, rows[0]), "the order has 5 rows, must have one for each of pipeline_degree(4)"),
        (
            lambda rows: tuple(row[:4] for row in rows),
            "the order has 2 forwards and 2 backwards of stage 0, must have 4 of each",
        ),
        (
            lambda rows: ((F, *rows[0]), *rows[1:]),
            "the order has 5 forwards and 4 backwards of stage 0, must have 4 of each",
        ),
        (
            lambda rows: (rows[0], tuple(a for a in rows[1] if a.kind != BACKWARD), *rows[2:]),
            "the order has 4 forwards and 0 backwards of stage 1, must have 4 of each",
        ),
    ],
)
def test_an_order_that_is_not_whole_is_refused_in_one_line(changed, said):
    pairs = written()
    broken = written(order=lambda self: changed(pairs.order(self)))
    with pytest.raises(InputError, match=f"^{re.escape(said)}$"):
        sim.run("sd21", broken(pipeline_degree=4, micro_batches=4), **SMALL)
