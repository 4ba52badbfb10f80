"""FSDP2 itself: what ``fully_shard`` exchanges and owns on real ranks is what the plan says, and faults in it show."""

import pytest
import torch

from profiles.errors import InputError
from strategies.pipelining import mesh, teams, units
from strategies.registry import make_strategy
from validate.__main__ import main
from validate.running import fully_sharded
from validate.running.fully_sharded import Found, ShardedTraining, check, hold, plan_of, planned_calls

pytestmark = pytest.mark.slow

CASES = {
    "sharded": {},
    "kept through two micro-batches": {"reshard": "false", "micro_batches": 2},
    "hybrid, two micro-batches": {"shard_size": 2, "micro_batches": 2},
    "ulysses": {"context_degree": 2},
    "ulysses, replicated": {"context_degree": 2, "shard_size": 1},
    "ring": {"context_degree": 4, "context": "ring", "micro_batches": 2},
    "tensor": {"tensor_degree": 2},
    "tensor and ulysses, two micro-batches": {"tensor_degree": 2, "context_degree": 2, "micro_batches": 2},
    "tensor and ring": {"tensor_degree": 2, "context_degree": 2, "context": "ring"},
    "checkpointed": {},
    "checkpointed ulysses": {"context_degree": 4},
    "checkpointed tensor": {"tensor_degree": 2},
    "half": {},
    "half ring": {"context_degree": 4, "context": "ring"},
    "half tensor": {"tensor_degree": 2},
}


def asked(name):
    strategy = make_strategy("fsdp", CASES[name])
    checkpointing = "block" if name.startswith("checkpointed") else "none"
    return ShardedTraining(
        strategy, 4, 8, checkpointing, "bfloat16" if name.startswith("half") else "float64"
    )


@pytest.fixture(scope="module")
def held():
    return dict(zip(CASES, check([asked(name) for name in CASES]), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_torch_exchanges_and_owns_what_is_planned_and_finds_the_gradients_of_one_process(held, name):
    assert held[name].wrong == []
    assert held[name].gradient_error < (0.05 if name.startswith("half") else 1e-12)
    assert sum(map(len, held[name].calls.values()))


def test_a_checkpointed_block_is_gathered_once_for_both_its_passes(held):
    assert held["checkpointed"].calls == held["sharded"].calls


@pytest.mark.parametrize(
    "fault",
    [{"AHEAD_BACKWARD": 2}, {"keeps": lambda last, unit, reshard: not reshard}],
    ids=["order", "kept"],
)
def test_a_plan_that_gathers_otherwise_shows(held, monkeypatch, fault):
    right = planned_calls(asked("sharded"))
    for name, value in fault.items():
        monkeypatch.setattr(units, name, value)
    assert planned_calls(asked("sharded")) != right


@pytest.mark.parametrize(
    ("name", "room", "fault"),
    [
        ("half ring", teams, {"SINGLE_BYTES": 2.0}),
        ("half tensor", mesh, {"divided_parameters": lambda of, layer: of.layers[layer].parameters}),
    ],
    ids=["gradients around a ring in half", "norms divided"],
)
def test_a_plan_that_sends_other_bytes_shows(held, monkeypatch, name, room, fault):
    assert planned_calls(asked(name)) == held[name].calls
    for key, value in fault.items():
        monkeypatch.setattr(room, key, value)
    assert planned_calls(asked(name)) != held[name].calls


def test_torch_has_no_ring_that_replaces_a_cpu_s_kernel_so_ranks_call_what_is_behind_it():
    from torch.distributed.tensor.experimental._context_parallel import _attention  # noqa: PLC0415  takes a while

    served = _attention.custom_ops
    assert torch.ops.aten._scaled_dot_product_flash_attention.default in served
    assert not {fully_sharded.KERNEL.default, fully_sharded.BACKWARD.default} & served.keys()


def test_another_exchange_another_share_and_another_gradient_are_named(held):
    of = held["sharded"]
    calls = {stream: list(own) for stream, own in of.calls.items()}
    good = Found(calls, of.owned[0], 0.0)
    lost = {stream: own[:-1] for stream, own in calls.items()}
    ranks = [good, good._replace(calls=lost), good._replace(owned=1), good._replace(gradient_error=1e-3)]
    assert hold(asked("sharded"), [good] * 4).wrong == []
    words = " ".join(hold(asked("sharded"), ranks).wrong)
    assert "ranks (1,) exchange something else" in words
    assert "parameters" in words and "off by 1.0e-03" in words


def test_what_torch_does_not_shard_is_refused():
    with pytest.raises(InputError, match="nothing is sharded: that is ddp"):
        plan_of(ShardedTraining(make_strategy("fsdp", {"shard_size": 1}), 4, 8))
    with pytest.raises(InputError, match="nothing is sharded"):
        plan_of(ShardedTraining(make_strategy("fsdp", {"tensor_degree": 4}), 4, 8))


def test_a_mode_that_a_schedule_does_not_have_is_refused(capsys):
    assert main(["run", "--schedule", "fsdp", "--mode", "replay"]) == 2
    assert main(["run", "--schedule", "ddp", "--mode", "torch"]) == 2
    assert all("--mode is" in line for line in capsys.readouterr().err.splitlines())
