"""What holds for every sampler: a new file in ``strategies/`` is tested by this at once.

Points that a sampler offers on a scene are replayed. The checks, each a function under ``tests/conformance``, look at
the plan and the trace alone, and derive for themselves what must follow.
"""

from dataclasses import fields
from functools import partial
from itertools import product

import pytest
from conformance import sampling_memory, sampling_results, sampling_times, sampling_work
from conformance.checks import hold
from conformance.sampling_points import Replays
from conformance.sampling_scenes import SCENES, build

from strategies.parameters import check_parameters
from strategies.registry import all_samplers, make_sampler

SAMPLERS = list(all_samplers())
CHECKS = [*sampling_work.check, *sampling_times.check, *sampling_memory.check]

U_NETS = [name for name in SCENES if name.startswith("u-net")]
TRANSFORMERS = dict.fromkeys(U_NETS, "needs a transformer")
ONE_GPU = {"one gpu": "nothing to offer"}
PRODUCTS = {
    **dict.fromkeys(
        ["one step fewer than the warm-up of most", "twice as wide as high, pcie", "u-net, free links"],
        "nothing to offer",
    ),
    **ONE_GPU,
    "u-net, one node": "needs a transformer",
}
"""Two degrees need four GPUs."""
TWO_DEGREES = {
    **PRODUCTS,
    "text, guidance in parallel, one node": "nothing to offer",
    "u-net, guidance in parallel, latency only": "nothing to offer",
}
WITHOUT_POINTS = {
    "attention2d": TWO_DEGREES,
    "distrifusion": {},
    "hybrid": PRODUCTS,
    "naive-patch": {},
    "paradigms": {
        "one step": "more GPUs than steps",
        "guidance in parallel, latency only": "guidance cannot be divided so",
        "text, guidance in parallel, one node": "guidance cannot be divided so",
        "skips, one node": "more GPUs than steps",
        "skips, two images, small nodes": "more GPUs than steps",
        "two images, guidance in parallel, pcie": "guidance cannot be divided so",
        "u-net, guidance in parallel, latency only": "guidance cannot be divided so",
    },
    "pipefusion": {**ONE_GPU, **TRANSFORMERS},
    "ring": TRANSFORMERS,
    "single": {name: "the degrees do not give the number of GPUs" for name in SCENES if name != "one gpu"},
    "sync-patch": {},
    "tensor": {},
    "ulysses": TRANSFORMERS,
    "usp": TWO_DEGREES,
}
"""For each sampler the scenes on which it offers no point, and the kind of the reason. One that is not named here is
new: it is tested wherever it offers points, and skipped, with its reasons, where it does not."""
NAMED = [(name, scene) for name, scenes in WITHOUT_POINTS.items() for scene in scenes]


@pytest.mark.parametrize(("name", "scene"), [pair for pair in product(SAMPLERS, SCENES) if pair not in NAMED])
def test_every_check_holds_for_every_point(make, name, scene):
    replays = Replays(name, partial(build, make, scene))
    if not replays.points and name not in WITHOUT_POINTS:
        pytest.skip(f"no point, for {replays.refused}: name it in WITHOUT_POINTS")
    assert replays.points, f"no point, for {replays.refused}"
    assert len(replays.candidates) == len(set(replays.candidates))
    assert [check_parameters(sampler) for sampler in replays.candidates] == replays.candidates
    assert {type(point.sampler).name for point in replays.points} == {name}
    hold(CHECKS, replays.points)
    hold(sampling_results.check, replays.points[:2])


@pytest.mark.parametrize(("name", "scene"), NAMED)
def test_a_sampler_without_points_says_why(make, name, scene):
    replays = Replays(name, partial(build, make, scene))
    assert not replays.points
    assert WITHOUT_POINTS[name][scene] in (replays.refused or {"nothing to offer"})
    assert [check_parameters(sampler) for sampler in replays.candidates] == replays.candidates


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_offers_points_somewhere(make, name):
    scenes = [scene for scene in SCENES if (name, scene) not in NAMED]
    assert any(Replays(name, partial(build, make, scene)).points for scene in scenes)


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_fields_of_every_sampler_describe_themselves(name):
    sampler = make_sampler(name, {})
    for field in fields(sampler):
        assert field.metadata["help"]
        assert not field.metadata["choices"] or getattr(sampler, field.name) in field.metadata["choices"]
