"""Values are values: results cannot be changed, travel to other processes, and say in one line what they are."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

import sim
from profiles.architectures.models import load_model
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from sim.outcomes.contents import content_of
from sim.outcomes.runs import run_point
from sim.report.results import panel_of
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload
from strategies.sampling.teams import Ulysses
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.training.linear import GPipe

TRAINING = Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 64))
SAMPLING = SamplingScenario(load_model("pixart"), load_cluster("p4de"), SamplingWorkload(8, 1024, 1024))


@pytest.fixture(scope="module", params=["train", "sample"])
def result(request):
    return run_point(GPipe(2, 4), TRAINING) if request.param == "train" else run_point(Ulysses(), SAMPLING)


def test_a_result_cannot_be_changed(result):
    for mapping in (result.parameters, result.options, *result.stages):
        with pytest.raises(TypeError, match="item assignment"):
            mapping["model"] = "other"
    given = {"degree": 2}
    changed = replace(result, parameters=given)
    given["degree"] = 4
    assert changed.parameters == {"degree": 2}
    result.to_json()["parameters"]["model"] = "other"
    result.to_json()["stages"][0]["devices"].append(-1)
    assert "model" not in result.parameters and -1 not in result.stages[0]["devices"]


def test_a_result_says_its_pixels_once_and_has_a_verdict_as_a_sweep_has():
    for asked in (("sd21", "ddp"), ("pixart", "ulysses")):
        result = sim.run(*asked, gpus=2, batch_size=8, resolution=768)
        assert repr(result).count("768 pixels") == 1
        assert result.verdict.panel == panel_of(result) and str(result.verdict).count("768 pixels") == 1


def test_a_result_can_be_hashed_and_sent(result):
    found = pickle.loads(pickle.dumps(result))
    assert found == result and hash(found) == hash(result)
    assert json.dumps(found.to_json()) == json.dumps(result.to_json())


def test_a_model_with_numbers_of_numpy_runs_as_one_with_plain_numbers():
    def run(number):
        model = load_model("sd21")
        *others, last = model.components
        layers = tuple(replace(layer, parameters=number(layer.parameters)) for layer in last.layers)
        model = replace(model, components=(*others, replace(last, layers=layers)))
        return sim.run(model, "ddp", gpus=2, batch_size=8)

    assert run(np.int64).inputs == run(int).inputs
    with pytest.raises(InputError, match=r"^\{1\} is of type set, must be "):
        content_of([{1}])
