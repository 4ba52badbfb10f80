"""Compute scaled to a measured run: the factor, what it changes, and what is refused."""

import json

import pytest
from making import refused

import sim
from profiles.architectures.models import load_model
from profiles.costs.calibration import Calibration
from profiles.costs.layers import ModelCosts
from profiles.errors import DiffusimWarning, InputError
from profiles.machines.clusters import load_cluster
from profiles.software.recipes import RECIPES
from sim.cli.main import main
from sim.inputs.calibrating import Number, _factor

pytestmark = pytest.mark.filterwarnings("ignore:.* was measured, but:profiles.errors.DiffusimWarning")

DDP = {"cluster": "p4de", "gpus": 8, "batch_size": 128}
RING = {"cluster": "a100-nvlink-8", "gpus": 4, "steps": 4}
NUMBERS = {"measured", "measured_run"}


@pytest.fixture(scope="module")
def trained():
    return sim.run("sd21", "ddp", **DDP)


@pytest.fixture(scope="module")
def drawn():
    return sim.run("pixart", "ring", **RING)


def said(result):
    """A result without what says how it was asked."""
    values = result.to_json()
    values["inputs"].pop("measured_run", None)
    options = {key: value for key, value in values.pop("options").items() if key not in NUMBERS}
    return {key: value for key, value in values.items() if not key.endswith(("_low", "_high"))} | options


@pytest.mark.parametrize("quantity", ["step_s", "iteration_s", "samples_per_s"])
def test_the_simulators_own_time_gives_factor_one_and_leaves_everything_as_it_was(trained, quantity):
    value = trained.samples_per_s if quantity == "samples_per_s" else trained.iteration_s
    again = sim.run("sd21", "ddp", **DDP, measured={quantity: value})
    assert again.compute_factor == 1.0
    assert said(again) == said(trained)


def test_a_number_that_the_plan_jumps_over_is_refused():
    with pytest.raises(InputError, match=r"the plan changes where compute takes 1\.5 times as long, past it"):
        _factor(lambda factor: -0.2 if factor < 1.5 else 0.3, Number("step_s", 1.0))
    assert _factor(lambda factor: factor - 1.25, Number("step_s", 1.0)) == pytest.approx(1.25)


@pytest.mark.parametrize("times", [0.3, 2.0])
def test_the_simulated_time_becomes_the_measured_one(trained, drawn, times):
    for plain, again in (
        (trained, sim.run("sd21", "ddp", **DDP, measured={"step_s": times * trained.iteration_s})),
        (drawn, sim.run("pixart", "ring", **RING, measured={"latency_s": times * drawn.latency_s})),
    ):
        assert again.expected.duration_s == pytest.approx(times * plain.expected.duration_s, rel=1e-5)
        assert (again.compute_factor > 1) == (times > 1)
        assert again.expected.collective_bytes == plain.expected.collective_bytes


def test_a_factor_scales_every_second_of_compute_measured_layers_and_the_optimizer_too():
    model, device = load_model("sd21"), load_cluster("p4de").device
    plain, twice = (ModelCosts(model, device, calibration=Calibration(factor)) for factor in (1.0, 2.0))
    for one, two in zip(plain.components, twice.components, strict=True):
        assert two.forward_s(3).tolist() == (2 * one.forward_s(3)).tolist()
        assert two.backward_s(3).tolist() == (2 * one.backward_s(3)).tolist()
    recipe = RECIPES["mixed"]
    assert twice.optimizer_s(1e9, recipe) == 2 * plain.optimizer_s(1e9, recipe) > 0


def test_the_band_of_a_calibrated_run_is_what_its_comparison_with_the_measured_one_can_tell(trained):
    own = sim.run("sd21", "ddp", **DDP, measured={"step_s": 2 * trained.iteration_s})
    assert own.low_s < own.iteration_s < own.high_s
    assert own.high_s / own.low_s < 1.05 < trained.high_s / trained.low_s


def test_a_sweep_names_its_measured_run_and_ranks_with_its_factor(trained, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('model = "sd21"\nstrategy = "ddp"\ngpus = 8\nbatch-size = 128\nstep_s = 3.0\n')
    sweeps = sim.sweep("sd21", **DDP, strategy="ddp,zero2", measured_run=path)
    factor = sim.run("sd21", "ddp", **DDP, measured={"step_s": 3.0}).compute_factor
    for item in sweeps.rows():
        if item["status"] == "simulated":
            assert item["compute_factor"] == factor
            assert item["options"]["measured_run"] == str(path)
    assert str(path) in dict(sweeps.verdict.lines)["times"]


def test_a_result_written_as_json_is_a_measured_run(capsys, tmp_path):
    asked = ["run", "--model", "sd21", "--gpus", "8", "--batch-size", "128", "--strategy", "ddp"]
    assert main([*asked, "--measured", "step_s=1.5", "--json"]) == 0
    text = capsys.readouterr().out
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert main([*asked, "--measured-run", str(path), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["compute_factor"] == json.loads(text)["compute_factor"] > 1
    assert again["iteration_s"] == pytest.approx(1.5, rel=1e-5)
    plain = json.loads(text)
    del plain["options"]["measured"]
    path.write_text(json.dumps(plain))
    assert main([*asked, "--measured-run", str(path), "--measured", "step_s=1.5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["compute_factor"] == again["compute_factor"]


RUN = {"model": "sd21", "strategy": "ddp", "gpus": 8, "batch_size": 128, "step_s": 1.5}


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (RUN | {"model": "pixart", "strategy": "single", "gpus": 1, "batch_size": 1}, "is of pixart on a100"),
        (RUN | {"step_s": 1000.0}, "compute times 0.1 to 10 does not give it"),
        (RUN | {"latency_s": 1.0}, "the measured numbers are step_s=1.5 and latency_s=1.0, must be one"),
        ({key: RUN[key] for key in RUN if key != "step_s"}, "the measured numbers are none, must be one"),
        ({key: RUN[key] for key in RUN if key != "model"}, "model is missing"),
        (RUN | {"strategy": "gpipe", "pipeline_degree": 7}, "--gpus 8 is no multiple of --pipeline-degree 7"),
    ],
)
def test_a_measured_run_that_breaks_a_rule_is_refused_in_one_line(capsys, tmp_path, run, words):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(run))
    asked = ["run", "--model", "sd21", "--gpus", "8", "--batch-size", "64", "--strategy", "zero2"]
    assert main([*asked, "--measured-run", str(path)]) == 2
    error = capsys.readouterr().err
    assert words in error and "mine.json" in error
    assert error.count("\n") == 1


def test_a_result_that_was_measured_is_a_measured_run():
    asked = {"gpus": 8, "strategy": "ddp"}
    result = sim.run("sd21", **asked, measured={"step_s": 1.5})
    swept = sim.sweep("sd21", **asked, workers=1, measured_run=result)
    assert swept.best.iteration_s == pytest.approx(1.5, rel=1e-3)
    by = sim.calibrate("sd21", **asked, measured={"step_s": 1.5})
    assert swept.best.iteration_s == sim.run("sd21", **asked, measured_run=by).iteration_s
    with refused(r"^measured_run is <Result sd21 by ddp.*, which is scaled to no measured"):
        sim.sweep("sd21", **asked, measured_run=sim.run("sd21", **asked))


@pytest.mark.parametrize(("times", "warns"), [(1.49, False), (1 / 1.51, True)])
def test_a_number_far_from_the_prediction_is_warned_of_in_one_line_with_both(trained, capsys, times, warns):
    asked = ["run", "--model", "sd21", "--strategy", "ddp", "--gpus", "8", "--batch-size", "128", "--json"]
    step_s = round(times * trained.iteration_s, 4)
    assert main([*asked, "--measured", f"step_s={step_s}"]) == 0
    words = (
        f"step_s={step_s} was measured, but {trained.iteration_s:.4g} is predicted: a factor of 1.5 apart;"
    )
    told = [line for line in capsys.readouterr().err.splitlines() if "was measured" in line]
    assert told == [f"sim: warning: {words} are the flags those of the run that was measured?"] * warns
    if warns:
        with pytest.warns(DiffusimWarning, match="is predicted: a factor of 1.5 apart"):
            sim.run("sd21", "ddp", **DDP, measured={"samples_per_s": trained.samples_per_s / times})
