"""Offloading: what lies on the host leaves the GPU, and comes and goes over its link to the host."""

import pytest

import sim
from profiles.architectures.models import load_model
from profiles.costs.offloading import CARDS_PER_SWITCH, HostSide, copied_s
from profiles.errors import InfeasibleError
from profiles.machines.clusters import load_cluster
from profiles.software.recipes import RECIPES
from sim.replay.memory import resident_bytes
from strategies.plans.actions import OPTIMIZER

MIXED = RECIPES["mixed"]


def asked(strategy="ddp", **given):
    return sim.run("pixart", strategy, **{"gpus": 4, "batch_size": 16, **given})


def steps_s(result):
    return sum(op.duration_s for op in result.trace.plan.ops[0] if op.action[1] == OPTIMIZER)


@pytest.mark.parametrize(
    ("cluster", "gpus", "sharing"), [("p4de", 8, CARDS_PER_SWITCH), ("p4de", 1, 1), ("l20-pcie-8", 8, 1)]
)
def test_cards_behind_one_switch_share_its_way_to_the_host(cluster, gpus, sharing):
    there = load_cluster(cluster)
    side = HostSide.of(there, gpus)
    assert side.gpus == min(gpus, 8)
    assert side.copied_s(1e9) == sharing * copied_s(there.device, 1e9)


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_an_offloaded_optimizer_leaves_the_gpu_and_steps_on_the_host(strategy):
    plain, off = asked(strategy), asked(strategy, offload="optimizer")
    trained = sum(of.trained_parameters for of in load_model("pixart").components[2].layers)
    part = trained / (1 if strategy == "ddp" else 4)
    assert resident_bytes(plain.trace) - resident_bytes(off.trace) == pytest.approx([12 * part])
    side = off.source.scenario.host_side
    assert steps_s(off) == pytest.approx(side.step_s(part, MIXED))
    assert off.iteration_s - plain.iteration_s == pytest.approx(steps_s(off) - steps_s(plain), rel=0.05)
    assert off.title.endswith("optimizer on the host")
    assert off.options["offload"] == off.flags["offload"] == "optimizer"


def test_blocks_on_the_host_leave_room_for_one_and_hold_a_pass_up_only_where_they_take_longer():
    plain, few, many = (
        asked(batch_size=size, trainable="lora:4", **({"offload": off} if off else {}))
        for size, off in ((64, None), (64, "layers:10"), (4, "layers:27"))
    )
    layers = load_model("pixart").components[2].layers
    block = 2 * layers[5].parameters
    spared = (resident_bytes(plain.trace) - resident_bytes(few.trace)).tolist()
    last = [2 * layer.parameters for layer in layers[-10:]]
    assert spared == [pytest.approx(sum(last) - max(last))]
    assert few.iteration_s == plain.iteration_s
    up_s = many.source.scenario.host_side.copied_s(sum(2 * layer.parameters for layer in layers[-27:]))
    (stage,) = many.stages
    assert stage["forward_s"] == pytest.approx(up_s)
    assert stage["forward_s"] <= stage["backward_s"]
    assert spared[0] == pytest.approx(9 * block, rel=0.05)
    assert "10 blocks on the host" in few.title


@pytest.mark.parametrize(("strategy", "blocks", "words"), [
    ("ddp", 28, "transformer has 28 blocks, of which one stays"),
    ("zero3", 3, "the backbone's weights are shared among GPUs"),
    ("1f1b", 3, "pipeline_degree is 2"),
])  # fmt: skip
def test_blocks_can_be_swapped_of_whole_backbones_alone(strategy, blocks, words):
    with pytest.raises(InfeasibleError, match=words):
        asked(strategy, trainable="lora:4", offload=f"layers:{blocks}")
