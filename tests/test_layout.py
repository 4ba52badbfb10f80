"""Layouts: what follows from a scenario and a shape is derived in one place."""

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Cut, Shape
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make_strategy
from strategies.scenario import Scenario

ROOT = Path(__file__).parents[1]
MOST_FILES = 35
MOST_LINES = 400


def files_entered(call):
    """The files of strategies/ and profiles/ with a function that a call enters."""
    entered = set()

    def note(frame, event, _):
        if event == "call":
            entered.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    rooms = [ROOT / "strategies", ROOT / "profiles"]
    return {path for path in map(Path, entered) if any(path.is_relative_to(room) for room in rooms)}


@pytest.mark.parametrize("model", ["sd21", "cdm-lsun"])
@pytest.mark.parametrize("fill", ["none", "partial"])
@pytest.mark.parametrize("extra_forward", [False, True])
def test_a_bound_is_found_in_few_files(model, fill, extra_forward):
    workload = TrainingWorkload(64, 2048, extra_forward=extra_forward)
    scenario = Scenario(load_model(model), load_cluster("p4de"), workload)
    strategy = make_strategy("diffusionpipe", {"pipeline_degree": 4, "micro_batches": 8, "fill": fill})
    files = files_entered(lambda: strategy.bound(scenario))
    assert {"diffusionpipe.py", "layout.py", "pipelines.py"} <= {path.name for path in files}
    assert len(files) <= MOST_FILES


def test_no_file_is_longer_than_can_be_read_at_once():
    rooms = ("profiles", "strategies", "sim", "validate")
    long = {
        str(path.relative_to(ROOT)): lines
        for room in rooms
        for path in (ROOT / room).rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}


def types_of(path):
    """The public classes of a file, and its names for types."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name
        elif (
            isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        ):
            name = node.targets[0].id
            if name[:1].isupper() and not name.isupper():
                yield name


def test_a_type_has_a_name_of_its_own():
    files = [path for room in ("profiles", "strategies", "sim") for path in (ROOT / room).rglob("*.py")]
    files = [path for path in files if "measuring" not in path.parts]  # which nothing of these imports
    named = Counter(name for path in files for name in set(types_of(path)))
    alike = {
        "BoolArray",
        "FloatArray",
        "IntArray",
    }  # arrays of numpy, which are the same wherever they are named
    assert sorted(name for name, count in named.items() if count > 1 and name not in alike) == []


@pytest.mark.parametrize("name", ["1f1b", "wave", "interleaved", "bidirectional", "pulse"])
def test_iterations_with_and_without_the_extra_forward_share_what_is_alike(make, name):
    model = make.model(make.component("unet", [1.0] * 8))
    scenario = make.scenario(model, make.cluster(), 2, 8)
    strategy = make_strategy(name, {"pipeline_degree": 2, "micro_batches": 4})
    without, extra = (strategy.layout(scenario.with_extra_forward(on)) for on in (False, True))
    assert (without.scenario, extra.scenario) == (scenario, scenario.with_extra_forward(True))
    assert strategy.layout(scenario) is without
    assert extra.stages == without.stages
    assert extra.hops == without.hops
    assert strategy.bound(extra.scenario) > strategy.bound(scenario)


def test_a_layout_knows_batches_stages_and_messages(make):
    chain = make.component("unet", [1.0] * 4, output_bytes=2.0, carried_bytes=1.0, parameters=3, locked=(3,))
    cluster = make.cluster(make.link("nvswitch", 4.0, 0.5))
    scenario = make.scenario(make.model(chain), cluster, 4, 12)
    layout = Layout(scenario, Shape(2, 3, 4), (Cut(0, (0, 1, 4)),))
    assert (layout.group_batch, layout.local_batch) == (12, 2)
    assert [stage.forward_s for stage in layout.stages] == [2.0, 6.0]
    assert layout.hosted == ((0,), (1,))
    assert layout.trained_parameters == (3, 6)
    assert layout.handovers_bytes[0] == 4.0
    (there, back), last = layout.hops
    assert (there.wire_s, back.wire_s, there.delay_s) == ((4.0 + 2.0) / 4.0, 4.0 / 4.0, 0.5)
    assert [hop.duration_s for hop in last] == [0.0, 0.0]
