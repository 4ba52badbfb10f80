"""Training iterations of many micro-batches, measured from the first of them."""

from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from making import make_cluster, make_link

from profiles.errors import InfeasibleError
from sim.outcomes import parts
from sim.outcomes.measures import Measures
from sim.outcomes.parts import measured_parts, replay, replay_parts, traces_of
from sim.outcomes.runs import run_point, run_within
from sim.outcomes.steady import FIRST_MICRO_BATCHES, grows_in_one_place, with_all_micro_batches
from sim.replay.engine import simulate
from strategies.plans.network import Network
from strategies.registry import make_strategy, strategies_of

MANY = 2 * FIRST_MICRO_BATCHES
ACCUMULATING = [name for name, of in strategies_of("train").items() if hasattr(of, "first_micro_batches")]
TIMES_S = st.sampled_from([0.003, 0.05, 0.1, 0.4])
often = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def clusters(draw):
    """One node or two, whose links take less or more time than the layers."""
    inside = make_link("nvswitch", draw(st.sampled_from([1e7, 1e8, 1e9])), 0.001, 0.002)
    between = make_link("nic", draw(st.sampled_from([1e7, 5e7, 4e8])), 0.01, 0.01)
    rest = {"slowdown": draw(st.sampled_from([1.0, 1.5])), "call_s": 0.01, "memory_bytes_per_s": 1e9}
    if draw(st.booleans()):
        return make_cluster(inside, devices_per_node=4, **rest)
    return make_cluster(inside, between, devices_per_node=2, **rest)


def scenario_of(make, cluster, count, times_s=(0.05, 0.1, 0.1), backbones=1, frozen=True, **workload):
    """A backbone, or several, behind a frozen encoder, on four GPUs with ``count`` samples each."""
    encoder = make.component("encoder", [0.05, 0.1], trainable=False, output_bytes=1e6, parameters=10**5)
    inputs = ["encoder"] if frozen else []
    unets = [
        make.component(
            f"unet{number}", list(times_s), inputs=inputs, output_bytes=3e6, saved_bytes=4e6, parameters=10**6
        )
        for number in range(backbones)
    ]
    model = make.model(*([encoder] if frozen else []), *unets)
    return make.scenario(model, cluster, 4, 4 * count, **workload)


def is_whole(found):
    return all(part.continued is None for part in found)


def check_alike(point, scenario):
    """Compare an iteration that is continued with its whole replay."""
    (found,), (whole,) = measured_parts(point, scenario), replay_parts(point, scenario)
    whole_run = whole.measures
    for of in fields(Measures):
        scale = whole_run.duration_s if of.name.endswith("_s") else getattr(whole_run, of.name)
        expected = pytest.approx(getattr(whole_run, of.name), rel=1e-9, abs=1e-9 * scale)
        assert getattr(found.measures, of.name) == expected, of.name
    assert found.phase.plan.stages == whole.phase.plan.stages


@often
@given(data=st.data())
def test_an_iteration_continued_from_its_first_micro_batches_is_the_whole_iteration(data, make):
    """Of every strategy that says its micro-batches are alike, at every point of its that has enough of them."""
    count = data.draw(st.sampled_from([12, 13, 16, 24, 40]))
    workload = {
        "checkpointing": data.draw(st.sampled_from(["none", "block", "full"])),
        "placement": data.draw(st.sampled_from(["pipeline-inner", "data-inner"])),
    }
    times_s = data.draw(st.lists(TIMES_S, min_size=1, max_size=4))
    frozen, size = data.draw(st.booleans()), data.draw(st.sampled_from([1, 2]))
    scenario = scenario_of(make, data.draw(clusters()), size * count, times_s, frozen=frozen, **workload)
    name = data.draw(st.sampled_from(ACCUMULATING))
    offered = strategies_of("train")[name].candidates(scenario)
    many = [point for point in offered if point.micro_batches >= MANY]
    point = data.draw(st.sampled_from(many))
    check_alike(point, scenario)


@pytest.mark.parametrize("name", ACCUMULATING)
def test_only_so_many_micro_batches_are_replayed_as_can_be_compared(make, name, monkeypatch):
    replayed, engine = [], parts.simulate
    monkeypatch.setattr(parts, "simulate", lambda plan, *rest: replayed.append(plan) or engine(plan, *rest))
    scenario = scenario_of(make, make_cluster(memory_bytes_per_s=1e9), 1000)
    assert run_point(make_strategy(name, {"micro_batches": 1000}), scenario)
    (plan,) = replayed
    assert {op.action.micro_batch for op in plan.ops[0] if hasattr(op.action, "micro_batch")} == {
        -1,
        *range(6),
    }


def test_who_asks_for_the_trace_gets_all_micro_batches(make):
    scenario = scenario_of(make, make_cluster(memory_bytes_per_s=1e9), MANY)
    point = make_strategy("fsdp", {"micro_batches": MANY})
    found = measured_parts(point, scenario)
    assert not is_whole(found)
    (named,) = traces_of(point, scenario, found)
    assert named.trace.starts == replay(point, scenario).starts


def test_a_limit_that_an_iteration_exceeds_cuts_it_off_after_its_first_micro_batches(make):
    scenario = scenario_of(make, make_cluster(memory_bytes_per_s=1e9), 1000)
    point = make_strategy("zero3", {"micro_batches": 1000})
    seconds = run_point(point, scenario).iteration_s
    assert run_within(point, scenario, seconds) == seconds
    assert run_within(point, scenario, seconds * (1 + 1e-12)).iteration_s == seconds


WHOLE = {
    "few micro-batches": ("zero3", {"micro_batches": MANY - 1}, {}),
    "sums of several micro-batches": ("zero2", {"micro_batches": 24, "scatter_every": 5}, {}),
    "extra forwards, which come first": ("fsdp", {"micro_batches": 24}, {"self_conditioning": 1.0}),
    "backbones one after the other": ("zero3", {"micro_batches": 24}, {"backbones": 2}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_where_micro_batches_are_not_alike_all_are_replayed(make, name):
    strategy, parameters, given = WHOLE[name]
    scenario = scenario_of(make, make_cluster(memory_bytes_per_s=1e9), parameters["micro_batches"], **given)
    point = make_strategy(strategy, parameters)
    assert is_whole(measured_parts(point, scenario))
    assert run_point(point, scenario)


def test_a_batch_that_does_not_divide_is_refused_with_its_own_numbers(make):
    scenario = scenario_of(make, make_cluster(memory_bytes_per_s=1e9), 25)
    for count in (24, 50):
        with pytest.raises(InfeasibleError, match=rf"gpus\(4\) \* micro_batches\({count}\)"):
            measured_parts(make_strategy("zero3", {"micro_batches": count}), scenario)


# What is no repetition, by plans of one device


def rows(make, count, saved="", last=""):
    """Micro-batches of 1 s whose gradients a collective sums; what is ``saved`` of all of them the last op reads."""
    ops = [
        make.op(
            f"0{kind}{n}",
            0.5,
            writes=f"g{n} {saved}{n}" if kind == "B" and saved else f"g{n}" * (kind == "B"),
        )
        for n in range(count)
        for kind in "FB"
    ]
    reads = " ".join(f"{saved}{n}" for n in range(count)) if saved else ""
    return [[*ops, make.op("0O", 1.0, f"{reads} {last}")]]


def plan_of(make, count, saved="", sum_bytes=5e5):
    cluster = make_cluster(make_link("nvswitch", 1e6), devices_per_node=4)
    sums = [((0,), sum_bytes, None, f"g{n}", f"s{n}") for n in range(count)]
    sizes = {f"{saved}{n}": 8.0 for n in range(count)}
    return make.plan(rows(make, count, saved), cluster=cluster, collectives=sums, sizes=sizes)


def continued(longer, shorter, count):
    network = Network(longer.placement)
    return with_all_micro_batches(shorter, simulate(longer, network), count, network)


def test_micro_batches_that_repeat_one_another_are_continued(make):
    shorter, longer, whole = (plan_of(make, count) for count in (5, 6, 20))
    assert grows_in_one_place(shorter, longer)
    found, true = continued(longer, shorter, 14), Measures.of(simulate(whole))
    for of in fields(Measures):
        assert getattr(found, of.name) == pytest.approx(getattr(true, of.name), rel=1e-12)


def test_what_is_kept_of_every_micro_batch_is_no_repetition(make):
    shorter, longer = (plan_of(make, count, saved="k") for count in (5, 6))
    assert grows_in_one_place(shorter, replace(longer, ops=tuple(row[:-1] for row in longer.ops))) is False
    assert continued(longer, shorter, 14) is None


def test_an_op_that_takes_longer_is_no_repetition(make):
    shorter, longer = (plan_of(make, count) for count in (5, 6))
    network = Network(longer.placement)
    trace = simulate(longer, network)
    ends = [[*trace.ends[0]]]
    ends[0][6] += 1e-6
    assert with_all_micro_batches(shorter, trace, 14, network) is not None
    assert with_all_micro_batches(shorter, replace(trace, ends=ends), 14, network) is None


def test_a_plan_that_grows_in_two_places_is_found_out(make):
    def two(count):
        ((*ops, step),) = rows(make, count)
        return make.plan([[*ops, step, *(make.op(f"1F{n}", 0.25) for n in range(count))]])

    assert not grows_in_one_place(two(5), two(6))
    assert grows_in_one_place(two(5), two(5))


def test_a_plan_that_runs_more_before_it_with_each_micro_batch_does_not_grow_in_one_place(make):
    shorter, longer = (plan_of(make, count) for count in (5, 6))
    assert not grows_in_one_place(shorter, replace(longer, prologue_s=longer.prologue_s + 1.0))
