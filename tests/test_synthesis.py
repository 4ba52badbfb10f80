"""Synthesis against brute force and closed forms, carried-over patterns against replays, and the command."""

import json
import math
import sys
from dataclasses import replace
from random import Random

import pytest
from notation import parse_action, parse_order

from profiles.errors import InputError
from sim.cli.main import main
from strategies.orders.list_scheduling import list_schedule, lower_bound_s
from strategies.orders.problem import (
    Chain,
    Problem,
    evaluate,
    fits,
    lanes_of,
    peak_held,
    tails,
    there_and_back,
    wave_problem,
)
from strategies.orders.synthesis import CERTIFICATE, LIST, PROGRAMME, synthesize
from strategies.plans.actions import format_order


class BruteForce:
    """The least makespan of a problem, by trying every order in which passes can start one after the other."""

    def __init__(self, problem):
        self.problem = problem
        self.lanes = lanes_of(problem)
        self.tails = tails(replace(problem, in_flight=None), self.lanes)
        self.before = {lane.following: number for number, lane in enumerate(self.lanes)}
        self.seen = set()
        self.best = math.inf

    def run(self):
        devices = self.problem.num_devices
        self.extend(tuple(() for _ in self.lanes), (0.0,) * devices, (0.0, -1))
        return self.best

    def extend(self, ends, free, last):
        """Start one more pass; ends of each lane so far, when devices are free, and the last start and device."""
        if (ends, last) in self.seen:
            return
        self.seen.add((ends, last))
        choices = []
        for number, lane in enumerate(self.lanes):
            index = len(ends[number])
            if index == len(self.tails[number]):
                continue
            ready = self.ready(ends, number, index)
            if ready is None or not self.may_hold(ends, lane):
                continue
            start = max(ready, free[lane.device])
            if (start, lane.device) < last:
                continue
            choices.append((start, number))
            if start + lane.duration_s + self.tails[number][index] >= self.best - 1e-9:
                return  # it will not start earlier than this in any order that follows
        if not choices and all(len(e) == len(t) for e, t in zip(ends, self.tails, strict=True)):
            self.best = min(self.best, max(max(of_lane) for of_lane in ends))
        for start, number in sorted(choices):
            lane = self.lanes[number]
            end = start + lane.duration_s
            later = tuple((*e, end) if n == number else e for n, e in enumerate(ends))
            busy = tuple(end if d == lane.device else at for d, at in enumerate(free))
            self.extend(later, busy, (start, lane.device))

    def ready(self, ends, number, index):
        before = self.before.get(number)
        if before is None:
            return 0.0
        return ends[before][index] + self.lanes[before].lag_s if len(ends[before]) > index else None

    def may_hold(self, ends, lane):
        if lane.kind == "B":
            return True
        problem = self.problem
        in_flight = [0] * len(problem.positions)
        for other, of_lane in zip(self.lanes, ends, strict=True):
            in_flight[other.stage] += len(of_lane) if other.kind == "F" else -len(of_lane)
        in_flight[lane.stage] += 1
        return not problem.in_flight or in_flight[lane.stage] <= problem.in_flight[lane.stage]


SHAPES = [((0, 1), 2, 4), ((0, 1, 2), 3, 3), ((0, 1, 1, 0), 4, 3), ((0, 1, 0, 1), 4, 3), ((0, 1, 1, 0), 2, 2)]
"""Devices of the stages, stages of the first chain, and most micro-batches that brute force can take."""


def tiny_problem(rng, times):
    """A problem of two or three devices with times, lags and caps drawn at random."""
    positions, cut, most = rng.choice(SHAPES)
    count, chains = len(positions), []
    for stages, least in (range(cut), most - 1), (range(cut, count), 1):
        if stages:
            forward_s, backward_s = ([times(rng) for _ in stages] for _ in range(2))
            lags = [rng.choice([0.0, 0.0, 1.0]) for _ in stages[1:]]
            passes = there_and_back(stages, forward_s, backward_s, lags)
            chains.append(Chain(passes, range(rng.randint(least, most))))
    problem = Problem(tuple(chains), positions)
    if rng.choice([True, False]):
        return replace(problem, in_flight=tuple(rng.randint(1, 2) for _ in range(count)))
    return problem


@pytest.mark.parametrize("seed", range(20))
def test_whole_durations_are_solved_and_proven(seed):
    problem = tiny_problem(Random(seed), lambda rng: float(rng.randint(1, 3)))
    best = BruteForce(problem).run()
    assert lower_bound_s(problem) <= best <= list_schedule(problem).makespan_s
    synthesis = synthesize(problem)
    assert synthesis.proven
    assert synthesis.bound_s == synthesis.ordering.makespan_s == best
    assert evaluate(problem, synthesis.ordering.rows).makespan_s == best
    assert fits(problem, synthesis.ordering.rows)
    assert synthesis.method in (PROGRAMME, CERTIFICATE)
    for row in synthesis.ordering.rows:
        for lane in {action[:2] for action in row}:
            numbers = [action.micro_batch for action in row if action[:2] == lane]
            assert numbers == sorted(numbers)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_real_durations_lie_between_bound_and_order(seed):
    problem = tiny_problem(Random(seed), lambda rng: rng.uniform(0.5, 2.5))
    best = BruteForce(problem).run()
    synthesis = synthesize(problem, 5.0)
    assert synthesis.bound_s <= best * (1 + 1e-9)
    assert best <= synthesis.ordering.makespan_s * (1 + 1e-9)
    assert fits(problem, synthesis.ordering.rows)
    if synthesis.proven:
        assert synthesis.ordering.makespan_s == pytest.approx(best, rel=1e-9)


def test_the_programme_betters_list_scheduling_of_two_waves():
    problem = wave_problem(4, 4, 2)
    assert list_schedule(problem).makespan_s == 61
    synthesis = synthesize(problem)
    assert (synthesis.bound_s, synthesis.ordering.makespan_s) == (60, 60)
    assert (synthesis.proven, synthesis.method) == (True, PROGRAMME)


def test_what_no_time_is_given_for_is_not_called_proven():
    problem = wave_problem(4, 4, 2)
    synthesis = synthesize(problem, 0.0)
    assert (synthesis.bound_s, synthesis.ordering.makespan_s) == (60, 61)
    assert (synthesis.proven, synthesis.method) == (False, LIST)


def test_without_a_solver_list_scheduling_still_works(monkeypatch):
    monkeypatch.setitem(sys.modules, "pulp", None)
    assert synthesize(wave_problem(4, 4)).method == CERTIFICATE
    with pytest.raises(InputError, match="schedule synthesis needs PuLP and HiGHS"):
        synthesize(wave_problem(4, 4, 2))


@pytest.fixture
def sim(capfd):
    """A function that runs ``sim synthesize`` and returns its exit code, stdout and stderr."""

    def run(arguments):
        code = main(["synthesize", *arguments.split()])
        return code, *capfd.readouterr()

    return run


def test_the_command_prints_bound_proof_and_rows(sim):
    code, out, err = sim("--pipeline-degree 4 --micro-batches 4")
    assert (code, err) == (0, "")
    head, rows = out.split("\n\n")
    answers = {line[:18].strip(): line[18:] for line in head.splitlines()}
    assert answers["problem"] == "4 devices, 8 stages, 4 micro-batches"
    assert answers["bound"] == "36"
    assert answers["makespan"] == "36, no shorter order exists"
    assert answers["method"] == "list scheduling, which meets the lower bound"
    assert float(answers["seconds"]) < 10
    assert evaluate(wave_problem(4, 4), parse_order(rows)).makespan_s == 36


def test_json_holds_the_answer(sim):
    code, out, _ = sim("--pipeline-degree 4 --micro-batches 4 --waves 2 --json")
    assert code == 0
    assert out.count("\n") == 1
    result = json.loads(out)
    assert list(result) == [
        "pipeline_degree", "micro_batches", "positions", "bound", "makespan", "proven", "method",
        "activations_held", "seconds", "rows",
    ]  # fmt: skip
    assert [result[key] for key in ("bound", "makespan", "proven", "method")] == [60, 60, True, PROGRAMME]
    rows = parse_order("\n".join(result["rows"]))
    assert evaluate(wave_problem(4, 4, 2), rows).makespan_s == 60
    assert result["activations_held"] == peak_held(rows)


def test_torch_gets_its_csv_on_stdout_and_nothing_else(sim):
    _, text, _ = sim("--pipeline-degree 2 --micro-batches 3")
    code, out, err = sim("--pipeline-degree 2 --micro-batches 3 --format torch")
    assert code == 0
    assert "no shorter order exists" in err
    rows = [list(map(parse_action, line.split(","))) for line in out.splitlines()]
    assert format_order(rows) == text.split("\n\n")[1]


def test_layout_durations_and_lag_are_as_given(sim):
    arguments = "--pipeline-degree 2 --positions 0,1,1 --forward 1,2,3 --backward 4 --lag 0.5 --json"
    one, two = (json.loads(sim(f"{arguments} --micro-batches {count}")[1]) for count in (1, 2))
    assert one["makespan"] == 1 + 0.5 + 2 + 3 + 4 + 4 + 0.5 + 4
    passes = there_and_back(range(3), (1.0, 2.0, 3.0), (4.0,) * 3, (0.5, 0.0))
    problem = Problem((Chain(passes, (0, 1)),), (0, 1, 1))
    assert two["proven"]
    assert two["makespan"] == BruteForce(problem).run()


def test_bad_input_is_one_line_and_exit_code_two(sim):
    for arguments, message in (
        ("--positions 0,1,2",
         "--positions, entry 2 is 2, must be from 0 to 1: there are --pipeline-degree 2 positions"),
        ("--positions 0,0", "--positions has no entry 1, each of --pipeline-degree 2 positions must have a stage"),
        ("--positions 0,1 --waves 2", "--waves and --positions both say where stages are: give one of them"),
        ("--forward 1,2", "--forward has 2 entries, must be one or one for each of 4 stages"),
        ("--waves 60000", "2 * stages(240000) * --micro-batches 2 = 960000 passes, at most 131072"),
        ("--json --format torch", "--json and --format torch both want stdout: give one of them"),
    ):  # fmt: skip
        answer = sim(f"--pipeline-degree 2 --micro-batches 2 {arguments}")
        assert answer == (2, "", f"sim: error: {message}\n")
