"""FSDP2 itself: what ``fully_shard`` exchanges and owns on real ranks is what the plan says, and faults in it show."""

import pytest

from profiles.errors import InputError
from strategies.pipelining import mesh, teams, units
from strategies.registry import make_strategy
from validate.running.fully_sharded import RankResult, ShardedTraining, check, compare, plan_of, planned_calls

pytestmark = pytest.mark.slow

CASES = {
    "sharded": {},
    "hybrid, two micro-batches": {"shard_size": 2, "micro_batches": 2},
    "ulysses": {"context_degree": 2},
    "ring": {"context_degree": 4, "context": "ring", "micro_batches": 2},
    "tensor and ulysses, two micro-batches": {"tensor_degree": 2, "context_degree": 2, "micro_batches": 2},
    "checkpointed": {},
    "checkpointed tensor": {"tensor_degree": 2},
    "half ring": {"context_degree": 4, "context": "ring"},
    "half tensor": {"tensor_degree": 2},
}


def training_of(name):
    strategy = make_strategy("fsdp", CASES[name])
    checkpointing = "block" if name.startswith("checkpointed") else "none"
    return ShardedTraining(
        strategy, 4, 8, checkpointing, "bfloat16" if name.startswith("half") else "float64"
    )


@pytest.fixture(scope="module")
def held():
    return dict(zip(CASES, check([training_of(name) for name in CASES]), strict=True))


def test_torch_exchanges_and_owns_what_is_planned_and_finds_the_gradients_of_one_process(held):
    for name, of in held.items():
        assert of.wrong == [], name
        assert of.gradient_error < (0.05 if name.startswith("half") else 1e-12)
        assert sum(map(len, of.calls.values()))
    assert held["checkpointed"].calls == held["sharded"].calls


FAULTS = (
    ("sharded", units, "AHEAD_BACKWARD", 2),
    ("sharded", units, "keeps", lambda last, unit, reshard: not reshard),
    ("half ring", teams, "SINGLE_BYTES", 2.0),
    ("half tensor", mesh, "divided_parameters", lambda of, layer: of.layers[layer].parameters),
)
"""Gathers in another order, units that are kept, gradients around a ring in half, norms that are divided."""


@pytest.mark.parametrize(("name", "room", "key", "value"), FAULTS, ids=[key for _, _, key, _ in FAULTS])
def test_a_plan_that_exchanges_otherwise_shows(held, monkeypatch, name, room, key, value):
    assert planned_calls(training_of(name)) == held[name].calls
    monkeypatch.setattr(room, key, value)
    assert planned_calls(training_of(name)) != held[name].calls


def test_another_exchange_another_share_and_another_gradient_are_named(held):
    of = held["sharded"]
    calls = {stream: list(exchanges) for stream, exchanges in of.calls.items()}
    good = RankResult(calls, of.owned[0], 0.0)
    lost = {stream: exchanges[:-1] for stream, exchanges in calls.items()}
    ranks = [good, good._replace(calls=lost), good._replace(owned=1), good._replace(gradient_error=1e-3)]
    assert compare(training_of("sharded"), [good] * 4).wrong == []
    words = " ".join(compare(training_of("sharded"), ranks).wrong)
    assert "ranks (1,) exchange something else" in words
    assert "parameters" in words and "off by 1.0e-03" in words


def test_what_torch_does_not_shard_is_refused():
    with pytest.raises(InputError, match="nothing is sharded: that is ddp"):
        plan_of(ShardedTraining(make_strategy("fsdp", {"shard_size": 1}), 4, 8))
    with pytest.raises(InputError, match="nothing is sharded"):
        plan_of(ShardedTraining(make_strategy("fsdp", {"tensor_degree": 4}), 4, 8))
