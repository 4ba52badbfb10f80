"""Training iterations of long pipelines, measured from an excerpt of their micro-batches."""

from collections import Counter
from dataclasses import fields, replace

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from making import make_cluster, make_link

from sim.outcomes import periods, unrefined
from sim.outcomes.measures import Measures
from sim.outcomes.parts import measured_parts, replay_parts, traces_of
from sim.outcomes.periods import LEAST_MICRO_BATCHES, Period, is_filled, period_of, with_all_periods
from sim.outcomes.runs import run_point, run_within
from sim.replay.engine import simulate
from strategies.orders.excerpts import Repeats
from strategies.orders.named import gpipe_order, interleaved_order, one_forward_one_backward_order
from strategies.plans.actions import StageAction
from strategies.plans.bubbles import Bubble
from strategies.plans.network import Network
from strategies.plans.plan import FilledLayer, Filling
from strategies.plans.traces import Trace
from strategies.registry import make_strategy, strategies_of
from strategies.training.diffusionpipe import DiffusionPipe

REPEATING = [name for name, of in strategies_of("train").items() if hasattr(of, "repeats")]
TIMES_S = st.sampled_from([0.003, 0.05, 0.1, 0.1003, 0.137])
often = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def clusters(draw):
    """Cards on switches of two, or nodes of four or two, whose links take less or more time than the layers."""
    rest = {"slowdown": draw(st.sampled_from([1.0, 1.5])), "call_s": 0.01, "memory_bytes_per_s": 1e9}
    speed = draw(st.sampled_from([3e7, 1e8, 1e9]))
    if draw(st.booleans()):
        pcie = {"switch_size": 2, "switch_bandwidth_bytes_per_s": speed, "host_bandwidth_bytes_per_s": speed}
        inside = make_link("pcie", speed, 0.001, 0.002, **pcie)
    else:
        inside = make_link("nvswitch", speed, 0.001, 0.002)
    between = make_link("nic", draw(st.sampled_from([3e7, 4e8])), 0.01, 0.01)
    return make_cluster(inside, between, devices_per_node=draw(st.sampled_from([2, 4, 8])), **rest)


def scenario_of(
    make,
    cluster,
    count,
    times_s=(0.05, 0.1, 0.1, 0.05),
    backbones=1,
    frozen=True,
    encoder_s=0.001,
    **workload,
):
    """A backbone, or several, behind a frozen encoder, on eight GPUs with ``count`` samples each."""
    encoder = make.component(
        "encoder",
        [encoder_s, 2 * encoder_s, 3 * encoder_s],
        trainable=False,
        output_bytes=1e6,
        parameters=10**5,
    )
    inputs = ["encoder"] if frozen else []
    unets = [
        make.component(
            f"unet{number}", list(times_s), inputs=inputs, output_bytes=3e6, saved_bytes=4e6, parameters=10**6
        )
        for number in range(backbones)
    ]
    model = make.model(*([encoder] if frozen else []), *unets)
    return make.scenario(model, cluster, 8, 8 * count, **workload)


def check_alike(point, scenario):
    """Compare an iteration that is continued with its whole replay."""
    (found,), (whole,) = measured_parts(point, scenario), replay_parts(point, scenario)
    for of in fields(Measures):
        expected = getattr(whole.measures, of.name)
        scale = whole.measures.duration_s if of.name.endswith("_s") else expected
        assert getattr(found.measures, of.name) == pytest.approx(expected, rel=1e-9, abs=1e-9 * scale), (
            of.name
        )
    assert found.phase.plan.stages == whole.phase.plan.stages
    return found


@often
@given(data=st.data())
def test_an_iteration_continued_from_an_excerpt_is_the_whole_iteration(data, make):
    """Of every strategy whose order repeats itself, at every point of its that has enough micro-batches."""
    name = data.draw(st.sampled_from(REPEATING))
    workload = {
        "checkpointing": data.draw(st.sampled_from(["none", "block", "full"])),
        "placement": data.draw(st.sampled_from(["pipeline-inner", "data-inner"])),
    }
    times_s = data.draw(st.lists(TIMES_S, min_size=4, max_size=12))
    backbones = 2 if name in ("bidirectional", "diffusionpipe") and data.draw(st.booleans()) else 1
    count, frozen = data.draw(st.sampled_from([12, 24, 36, 48, 96])), data.draw(st.booleans())
    cluster = data.draw(clusters())
    encoder_s = data.draw(st.sampled_from([0.0001, 0.001, 0.02]))
    behind = {"backbones": backbones, "frozen": frozen, "encoder_s": encoder_s}
    scenario = scenario_of(make, cluster, count, times_s, **behind, **workload)
    offered = strategies_of("train")[name].candidates(scenario)
    many = [point for point in offered if point.micro_batches >= LEAST_MICRO_BATCHES]
    assume(many)
    point = data.draw(st.sampled_from(many))
    partition = data.draw(st.sampled_from(["blocks", "optimal"]))
    p2p = data.draw(st.sampled_from(["overlapped"] * 3 + ["blocking"]))
    found = check_alike(replace(point, partition=partition, p2p=p2p), scenario)
    event(f"{name}: {'whole' if found.continued is None else 'continued'}")


def slow_links(make, name="nvswitch"):
    """Two nodes of four GPUs whose messages take a tenth of a layer, at times of which no two are the same."""
    return make_cluster(
        make_link(name, 3e8, 0.001, 0.002), make_link("nic", 4e8, 0.01, 0.01), devices_per_node=4,
        call_s=0.01, memory_bytes_per_s=1e9,
    )  # fmt: skip


UNEVEN_S = (0.05, 0.1003, 0.1, 0.137, 0.0491, 0.0782, 0.1111, 0.0333)
POINTS = {
    "1f1b": {},
    "1f1b, states sharded": {"optimizer": "sharded"},
    "spp": {},
    "zero-bubble": {},
    "wave": {},
    "interleaved": {"chunks": 2},
    "diffusionpipe": {"fill": "partial"},
    "diffusionpipe, unfilled": {"fill": "none"},
}


def point_of(words, micro_batches=240, **parameters):
    own = {"pipeline_degree": 4, "group_size": 4, "micro_batches": micro_batches} | POINTS[words] | parameters
    return make_strategy(words.split(",")[0], own)


@pytest.mark.parametrize("words", POINTS)
def test_of_a_long_pipeline_less_than_half_is_replayed(make, words, monkeypatch):
    replayed = []
    for module in (periods, unrefined):
        monkeypatch.setattr(
            module, "simulate", lambda plan, *rest: replayed.append(plan) or simulate(plan, *rest)
        )
    scenario, point = scenario_of(make, slow_links(make), 240, UNEVEN_S), point_of(words)
    (found,) = measured_parts(point, scenario)
    assert found.continued is not None
    assert replayed
    for plan in replayed:
        passes = Counter(
            op.action[:2] for row in plan.ops for op in row if isinstance(op.action, StageAction)
        )
        assert max(passes.values()) < 120


def test_of_an_order_that_repeats_itself_in_rounds_more_is_replayed(make):
    scenario, counts = scenario_of(make, slow_links(make), 240, UNEVEN_S), []
    for words in ("1f1b", "interleaved"):
        (found,) = measured_parts(point_of(words), scenario)
        actions = [op.action for op in found.trace.plan.ops[0] if isinstance(op.action, StageAction)]
        counts.append(len({action.micro_batch for action in actions}))
    assert 1.3 * counts[0] < counts[1] < 120


def test_who_asks_for_the_trace_gets_all_micro_batches(make):
    scenario, point = scenario_of(make, slow_links(make), 240, UNEVEN_S), point_of("1f1b")
    (named,) = traces_of(point, scenario, measured_parts(point, scenario))
    (whole,) = replay_parts(point, scenario)
    assert named.trace.starts == whole.trace.starts


def test_a_limit_that_an_iteration_exceeds_cuts_it_off(make):
    scenario, point = scenario_of(make, slow_links(make), 240, UNEVEN_S), point_of("1f1b")
    seconds = run_point(point, scenario).iteration_s
    assert run_within(point, scenario, seconds) == seconds
    assert run_within(point, scenario, seconds * (1 + 1e-12)).iteration_s == seconds


WHOLE = {
    "few micro-batches": ("1f1b", {"micro_batches": LEAST_MICRO_BATCHES - 4}, {}),
    "extra forwards, which come first": ("1f1b", {}, {"self_conditioning": 1.0}),
    "messages that block": ("1f1b", {"p2p": "blocking"}, {}),
}


@pytest.mark.parametrize("reason", WHOLE)
def test_all_micro_batches_are_replayed_of(make, reason):
    words, parameters, workload = WHOLE[reason]
    point = point_of(words, **parameters)
    scenario = scenario_of(make, slow_links(make), point.micro_batches, UNEVEN_S, **workload)
    assert check_alike(point, scenario).continued is None


@pytest.fixture
def one_period(monkeypatch):
    """Times repeat themselves as often as the order, or not at all."""
    monkeypatch.setattr(periods, "MULTIPLES", (1,))


def excerpt_of(make, words="1f1b"):
    """An excerpt with its trace and its network."""
    scenario, point = scenario_of(make, slow_links(make), 240, UNEVEN_S), point_of(words)
    excerpt = point.repeats(scenario).excerpt(14)
    plan = point.plan(scenario, excerpt)
    network = Network(plan.placement)
    return excerpt, simulate(plan, network), network


def test_a_period_is_one_that_repeats_the_one_before(make):
    excerpt, trace, network = excerpt_of(make)
    period = period_of(trace, excerpt, network)
    for device, ops in enumerate(period.ops):
        for times in (trace.starts[device], trace.ends[device]):
            lags = [times[index] - times[index - len(ops)] for index in ops]
            assert lags == pytest.approx([period.period_s] * len(ops), rel=1e-11)
    assert period.times * len(period.ops[0]) == 2 * excerpt.left_out


@pytest.mark.parametrize("words", ["1f1b", "zero-bubble", "interleaved", "diffusionpipe, unfilled"])
def test_the_whole_iteration_takes_what_its_excerpt_does_and_what_is_left_out(make, words):
    excerpt, trace, network = excerpt_of(make, words)
    left_out_s = period_of(trace, excerpt, network).left_out_s
    scenario = scenario_of(make, slow_links(make), 240, UNEVEN_S)
    assert trace.end_s + left_out_s == pytest.approx(
        simulate(point_of(words).plan(scenario)).end_s, rel=1e-11
    )


def test_bubbles_of_an_excerpt_are_found_as_those_of_the_whole_iteration(make, monkeypatch):
    told, refine = [], DiffusionPipe.refine

    def listen(self, scenario, trace, excerpt=None, end_s=None):
        told.append((trace.end_s, end_s))
        return refine(self, scenario, trace, excerpt, end_s)

    monkeypatch.setattr(DiffusionPipe, "refine", listen)
    scenario, point = scenario_of(make, slow_links(make), 240, UNEVEN_S), point_of("diffusionpipe")
    whole_s = simulate(point.plan(scenario)).end_s
    assert with_all_periods(point, scenario) is not None
    assert told[0] == (pytest.approx(told[0][0]), pytest.approx(whole_s, rel=1e-11))
    assert told[0][0] < whole_s / 2


def test_of_two_refinements_the_one_is_measured_that_is_faster_in_all(make, monkeypatch):
    """Where the period of the one that is slower as an excerpt takes half as long."""
    one, other = (scenario_of(make, slow_links(make), 240, UNEVEN_S, encoder_s=0.005) for _ in range(2))
    point, seen, of = point_of("diffusionpipe", fill="full"), [], period_of

    def listen(trace, excerpt, network):
        period = of(trace, excerpt, network)
        halved = len(seen) == slower
        seen.append((trace.end_s, period))
        return replace(period, period_s=period.period_s / 2) if halved else period

    monkeypatch.setattr(periods, "period_of", listen)
    slower = None
    with_all_periods(point, one)
    _, *refined = seen
    slower, (end_s, period) = max(enumerate(refined, 1), key=lambda pair: pair[1][0])
    seen.clear()
    trace, measures = with_all_periods(point, other)
    assert len(refined) == 2
    assert trace.end_s == end_s
    assert measures.duration_s == pytest.approx(end_s + period.left_out_s / 2)


def later(values, place, seconds=1e-6):
    return [*values[:place], values[place] + seconds, *values[place + 1 :]]


@pytest.mark.usefixtures("one_period")
def test_an_op_that_comes_later_than_a_period_before_is_no_part_of_one(make):
    excerpt, trace, network = excerpt_of(make)
    period = period_of(trace, excerpt, network)
    for times in ("starts", "ends"):
        moved = [*getattr(trace, times)]
        moved[2] = later(moved[2], period.ops[2].start)
        assert period_of(replace(trace, **{times: moved}), excerpt, network) is None


@pytest.mark.usefixtures("one_period")
def test_a_message_that_comes_later_than_a_period_before_is_no_part_of_one(make):
    excerpt, trace, network = excerpt_of(make)
    period = period_of(trace, excerpt, network)
    messages = [slot for slot, source in enumerate(trace.wiring.sources) if source is not None]
    recent = [
        slot for slot in messages if period.start_s < trace.sent[slot] < trace.arrived[slot] < period.end_s
    ]
    for times in ("sent", "arrived"):
        moved = replace(trace, **{times: later(getattr(trace, times), recent[0])})
        assert period_of(moved, excerpt, network) is None


@pytest.mark.usefixtures("one_period")
def test_a_collective_that_runs_beside_a_period_is_no_part_of_one(make):
    excerpt, trace, network = excerpt_of(make)
    period = period_of(trace, excerpt, network)
    early = tuple((period.start_s, end) for _, end in trace.collectives)
    assert early
    assert period_of(replace(trace, collectives=early), excerpt, network) is None


def test_where_a_chunk_of_a_collective_meets_something_else_nothing_is_continued(make):
    excerpt, trace, network = excerpt_of(make)
    assert period_of(replace(trace, nearest_s=1e-9), excerpt, network) is None


def test_a_period_of_which_no_whole_number_is_left_out_is_none(make, monkeypatch):
    excerpt, trace, network = excerpt_of(make)
    monkeypatch.setattr("sim.outcomes.periods.MULTIPLES", (2,))
    found = [period_of(trace, excerpt._replace(left_out=n * excerpt.period), network) for n in (20, 21)]
    assert [period and period.times for period in found] == [10, None]


def test_where_nobody_looked_for_such_meetings_nothing_is_continued(make):
    excerpt, trace, network = excerpt_of(make)
    times = {of.name: getattr(trace, of.name) for of in fields(Trace) if of.name != "nearest_s"}
    assert period_of(Trace(**times), excerpt, network) is None


def test_where_messages_meet_at_a_port_nothing_is_continued(make, monkeypatch):
    """Of equal stages in rounds, whose forwards and gradients come to a card at once."""
    cluster = make_cluster(
        make_link("nvswitch", 3e8, 0.001, 0.002), devices_per_node=8, memory_bytes_per_s=1e9
    )
    scenario, point = scenario_of(make, cluster, 240, [0.1] * 8), point_of("interleaved")
    assert check_alike(point, scenario).continued is None
    monkeypatch.setattr(periods, "TIE", -1.0)
    assert measured_parts(point, scenario)[0].continued is not None


def test_bubbles_that_are_filled_one_after_the_other_are_replayed_whole(make):
    for encoder_s, whole in ((0.001, False), (0.02, True)):
        scenario = scenario_of(make, slow_links(make), 240, UNEVEN_S, encoder_s=encoder_s)
        found = check_alike(point_of("diffusionpipe"), scenario)
        assert (found.continued is None) == whole


def test_a_period_that_is_filled_is_known_before_anything_is_refined(make, monkeypatch):
    scenario = scenario_of(make, slow_links(make), 240, UNEVEN_S, encoder_s=0.02)
    monkeypatch.setattr(DiffusionPipe, "refine", lambda *asked: pytest.fail("refined"))
    assert with_all_periods(point_of("diffusionpipe"), scenario) is None


def test_ways_of_filling_share_the_period_of_their_unfilled_plan(make, monkeypatch):
    scenario, found, of = scenario_of(make, slow_links(make), 240, UNEVEN_S), [], period_of
    monkeypatch.setattr(periods, "period_of", lambda *asked: found.append(asked) or of(*asked))
    counts = []
    for fill, degree in (("full", 4), ("partial", 4), ("partial", 8)):
        with_all_periods(point_of("diffusionpipe", fill=fill, pipeline_degree=degree, group_size=8), scenario)
        unfilled = [trace for trace, *_ in found if not trace.plan.filling.layers]
        counts.append(len(unfilled))
    assert counts == [1, 1, 2]


def test_a_period_is_filled_where_one_of_its_bubbles_is():
    bubbles = [Bubble(start_s, start_s + 0.5, (0,)) for start_s in (0.0, 3.0, 6.0)]
    for number, filled in ((None, False), (0, False), (1, True), (2, False)):
        layers = [FilledLayer(number, 0, 0, 8, (0,), 8, 0.1)]
        assert is_filled(Filling(layers, bubbles), Period(2.0, 2.0, 5, ())) is filled


@pytest.mark.parametrize(("start_s", "filled"), [(2.0, False), (4.0, True)])
def test_a_bubble_that_starts_as_a_period_ends_is_of_that_period(start_s, filled):
    layers, bubbles = [FilledLayer(0, 0, 0, 8, (0,), 8, 0.1)], [Bubble(start_s, start_s + 0.5, (0,))]
    assert is_filled(Filling(layers, bubbles), Period(2.0, 2.0, 5, ())) is filled


def test_messages_of_alike_stages_that_meet_at_a_node_are_replayed_whole(make):
    """The last digits of two times say which goes first, and with them how long the iteration takes."""
    cluster = make_cluster(
        make_link(bandwidth=3e7, latency_s=0.001, call_s=0.002),
        make_link("nic", 3e7, 0.01, 0.01), devices_per_node=2, call_s=0.01, memory_bytes_per_s=1e9,
    )  # fmt: skip
    scenario = scenario_of(make, cluster, 96, [0.003] * 4, frozen=False, placement="data-inner")
    point = make_strategy(
        "interleaved", {"pipeline_degree": 2, "micro_batches": 96, "group_size": 2, "chunks": 2}
    )
    assert check_alike(point, scenario).continued is None


@pytest.mark.parametrize("degree", [2, 3, 4, 8])
@pytest.mark.parametrize("count", [48, 96, 240])
def test_rows_of_an_excerpt_are_those_of_an_order_of_as_many(degree, count):
    orders = {
        1: lambda count: one_forward_one_backward_order(degree, count),
        degree: lambda count: interleaved_order(degree, count, 3),
    }
    for period, order in orders.items():
        repeats = Repeats.of(order(count))
        assert repeats.shortest.period == period
        assert repeats.shortest.rows == order(count - repeats.shortest.left_out)
        for more in range(0, 48, 7):
            if (excerpt := repeats.excerpt(more)) is not None:
                assert excerpt.rows == order(count - excerpt.left_out)
                assert excerpt.left_out >= count / 2


def test_an_order_without_a_period_has_no_excerpt():
    assert Repeats.of(gpipe_order(4, 64)) is None
    row, *others = one_forward_one_backward_order(4, 64)
    swapped = (*row[:60], row[61], row[60], *row[62:])
    found = Repeats.of((swapped, *others))
    assert found is None or found.excerpt(0) is None
