"""A strategy of one's own as a script or a notebook gives it: as a class, or made, without a package."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from making import refused

import sim
from profiles.architectures.models import load_model
from profiles.errors import DeadlockError, DiffusimWarning, InputError
from profiles.machines.clusters import load_cluster
from sim.outcomes.runs import run_point
from strategies import registry
from strategies.orders.named import gpipe_order, one_forward_one_backward_order
from strategies.parameters import parameter
from strategies.plans.actions import BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, StageAction
from strategies.plans.workloads import TrainingWorkload
from strategies.scenario import Scenario
from strategies.templates.ordered_pipeline import LinearPipeline
from strategies.training.linear import GPipe, ZeroBubble

TOY = Path(__file__).parent / "data" / "toy_pipeline.py"
SMALL = {"gpus": 4, "batch_size": 16, "self_conditioning": 0.0}


@pytest.fixture(autouse=True)
def given(monkeypatch):
    """Let each test begin with no strategy given."""
    kept = {}
    monkeypatch.setattr(registry, "_added", kept)
    return kept


def written(**own):
    """Pairs, as a cell of a notebook makes it, with what is its own."""
    space = {"__name__": __name__}
    exec(compile(TOY.read_text(encoding="utf-8"), "a cell", "exec"), space)
    return type("Pairs", (space["Pairs"],), {"__slots__": (), "__module__": __name__, **own})


def scene(gpus, batch_size, self_conditioning):
    """Training of SD 2.1, with nothing kept from an earlier use."""
    workload = TrainingWorkload(gpus, batch_size, self_conditioning=self_conditioning)
    return Scenario(load_model("sd21"), load_cluster("p4de"), workload)


def test_a_class_is_swept_beside_names_by_parameters_that_the_sweep_finds():
    found = sim.sweep("sd21", strategy=[written(), "gpipe"], workers=1, **SMALL)
    points = {of: {str(p.parameters) for p in found.points if p.name == of} for of in ("pairs", "gpipe")}
    assert {text.replace(", 'optimizer': 'replicated'", "") for text in points["gpipe"]} >= points["pairs"]
    assert len(points["pairs"]) > 4
    assert found.best_of("pairs").iteration_s > 0


def test_an_order_that_can_never_be_carried_out_is_named_with_its_parameters_by_a_sweep():
    def backwards_first(self):
        return tuple(
            row[::-1] for row in one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)
        )

    said = r"^pairs, pipeline_degree \d+, micro_batches \d+.*: deadlock: device"
    with pytest.raises(DeadlockError, match=said):
        sim.sweep("sd21", strategy=written(order=backwards_first), workers=1, **SMALL)


def test_a_class_alone_is_swept_and_known_by_its_name_from_then_on_where_it_is_named():
    assert {p.name for p in sim.sweep("sd21", strategy=written(), workers=1, **SMALL).points} == {"pairs"}
    assert sim.run("sd21", "pairs", **SMALL).strategy == "pairs"
    registry.strategies_of.cache_clear()
    assert "pairs" not in registry.strategies_of("train")


def test_a_class_that_is_written_again_is_asked_anew_of_a_scenario_that_knew_the_first():
    measured = {"pipeline_degree": 4, "micro_batches": 128, "group_size": 4}
    asked = {"gpus": 4, "batch_size": 128, "self_conditioning": 0.0}
    eager = written(
        order=lambda self: one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)
    )
    again = written(order=lambda self: gpipe_order(self.pipeline_degree, self.micro_batches))
    reused, fresh = scene(**asked), scene(**asked)
    first = run_point(eager(**measured), reused)
    second = run_point(again(**measured), reused)
    assert second.times == run_point(again(**measured), fresh).times
    assert second.expected == run_point(again(**measured), fresh).expected
    assert second.peak_memory_bytes > 2 * first.peak_memory_bytes


@pytest.mark.parametrize("name", ["gpipe", "pairs"])
def test_a_class_with_the_name_of_another_is_refused_and_the_other_stays(name, given):
    first = written()
    sim.run("sd21", first, **SMALL)
    other = written(name=name, __qualname__="Other")
    for asked in (other, other()):
        with pytest.raises(InputError, match=f"^two strategies are named {name}: .* and .*Other$"):
            sim.run("sd21", asked, **SMALL)
    assert given == {"pairs": first}


def test_a_strategy_with_its_parameters_is_not_swept_but_pointed_to_its_class():
    words = r"^GPipe\(.*\) is given, but a sweep finds the parameters itself: give the class, strategy=GPipe"
    for asked in (GPipe(), ["1f1b", GPipe()]):
        with pytest.raises(InputError, match=words):
            sim.sweep("sd21", strategy=asked, **SMALL)


def test_what_is_no_strategy_or_lacks_its_order_is_refused():
    @dataclass(frozen=True, slots=True)
    class Unordered(LinearPipeline):
        name = "unordered"

    with pytest.raises(InputError, match=r"Unordered does not define order$"):
        sim.run("sd21", Unordered, **SMALL)
    for asked in (int, 5):
        with refused(rf"^strategy is {re.escape(repr(asked))}, must be a name or a strategy$"):
            sim.sweep("sd21", strategy=asked, **SMALL)


def test_a_strategy_that_stands_in_no_file_is_not_kept_in_a_store(tmp_path):
    with pytest.raises(InputError, match=r"^strategy Pairs stands in no file: a store must tell"):
        sim.sweep(
            "sd21", strategy=written(__module__="nowhere"), store=tmp_path / "kept.sqlite", workers=1, **SMALL
        )


def changed(at, entry):
    """Rows with another entry at a place of position 1."""
    return lambda rows: (rows[0], (*rows[1][:at], entry, *rows[1][at + 1 :]), *rows[2:])


PASS = "must have F and B of each of its stages [1] once for each micro-batch (0 to 3); a strategy whose"
BROKEN = [
    (lambda rows: None, " is None, must be a tuple of rows"),
    (lambda rows: rows[:3], ", must be a tuple of rows, one for each of pipeline_degree(4)"),
    (lambda rows: (None, *rows[1:]), ", position 0 is None, must be a tuple of passes"),
    (lambda rows: tuple(() for _ in rows), ", position 0 lacks 0F0, must have F and B of each of its stages [0]"),
    (changed(3, StageAction(1, BACKWARD, 0)), f", position 1 repeats 1B0, {PASS}"),
    (lambda rows: (*rows[:2], rows[3], rows[2]), ", position 2 has StageAction(stage=3, "),
    (changed(1, "1F1"), f", position 1 has '1F1', {PASS}"),
    *((changed(at, entry), f"{entry!r}, {PASS}") for at, entry in (
        (1, StageAction(9, FORWARD, 1)), (1, StageAction(1, FORWARD, 4)), (2, StageAction(1, BACKWARD_INPUT, 0)),
        (2, StageAction(1, FORWARD, None)),
    )),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_an_order_that_is_not_whole_is_refused_in_one_line_that_says_where(change, said):
    pairs = written()
    broken = written(order=lambda self: change(pairs.order(self)))
    words = f"^the order of pairs.*{re.escape(said)}.*$"
    degrees = {"pipeline_degree": 4, "micro_batches": 4}
    with pytest.raises(InputError, match=words):
        sim.run("sd21", strategy=broken, **degrees, **SMALL)
    with pytest.raises(InputError, match=words):
        sim.schedule(broken, **degrees)


F, B, INPUTS, WEIGHTS = (StageAction(0, of, 0) for of in (FORWARD, BACKWARD, BACKWARD_INPUT, BACKWARD_WEIGHT))


def test_backwards_of_a_strategy_that_splits_them_come_in_two_parts():
    @dataclass(frozen=True, slots=True)
    class Unsplit(ZeroBubble):
        name = "unsplit"

        def order(self):
            return one_forward_one_backward_order(self.pipeline_degree, self.micro_batches)

    with refused(r"position 0 has .*kind='B'.*, must have F and I and W of .*micro-batch \(0 to 3\)$"):
        sim.schedule(Unsplit, pipeline_degree=4, micro_batches=4)


def test_a_class_that_no_other_process_finds_is_swept_by_one_and_an_error_of_its_order_names_the_point():
    asked, said = (
        [written(order=lambda self: {}["odd"]), "1f1b"],
        "^one process does the sweep: strategy pairs",
    )
    with (
        pytest.warns(DiffusimWarning, match=said),
        pytest.raises(KeyError, match=r"\nat pairs, pipeline_deg"),
    ):
        sim.sweep("sd21", strategy=asked, workers=2, **SMALL)


@pytest.mark.parametrize("own", [{"name": "My Strat!"}, {"gpus": parameter(2, "")}])
def test_a_name_or_a_parameter_that_cannot_be_one_is_refused(own):
    cls = dataclass(frozen=True)(written(**own, __annotations__=dict.fromkeys(own, int)))
    with pytest.raises(InputError, match=r"is named 'My Strat!', must|gpus is an argument of sim.run"):
        sim.run("sd21", cls, **SMALL)
