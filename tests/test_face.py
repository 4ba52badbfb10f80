"""The face of ``sim``: what a notebook or a script calls."""

import ast
import json
import pickle
import subprocess
import sys
from copy import copy
from dataclasses import FrozenInstanceError, asdict
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from making import refused

import sim
from profiles.errors import DiffusimWarning
from strategies.training.linear import GPipe

ROOT = Path(__file__).parents[1]
SMALL = {"gpus": 4, "batch_size": 16, "self_conditioning": 0.0}


@pytest.fixture(scope="module")
def result():
    return sim.run("sd21", "gpipe", pipeline_degree=4, micro_batches=4, **SMALL)


def python(*arguments, cwd):
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# Names.


def test_every_name_of_the_face_exists():
    assert sorted(sim.__all__) == sim.__all__
    assert len(sim.__all__) <= 25
    for name in sim.__all__:
        assert getattr(sim, name).__doc__, name


def test_the_face_and_the_help_import_nothing_that_takes_long(tmp_path):
    heavy = ("pandas", "matplotlib", "scipy", "plotly", "ipywidgets")
    for line in ("import sim", "from sim.cli.main import main; main(['--help'])"):
        loaded = python("-c", f"{line}; import sys; print([*sys.modules])", cwd=tmp_path).splitlines()[-1]
        assert not set(ast.literal_eval(loaded)).intersection(heavy), line


# A researcher's notebook, with one import.


# Results.


def test_the_ops_and_bubbles_of_a_result_fill_its_iteration(result):
    ops, bubbles = result.ops(), result.bubbles()
    assert set(ops["device"]) == {0, 1, 2, 3}
    assert "forward" in set(ops["category"])
    assert bubbles["device_s"].sum() == pytest.approx(4 * result.bubble_ratio * result.iteration_s)
    assert ops["duration_s"].sum() + bubbles["device_s"].sum() == pytest.approx(4 * result.iteration_s)


def test_a_run_of_a_sampler_has_its_latency_and_the_trace_of_its_steady_steps():
    asked = {"gpus": 4, "patches": 4, "steps": 4}
    drawn = sim.run("pixart", "pipefusion", "l20-pcie-8", resolution=512, include=["all"], **asked)
    assert drawn.latency_s > drawn.step_s > 0
    assert set(drawn.traces) == {"encode", "", "decode"}
    assert drawn.trace is drawn.traces[""]
    words = {"resolution": "512x512", "include": "all"}
    again = sim.run("pixart", "pipefusion", "l20-pcie-8", **words, **asked)
    assert again == drawn


def test_a_scenario_and_a_strategy_of_ones_own_are_taken_as_they_are(result):
    scenario = result.source.scenario
    assert isinstance(scenario, sim.Scenario)
    assert sim.run(scenario, GPipe(4, 4)) == result
    assert sim.sweep(scenario, strategy="ddp").best.batch_size == 16
    with pytest.raises(sim.InputError, match=r"^batch_size is given, but the scenario says it already$"):
        sim.run(scenario, "gpipe", batch_size=8)
    with refused(r"^micro_batches is given, but gpipe has its parameters already$"):
        sim.run(scenario, GPipe(4, 4), micro_batches=8)


# Files and processes.


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_script_may_sweep_without_guarding_its_main_module(method, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import multiprocessing\n"
        f"multiprocessing.set_start_method({method!r})\n"
        "import sim\n"
        "print('begins')\n"
        "sweep = sim.sweep('sd21', gpus=8, batch_size=64, strategy='gpipe,1f1b', workers=2, top=1)\n"
        "print(len(sweep.points) > 48, sweep.best.fits_memory)\n",
        encoding="utf-8",
    )
    assert python(script, cwd=tmp_path).splitlines() == ["begins", "True True"]


def test_a_result_has_every_key_of_its_row():
    trained = sim.run("sd21", "ddp", gpus=2, batch_size=8)
    drawn = sim.run("pixart", "ulysses", gpus=2, steps=4, batch_size=2, include="all")
    for result in (trained, drawn):
        for key, value in result.to_json().items():
            if key in result.bands or key in result.phases:
                continue
            found = getattr(result, key)
            if key == "stages":
                found = [{**stage, "devices": list(stage["devices"])} for stage in found]
            assert found == value, key
    assert (trained.resolution, trained.frozen, drawn.resolution, drawn.steps) == ("512", "online", "1024", 4)
    with pytest.raises(AttributeError, match="a result of ddp has no steps; it has task, model, "):
        _ = trained.steps
    for other in (pickle.loads(pickle.dumps(trained)), copy(trained)):
        assert (other, other.account, len(other.ops())) == (trained, trained.account, len(trained.ops()))
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'bubble_ratio'"):
        trained.bubble_ratio = 0.0
    assert trained.account.slowed > 0.0
    assert "departures" in type(trained).__doc__ and "plots" in dir(sim)


def test_a_process_of_a_pool_sweeps_by_itself_and_says_so():
    with get_context("fork").Pool(1) as pool, pytest.raises(DiffusimWarning, match=r"^one process does the "):
        pool.apply(partial(sim.sweep, "sd21", gpus=8, batch_size=64, strategy="1f1b,gpipe", workers=2))


def test_what_was_meant_is_said_and_integers_of_numpy_are_integers():
    with refused(r"^cluster is 'gpipe', which is a strategy: give it as strategy$"):
        sim.sweep("sd21", "gpipe")
    with refused(r"^unknown parameter 'num_gpus'; did you mean gpus\?$"):
        sim.sweep("sd21", num_gpus=np.int64(8))
    assert json.dumps(asdict(GPipe(np.int64(4), np.int64(8)))) == json.dumps(asdict(GPipe(4, 8)))
    assert len(sim.sweep("sd21", gpus=np.array([1, 2]), strategy="ddp", batch_size=8).sweeps) == 2


def test_warnings_are_of_the_line_that_asked():
    asks = (
        lambda: sim.run("sd2", "ddp", gpus=2, batch_size=8),
        lambda: sim.sweep("sd2", gpus=[1, 2], strategy="ddp", batch_size=8, workers=1),
        lambda: sim.load_cluster("a100"),
        lambda: sim.run("sd21", "single", steps=1, resolution=64 * 65),
    )
    for ask in asks:
        with pytest.warns(DiffusimWarning) as caught:
            ask()
        assert {one.filename for one in caught} == {__file__}, caught[0]
    said = "66 times the pixels of the 512 of sd21; published numbers .* up to 64"
    with pytest.warns(DiffusimWarning, match=said):
        asks[-1]()


def test_a_comparison_gives_each_point_its_rank_before_and_after():
    asked = {"gpus": 16, "batch_size": 64, "strategy": "ddp,zero3,gpipe", "workers": 1}
    sweeps = [sim.sweep("sd21", link=link, **asked) for link in ("inter=1x", "inter=0.1x")]
    (question,) = sim.compare(*sweeps).questions
    simulated = [[row for row in sweep.rows() if row["status"] == "simulated"] for sweep in sweeps]
    ranks = [[(row["strategy"], row["iteration_s"]) for row in rows] for rows in simulated]
    assert any(of.ranks[0] != of.ranks[1] for of in question.moved)
    for of in question.moved:
        for rank, seconds, ranked in zip(of.ranks, (of.before_s, of.after_s), ranks, strict=True):
            assert ranked[rank - 1] == (of.key.strategy, seconds)
