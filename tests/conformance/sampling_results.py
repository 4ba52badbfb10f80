"""What a run says of a sampler: plain numbers that reproduce themselves, and more of them for more steps."""

import json

import pytest
from conformance.checks import Checks

from sim.outcomes.runs import run_point
from strategies.registry import make_sampler

check = Checks()


@check
def results_are_plain_json_and_reproduce_themselves(point):
    result = run_point(point.sampler, point.scenario)
    given = json.loads(json.dumps(result.to_json()))
    parameters = {k: tuple(v) if isinstance(v, list) else v for k, v in given["parameters"].items()}
    again = run_point(make_sampler(given["strategy"], parameters), point.scenario)
    assert again.to_json() == result.to_json()
    assert given["latency_s"] == pytest.approx(point.trace.end_s, rel=max(1e-3, point.exactness))
    assert 0 <= given["bubble_ratio"] < 1


@check
def more_steps_take_longer(point):
    more = point.anew(steps=point.scenario.workload.steps + 1)
    assert run_point(point.sampler, more).latency_s > point.trace.end_s
