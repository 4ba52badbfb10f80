"""Reasons: whom the time of a point goes to, and what it waits for."""

import re
from dataclasses import replace

import pytest

import sim
from sim.explore.legality import starters
from sim.explore.points import Point
from sim.outcomes.runs import run_point
from sim.replay.metrics import exposed_communication_s
from sim.replay.waits import MESSAGE, Way, awaited_s
from sim.report.numbers import plain, throughput
from sim.report.reasons import COUNTS, account_of, account_of_best, delays, shares
from sim.report.started import best_of_each, best_started

PIXART = {"resolution": 512, "steps": 4}


def account(result):
    return account_of(result.source.strategy, result.source.scenario, result)


@pytest.fixture(scope="module")
def hurried():
    return sim.run("pixart", "ulysses", "a100-nvlink-8", 8, **PIXART)


@pytest.mark.parametrize(
    ("strategy", "given"),
    [
        ("ddp", {"gpus": 16}),
        ("fsdp", {"gpus": 16, "shard_size": 8}),
        ("1f1b", {"gpus": 4, "pipeline_degree": 4, "micro_batches": 4}),
        ("pipefusion", {"gpus": 4, "patches": 4, **PIXART}),
        ("ring", {"gpus": 4, **PIXART}),
    ],
)
def test_what_is_awaited_adds_up_to_the_exposed_communication(strategy, given):
    result = sim.run("pixart" if "steps" in given else "sd21", strategy, "p4de", **given)
    found = awaited_s(result.trace)
    assert sum(found.values()) == pytest.approx(exposed_communication_s(result.trace), abs=1e-12)
    assert all(seconds > 0 for seconds in found.values())


def test_messages_and_collectives_are_told_apart_and_by_the_nodes_they_cross():
    pipeline = {"pipeline_degree": 4, "micro_batches": 4, "batch_size": 16}
    inside = awaited_s(sim.run("sd21", "1f1b", "p4de", 4, **pipeline).trace)
    assert set(inside) == {Way(MESSAGE, between_nodes=False)}
    across = awaited_s(sim.run("sd21", "ddp", "p4de", 16, batch_size=16).trace)
    assert set(across) == {Way("all_reduce", between_nodes=True)}


def test_the_time_in_which_the_host_is_behind_is_none_of_compute(hurried):
    found = account(hurried)
    busy, wire, idle = shares(hurried)
    assert (found.wire, found.idle) == (wire, idle)
    assert found.compute + found.host == pytest.approx(busy)
    assert found.host > 0.5
    assert "wait for their host" in found.reasons[0]
    assert "--stack compiled" in found.reasons[0]


def test_the_step_on_the_host_is_the_hosts_and_not_called_compute():
    asked = {"gpus": 2, "batch_size": 16}
    plain, offloaded = (sim.run("sd21", "ddp", **asked, offload=of) for of in ("none", "optimizer"))
    found, without = account(offloaded), account(plain)
    (step_s,) = {op.duration_s for row in offloaded.trace.plan.ops for op in row if str(op.action) == "0O"}
    assert found.host - step_s / offloaded.iteration_s == pytest.approx(0, abs=0.02)  # and the host keeps up
    assert found.compute < without.compute
    assert found.reasons[0].startswith(
        f"{step_s / offloaded.iteration_s:.0%} of the time the optimizer steps on "
    )
    assert not any("optimizer" in reason for reason in without.reasons)
    assert found.compute + found.host + found.wire + found.idle == pytest.approx(1)


def test_a_host_that_keeps_up_is_not_named():
    large = sim.run("pixart", "single", "a100-nvlink-8", 1, resolution=2048, steps=4)
    found = account(large)
    assert found.host < COUNTS
    assert not any("host" in reason for reason in found.reasons)
    assert found.compute + found.host == 1.0


def test_the_exchange_that_takes_the_time_is_named_with_its_pace_and_link():
    slow, sound = (
        sim.run("pixart", "ulysses", name, 8, resolution=2048, steps=4)
        for name in ("l40-pcie-8", "l20-pcie-8")
    )
    assert slow.latency_s > 3 * sound.latency_s
    assert account(slow).reasons == (
        "86% of the time is spent waiting for all-to-all of 8 GPUs in a node (pcie): each moves 0.99 GB/s, of the"
        " link's 26",
    )
    (reason,) = account(sound).reasons
    assert "each moves 13 GB/s, of the link's 26" in reason


def test_what_compute_loses_to_collectives_is_what_its_ops_last_beyond_their_plan():
    result = sim.run("sd21", "fsdp", gpus=64, shard_size=8, reshard="false", stack="compiled")
    found, trace = account(result), result.trace
    planned_s = sum(op.duration_s for row in trace.plan.ops for op in row) / trace.plan.num_devices
    lost_s = (found.slowed + found.host) * result.iteration_s
    assert lost_s == pytest.approx(result.expected.busy_s - planned_s, rel=1e-2)
    assert found.slowed > 0.05
    (reason,) = found.reasons
    assert reason == (
        f"compute loses {found.slowed:.0%} of the time, {found.slowed * result.iteration_s * 1e3:,.1f} ms, to"
        " collectives that run beside it, mostly all-reduce of 8 GPUs between nodes"
    )
    assert found.compute + found.host + found.wire + found.idle == pytest.approx(1)


def test_collectives_that_nothing_runs_beside_slow_nothing():
    found = account(sim.run("sd21", "zero2", gpus=64, overlap="none"))
    assert found.slowed == 0
    assert not any("loses" in reason for reason in found.reasons)


def test_where_nothing_holds_compute_up_that_is_the_reason():
    assert account(sim.run("sd21", "ddp", gpus=1, batch_size=32)).reasons == (
        "GPUs compute 100% of the time; nothing else takes a tenth of it",
    )


def test_all_that_is_awaited_on_the_wire_is_told_but_a_tenth():
    result = sim.run(
        "flux-dev", "hybrid", "l40-pcie-8", 8, ring_degree=4, tensor_degree=2, patches=1, steps=4
    )
    found = account(result)
    told = [reason for reason in found.reasons if "waiting for" in reason]
    assert [word in reason for word, reason in zip(("ring", "all-reduce"), told, strict=True)] == [True] * 2
    shares_told = sum(int(reason.partition("%")[0]) for reason in told) / 100
    assert 0.9 * found.wire - 0.01 <= shares_told <= found.wire + 0.01


@pytest.mark.parametrize(
    ("asked", "unit", "per_second", "objective"),
    [
        ({"model": "sd21", "gpus": 64, "strategy": "fsdp,zero2"}, "ms", 1e3, None),
        ({"model": "pixart", "gpus": 4, "strategy": "ulysses,ring", **PIXART}, "s", 1, None),
        ({"model": "pixart", "gpus": 4, "strategy": "ulysses,ring", **PIXART}, "GPU-s", 1, "cost"),
    ],
)
def test_the_parts_of_the_difference_to_the_runner_up_add_up(asked, unit, per_second, objective):
    sweep = sim.sweep(**asked, objective=objective, workers=1)
    verdict = sweep.verdict
    (said,) = [
        one
        for one in verdict.account.reasons
        if re.match(r"\w+ takes [^:]* more(, within the error)?: ", one)
    ]
    assert said.startswith(f"{verdict.runner_up.strategy} takes ")
    assert (", within the error: " in said) == verdict.runner_up_ties
    parts = re.findall(rf"([+-])([\d,.]+) {unit}", said.partition(": ")[2])
    total = sum(float(f"{sign}{of.replace(',', '')}") for sign, of in parts)
    each = (
        one.gpu_s_per_sample if objective == "cost" else one.expected.duration_s
        for one in (verdict.runner_up, verdict.best)
    )
    theirs, ours = each
    assert total == pytest.approx(
        (theirs - ours) * per_second, rel=0.05, abs=2.5 * 10 ** -(1 if unit == "ms" else 3)
    )


def test_a_team_that_encodes_the_same_samples_is_named():
    given = {"shard_size": 2, "batch_size": 8, "checkpointing": "block"}
    team = sim.run("wan2.1-1.3b", "fsdp", "p4de", 8, context_degree=4, **given)
    assert any(reason.startswith("all 4 GPUs of a team encode the same") for reason in account(team).reasons)
    for other in ({"context_degree": 1}, {"context_degree": 4, "frozen": "cached"}):
        alone = sim.run("wan2.1-1.3b", "fsdp", "p4de", 8, **given, **other)
        assert not any("encode" in reason for reason in account(alone).reasons)


def test_a_verdict_on_fewer_gpus_says_what_all_of_them_would_take():
    sweep = sim.sweep("pixart", "l40-pcie-8", 8, resolution=2048, steps=4, strategy="ulysses", workers=1)
    assert sweep.best.num_gpus == 2
    whole = min(p.result.latency_s for p in sweep if p.num_gpus == 8)
    said = sweep.verdict.account.reasons[-1]
    assert said.startswith(f"ulysses on all 8 GPUs takes {whole:.3f} s: 8")
    assert "all-to-all of 8 GPUs" in said
    assert sweep.verdict.to_json()["reasons"] == list(sweep.verdict.account.reasons)


def test_what_all_gpus_would_take_is_that_of_the_fastest_point_not_of_the_one_bounded_lowest():
    sweep = sim.sweep("pixart", "l40-pcie-8", 8, resolution=2048, steps=4, strategy="ulysses", workers=1)
    whole = next(point for point in sweep.points if point.num_gpus == 8)
    twice = replace(whole.result.expected, duration_s=2 * whole.result.expected.duration_s)
    sweep.points.append(
        replace(whole, result=replace(whole.result, expected=twice), bound_s=whole.bound_s / 2)
    )
    said = account_of_best(sweep, sweep.best_point()).reasons[-1]
    assert said.startswith(f"ulysses on all 8 GPUs takes {whole.result.latency_s:.3f} s: ")


def test_points_that_were_only_bounded_are_replayed_before_one_is_said_to_be_the_fastest_on_all_gpus():
    given = {"resolution": 2048, "steps": 2, "strategy": "hybrid", "objective": "cost", "exhaustive": True}
    sweep = sim.sweep("pixart", "l40-pcie-8", 8, workers=1, **given)
    own = [point for point in sweep.points if point.num_gpus == 8 and point.result is not None]
    fastest, *_, slowest = sorted(own, key=lambda point: point.result.latency_s)
    slowest.result, slowest.bound_s = None, fastest.bound_s / 2
    said = f"hybrid on all 8 GPUs takes {fastest.result.latency_s:.3f} s: "
    for result in (fastest.result, None):
        fastest.result = result
        assert account_of_best(sweep, sweep.best_point()).reasons[-1].startswith(said)


def test_stages_that_wait_for_one_another_are_counted():
    found = account(sim.run("sd21", "gpipe", "p4de", 4, pipeline_degree=4, micro_batches=4, batch_size=64))
    assert f"{found.idle:.0%} of the time the 4 stages of the pipeline wait for one another" in found.reasons
    alone = account(sim.run("sd21", "ddp", "p4de", 4, batch_size=64))
    assert not any("stages" in reason for reason in alone.reasons)


def test_casts_of_weights_are_told_apart_from_other_compute():
    """Autocast casts in every pass; what keeps its weights in half precision casts nothing."""
    sweep = sim.sweep("sd21", gpus=1, batch_size=32, strategy="zero2,ddp", workers=1)
    best, other = sweep.verdict.best, sweep.verdict.runner_up
    assert (best.strategy, other.strategy) == ("zero2", "ddp")
    more = f"{(other.iteration_s - best.iteration_s) * 1e3:,.1f} ms"
    assert sweep.verdict.account.reasons[-1] == f"ddp takes {more} more: casts of weights +{more}"
    bare = sim.sweep("sd21", gpus=2, batch_size=64, strategy="ddp,zero2", stack="compiled", workers=1)
    assert "casts" not in " ".join(bare.verdict.account.reasons)


def test_beyond_the_knee_the_reason_is_told():
    sweeps = sim.sweep("pixart", "a100-nvlink-8", [1, 2, 4], strategy="ulysses", **PIXART, workers=1)
    beyond = next(step.gpus for step in sweeps.steps if step.gpus > sweeps.knee.gpus)
    said = [words for _, words in sweeps.verdict.lines if words.startswith(f"ulysses on all {beyond} GPUs ")]
    assert len(said) == 1
    assert "wait for their host" in said[0]


def test_where_no_runtime_runs_the_best_a_tie_that_runs_is_named():
    sweep = sim.sweep("sd21", gpus=16, batch_size=512, strategy="bidirectional,ddp", workers=1)
    verdict = sweep.verdict
    assert (verdict.best.strategy, verdict.runs_in) == ("bidirectional", ())
    assert verdict.runnable.result.strategy == "ddp"
    assert f"{verdict.runnable.result.strategy}, " in str(verdict)
    assert ", a tie, runs in " in " ".join(str(verdict).split())
    assert verdict.to_json()["runnable"]["again"] == verdict.runnable.again


def test_where_no_tie_runs_the_best_that_does_is_named_with_what_it_loses():
    sweep = sim.sweep(
        "sd21", gpus=8, batch_size=256, strategy="diffusionpipe,gpipe", exhaustive=True, workers=1
    )
    found = sweep.verdict.runnable
    assert (sweep.verdict.best.strategy, sweep.verdict.runs_in, found.tie) == ("diffusionpipe", (), False)
    first = next(point for point in sweep.ranked() if starters(point, sweep.scenario))
    assert found.result is first.result
    assert found.times == first.result.iteration_s / sweep.best.iteration_s
    said = f": {found.result.iteration_s * 1e3:,.1f} ms, {found.times:.2f} x the time, runs in "
    assert said in " ".join(str(sweep.verdict).replace("│", "").split())
    assert sweep.verdict.to_json()["runnable"]["tie"] is False
    assert (found.runs_in, found.others) == (("torch-pipelining",), ())


def test_other_runtimes_are_named_beside_the_best_that_runs():
    sweep = sim.sweep("sd21", gpus=16, batch_size=512, strategy="bidirectional,ddp,gpipe", workers=1)
    verdict = sweep.verdict
    others = verdict.runnable.others
    assert verdict.best.strategy == "bidirectional"
    assert others
    for name in (*verdict.runnable.runs_in, *others):
        own = sim.sweep("sd21", gpus=16, batch_size=512, strategy="ddp,gpipe", runtime=name, workers=1).best
        assert own.iteration_s >= verdict.runnable.result.iteration_s
    said = f"; --runtime {' or '.join(others)} finds the best that it runs"
    assert said in " ".join(str(verdict).replace("│", "").split())


def test_the_best_that_runs_is_found_among_what_was_not_simulated_too():
    sweep = sim.sweep("sd21", gpus=8, batch_size=256, strategy="diffusionpipe,gpipe", workers=1)
    best = sweep.best_point()
    before = best_started(sweep, best)
    for point in sweep.points:
        if point.name == "gpipe" and point.result is not None:
            point.result = None
    again = best_started(sweep, best)
    assert again.result.times == before.result.times
    assert again.runs_in == before.runs_in


FLUX = {
    "model": "flux-dev",
    "cluster": "l40-pcie-8",
    "gpus": 4,
    "device": "h100-80gb-sxm",
    "resolution": 1024,
}
ALPHA = {"model": "pixart", "cluster": "l40-pcie-8", "gpus": 8, "resolution": 1024}


@pytest.mark.parametrize(
    ("asked", "runtime", "latency_s"), [(FLUX, "xdit", 2.338), (ALPHA, "xdit-scripts", 0.593)]
)
def test_the_best_that_runs_is_that_of_a_sweep_in_its_runtime(asked, runtime, latency_s):
    sweep = sim.sweep(**asked, steps=20, workers=1)
    found = sweep.verdict.runnable
    assert (found.runs_in, found.unsure) == ((runtime,), ())
    assert found.result.latency_s == pytest.approx(latency_s, abs=0.001)
    assert "receive after" in found.how
    for name, point in best_of_each(sweep).best.items():
        own = sim.sweep(**asked, steps=20, runtime=name, workers=1).best
        assert point.result.latency_s == own.latency_s


def test_what_was_held_stays_in_the_best_that_runs():
    sweep = sim.sweep(**FLUX, steps=2, strategy="pipefusion", receive="before", workers=1)
    assert sweep.verdict.runnable is None
    free = sim.sweep(**FLUX, steps=2, strategy="pipefusion", workers=1)
    assert free.verdict.runnable.result.parameters["receive"] == "after"


def test_what_runs_in_less_than_the_best_says_by_what():
    verdict = sim.sweep(**FLUX, steps=2, strategy="pipefusion", workers=1).verdict
    for times, by in ((0.98, " by parameters that this sweep holds fixed"), (1.02, "")):
        told = replace(verdict, runnable=verdict.runnable._replace(times=times, tie=False))
        assert f", {times} x the time{by}, runs in xdit" in " ".join(str(told).replace("│", "").split())


def test_of_what_was_not_simulated_only_what_may_undercut_the_best_that_runs_makes_it_unsure(monkeypatch):
    sweep = sim.sweep(**FLUX, steps=2, strategy="pipefusion", workers=1)
    found = best_of_each(sweep)
    (score,) = {point.score(sweep.objective) for point in found.best.values()}
    left = {"quicker": 0.9 * score, "as quick": score, "slower": 1.1 * score}
    monkeypatch.setattr("sim.report.started.best_of_each", lambda _: found._replace(left=left))
    assert best_started(sweep, sweep.best_point()).unsure == ("quicker",)


def test_the_best_that_runs_may_recompute_what_its_runtime_always_does():
    asked = {"model": "flux-dev", "cluster": "h100-nvlink-8", "gpus": 8, "strategy": "fsdp", "workers": 1}
    point = best_of_each(sim.sweep(**asked)).best["torchtitan"]
    assert point.checkpointing == "block"
    assert point.result.iteration_s == sim.sweep(**asked, runtime="torchtitan").best.iteration_s
    assert "torchtitan" not in best_of_each(sim.sweep(**asked, checkpointing="none")).best


def test_no_runtime_is_asked_for_more_micro_batches_than_a_sweep_looks_at():
    asked = {"gpus": 4, "batch_size": 4096, "pipeline_degree": 4, "micro_batches": 512, "memory": "999GiB"}
    sweep = sim.sweep("sd21", strategy="1f1b", workers=1, **asked)

    def found(count):
        own = replace(sweep.best.source.strategy, micro_batches=count, optimizer="sharded")
        return best_of_each(replace(sweep, points=[Point(own, "1f1b")], left=[], held={})).best

    assert set(found(1024)) == {"torch-pipelining"}
    assert found(2048) == {}


def test_points_with_checkpointing_that_need_not_be_simulated_are_kept_apart():
    asked = {
        "model": "wan2.1-1.3b",
        "cluster": "h100-nvlink-8",
        "gpus": 4,
        "batch_size": 4,
        "frozen": "cached",
    }
    sweep = sim.sweep(**asked, memory="40GiB", workers=1)
    assert sweep.left
    assert {point.status for point in sweep.left} == {"bounded"}
    assert all(point.checkpointing and point not in sweep.points for point in sweep.left)


def test_a_better_one_that_was_not_looked_for_is_not_ruled_out(monkeypatch):
    monkeypatch.setattr("sim.report.started.TRIED", 0)
    sweep = sim.sweep(**FLUX, steps=20, workers=1)
    assert (
        best_of_each(sweep).left["xdit"] < 2.338
    )  # what its best takes, which is not the last that was left
    found = sweep.verdict.runnable
    assert found.unsure == ("xdit",)
    said = " ".join(str(sweep.verdict).replace("│", "").split())
    assert f"at most {found.times:.2f} x the time, runs in " in said
    assert "; --runtime xdit may find a faster one" in said
    assert sweep.verdict.to_json()["runnable"]["unsure"] == ["xdit"]


def test_what_is_ruled_out_once_it_is_bounded_in_full_is_not_simulated(monkeypatch):
    sweep = sim.sweep(**FLUX, steps=2, workers=1)
    monkeypatch.setattr("sim.report.started.TRIED", 0)
    assert best_of_each(sweep).left == {}


def test_by_memory_the_best_that_runs_ties_where_it_is_the_best_under_another_name():
    asked = {"gpus": 4, "batch_size": 64, "frozen": "cached", "objective": "memory", "workers": 1}
    found = sim.sweep("sd21", strategy="diffusionpipe,1f1b", **asked).verdict
    assert (found.best.strategy, found.runnable.result.strategy) == ("diffusionpipe", "1f1b")
    assert found.best.times == found.runnable.result.times
    assert found.runnable.tie


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


def test_an_answer_on_fewer_gpus_than_its_vae_was_asked_for_is_asked_again_as_it_is():
    asked = {"include": "all", "vae_parallel": 4, "strategy": "single,ulysses", "workers": 1, "steps": 4}
    sweep = sim.sweep("pixart", "l40s-pcie-8", 4, objective="cost", **asked)
    assert sweep.best.num_gpus == 1
    assert "VAE" not in sweep.best.title
    assert "VAE on 4 GPUs" in sweep.title
    assert sweep.verdict.best == sweep.best
    results = [point.result for point in sweep.points if point.result is not None]
    assert {result.num_gpus for result in results} > {1, 2}
    for result in results:
        assert result.options.get("vae_parallel", 1) == result.num_gpus
        assert sim.run(**result.flags) == result


def test_videos_are_called_videos():
    sweep = sim.sweep(
        "wan2.1-1.3b", "p5", 1, strategy="single", steps=2, resolution="480x320", frames=17, workers=1
    )
    text = str(sweep.verdict)
    assert "4 videos at once" in text
    assert "image" not in text


@pytest.mark.parametrize(("strategy", "slows"), [("ulysses", False), ("ring", True)])
def test_compute_is_slowed_by_as_much_as_its_replay_on_links_beside_which_it_is_not(strategy, slows):
    """A ring moves keys and values while it attends; Ulysses waits for what it exchanges."""
    result = sim.run("flux-dev", strategy, "a100-nvlink-8", 8, steps=4)
    scenario, free = result.source.scenario, result.source.scenario.stack
    free = replace(free, forward_operator_s=0.0, backward_operator_s=0.0)
    busy_s = [
        run_point(
            result.source.strategy,
            replace(
                scenario,
                stack=free,
                asked_stack="",
                cluster=replace(scenario.cluster, overlap_slowdown=slowdown),
            ),
        ).expected.busy_s
        for slowdown in (scenario.cluster.overlap_slowdown, 1.0)
    ]
    slowed = delays(result.source.strategy, scenario, result)[1]
    assert slowed == (busy_s[0] - busy_s[1]) / result.expected.duration_s
    assert (slowed > 0) is slows


def test_a_difference_of_less_than_a_ten_thousandth_is_not_told():
    swept = sim.sweep("sd21", gpus=1, workers=1)
    assert swept.verdict.runner_up is not None
    assert not any(" takes 0.0 ms more" in words for words in swept.verdict.account.reasons)


def test_paces_and_speeds_are_told_without_an_exponent_and_two_gpus_are_both():
    swept = sim.sweep("sd21", gpus=8, objective="memory", workers=1)
    moved = [words for words in swept.verdict.account.reasons if "each moves " in words]
    assert moved and not any("e+" in words for words in moved)
    assert [plain(value, 2) for value in (179.0, 1800.0, 9.56, 0.169)] == ["180", "1,800", "9.6", "0.17"]
    assert [throughput(value) for value in (1644.42, 5.0, 0.1690)] == ["1,644.4", "5.0", "0.169"]
    team = sim.run("wan2.1-14b", "fsdp", gpus=8, context_degree=2, micro_batches=2, checkpointing="selective")
    assert any(words.startswith("both GPUs of a team encode the same") for words in team.account.reasons)
