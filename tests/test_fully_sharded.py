"""FSDP2 itself: what ``fully_shard`` exchanges and owns on real ranks is what the plan says, and faults in it show."""

import pytest

from profiles.errors import InputError
from strategies.registry import make as make_strategy
from validate.running.fully_sharded import RankResult, ShardedTraining, failures, plan_of, run_trainings

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
    checkpointing = "block" if name.startswith("checkpointed") else "none"
    precision = "bfloat16" if name.startswith("half") else "float64"
    return ShardedTraining(make_strategy("fsdp", CASES[name]), 4, 8, checkpointing, precision)


@pytest.fixture(scope="module")
def ran():
    return dict(zip(CASES, run_trainings([training_of(name) for name in CASES]), strict=True))


def test_torch_exchanges_and_owns_what_is_planned_and_finds_the_gradients_of_one_process(ran):
    for name, ranks in ran.items():
        assert failures(training_of(name), ranks) == [], name
        assert max(rank.gradient_error for rank in ranks) < (0.05 if name.startswith("half") else 1e-12)
        assert sum(map(len, ranks[0].calls.values()))
    assert ran["checkpointed"][0].calls == ran["sharded"][0].calls


def test_ranks_that_exchange_otherwise_show(ran):
    good = ran["sharded"][0]
    lost = RankResult({stream: exchanges[:-1] for stream, exchanges in good.calls.items()}, 1, 1e-3)
    words = " ".join(failures(training_of("sharded"), [good, lost, good, good]))
    assert "ranks (1,) exchange something else" in words
    assert "parameters" in words and "off by 1.0e-03" in words


def test_what_torch_does_not_shard_is_refused():
    for options in ({"shard_size": 1}, {"tensor_degree": 4}):
        with pytest.raises(InputError, match="nothing is sharded: that is ddp"):
            plan_of(ShardedTraining(make_strategy("fsdp", options), 4, 8))
