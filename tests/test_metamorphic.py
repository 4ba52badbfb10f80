"""Metamorphic relations: what must become of an answer when the question changes, whatever the answer is.

A shared port serves first come, first served, and a list schedule takes what is ready: where something becomes quicker,
messages may overtake one another and what waits for the later one ends later (Graham, Bounds on Multiprocessing Timing
Anomalies, 1969). ``ANOMALY`` is what that has been seen to cost, with room; each test that allows for it says so.
"""

from dataclasses import fields, is_dataclass, replace

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from making import FREE, make_cluster, make_link

import sim
from profiles.errors import InfeasibleError
from profiles.software.reserved import reserved_bytes
from sim.explore.sweep import TOP
from sim.outcomes.runs import bound, coarse_bounds, least_memory_bytes
from sim.outcomes.tasks import TASKS
from sim.replay import engine
from strategies.registry import strategies_of
from validate.equal_blocks import equal_blocks_transformer

ANOMALY = 1.1
ROUNDING = 1 + 1e-9
quick = settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
TIMES_S = st.lists(st.sampled_from([0.01, 0.05, 0.1, 0.2, 0.4]), min_size=4, max_size=6)


@st.composite
def clusters(draw):
    """A node of four or two nodes of two, with links slow enough to matter."""
    inside = make_link("nvswitch", draw(st.sampled_from([1e7, 1e8, 1e9])), 0.001, 0.002)
    between = make_link("nic", draw(st.sampled_from([1e7, 5e7])), 0.01, 0.01)
    rest = {"slowdown": draw(st.sampled_from([1.0, 1.5])), "call_s": 0.01, "memory_bytes_per_s": 1e9}
    if draw(st.booleans()):
        return make_cluster(inside, devices_per_node=4, **rest)
    return make_cluster(inside, between, devices_per_node=2, **rest)


@st.composite
def questions(draw, make, num_gpus=4):
    """A training scenario: a backbone behind a frozen encoder, on four GPUs, unless told otherwise."""
    encoder = make.component("encoder", [0.05, 0.1], trainable=False, output_bytes=1e6, parameters=10**5)
    times_s = draw(TIMES_S)
    skips = [(0, len(times_s) - 1)] if draw(st.booleans()) else []
    unet = make.component(
        "unet", times_s, inputs=["encoder"], output_bytes=3e6, saved_bytes=draw(st.sampled_from([4e6, 2e7])),
        parameters=10**6, skips=skips,
    )  # fmt: skip
    workload = {
        "batch_size": draw(st.sampled_from([4, 8, 16])),
        "checkpointing": draw(st.sampled_from(["none", "block", "full"])),
        "placement": draw(st.sampled_from(["pipeline-inner", "data-inner"])),
    }
    return make.scenario(make.model(encoder, unet), draw(clusters()), num_gpus, **workload)


@st.composite
def pictures(draw, make, num_gpus=4):
    """A sampling scenario of a small transformer on four GPUs, unless told otherwise."""
    model = equal_blocks_transformer(
        draw(st.sampled_from([4, 6])),
        draw(st.sampled_from([0.05, 0.2])),
        text_tokens=draw(st.sampled_from([0, 16])),
        heads=4,
        saved_bytes=draw(st.sampled_from([0.0, 1e9])),
    )
    workload = {
        "steps": draw(st.sampled_from([2, 4, 6])),
        "batch_size": draw(st.sampled_from([1, 2, 4])),
        "guidance": draw(st.sampled_from(["none", "batch", "sequential", "parallel"])),
    }
    return make.sampling(model, draw(clusters()), num_gpus, **workload)


def drawn_point(data, scenario, name=None):
    """One of the points of a strategy, or of any; equal blocks, which no cost moves."""
    name = name or data.draw(st.sampled_from(list(strategies_of(scenario.task))))
    try:
        found = list(strategies_of(scenario.task)[name].candidates(scenario))
    except InfeasibleError:
        assume(False)
    assume(found)
    point = data.draw(st.sampled_from(found))
    cut = {item.name: item.metadata["choices"] for item in fields(point)}.get("partition", ())
    return replace(point, partition="blocks") if "blocks" in cut else point


def measured(scenario, point):
    """The measures of a point that can be run."""
    try:
        return sim.run(scenario, point).expected
    except InfeasibleError:
        assume(False)


def seconds(scenario, point):
    """Seconds of an iteration, or of a run of the sampler."""
    return measured(scenario, point).duration_s


def with_links(scenario, factor):
    """A scenario on links of so many times the bandwidth."""
    cluster = scenario.cluster
    faster = {
        key: replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor)
        for key in ("intra_node", "inter_node")
        if (link := getattr(cluster, key)) is not None
    }
    return replace(scenario, cluster=replace(cluster, **faster))


def free(scenario):
    """A scenario whose messages and collectives take no time, so that nothing waits for a port."""
    cluster = scenario.cluster
    links = {"intra_node": FREE, "inter_node": cluster.inter_node and FREE}
    return replace(scenario, cluster=replace(cluster, overlap_slowdown=1.0, **links))


def with_times(value, factor):
    """A scenario, or a part of one, all of whose seconds are so many times as long, by the names of its fields."""
    if isinstance(value, tuple):
        return tuple(with_times(item, factor) for item in value) if type(value) is tuple else value
    if not is_dataclass(value):
        return value
    changed = {}
    for item in fields(value):
        held = getattr(value, item.name)
        if isinstance(held, float) and item.name.endswith("_per_s"):
            held /= factor
        elif isinstance(held, float) and item.name.endswith("_s"):
            held *= factor
        else:
            held = with_times(held, factor)
        changed[item.name] = held
    return replace(value, **changed)


BOTH = [(questions, "train"), (pictures, "sample")]


# Training and sampling


@pytest.mark.parametrize("asked", [questions, pictures])
@quick
@given(data=st.data())
def test_where_all_seconds_are_scaled_so_is_the_answer_and_memory_is_as_it_was(make, asked, data):
    """By a power of two, which no float rounds; the chunks of collectives have seconds of their own."""
    scenario = data.draw(asked(make))
    point = drawn_point(data, scenario)
    factor = data.draw(st.sampled_from([0.25, 2.0, 8.0]))
    with pytest.MonkeyPatch.context() as patch:
        before = measured(scenario, point)
        patch.setattr(engine, "CHUNK_S", factor * engine.CHUNK_S)
        after = measured(with_times(scenario, factor), point)
    assert after.duration_s == pytest.approx(factor * before.duration_s, rel=1e-12)
    assert after.peak_memory_bytes == before.peak_memory_bytes


@pytest.mark.parametrize("asked", [questions, pictures])
@quick
@given(data=st.data())
def test_twice_the_batch_takes_no_less_memory_or_time(make, asked, data):
    scenario = data.draw(asked(make))
    point = drawn_point(data, scenario)
    batch = 2 * scenario.workload.batch_size
    less = measured(scenario, point)
    more = measured(replace(scenario, workload=replace(scenario.workload, batch_size=batch)), point)
    assert less.peak_memory_bytes <= more.peak_memory_bytes * ROUNDING
    assert less.duration_s <= more.duration_s * ANOMALY


@pytest.mark.parametrize(("asked", "name"), [(of, name) for of, task in BOTH for name in strategies_of(task)])
@settings(quick, max_examples=8)
@given(data=st.data())
def test_a_point_keeps_to_its_bounds(make, asked, name, data):
    scenario = data.draw(asked(make, 1 if name == "single" else 4))
    point = drawn_point(data, scenario, name)
    found = measured(scenario, point)
    for ordered in (False, True):
        assert bound(point, scenario, ordered=ordered) <= found.duration_s * ROUNDING
    coarse_s, coarse_bytes = coarse_bounds(point, scenario)
    assert coarse_s <= found.duration_s * ROUNDING
    least_bytes = max(coarse_bytes, least_memory_bytes(point, scenario))
    assert least_bytes <= found.peak_memory_bytes * ROUNDING


@pytest.mark.parametrize("asked", [questions, pictures])
@settings(quick, max_examples=2, phases=[Phase.generate])
@given(data=st.data())
def test_what_a_sweep_promises_is_that_of_brute_force(make, asked, data):
    """The best of recommended points and of others, the best of each strategy, and the front, whatever is ranked by."""
    scenario = data.draw(asked(make))
    whole = sim.sweep(scenario, workers=1, exhaustive=True)
    peaks = sorted(point.result.peak_memory_bytes for point in whole.points if point.result)
    if peaks and data.draw(st.booleans()):  # some points lack memory
        device = replace(scenario.cluster.device, memory_bytes=peaks[2 * len(peaks) // 3])
        scenario = replace(scenario, cluster=replace(scenario.cluster, device=device))
        whole = sim.sweep(scenario, workers=1, exhaustive=True)
    for objective in TASKS[scenario.task].objectives:
        for top in (2, TOP):
            swept = sim.sweep(scenario, objective=objective, workers=1, top=top)
            assert promised(swept, objective, top) == promised(whole, objective, top), (objective, top)


@pytest.mark.parametrize("asked", [questions, pictures])
@settings(quick, max_examples=2, phases=[Phase.generate])
@given(data=st.data())
def test_no_faster_link_or_device_and_no_more_memory_makes_the_best_of_a_sweep_slower(make, asked, data):
    scenario = data.draw(asked(make))
    peaks = sorted(of.result.peak_memory_bytes for of in sim.sweep(scenario, workers=1).points if of.result)
    assume(peaks)
    peak = data.draw(st.sampled_from(peaks[len(peaks) // 3 :]))
    scenario = with_room(scenario, peak)
    best = sim.sweep(scenario, workers=1).fastest_point()
    assume(best)
    factor = data.draw(st.sampled_from([1.1, 2.0, 10.0]))
    for name, better in {
        "link": with_links(scenario, factor),
        "memory": with_room(scenario, factor * peak),
        "device": replace(scenario, model=with_times(scenario.model, 1 / factor)),
    }.items():
        then = sim.sweep(better, workers=1).fastest_point()
        assert then.costs[0] <= best.costs[0] * ROUNDING, name


def with_room(scenario, size_bytes):
    """A scenario on devices with room for tensors of so many bytes."""
    memory_bytes = reserved_bytes(size_bytes, scenario.workload.num_gpus).middle * ROUNDING
    device = replace(scenario.cluster.device, memory_bytes=memory_bytes)
    return replace(scenario, cluster=replace(scenario.cluster, device=device))


def promised(sweep, objective, top):
    """What of a sweep is exact, but for roundings: its best scores, and that of each strategy, or else its front."""
    found = []
    for flag in (True, False):
        own = [p for p in sweep.points if p.status == "simulated" and p.recommended is flag]
        if objective == "pareto":
            costs = {(p.result.peak_memory_bytes, rounded(p.result.expected.duration_s)) for p in own}
            beaten = {of for of in costs for a, b in costs - {of} if a <= of[0] and b <= of[1]}
            found.append(costs - beaten)
            continue
        scores = {p.identity: rounded(p.score(objective)) for p in own}
        names = {p.name for p in own}
        best = {name: min(scores[p.identity] for p in own if p.name == name) for name in names}
        found.append((sorted(scores.values())[:top], best))
    return found


def test_the_front_has_what_only_recomputation_makes_small():
    asked = {"gpus": 4, "strategy": "gpipe", "batch_size": 64, "memory": "48GiB", "objective": "pareto"}
    first, whole = (sim.sweep("sd21", workers=1, exhaustive=every, **asked) for every in (False, True))
    assert promised(first, "pareto", TOP) == promised(whole, "pareto", TOP)


def rounded(number):
    """A number in nine digits: the sums of a bound and of a replay differ in the last of sixteen."""
    return float(f"{number:.9g}")


# Training


@pytest.mark.parametrize("asked", [questions, pictures])
@quick
@given(data=st.data())
def test_faster_links_never_cost_more_than_an_anomaly_and_free_ones_nothing(make, asked, data):
    scenario = data.draw(asked(make))
    point = drawn_point(data, scenario)
    factor = data.draw(st.sampled_from([1.1, 2.0, 100.0]))
    taken = seconds(scenario, point)
    assert seconds(with_links(scenario, factor), point) <= taken * ANOMALY
    assert seconds(free(scenario), point) <= taken * ROUNDING


RECOMPUTED = ("none", "selective", "block")


@pytest.mark.parametrize(("model", "strategy"), [("pixart", "ddp"), ("wan2.1-1.3b", "fsdp")])
def test_who_recomputes_more_holds_less_and_takes_longer(model, strategy):
    asked = {"gpus": 4, "batch_size": 8}
    results = [sim.run(model, strategy, checkpointing=what, **asked) for what in RECOMPUTED]
    peaks = [result.peak_memory_bytes for result in results]
    times = [result.iteration_s for result in results]
    assert peaks == sorted(peaks, reverse=True), dict(zip(RECOMPUTED, peaks, strict=True))
    assert times == sorted(times), dict(zip(RECOMPUTED, times, strict=True))
    assert sim.run(model, strategy, checkpointing="full", **asked).iteration_s >= times[0]
