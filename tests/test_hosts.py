"""The host beside the GPU: runs take the longer of the two, and closed forms of what calls cost."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from profiles.machines.hosts import CALLS_S, FREE, MESSAGE_S, NO_CALLS, Calls
from profiles.software.stacks import load_stack
from sim.replay.engine import simulate
from strategies.patching.builder import SamplingBuilder
from strategies.plans.actions import PatchAction
from strategies.plans.placement import Placement
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make as make_sampler
from strategies.sampling_scenario import SamplingScenario

WORK = PatchAction(0, 0, 0)
seconds = st.floats(0.0, 4.0)


def built(ops, calls=NO_CALLS, cluster="ideal"):
    """The trace of (GPU seconds, host seconds) on one device."""
    builder = SamplingBuilder(Placement(load_cluster(cluster), 1, 1, 1), calls)
    for gpu_s, host_s in ops:
        builder.compute(0, WORK, gpu_s, host_s)
    return simulate(builder.build((), ((),)))


def test_a_run_takes_the_longer_of_gpu_and_host():
    assert built([(1.0, 3.0)] * 4).end_s == 12.0
    assert built([(3.0, 1.0)] * 4).end_s == 12.0


def test_the_host_runs_ahead_of_a_busy_gpu_up_to_a_limit():
    ops = [(10.0, 1.0), (0.0, 3.0), (0.0, 3.0)]
    assert built(ops, Calls(1.0, ahead_s=100.0)).end_s == 10.0
    assert built(ops, Calls(1.0, ahead_s=2.0)).end_s == 10.0 - 2.0 + 3.0 + 3.0
    assert built(ops, Calls(1.0, ahead_s=0.0)).end_s == 10.0 + 3.0 + 3.0


@settings(derandomize=True)
@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=8), seconds)
def test_no_run_beats_its_gpu_or_its_host_or_exceeds_both_together(ops, ahead_s):
    gpu_s, host_s = (sum(column) for column in zip(*ops, strict=True))
    end_s = built(ops, Calls(1.0, ahead_s)).end_s
    assert max(gpu_s, host_s) <= end_s + 1e-9
    assert end_s <= gpu_s + host_s + 1e-9


@pytest.mark.parametrize(
    ("call_s", "all_to_all_s", "message_s"), [(None, CALLS_S["all_to_all"], MESSAGE_S), (0.25, 0.25, 0.125)]
)
def test_calls_cost_the_host_of_each_member_and_messages_both_ends(call_s, all_to_all_s, message_s):
    builder = SamplingBuilder(Placement(load_cluster("ideal"), 2, 2, 2), Calls(2.0, 1.0, call_s))
    for device in range(2):
        builder.compute(device, WORK, 0.0, 1.0)
    builder.collective("all_to_all", range(2), 8.0, calls=3)
    tensor = builder.tensor("hidden", 0, 0, 8.0)
    builder.compute(0, WORK, 0.0)
    builder.compute(1, WORK, 0.0)
    builder.send(0, tensor)
    builder.receive(1, tensor)
    plan = builder.build((), ((), ()))
    called = 2.0 * 3 * all_to_all_s
    for ops in plan.ops:
        assert [op.host_s for op in ops] == [1.0 + called, 2.0 * message_s]
    assert simulate(plan).end_s == pytest.approx(1.0 + called + 2.0 * message_s)


def drawing(cluster="a100-nvlink-8", stack="eager", gpus=8, **options):
    where = load_cluster(cluster) if isinstance(cluster, str) else cluster
    workload = SamplingWorkload(gpus, 1024, 1024, 2, "batch", **options)
    return SamplingScenario(load_model("pixart"), where, workload, stack=load_stack(stack))


def latency_s(sampler, scenario):
    return sum(phase.times * simulate(phase.plan).end_s for phase in sampler.phases(scenario))


@pytest.mark.parametrize("name", ["ring", "pipefusion"])
def test_small_images_on_many_gpus_wait_for_the_host_and_graphs_for_nobody(name):
    displaced = {"warmup_steps": 0} if name in ("distrifusion", "pipefusion") else {}
    sampler = make_sampler(name, displaced)
    free = replace(load_cluster("a100-nvlink-8"), host=FREE)
    assert latency_s(sampler, drawing()) > 1.05 * latency_s(sampler, drawing(free))
    assert drawing(stack="fused").calls.call_s == load_stack("fused").call_s < CALLS_S["all_gather"]
    graphs = drawing(stack="compiled")
    assert graphs.calls == NO_CALLS
    assert not any(op.host_s for phase in sampler.phases(graphs) for ops in phase.plan.ops for op in ops)
