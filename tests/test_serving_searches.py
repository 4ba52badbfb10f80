"""What is searched and drawn for serving: capacities, warm-up, estimates, costs, arrivals, traces and hand-overs."""

from dataclasses import replace

import numpy as np
import pytest

import sim
from sim.report.serving import load_warning, plan_words
from sim.serving.fleet import Plan, Pool, Replay
from sim.serving.options import Kind, Load, ServingOptions, Trace
from sim.serving.service import Tabled
from strategies.policy import Shape, Times
from strategies.serving.elastic import Elastic
from strategies.serving.fcfs import FirstComeFirstServed

SHAPE = Shape(1024, 1024, 1, 20)
TABLE = "height,width,frames,steps,gpus,batch,seconds\n1024,1024,1,20,1,1,4\n1024,1024,1,20,2,1,2.2\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "service.csv"
    path.write_text(TABLE)
    return str(path)


def ask(table, **options):
    return sim.serve(service=table, policy="fcfs", **options)


def test_a_capacity_holds_the_slo_and_five_per_cent_more_does_not(table):
    serving = ask(table, gpus=2, capacity=True, slo=9)
    best, rate, (low, high) = serving.best, serving.best.capacity_per_s, serving.ends["capacity_per_s"]
    assert low <= rate <= high
    assert ask(table, gpus=2, rate=rate, slo=9, replicas=best.plan.replicas).best.holds(0.99)
    assert not ask(table, gpus=2, rate=1.05 * rate, slo=9, replicas=best.plan.replicas).best.holds(0.99)
    first, second = ask(table, gpus=2, rate=0.1, capacity=True, slo=9).outcomes
    assert (first.plan, first.capacity_per_s) == (best.plan, rate)
    assert first.percentile_s(99) > second.percentile_s(99)
    assert ask(table, gpus="1-4", rate=0.1, capacity=True, slo=9).best.capacity_per_s > 0.1


def test_a_curve_has_the_plan_that_holds_the_most():
    found = sim.serve("flux-dev", "h100-nvlink-8", 8, rate="0.5-3", slo=8)
    assert found.limit[1] in [curve[0].plan for curve in found.curves]


@pytest.mark.long
def test_processes_that_share_the_plans_change_nothing(table):
    asked = {"gpus": 2, "capacity": True, "slo": 9}
    assert ask(table, workers=2, **asked).to_json() == ask(table, workers=1, **asked).to_json()


def test_gaps_have_the_coefficient_of_variation_asked_for():
    for arrivals, variation in (("poisson", 1.0), ("gamma:3", 3.0), ("uniform", 0.0)):
        load = Load((Kind(1.0, SHAPE),), 1.0, 40_000.0, arrivals)
        gaps = np.diff([job.arrival_s for job in load.jobs()])
        assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05, abs=1e-9)


def test_a_span_of_rates_is_told_from_an_exponent():
    for text, rates in (("1e-2", (0.01, 0.01)), ("1e-2-3", (0.01, 3)), ("0.5-4", (0.5, 4))):
        assert ServingOptions(rate=text).rates == rates


def test_a_closed_loop_lasts_until_its_clients_have_asked_again(table):
    best = ask(table, gpus=2, arrivals="closed:3000").best
    assert best.percentile_s(50) == pytest.approx(3000 / best.completed_per_s, rel=0.01)
    assert ask(table, gpus=1, arrivals="closed:100", duration=60).best.latencies_s == pytest.approx(400)


def test_what_a_plan_completes_at_most_heeds_queues_and_stages(table):
    mixed = {"gpus": 3, "rate": 0.1, "replicas": "1x2+1x1"}
    assert ask(table, **mixed).best.ceiling_per_s == pytest.approx(1 / 4 + 1 / 2.2)
    assert ask(table, dispatch="round-robin", **mixed).best.ceiling_per_s == pytest.approx(2 / 4)
    stages = {"pools": "encoder=1,denoiser=6,decoder=1", "steps": 1, "rate": 1, "duration": 60}
    one, batched = (sim.serve("flux-dev", "h100-nvlink-8", policy=of, **stages) for of in ("fcfs", "batcher"))
    assert one.best.ceiling_per_s == batched.best.ceiling_per_s  # of the decoder, which forms no batches


def test_given_replicas_are_no_more_than_they_are_and_a_table_without_batches_says_so(table):
    assert ask(table, gpus="4-8", rate=0.1, slo=9, replicas="2x1").best.plan.gpus == 2
    with pytest.raises(sim.InfeasibleError, match="no plan fits on 2 GPUs: batches: the table"):
        sim.serve(service=table, gpus=2, rate=0.1, policy="batcher")


def test_another_rate_stretches_a_trace():
    trace = Trace((0.0, 1.0, 4.0), (0, 0, 0))
    load = Load((Kind(1.0, SHAPE),), trace.rate_per_s, 4.0, trace=trace)
    assert [job.arrival_s for job in replace(load, rate_per_s=2 * trace.rate_per_s).jobs()] == [0.0, 0.5, 2.0]


def test_an_slo_in_times_is_of_a_request_alone_on_the_fewest_gpus(table):
    assert ask(table, gpus=2, rate=0.1, slo="3x").question.kinds[0].slo_s == pytest.approx(12.0)


def test_a_smaller_fleet_goes_first_where_cost_is_ranked_by(table):
    plans = {"gpus": 2, "rate": 0.1, "replicas": "2x1,1x1"}
    assert ask(table, **plans).best.plan.replicas == "2x1"
    assert ask(table, **plans, objective="cost").best.plan.replicas == "1x1"
    assert ask(table, gpus=2, rate=0.1, price=3.6).best.dollars_per_1000 == pytest.approx(2 / 0.1)


def test_what_a_request_asks_for_does_not_depend_on_when_it_comes():
    kinds = Kind(0.5, SHAPE), Kind(0.5, SHAPE._replace(steps=10))
    jobs = list(Load(kinds, 1.0, 10_000.0).jobs())
    gaps = np.diff([job.arrival_s for job in jobs])
    small = [job.shape.steps == 10 for job in jobs]
    for kinds_of in (small[1:], small[:-1]):
        assert abs(np.corrcoef(gaps, kinds_of)[0, 1]) < 4 / len(gaps) ** 0.5


def test_a_replica_serves_once_it_has_loaded_its_model_and_its_capacity_is_that_of_a_loaded_one(table):
    known = {"gpus": 1, "slo": 9, "duration": 400}
    plain = ask(table, rate=0.1, arrivals="uniform", **known).best
    loading = ask(table, rate=0.1, arrivals="uniform", loading=32, **known)
    assert plain.latencies_s == pytest.approx([4.0] * 36)  # of 40: the first tenth is not counted
    assert loading.best.latencies_s[:6] == pytest.approx([26.0, 20.0, 14.0, 8.0, 4.0, 4.0])
    assert loading.best.attainment == pytest.approx(36 / 39)
    assert "once loaded, up to" in load_warning(loading)
    asked = {"rate": 0.1, "capacity": True, **known}
    loaded, never = ask(table, loading=32, **asked).best, ask(table, **asked).best
    assert loaded.capacity_per_s == never.capacity_per_s
    clients = ask(table, gpus=1, arrivals="closed:2", slo=99, duration=60, loading=32).best
    assert clients.latencies_s[:3] == pytest.approx([36.0, 40.0, 8.0])


POOLS = {"gpus": 4, "pools": "encoder=1,denoiser=2,decoder=1", "rate": 0.02, "policy": "fcfs", "steps": 28}


def test_a_pool_holds_the_weights_of_its_stage_alone_and_no_framework_divides_a_fleet_so():
    """FLUX's transformer takes 23.8 GB, its encoders 9.8: 30 GiB have room for either, not for both."""
    found = sim.serve("flux-dev", "l20-pcie-8", memory="30GiB", duration=2000, slo=60, **POOLS)
    assert "estimated" in str(found.verdict)
    assert found.best.plan.stages == {"encoder": 1, "denoiser": 2, "decoder": 1}
    with pytest.raises(sim.InfeasibleError, match="too much"):
        sim.serve("flux-dev", "l20-pcie-8", memory="22GiB", duration=2000, **POOLS)
    lines = dict(sim.serve("flux-dev", "l20-pcie-8", duration=2000, slo=60, **POOLS).verdict.panel.lines)
    assert lines["best"] == "encoder 1 GPU, denoiser 2 replicas of 1 GPU, decoder 1 GPU, single"
    assert lines["runs in"] == "no framework runs this today"
    assert "denoiser 2 GPUs, as many" in plan_words(replace(found.best.plan, policy=Elastic()))


def test_low_is_below_high_for_all_that_has_ends():
    load = {"rate": 2, "slo": 2, "capacity": True, "duration": 200}
    found = sim.serve("pixart", "h100-nvlink-8", 2, policy="fcfs", **load)
    row = found.to_json()[0]
    for key in ("attainment", "p99_s", "capacity_per_s"):
        assert row[f"{key}_low"] <= row[key] <= row[f"{key}_high"]
    assert row["attainment_low"] < row["attainment_high"]


def test_requests_that_move_between_pools_wait_for_the_hand_over():
    class Slow(Tabled):
        def times(self, gpus, shape, batch=1):
            return Times(1.0, 0.1, 3.0)

        def handover_s(self, shape):
            return 0.5

    pools = tuple(Pool((1,), (part,)) for part in ("encode", "denoise", "decode"))
    requests = Load((Kind(1.0, SHAPE),), 1.0, 2.0, "uniform").jobs()
    (job,) = Replay(Plan(pools, FirstComeFirstServed()), requests, Slow({}, "")).run().jobs
    assert job.end_s - job.arrival_s == pytest.approx(1.0 + 0.5 + 2.0 + 0.5 + 3.0)


def test_a_trace_may_start_at_any_second(table, tmp_path):
    path = tmp_path / "trace.csv"
    rows = "".join(f"{1e6 + 10 * k},1024,1024,1,20\n" for k in range(30))
    path.write_text("arrival_s,height,width,frames,steps\n" + rows)
    best = ask(table, gpus=1, requests=str(path), slo=9).best
    assert best.attainment == 1.0
    assert best.use == pytest.approx(0.4, abs=0.02)


def test_an_elastic_policy_has_all_gpus_in_one_pool_the_rest_of_a_node_too():
    load = {"rate": 1, "slo": 20, "steps": 20, "duration": 60}
    assert sim.serve("pixart", "h100-ib", 12, policy="elastic", **load).best.plan.pools[0].replicas == (8, 4)
