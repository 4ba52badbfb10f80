"""Pipelines on parts of one device, rehearsed on threads: order, dependencies, links, gradients, prediction, files.

What is asserted of times holds on a busy machine too: nothing may start too early, and what starts late is counted.
"""

import csv
from dataclasses import replace
from math import inf
from statistics import median

import pytest
import torch

from profiles.errors import DiffusimError, InputError
from sim.replay.engine import simulate
from strategies.plans.actions import FrozenAction
from strategies.plans.network import Network
from strategies.plans.wiring import previous_collectives, wire
from validate.__main__ import main
from validate.green.iteration import LaneMap, Launch, Message, Reduction, Runner, check_plan, enqueue_order
from validate.green.lanes import ThreadLanes
from validate.green.partitions import KERNELS, LEAST_DRIVER, check_gpu
from validate.green.programme import SCHEDULES, Programme, check_programme, results
from validate.green.results import (
    COLUMNS,
    REHEARSAL,
    Result,
    busy_shares,
    predict,
    summary,
    with_durations,
    write_results,
)
from validate.green.work import LayerWork, Work
from validate.running.training.blocks import gradient_error, single_process_gradients
from validate.running.training.scenarios import Question, plan_small

pytestmark = pytest.mark.slow

LINK_S = 0.005
SLEEP_S = 0.012
"""A forward of a stage that sleeps, in the mean."""
MODEL_LAYERS = 12


def small_model(make):
    """Two frozen components one after the other; a backbone with skips."""
    text = make.component("text", [0.3, 0.5], trainable=False, output_bytes=1e3)
    image = make.component("image", [0.3, 0.5, 0.2], trainable=False, output_bytes=1e3, inputs=["text"])
    unet = make.component(
        "unet", [0.8, 1.2, 1.0, 0.9, 1.1, 1.3, 0.7, 1.0, 1.0, 0.9, 1.2, 1.0], inputs=["text", "image"],
        output_bytes=1e3, saved_bytes=1e3, parameters=10**6, skips=[(i, 11 - i) for i in range(6)],
    )  # fmt: skip
    return make.model(image, text, unet)


def question(schedule, degree, micro_batches):
    parameters = {"pipeline_degree": degree, "micro_batches": micro_batches}
    return Question(schedule, parameters, degree, 2 * micro_batches, LINK_S)


def times_of(model, degree):
    """Seconds of the layers: a forward of a stage of the backbone takes so long in the mean."""
    one_s = SLEEP_S * degree / MODEL_LAYERS
    return {
        (number, layer): (one_s, 2 * one_s if of.trainable else 0.0)
        for number, of in enumerate(model.components)
        for layer in range(len(of.layers))
    }


def planned(make, schedule, degree=2, micro_batches=4):
    """The plan at the length that the layers are said to have, and what is trained."""
    model, asked = small_model(make), question(schedule, degree, micro_batches)
    plan, training = plan_small(asked, model, times_of(model, degree))
    rows = [[op.duration_s / 10 for op in row] for row in plan.ops]
    return with_durations(plan, rows), training


@pytest.fixture
def lanes():
    """Lanes of threads, closed in the end."""
    opened = []

    def open_lanes(count):
        opened.append(ThreadLanes(count))
        return opened[-1]

    yield open_lanes
    for one in opened:
        one.close()


# Order


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_step_is_enqueued_once_and_after_all_that_it_waits_for(make, schedule):
    wiring = wire(planned(make, schedule, 4, 8)[0])
    before, there, reduced = previous_collectives(wiring.plan.collectives), set(), set()
    places = [[] for _ in wiring.plan.ops]
    for step in enqueue_order(wiring):
        if isinstance(step, Launch):
            device, index = step
            assert there.issuperset(wiring.waits[device][index])
            places[device].append(index)
        elif isinstance(step, Message):
            device, index = wiring.writers[wiring.transfers[step.slot].tensor]
            assert index in places[device]
            there.add(step.slot)
        else:
            assert isinstance(step, Reduction)
            assert reduced.issuperset(before[step.number])
            for tensor in wiring.plan.collectives[step.number].reads:
                device, index = wiring.writers[tensor]
                assert index in places[device]
            reduced.add(step.number)
            there.update(wiring.collective_sends[step.number])
    assert places == [list(range(len(row))) for row in wiring.plan.ops]
    assert len(reduced) == len(wiring.plan.collectives)
    assert {slot for slot, transfer in enumerate(wiring.transfers) if transfer} <= there


def test_the_plans_have_what_is_hard_to_carry_out(make):
    plans = {schedule: planned(make, schedule, 4, 8)[0] for schedule in SCHEDULES}
    assert plans["bidirectional"].collectives
    assert plans["diffusionpipe"].cross_iteration
    assert any(layer.bubble is not None for layer in plans["diffusionpipe"].filling.layers)
    assert any(isinstance(op.action, FrozenAction) for row in plans["diffusionpipe"].ops for op in row)
    assert len(plans["wave"].stages) == 8


def test_messages_that_wait_for_their_receiver_are_refused(make):
    plan, _ = planned(make, "1f1b")
    with pytest.raises(InputError, match="give --p2p overlapped"):
        check_plan(replace(plan, blocking=True))


# Times


def earliest(wiring, record):
    """Return when each op could begin, given when all others ended: on free links that take their time."""
    network = Network(wiring.plan.placement)
    there, ended = {}, {}
    for slot, transfer in enumerate(wiring.transfers):
        if transfer is not None:
            there[slot] = record.messages[slot][0] + network.route(transfer.source, transfer.target).delay_s
    before = previous_collectives(wiring.plan.collectives)
    for number, collective in enumerate(wiring.plan.collectives):
        route = network.collective(collective)
        ready = [record.ops[wiring.writers[t][0]][wiring.writers[t][1]][1] for t in collective.reads]
        ended[number] = max(ready + [ended[n] for n in before[number]]) + route.fixed_s + route.wire_s
        there.update(dict.fromkeys(wiring.collective_sends[number], ended[number]))
    return [
        [
            max([row[index - 1][1] if index else 0.0] + [there[slot] for slot in wiring.waits[device][index]])
            for index in range(len(row))
        ]
        for device, row in enumerate(record.ops)
    ]


def late_starts(wiring, record):
    """Return by how much later than it could each op began, negative if too early."""
    return [
        start - could
        for row, own in zip(record.ops, earliest(wiring, record), strict=True)
        for (start, _), could in zip(row, own, strict=True)
    ]


def slept(make, lanes, schedule):
    """The plan of kernels that sleep, what was recorded of it, and how late its ops began."""
    plan, _ = planned(make, schedule, 4, 8)
    wiring = wire(plan)
    record = Runner(lanes(LaneMap(4).count), wiring, Work(plan)).run()
    return plan, record, late_starts(wiring, record)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_nothing_starts_before_it_can_and_what_is_late_explains_the_rest(make, lanes, schedule):
    plan, record, late = slept(make, lanes, schedule)
    assert min(late) > -1e-9
    assert min(arrived - written for written, arrived in record.messages.values()) > LINK_S - 1e-9
    simulated_s = simulate(with_durations(plan, record.durations)).end_s
    assert simulated_s - 1e-9 < record.end_s < simulated_s + sum(late)


@pytest.mark.timed
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ops_start_and_messages_arrive_as_soon_as_they_can(make, lanes, schedule):
    _, record, late = slept(make, lanes, schedule)
    assert median(late) < LINK_S / 2
    assert median(arrived - written for written, arrived in record.messages.values()) < 1.5 * LINK_S


def test_an_op_that_does_not_wait_for_its_message_starts_too_early(make, lanes):
    plan, _ = planned(make, "1f1b", 4, 8)
    wiring = wire(plan)
    careless = wire(plan)
    careless.waits[3] = [() for _ in careless.waits[3]]
    record = Runner(lanes(LaneMap(4).count), careless, Work(plan)).run()
    assert min(late_starts(wiring, record)) < -LINK_S / 2


@pytest.mark.timed
def test_messages_on_one_link_arrive_each_in_its_own_time(lanes):
    own = lanes(2)
    first = own.record(0, stamped=True)
    own.submit(0, lambda: None)
    second = own.record(0, stamped=True)
    arrived = []
    for mark in (first, second):
        own.wait(1, mark)
        own.hold(1, mark, 0.1)
        arrived.append((mark, own.record(1)))
    own.settle()
    for mark, end in arrived:
        assert 0.1 <= own.seconds(mark, end) < 0.19


def test_what_goes_wrong_in_a_lane_is_raised_where_the_lanes_settle(lanes):
    own, after = lanes(2), []

    def fail():
        raise DiffusimError("no more")

    own.submit(0, fail)
    own.wait(1, own.record(0))
    own.submit(1, lambda: after.append(1))
    with pytest.raises(DiffusimError, match="no more"):
        own.settle()
    assert not after


# Gradients


def trained_on_lanes(make, lanes, schedule, *, careless=False):
    """The error of the gradients after three iterations."""
    plan, training = planned(make, schedule)
    torch.set_num_threads(1)
    wiring = wire(plan)
    work = LayerWork(training, wire(plan))
    if careless:
        wiring.waits[1] = [() for _ in wiring.waits[1]]
    runner = Runner(lanes(LaneMap(2).count), wiring, work)
    for _ in range(3):
        work.advance()
        runner.run()
    expected = single_process_gradients(training.model, 3, training.batch_size, extra_forward=False)
    return gradient_error(work.gradients(), expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_gradients_are_those_of_a_single_process(make, lanes, schedule):
    assert trained_on_lanes(make, lanes, schedule) < 1e-6


def test_gradients_tell_a_message_that_was_not_waited_for(make, lanes):
    try:
        error = trained_on_lanes(make, lanes, "1f1b", careless=True)
    except RuntimeError as raised:  # autograd may see before that what it kept is overwritten
        assert "modified by an inplace operation" in str(raised)
    else:
        assert error == inf


# Prediction


def test_the_share_of_busy_others_is_their_overlap_in_the_mean():
    rows = [[(0.0, 2.0)], [(1.0, 3.0)], [(0.0, 1.0), (1.0, 2.0)]]
    assert busy_shares(rows) == [[0.75], [0.5], [0.5, 1.0]]


def test_ops_that_share_nothing_are_predicted_as_they_are_alone(make):
    plan, _ = planned(make, "1f1b", 4, 8)
    alone = [[op.duration_s for op in row] for row in plan.ops]
    prediction = predict(plan, alone, alone)
    assert prediction.end_s == prediction.alone_s == prediction.busy_s == simulate(plan).end_s


def test_ops_that_share_memory_are_predicted_between_alone_and_busy(make):
    plan, _ = planned(make, "1f1b", 4, 8)
    alone = [[op.duration_s for op in row] for row in plan.ops]
    prediction = predict(plan, alone, [[1.4 * seconds for seconds in row] for row in alone])
    assert 1.01 * prediction.alone_s < prediction.end_s < 0.99 * prediction.busy_s


# The programme


def rehearsal(**given):
    return Programme(partitions=2, micro_batches=4, samples=2, rounds=1, rehearse=True, **given)


def test_a_rehearsal_measures_predicts_and_writes_what_it_is(make, lanes, tmp_path):
    asked = rehearsal(schedules=("bidirectional", "diffusionpipe"))
    found = list(results(asked, small_model(make), lanes(LaneMap(2).count)))
    write_results(tmp_path, "cpu", found, torch.device("cpu"), rehearsal=True)
    assert {path.name for path in tmp_path.iterdir()} == {"green-cpu.csv", "green-cpu.toml"}
    assert REHEARSAL in (tmp_path / "green-cpu.toml").read_text()
    with (tmp_path / "green-cpu.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["schedule"] for row in rows] == ["bidirectional", "diffusionpipe"]
    for row in rows:
        assert tuple(row) == COLUMNS
        assert float(row["gradient_error"]) < 1e-6
        assert float(row["measured_ms"]) > 0
        assert float(row["predicted_ms"]) > 0


def test_a_schedule_that_does_not_apply_is_told_and_nothing_is_made_up(make, lanes):
    asked = replace(rehearsal(schedules=("gpipe",)), partitions=16)
    (found,) = results(asked, small_model(make), lanes(2))
    assert found.measured is None
    assert "16" in found.note


def test_a_rehearsal_is_held_against_no_bound():
    empty = [Result("gpipe", 4, 32, 8, note="memory ran out")]
    assert list(summary(empty, rehearsal=False)) == []
    assert list(summary(empty, rehearsal=True)) == [REHEARSAL]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_so_and_nothing_is_written(tmp_path, capsys):
    assert main(["green", "--output", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"validate: error: torch {torch.__version__} finds no CUDA GPU here; --rehearse needs none"
    ]
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="finds no CUDA GPU"):
        check_gpu(4, 32)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"partitions": 1}, "--partitions is 1, must be at least 2"),
        ({"rounds": 0}, "--rounds is 0, must be at least 1"),
        ({"samples": 0}, "--samples is 0, must be at least 1"),
        ({"link_s": -1.0}, "--link-ms is -1000, must be at least 0"),
        ({"schedules": ("1f2b",)}, "--schedules: '1f2b' is none of gpipe, 1f1b"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(given, complaint):
    with pytest.raises(InputError, match=complaint):
        check_programme(replace(Programme(), **given))


def test_the_kernels_name_what_the_driver_is_asked_for():
    assert KERNELS.count(".visible .entry stamp(") == KERNELS.count(".visible .entry hold(") == 1
    assert LEAST_DRIVER == 12040
