"""What holds for every sampler: a new file in ``strategies/`` is tested by this at once.

Points that a sampler offers on a scene are replayed. The checks, each a function under ``tests/conformance``, look at
the plan and the trace alone, and derive for themselves what must follow.
"""

from functools import partial

import pytest
from conformance import sampling_times, sampling_work
from conformance.checks import hold
from conformance.sampling_points import Replays
from conformance.sampling_scenes import SCENES, build

from strategies.parameters import completed
from strategies.registry import strategies_of

SAMPLERS = list(strategies_of("sample"))
CHECKS = [*sampling_work.check, *sampling_times.check]

U_NETS = {name for name in SCENES if name.startswith("u-net")}
FEW_GPUS = {"one gpu", "one step fewer than the warm-up of most", "twice as wide as high, pcie"}
HALVED = {"text, guidance in parallel, one node"}
IN_TURN = {name for name in SCENES if "one prediction after the other" in name}
"""Samplers whose patches read the step before refuse them."""
WITHOUT_POINTS = {
    "allgather-kv": U_NETS,
    "attention2d": U_NETS | FEW_GPUS | HALVED,
    "distrifusion": IN_TURN,
    "hybrid": FEW_GPUS | {"u-net, free links", "u-net, one node", "u-net, one prediction after the other"},
    "naive-patch": set(),
    "paradigms": {name for name in SCENES if "parallel" in name or "skips" in name} | {"one step"} | IN_TURN,
    "pipefusion": U_NETS | {"one gpu"} | IN_TURN,
    "ring": U_NETS,
    "single": SCENES.keys() - {"one gpu"},
    "sync-patch": set(),
    "tensor": set(),
    "ulysses": U_NETS,
    "usp": U_NETS | FEW_GPUS | HALVED,
}
"""For each sampler the scenes on which it offers no point. One that is not named here is new: it is tested wherever it
offers points."""


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_check_holds_for_every_point(make, name, half):
    for scene in sorted(SCENES.keys() - WITHOUT_POINTS.get(name, set()))[half::2]:
        replays = Replays(name, partial(build, make, scene))
        assert replays.points or name not in WITHOUT_POINTS, f"{scene}: no point, for {replays.refused}"
        assert len(replays.candidates) == len(set(replays.candidates))
        assert [completed(sampler) for sampler in replays.candidates] == replays.candidates
        assert {type(point.sampler).name for point in replays.points} <= {name}
        hold(CHECKS, replays.points)
        hold(sampling_times.check_run, replays.points[::8])


def test_every_new_sampler_offers_points_somewhere(make):
    for name in set(SAMPLERS) - set(WITHOUT_POINTS):
        assert any(Replays(name, partial(build, make, scene)).points for scene in SCENES)
