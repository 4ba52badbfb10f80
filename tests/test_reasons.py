"""Reasons: whom the time of a point goes to, and what it waits for."""

import re

import pytest

import sim
from profiles.software.runtimes import all_runtimes
from sim.replay.engine import simulate
from sim.replay.metrics import MESSAGE, awaited_s, exposed_communication_s
from sim.report.reasons import account_of, shares
from sim.report.results import NO_RUNTIME_TODAY

PIXART = {"resolution": 512, "steps": 4}


@pytest.fixture(scope="module")
def hurried():
    return sim.run("pixart", "ulysses", "a100-nvlink-8", 8, **PIXART)


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        ("ddp", {"gpus": 16}),
        ("fsdp", {"gpus": 16, "shard_size": 8}),
        ("pipefusion", {"gpus": 4, "patches": 4, **PIXART}),
        ("ring", {"gpus": 4, **PIXART}),
    ],
)
def test_what_is_awaited_adds_up_to_the_exposed_communication(strategy, given):
    result = sim.run("pixart" if "steps" in given else "sd21", strategy, "p4de", **given)
    found = awaited_s(result.trace)
    assert sum(found.values()) == pytest.approx(exposed_communication_s(result.trace), abs=1e-12)
    assert all(seconds > 0 for seconds in found.values())


@pytest.mark.parametrize(("devices_per_node", "between_nodes"), [(2, False), (1, True)])
def test_a_message_is_awaited_on_the_link_that_it_takes(make, devices_per_node, between_nodes):
    link = make.link(bandwidth=4.0)
    cluster = make.cluster(link, make.link("nic", bandwidth=4.0), devices_per_node)
    rows = [[make.op("0F0", 1.0, writes="a")], [make.op("1F0", 1.0, "a")]]
    trace = simulate(make.plan(rows, cluster=cluster, sizes={"a": 8.0}))
    assert awaited_s(trace) == {(MESSAGE, between_nodes): 2.0 / 2}  # one of two devices waits


def test_the_time_in_which_the_host_is_behind_is_none_of_compute(hurried):
    found = account_of(hurried)
    busy, wire, idle = shares(hurried)
    assert (found.wire, found.idle) == (wire, idle)
    assert found.compute + found.host == pytest.approx(busy)
    assert found.host > 0.5
    assert "wait for their host" in found.reasons[0]
    assert "--stack fused-graphs" in found.reasons[0]


def test_the_step_on_the_host_is_the_hosts_and_not_called_compute():
    asked = {"gpus": 2, "batch_size": 16}
    plain, offloaded = (sim.run("sd21", "ddp", **asked, offload=of) for of in ("none", "optimizer"))
    found, without = account_of(offloaded), account_of(plain)
    (step_s,) = {op.duration_s for row in offloaded.trace.plan.ops for op in row if str(op.action) == "0O"}
    assert found.host - step_s / offloaded.iteration_s == pytest.approx(0, abs=0.02)  # and the host keeps up
    assert found.compute < without.compute
    said = f"{step_s / offloaded.iteration_s:.0%} of the time the optimizer steps on "
    assert found.reasons[0].startswith(said)
    assert not any("optimizer" in reason for reason in without.reasons)
    assert found.compute + found.host + found.wire + found.idle == pytest.approx(1)


def test_the_exchange_that_takes_the_time_is_named_with_its_pace_and_link():
    slow, sound = (
        sim.run("pixart", "ulysses", "l40-pcie-8", gpus, resolution=2048, steps=4, stack="eager")
        for gpus in (8, 2)
    )
    assert account_of(slow).reasons == (
        "87% of the time is spent waiting for all-to-all of 8 GPUs in a node (pcie): each moves 0.99 GB/s, of the"
        " link's 26",
    )
    (reason,) = account_of(sound).reasons
    assert "each moves 24 GB/s, of the link's 26" in reason


@pytest.mark.parametrize(
    ("asked", "unit", "per_second", "objective"),
    [
        ({"model": "sd21", "gpus": 64, "strategy": "fsdp,zero2"}, "ms", 1e3, None),
        ({"model": "pixart", "gpus": 4, "strategy": "ulysses,ring", **PIXART}, "GPU-s", 1, "cost"),
    ],
)
def test_the_parts_of_the_difference_to_the_runner_up_add_up(asked, unit, per_second, objective):
    sweep = sim.sweep(**asked, objective=objective, workers=1)
    verdict = sweep.verdict
    assert f"({verdict.difference})" in dict(verdict.lines)["runner-up"]
    parts = re.findall(rf"([\d,.]+) {unit} (more|less)", verdict.difference)
    total = sum(float(of.replace(",", "")) * (1 if way == "more" else -1) for of, way in parts)
    both = verdict.runner_up, verdict.best
    theirs, ours = (of.gpu_s_per_sample if objective else of.expected.duration_s for of in both)
    assert total == pytest.approx((theirs - ours) * per_second, 0.05, 0.25 if unit == "ms" else 0.0025)


def test_a_verdict_on_fewer_gpus_says_what_all_of_them_would_take():
    sweep = sim.sweep("pixart", "l40-pcie-8", 8, resolution=2048, steps=4, strategy="ulysses", workers=1)
    assert sweep.best.num_gpus == 2
    whole = min(p.result.latency_s for p in sweep if p.num_gpus == 8)
    said = sweep.verdict.account.reasons[-1]
    assert said.startswith(f"ulysses on all 8 GPUs takes {whole:.3f} s: 8")
    assert "all-to-all of 8 GPUs" in said
    assert sweep.verdict.to_json()["reasons"] == list(sweep.verdict.account.reasons)


FLUX = {"model": "flux-dev", "cluster": "l40-pcie-8", "gpus": 4, "device": "h100-80gb-sxm"}
ALPHA = {"model": "pixart", "cluster": "l40-pcie-8", "gpus": 8}


@pytest.mark.parametrize(
    ("asked", "runtime"), [(FLUX, "xdit"), pytest.param(ALPHA, "xdit-scripts", marks=pytest.mark.long)]
)
def test_the_headline_runs_and_is_within_five_per_cent_of_the_fastest_that_any_runtime_starts(asked, runtime):
    asked = asked | {"stack": "eager", "steps": 20, "resolution": 1024}
    sweep = sim.sweep(**asked, workers=1)
    verdict, found = sweep.verdict, {}
    assert runtime in verdict.runs_in
    for one in all_runtimes().values():
        if one.task == "sample" and not one.unknown(asked["model"]):
            found[one.name] = sim.sweep(**asked, runtime=one.name, workers=1, top=1).fastest_point()
    fastest = min(point.result.latency_s for point in found.values())
    assert sweep.choice().best.result.latency_s == fastest <= verdict.best.latency_s <= 1.05 * fastest
    assert verdict.research is not None and verdict.research.latency_s < fastest
    assert f"{NO_RUNTIME_TODAY}" in dict(verdict.lines)["research"]


def test_a_vae_on_all_gpus_is_offered_where_one_is_included():
    given = {"gpus": 4, "resolution": 1024, "strategy": "ulysses", "workers": 1, "steps": 4}
    sweep = sim.sweep("pixart", "a100-nvlink-8", include="all", **given)
    offered = {change.name: change for change in sweep.verdict.changes}
    found = offered[f"VAE on {sweep.best.num_gpus} GPUs"]
    assert found.flags == f"--vae-parallel {sweep.best.num_gpus}"
    shared = {k: v for k, v in sweep.best.parameters.items() if v is not None}
    again = sim.run(
        "pixart", "ulysses", "a100-nvlink-8", sweep.best.num_gpus, resolution=1024, steps=4, include="all",
        vae_parallel=sweep.best.num_gpus, **shared,
    )  # fmt: skip
    assert found.speed == pytest.approx(again.samples_per_s / sweep.best.samples_per_s)
    bare = sim.sweep("pixart", "a100-nvlink-8", **given)
    assert not any("VAE" in change.name for change in bare.verdict.changes)


def test_gpus_that_wait_while_one_decodes_are_the_reason():
    asked = {"resolution": "480x832", "steps": 2, "frames": 33, "include": "all"}
    result = sim.run("wan2.1-1.3b", "ulysses", "h100-nvlink-8", 4, **asked)
    account = result.account
    assert f"{account.idle:.0%} idle: 3 of 4 GPUs wait while one decodes" in account.reasons
    divided = sim.run("wan2.1-1.3b", "ulysses", "h100-nvlink-8", 4, **asked, vae_parallel=4)
    assert not any("decodes" in reason for reason in divided.account.reasons)
