"""Which images are approximate: the sampler says why, and so do the answers in which it is the best."""

import json

import sim
from sim.report.rankings import print_rows_json
from strategies.registry import make, strategies_of

STALE = "18 of 20 steps read activations of the step before"
ASKED = {"model": "pixart", "cluster": "a100-nvlink-8", "steps": 20}


def why(name, gpus=4, steps=20, guidance="batch", **parameters):
    """What a sampler says of a point."""
    made = make(name, parameters)
    result = sim.run("pixart", made, "a100-nvlink-8", gpus, steps=steps, guidance=guidance)
    return made.approximation(result.source.scenario)


def test_a_sampler_says_why_its_image_is_not_that_of_one_gpu():
    stale = {"distrifusion", "pipefusion"}
    others = {
        "naive-patch": "no patch sees the others, so that seams show",
        "paradigms": "steps count as converged within 0.1 of their noise",
    }
    parameters = {
        "hybrid": {"guidance_degree": 2, "ulysses_degree": 2},
        "usp": {"ulysses_degree": 2, "ring_degree": 2},
    }
    for name in strategies_of("sample"):
        reason = STALE if name in stale else others.get(name, "")
        assert why(name, 1 if name == "single" else 4, **parameters.get(name, {})) == reason


def test_a_verdict_says_that_the_image_of_the_best_is_approximate(capsys):
    sweep = sim.sweep(**ASKED, gpus=4, strategy=["distrifusion"], workers=1)
    assert sweep.best_point().name == "distrifusion"
    line = ("image", f"approximate: {STALE}")
    assert line in sweep.verdict.lines
    assert sweep.verdict._repr_html_().count(line[1]) == sweep.verdict.markdown().count(line[1]) == 1
    print_rows_json([sweep])
    assert json.loads(capsys.readouterr().out)[0]["verdict"]["approximation"] == STALE
    assert f"approximate: {STALE}" in sweep.best._repr_html_()


def test_a_verdict_says_that_gpus_left_over_draw_other_images():
    sweep = sim.sweep(**ASKED, gpus=4, batch_size=2, strategy="hybrid", workers=1)
    groups = 4 // sweep.best.parameters["guidance_degree"] // sweep.best.parameters["ulysses_degree"]
    assert groups == 2  # the other degrees are 1
    speed = next(at for at, (word, _) in enumerate(sweep.verdict.lines) if word == "speed")
    assert sweep.verdict.lines[speed + 1] == ("", "2 replicas of 2 GPUs, one image each")
    assert sweep.verdict.to_json()["image_groups"] == groups
    videos = sim.run("ltx-video", "hybrid", "h100-ib", 4, steps=2, batch_size=4, pipeline_degree=2)
    assert "2 replicas of 2 GPUs, 2 videos each" in videos._repr_html_()
    together = sim.sweep(**ASKED, gpus=2, batch_size=2, strategy="ulysses", workers=1).verdict
    assert "image_groups" not in together.to_json()
