"""What holds for every training strategy: a new file in ``strategies/`` is tested by this at once.

Every point that a strategy offers on a scene is replayed, and so are its neighbours in every field with choices. The
checks, each a function under ``tests/conformance``, look at the plan and the trace alone, and derive for themselves
what must follow.
"""

from dataclasses import fields
from functools import partial
from itertools import product

import pytest
from conformance import training_times, training_work
from conformance.checks import hold
from conformance.training_points import Replays
from conformance.training_scenes import SCENES, build

from strategies.registry import make as make_strategy
from strategies.registry import strategies_of

TRAINING = [name for name, cls in strategies_of("train").items() if cls.task == "train"]
CHECKS = [*training_work.check, *training_times.check]

SEVERAL = [name for name in SCENES if name.startswith(("two backbones", "cascade"))]
ODD = ["lopsided, odd batch", "lopsided, odd shares", "top-heavy, odd batch"]
REPLICAS = dict.fromkeys(ODD, "the batch does not divide")
PIPELINE = {"one gpu": "no pipeline degree"}
ONE_BACKBONE = {**dict.fromkeys(SEVERAL, "needs one backbone"), **PIPELINE}
TWO_LAYERS = {"top-heavy, odd batch": "no pipeline degree"}
WITHOUT_POINTS = {
    "1f1b": ONE_BACKBONE,
    "bidirectional": {
        **dict.fromkeys([ODD[0], ODD[2]], "no even number of positions and of micro-batches"), **PIPELINE,
    },
    "ddp": REPLICAS,
    "fsdp": REPLICAS,
    "diffusionpipe": PIPELINE,
    "gpipe": ONE_BACKBONE,
    "interleaved": {**ONE_BACKBONE, **TWO_LAYERS, **dict.fromkeys(ODD[:2], "nothing to offer")},
    "pulse": {**ONE_BACKBONE, **TWO_LAYERS},
    "spp": ONE_BACKBONE,
    "wave": {**ONE_BACKBONE, **TWO_LAYERS},
    "zero-bubble": ONE_BACKBONE,
    "zero2": REPLICAS,
    "zero3": REPLICAS,
}  # fmt: skip
"""For each strategy the scenes on which it offers no point, and the kind of the reason. One that is not named here
is new: it is tested wherever it offers points."""
FAMILIES = sorted({scene.split()[0] for scene in SCENES})


@pytest.mark.parametrize(("name", "family"), [*product(TRAINING, FAMILIES)])
def test_every_check_holds_for_every_point(make, name, family):
    for scene in (scene for scene in SCENES if scene.startswith(family)):
        replays = Replays(name, partial(build, make, scene))
        assert not replays.deadlocks
        refusal = WITHOUT_POINTS.get(name, {}).get(scene)
        if refusal:
            assert not replays.points, scene
            assert refusal in (replays.refused or {"nothing to offer"}), scene
        elif name in WITHOUT_POINTS:
            assert replays.points, f"{scene}: no point, for {replays.refused}"
        assert {type(point.strategy).name for point in replays.points} <= {name}
        hold(CHECKS, replays.points)
        hold(training_times.check_whole, replays.wholes)
        hold(training_times.check_again, replays.wholes[::10])


def test_every_new_strategy_offers_points_somewhere_and_all_fields_describe_themselves(make):
    for name in TRAINING:
        strategy = make_strategy(name, {})
        for field in fields(strategy):
            assert field.metadata["help"], (name, field.name)
            assert getattr(strategy, field.name) in (
                field.metadata["choices"] or [getattr(strategy, field.name)]
            )
        if name not in WITHOUT_POINTS:
            assert any(Replays(name, partial(build, make, scene)).points for scene in SCENES)
