"""What a scenario keeps of one point changes the answers of no other, whichever comes first."""

from dataclasses import replace
from functools import partial
from itertools import chain
from random import Random

import pytest
from conformance import sampling_points, sampling_scenes, training_points, training_scenes

from profiles.errors import DeadlockError, InfeasibleError
from sim.outcomes.runs import run_point
from strategies.registry import strategies_of
from validate.equal_blocks import equal_blocks_transformer

POINTS = 6
"""Of one strategy on one scene: of so many that neighbour on its candidates."""
QUESTIONS = ("bound", "order_bound", "least_memory_bytes")
TRAINED = ["skips, one node", "one frozen, data inner, small nodes", "cascade, self-conditioning, one node"]
SAMPLED = [
    "text, guidance in parallel, one node",
    "u-net, one node",
    "skips, two images, small nodes",
    "two images, guidance in parallel, pcie",
]


def teams(make):
    """Training whose GPUs may work on the same samples, or on parts of the same matrices but for the last layer's."""
    model = equal_blocks_transformer(4, 1.0, parameters=10**6, saved_bytes=7e6, heads=8, text_tokens=16)
    (blocks,) = model.components
    own = replace(blocks, exchanges=tuple(e for e in blocks.exchanges if e.layer < 3))
    model = replace(model, components=(own,))
    return make.scenario(model, training_scenes.node(make), 8, 8, checkpointing="selective")


def measured(strategy, scenario):
    """What a replay of a point measures."""
    result = run_point(strategy, scenario)
    return result.times, result.expected


def answer(ask, scenario):
    """The answer to one question; a refusal is one."""
    try:
        return ask(scenario)
    except (InfeasibleError, DeadlockError) as error:
        return str(error)


def answers(strategy, scenario):
    """All that is asked about a point, by what is asked of which job."""
    try:
        parts = [*enumerate(strategy.jobs(scenario))]
    except InfeasibleError as error:
        return {"jobs": str(error)}
    asked = [(number, name, own, there) for number, (own, there) in parts for name in QUESTIONS]
    found = {
        (number, name): answer(getattr(own, name), there)
        for number, name, own, there in asked
        if hasattr(own, name)
    }
    return {**found, "replay": answer(partial(measured, strategy), scenario)}


def sample(strategies, neighbours, scenario):
    """Points of every strategy in any order, some of which differ in a single field."""
    random, found = Random(POINTS), []
    for strategy in strategies:
        try:
            candidates = list(strategy.candidates(scenario))
        except InfeasibleError:
            continue
        picked = random.sample(candidates, min(POINTS, len(candidates)))
        wider = [*dict.fromkeys(chain.from_iterable(map(neighbours, picked)))]
        found += random.sample(wider, min(POINTS, len(wider)))
    random.shuffle(found)
    return found


def hold_however_reused(anew, points):
    fresh = {point: answers(point, anew()) for point in points}
    for order in (points, points[::-1]):
        reused = anew()
        again = {point: answers(point, reused) for point in order}
        assert not [(at, name) for at in order for name in fresh[at] if again[at][name] != fresh[at][name]]


@pytest.mark.parametrize("scene", [*TRAINED, "teams"])
def test_a_reused_training_scenario_answers_as_a_fresh_one(make, scene):
    strategies = [cls for cls in strategies_of("train").values() if cls.task == "train"]
    anew = partial(teams, make) if scene == "teams" else partial(training_scenes.build, make, scene)
    hold_however_reused(anew, sample(strategies, training_points.neighbours, anew()))


@pytest.mark.parametrize("scene", SAMPLED)
def test_a_reused_sampling_scenario_answers_as_a_fresh_one(make, scene):
    anew = partial(sampling_scenes.build, make, scene)
    neighbours = partial(sampling_points.neighbours, scenario=anew())
    hold_however_reused(anew, sample(strategies_of("sample").values(), neighbours, anew()))
