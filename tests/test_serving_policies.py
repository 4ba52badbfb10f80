"""Serving policies: hand-worked runs against first come first served, and what holds for every run of every one."""

from dataclasses import dataclass
from itertools import pairwise, product
from math import inf
from typing import ClassVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import sim
from profiles.errors import InputError
from sim.serving.fleet import PARTS, Plan, Pool, Replay, Service
from strategies.degrees import least_degrees
from strategies.policy import ElasticPolicy, Job, Policy, Run, Shape, Times
from strategies.registry import policies
from strategies.serving.tetriserve import TetriServe

SMALL, BIG, WIDE = 1, 2, 3
STEP_S = {
    SMALL: {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0},
    BIG: {1: 4.0, 2: 2.0, 4: 1.2, 8: 1.1},
    WIDE: {1: 8.0, 2: 4.5, 4: 2.5, 8: 1.5},
}


@dataclass(frozen=True)
class Seconds(Service):
    """Seconds of a step by side and GPUs; each further request of a batch adds a share of it."""

    more: float = 1.0
    move_s: float = 0.0
    ends_s: float = 0.0

    def times(self, gpus, shape, batch=1):
        step_s = STEP_S[shape.height][gpus] * (1 + self.more * (batch - 1))
        return Times(self.ends_s, step_s, self.ends_s)

    def handover_s(self, shape):
        return self.move_s


def request(arrival_s, steps, slo_s=inf, side=SMALL):
    return arrival_s, Shape(side, side, 1, steps), slo_s


def replay(policy, requests, replicas=(1,), service=None, *, pools=None, **setup):
    """Return the log of a run: policies by name or as they are."""
    policy = policies()[policy]() if isinstance(policy, str) else policy
    jobs = [Job(k, at, shape, at + slo_s) for k, (at, shape, slo_s) in enumerate(requests)]
    setup = Plan(pools or (Pool(replicas),), policy, **{"degrees": (1, 2, 4), **setup})
    return Replay(setup, jobs, service or Seconds()).run()


def ends_s(*arguments, **options):
    log = replay(*arguments, **options)
    return [pytest.approx(job.end_s, abs=1e-5) for job in sorted(log.jobs, key=lambda job: job.number)]


def test_shortest_first_lowers_the_mean_and_holds_up_the_long_ones():
    requests = [request(0, 10), request(1, 10), request(2, 1)]
    assert ends_s("fcfs", requests) == [10, 20, 21]
    assert ends_s("sjf", requests) == [10, 21, 11]
    assert ends_s("sjf", [request(0.1 * k, 2) for k in range(4)]) == [2, 4, 6, 8]  # ties by arrival


def test_earliest_deadline_first_holds_what_is_urgent_and_wastes_time_on_what_is_hopeless():
    urgent = [request(0, 4, 100), request(1, 4, 100), request(2, 1, 4)]
    assert ends_s("fcfs", urgent)[2] == 9  # due at 6
    assert ends_s("edf", urgent) == [4, 9, 5]
    hopeless = [request(0, 4, 100), request(1, 4, 8), request(2, 4, 5)]
    assert ends_s("fcfs", hopeless)[1] == 8  # due at 9
    assert ends_s("edf", hopeless) == [4, 12, 8]  # due at 7


def test_requests_join_a_batch_between_steps_which_pays_where_a_batch_is_cheap():
    requests = [request(0, 4), request(0.5, 4)]
    assert ends_s("fcfs", requests) == [4, 8]
    assert ends_s("step-batching", requests, service=Seconds(0.1), max_batch=2) == [4.3, 5.3]
    assert ends_s("step-batching", requests, service=Seconds(1.0), max_batch=2) == [7, 8]


def test_a_batch_keeps_its_cap_its_shape_its_replica_and_the_order_of_arrival():
    requests = [request(0, 3), request(0.1, 3), request(0.2, 3), request(0.3, 1, side=BIG), request(0.4, 3)]
    assert ends_s("step-batching", requests, service=Seconds(0), max_batch=3) == [3, 4, 4, 8, 11]
    two = replay("step-batching", requests, (1, 1), Seconds(0), max_batch=3)
    assert all(len({of.gpus for of in two.ran if k in of.jobs}) == 1 for k in range(5))


def test_encoders_and_decoders_of_a_batch_run_once_for_it():
    batch = [request(0, 3), request(0, 3)]
    assert ends_s("batcher", batch, service=Seconds(0.5, ends_s=2), max_batch=2, batch_wait_s=1) == [8.5, 8.5]
    more = [request(0, 2)] * 3  # the third waits for a batch of its own
    assert ends_s("batcher", more, service=Seconds(0.5), max_batch=2, batch_wait_s=1) == [3, 3, 5]


def test_preemption_between_steps_helps_short_ones_and_yields_to_hopeless_ones():
    assert ends_s("fcfs", [request(0, 10), request(0.5, 2)]) == [10, 12]
    assert ends_s("preemptive", [request(0, 10), request(0.5, 2)]) == [12, 3]
    hopeless = [request(0, 10, 11), request(0.5, 2, 1.5)]
    assert ends_s("fcfs", hopeless)[0] == 10
    assert ends_s("preemptive", hopeless) == [12, 3]


def test_a_request_that_goes_on_elsewhere_pays_for_its_move():
    requests = [request(0, 10, 100), request(0, 3, 50), request(0.5, 5, 10)]
    assert ends_s("preemptive", requests, (1, 1), Seconds(move_s=0.5)) == [12.5, 3, 6]


def test_a_fixed_degree_by_resolution_fits_each_and_waits_for_neighbours():
    small = [request(0, 1)] * 4
    assert ends_s("fcfs", small, (4,)) == [1, 2, 3, 4]
    assert ends_s("rssp", small, (4,)) == [1, 1, 1, 1]
    mixed = [request(0, 10), request(0.5, 1, 2, BIG), request(0.6, 1)]
    assert ends_s("fcfs", mixed, (1,) * 4) == [10, 4.5, 1.6]
    assert ends_s("rssp", mixed, (2,)) == [10, 12, 13]  # the big one takes both GPUs, and holds up the last


def test_requests_wait_for_neighbours_or_take_fewer_where_gpus_are_scattered():
    steps = [3, 1, 1, 1, 3, 1, 1, 1]  # from 1 to 3 s a GPU of each node is busy
    scattered = [*(request(0, k) for k in steps), request(1.5, 2, 2.5, BIG), request(1.6, 1)]
    assert ends_s("rssp", scattered, (4, 4))[8:] == [5.4, 4]
    assert ends_s("elastic", scattered, (4, 4))[8:] == [4.7, 2.6]


def test_elastic_degrees_use_and_gather_idle_gpus_but_end_later_under_load():
    alone = [request(0, 4, side=BIG)]
    assert ends_s("fcfs", alone, (1,) * 4) == [16]
    assert ends_s("elastic", alone, (4,)) == [4.8]
    grows = [request(0, 2), request(0.5, 3, side=BIG)]  # a step on two GPUs, then two on four
    assert ends_s("elastic", grows, (4,), Seconds(move_s=0.1)) == [2, 5]
    crowd = [request(0, 1, side=BIG)] * 4
    assert ends_s("fcfs", crowd, (1,) * 4) == [4, 4, 4, 4]
    assert ends_s("elastic", crowd, (4,)) == [1.2, 2.4, 3.6, 4.8]


def test_tetriserve_makes_room_for_deadlines_and_lets_others_wait_for_its_rounds():
    policy = TetriServe(steps=1)  # rounds of 1.2 s: a step of the big one on four GPUs
    urgent = [request(0, 4, 9, BIG), request(0.5, 1, 2.1)]
    assert ends_s("fcfs", urgent, (4,))[1] == 5.8  # due at 2.6
    assert ends_s(policy, urgent, (4,)) == [5.6, 2.2]
    calm = [request(0, 3), request(0.5, 3)]  # rounds of 1 s
    assert ends_s("fcfs", calm, (1,) * 4) == [3, 3.5]
    assert ends_s(policy, calm, (4,)) == [3, 4]


def test_queues_of_their_own_hold_requests_up_behind_long_ones():
    requests = [request(0, 10), request(0.1, 1), request(2, 1)]
    ends = {
        way: ends_s("fcfs", requests, (1, 1), dispatch=way)
        for way in ("shared", "round-robin", "least-loaded")
    }
    assert ends == {
        "shared": [10, 1.1, 3], "round-robin": [10, 1.1, 11], "least-loaded": [10, 1.1, 3]
    }  # fmt: skip
    later = [request(0, 10), request(0.1, 9), request(0.2, 1), request(0.3, 1), request(9.5, 1)]
    assert ends_s("fcfs", later, (1, 1))[2:] == [10.1, 11.0, 11.1]
    assert ends_s("fcfs", later, (1, 1), dispatch="least-loaded")[2:] == [11, 10.1, 11.1]


@dataclass
class Moment:
    """A fleet at one moment, in a round of 2 s."""

    now: float = 0.0
    round_s: float = 2.0

    def choices(self, shape):
        return {gpus: Times(0.0, step_s, 0.0) for gpus, step_s in STEP_S[shape.height].items()}

    def left_s(self, gpus, job, steps=0):
        return (job.steps_left - steps) * STEP_S[job.shape.height][gpus]


jobs_of_a_moment = st.lists(
    st.builds(
        lambda side, steps, times: (side, steps, times * steps * STEP_S[side][8]),
        st.sampled_from([SMALL, BIG, WIDE]), st.integers(1, 6), st.sampled_from([0.9, 1.0, 1.3, 1.7, 2.5, 5.0]),
    ),
    min_size=6, max_size=6,
)  # fmt: skip


def survives(job, gpus):
    """Whether a request can still be in time after a round of 2 s."""
    sizes = STEP_S[job.shape.height]
    steps = min(job.steps_left, max(1, int(2 / sizes[gpus] + 1e-9))) if gpus else 0
    if steps == job.steps_left:
        return steps * sizes[gpus] <= job.deadline_s
    ends_s = max(2, steps * sizes[gpus]) if gpus else 2
    return ends_s + (job.steps_left - steps) * min(sizes.values()) <= job.deadline_s


@given(jobs_of_a_moment, st.integers(1, 8))
@example([(WIDE, 1, 2.5), *[(SMALL, 1, 1.0)] * 5], 4)  # four fit beside each other, or the wide one alone
def test_as_many_requests_survive_a_round_of_tetriserve_as_any_choice_lets(drawn, free):
    jobs = [Job(k, 0.0, Shape(side, side, 1, steps), due) for k, (side, steps, due) in enumerate(drawn)]
    runs = TetriServe().divide(jobs, free, Moment())
    given_to = {run.jobs[0].number: run.gpus for run in runs}
    assert len(given_to) == len(runs)
    assert sum(given_to.values()) <= free
    choices = [
        [(0, survives(job, 0)), *((k, survives(job, k)) for k in least_degrees(job, Moment()))]
        for job in jobs
    ]
    most = max(sum(ok for _, ok in of) for of in product(*choices) if sum(k for k, _ in of) <= free)
    assert sum(survives(job, given_to.get(job.number, 0)) for job in jobs) >= most


@given(jobs_of_a_moment)
def test_degrees_for_a_deadline_are_the_least_gpu_seconds_of_any_two(drawn):
    for side, steps, due_s in drawn:
        sizes = STEP_S[side]
        plans = [
            ((steps - k) * a * sizes[a] + k * b * sizes[b], sorted({a, b} if 0 < k < steps else {b}))
            for a, b in product(sizes, sizes)
            for k in range(1, steps + 1)
            if (steps - k) * sizes[a] + k * sizes[b] <= due_s
        ]
        least = min((gpu_s for gpu_s, _ in plans), default=None)
        found = list(least_degrees(Job(0, 0.0, Shape(side, side, 1, steps), due_s), Moment()))
        assert found in [degrees for gpu_s, degrees in plans if gpu_s <= least + 1e-9] if plans else not found


@st.composite
def runs(draw):
    """Draw a policy, a fleet and requests; return the policy, what was asked, the setup's options and the log."""
    name = draw(st.sampled_from(sorted(policies())))
    sizes = draw(st.sampled_from([(1,), (2, 1), (1, 1, 1), (4,), (4, 4), (4, 2)]))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.3, 1.0, 7.0]), min_size=1, max_size=20))
    requests = [
        request(
            sum(gaps[: k + 1]),
            draw(st.integers(1, 5)),
            draw(st.sampled_from([2.0, 6.0, 30.0, inf])),
            draw(st.sampled_from([SMALL, BIG])),
        )
        for k in range(len(gaps))
    ]
    options = {
        "dispatch": draw(st.sampled_from(["shared", "round-robin", "least-loaded"])),
        "max_batch": draw(st.integers(1, 3)) if policies()[name].batches else 1,
        "batch_wait_s": draw(st.sampled_from([0.0, 2.0])),
        "degrees": tuple(size for size in (1, 2, 4) if size <= max(sizes)),
    }
    service = Seconds(draw(st.sampled_from([0.2, 1.0])), draw(st.sampled_from([0.0, 0.1])), 0.25)
    stages = (Pool((1,), PARTS[:1]), Pool(sizes, PARTS[1:2]), Pool((1,), PARTS[2:]))
    staged = draw(st.booleans())
    log = replay(name, requests, sizes, service, pools=stages if staged else None, **options)
    return policies()[name], requests, staged or options["dispatch"] != "shared", log


@given(runs())
def test_every_run_of_every_policy_runs_each_request_once_and_no_gpu_twice_at_a_time(drawn):
    policy, requests, apart, log = drawn
    assert sorted(job.number for job in log.jobs) == list(range(len(requests)))
    assert log.busy_gpu_s == pytest.approx(sum((of.end_s - of.start_s) * len(of.gpus) for of in log.ran))
    busy = {gpu: sorted((of.start_s, of.end_s) for of in log.ran if gpu in of.gpus) for gpu in range(10)}
    assert all(a[1] <= b[0] + 1e-9 for spans in busy.values() for a, b in pairwise(spans))
    for job in log.jobs:
        mine = sorted(of for of in log.ran if job.number in of.jobs)
        assert mine[0].start_s == job.start_s >= job.arrival_s == requests[job.number][0]
        assert mine[-1].end_s == pytest.approx(job.end_s)
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(mine))
        assert sum(of.steps for of in mine) == job.shape.steps
    gpus = {gpu for of in log.ran for gpu in of.gpus}
    if policy.name not in ("batcher", "step-batching", "rssp", "tetriserve") and not apart:  # these may idle
        for job in log.jobs:
            for gpu in gpus:
                spans = [(a, b) for a, b in busy[gpu] if b > job.arrival_s and a < job.start_s]
                covered_s = sum(min(b, job.start_s) - max(a, job.arrival_s) for a, b in spans)
                assert covered_s == pytest.approx(job.start_s - job.arrival_s, abs=1e-6)
    if policy.name in ("fcfs", "rssp") and not apart:
        starts = [job.start_s for job in sorted(log.jobs, key=lambda job: job.number)]
        assert starts == sorted(starts)


@dataclass(frozen=True)
class LongestFirst(Policy):
    """The largest first."""

    name = "longest"
    summary = "the longest request first"
    seen: ClassVar[dict[int, set[tuple[float, Shape]]]] = {}

    def rank(self, job, fleet):
        self.seen.setdefault(job.number, set()).add((job.arrival_s, job.shape))
        return -fleet.left_s(1, job)


def test_a_policy_of_ones_own_runs_beside_others_and_all_plans_see_the_same_requests(tmp_path):
    times, mix = tmp_path / "times.csv", tmp_path / "mix.toml"
    rows = [f"{side},{side},1,10,{gpus},1,{side / 256 / gpus}" for side in (256, 512) for gpus in (1, 2)]
    times.write_text("\n".join(["height,width,frames,steps,gpus,batch,seconds", *rows]))
    mix.write_text(
        'title = "two"\nsource = "this test"\n'
        + "".join(f"[[class]]\nshare = 0.5\nresolution = {side}\n" for side in (256, 512))
    )
    found = sim.serve(
        service=str(times), gpus=2, rate=1.2, mix=str(mix), policy=[LongestFirst, "fcfs"], workers=1
    )
    plans = {(of.plan.replicas, of.plan.rule) for of in found.outcomes}
    assert plans == set(product(("2x1", "1x2"), ("longest", "fcfs")))
    assert len(LongestFirst.seen) > 1900
    assert all(len(requests) == 1 for requests in LongestFirst.seen.values())


def test_a_policy_that_leaves_requests_on_idle_gpus_is_refused():
    class Never(ElasticPolicy):
        name, summary = "never", "starts nothing"

        def divide(self, queue, free, fleet):
            return []

    said = "policy never leaves requests waiting on idle GPUs for ever: 2 of 2"
    with pytest.raises(InputError, match=said):
        replay(Never(), [request(0, 1), request(1, 1)])


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (lambda queue: Run((), 1), "1 steps of 0 requests, must be at least one of some that wait"),
        (lambda queue: Run(queue, 0), "0 steps of 3 requests, must be at least one"),
        (lambda queue: Run(queue[:1] * 2, 1), "1 steps of 2 requests, must be at least one"),
        (lambda queue: Run(queue[:1], 9), "9 steps of 1 request, must be at most the 1 that are left"),
        (lambda queue: Run(queue[:2], 1), "1 steps of 2 requests, must be of at most 1 "),
        (lambda queue: Run(queue, 1), "1 steps of 3 requests, must be of requests of one shape"),
        (lambda queue: Run(queue[0], 1), "Run.*, must be a Run of a list of requests"),
        (lambda queue: 3, "3, must be a Run"),
        (lambda queue: queue[0], "Job.*, must be a Run of a list"),
    ],
)
@pytest.mark.parametrize("elastic", [False, True])
def test_a_policy_that_chooses_what_cannot_run_is_refused(chosen, says, elastic):
    class Wrong(ElasticPolicy if elastic else Policy):
        name, summary = "wrong", "runs what cannot be run"

        def start(self, queue, replica, fleet):
            return chosen(queue) if len(queue) == 3 else fleet.now + 1

        def divide(self, queue, free, fleet):
            run = chosen(queue) if len(queue) == 3 else ()
            return [run._replace(gpus=1)] if isinstance(run, Run) else run

    requests = [request(0, 1), request(0, 1), request(0, 1, side=BIG)]
    with pytest.raises(InputError, match=f"policy wrong chose {says}") as refused:
        replay(Wrong(), requests)
    assert refused.value.__notes__ == [f"at {'1 elastic' if elastic else '1x1'}, wrong"]
