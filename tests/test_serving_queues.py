"""Queues whose waits are known in closed form, each within four deviations of its batch means."""

from math import factorial, log, sqrt

import numpy as np
import pytest
from scipy.stats import poisson

from sim.serving.fleet import Plan, Pool, Replay
from sim.serving.options import Kind, Load, process_of
from sim.serving.serve import interval_of_p99
from strategies.policy import Shape
from strategies.serving.batcher import Batcher
from strategies.serving.fcfs import FirstComeFirstServed
from validate.serving.mlperf import Law

SHAPE = Shape(64, 64, 1, 1)
KINDS = (Kind(1.0, SHAPE),)
REQUESTS = 10_000


def drawn(law, seed=7):
    """Service of a mean of one second, whatever its batch: constant, exponential, or of two sizes."""
    random = np.random.default_rng(seed)
    draws = {
        "constant": np.ones(3 * REQUESTS),
        "exponential": random.exponential(1.0, 3 * REQUESTS),
        "two sizes": random.choice([0.5, 3.0], 3 * REQUESTS, p=[0.8, 0.2]),
    }
    left = iter(draws[law])
    return Law(lambda *_: float(next(left)))


def serve(law, rate, servers=1, seed=1, **options):
    """Return the requests in the order of arrival, and the log, of a fleet under Poisson arrivals."""
    batched = {key: options.pop(key) for key in ("max_batch", "batch_wait_s") if key in options}
    policy = Batcher() if batched else FirstComeFirstServed()
    load = Load(KINDS, rate, REQUESTS / rate, seed=seed, **options)
    setup = Plan((Pool((1,) * servers),), policy, **batched)
    clients = {"clients": process_of(load.arrivals)[1], "until_s": load.duration_s}
    log_ = Replay(setup, load.jobs(), drawn(law), **clients).run()
    return sorted(log_.jobs, key=lambda job: job.number), log_


def assert_mean(values, expected, batches=40):
    """The mean, without the first tenth, lies within four deviations, as found from batch means."""
    means = [part.mean() for part in np.array_split(np.array(values)[len(values) // 10 :], batches)]
    deviation = np.std(means, ddof=1) / sqrt(batches)
    assert np.mean(means) == pytest.approx(expected, abs=4 * deviation), (np.mean(means), expected, deviation)
    assert deviation < 0.15 * expected


def waits(jobs):
    return [job.start_s - job.arrival_s for job in jobs]


@pytest.mark.parametrize(("law", "square"), [("constant", 1.0), ("exponential", 2.0), ("two sizes", 2.0)])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_server_waits_as_pollaczek_and_khinchine_say(law, square, load):
    jobs, _ = serve(law, load)
    assert_mean(waits(jobs), load * square / (2 * (1 - load)))


@pytest.mark.parametrize(("servers", "load"), [(2, 0.6), (4, 0.8)])
def test_exponential_service_waits_as_erlang_says(servers, load):
    offered = servers * load
    last = offered**servers / factorial(servers) / (1 - load)
    waiting = last / (sum(offered**k / factorial(k) for k in range(servers)) + last)
    jobs, _ = serve("exponential", offered, servers)
    assert_mean(waits(jobs), waiting / (servers - offered))
    assert_mean([wait > 0 for wait in waits(jobs)], waiting)


@pytest.mark.parametrize("load", [0.5, 0.7, 0.85])
def test_constant_service_on_several_servers_waits_as_its_markov_chain_says(load, servers=4, most=200):
    """Requests a service time later are those beyond the servers and those that came: Crommelin's chain, solved."""
    there = np.arange(most)
    left = np.maximum(there - servers, 0)
    chain = poisson.pmf(there[None, :] - left[:, None], servers * load)
    share = np.linalg.lstsq(
        np.vstack([chain.T - np.eye(most), np.ones(most)]), np.append(np.zeros(most), 1.0), rcond=None
    )[0]
    jobs, _ = serve("constant", servers * load, servers)
    assert_mean(waits(jobs), share @ left / (servers * load))


@pytest.mark.parametrize("clients", [1, 3])
def test_clients_of_a_closed_loop_share_one_server(clients):
    """Machine repair without repairs: throughput 1/S, response N x S."""
    jobs, log_ = serve("constant", 1.0, arrivals=f"closed:{clients}")
    assert len(jobs) == pytest.approx(log_.end_s)
    latencies = [job.end_s - job.arrival_s for job in jobs]
    assert latencies[clients:-clients] == pytest.approx([clients] * (len(jobs) - 2 * clients))


def test_a_batch_waits_for_its_last():
    """Requests of a batch of K wait for (K - 1) / 2 gaps in the mean; with a limit 1 + rate x limit share a batch."""
    jobs, _ = serve("constant", 10.0, 40, max_batch=8, batch_wait_s=1e9)
    assert_mean(waits(jobs)[: len(jobs) // 8 * 8], 7 / 2 / 10)
    jobs, log_ = serve("constant", 10.0, 40, max_batch=64, batch_wait_s=0.3)
    assert_mean([len(ran.jobs) for ran in log_.ran], 1 + 10 * 0.3)


def test_requests_are_conserved_and_littles_law_holds():
    jobs, log_ = serve("two sizes", 2.1, 3)
    assert [job.number for job in jobs] == list(range(len(jobs)))
    assert [job.start_s for job in jobs] == sorted(job.start_s for job in jobs)
    arrived, ended = np.array([job.arrival_s for job in jobs]), np.sort([job.end_s for job in jobs])
    seen = np.arange(len(jobs)) - np.searchsorted(ended, arrived)  # arrivals of Poisson see what time sees
    of_each = 2.1 * np.array([job.end_s - job.arrival_s for job in jobs])
    assert_mean(seen - of_each + of_each.mean(), of_each.mean())
    starts, ends = np.array([ran[:2] for ran in log_.ran]).T
    edges = np.linspace(0.0, arrived[-1], 401)
    until = np.array([np.minimum(ends, edge).sum() - np.minimum(starts, edge).sum() for edge in edges])
    assert_mean(np.diff(until) / (3 * edges[1]), 2.1 / 3)
    assert log_.busy_gpu_s == pytest.approx((ends - starts).sum())


@pytest.mark.parametrize(
    ("rate", "count", "least", "most"), [(0.5, 2000, 0.92, 0.99), (0.8, 2000, 0.78, 0.95), (0.8, 14000, 0.8, 0.95)]
)  # fmt: skip
def test_the_interval_of_p99_covers_the_truth_about_as_often_as_it_says(rate, count, least, most, draws=300):
    """Of one exponential server p99 is ln 100 / (1 - rate); requests follow Lindley's recursion."""
    random = np.random.default_rng(3)
    gaps, service = (random.exponential(of, (count, draws)) for of in (1 / rate, 1.0))
    latency, rows = np.full(draws, random.exponential(1 / (1 - rate), draws)), []
    for gap, seconds in zip(gaps, service, strict=True):
        latency = np.maximum(latency - gap, 0.0) + seconds
        rows.append(latency)
    covered = 0
    for column in np.array(rows).T:
        low, high = interval_of_p99(column)
        covered += low <= log(100) / (1 - rate) <= high
    assert least <= covered / draws <= most, covered / draws
