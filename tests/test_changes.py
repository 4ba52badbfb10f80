"""What would change an answer, and the fastest where memory is ranked by, are what the sweeps of it find."""

import pytest

import sim

L40 = ("flux-dev", "l40-pcie-8", 4, {"resolution": 1024, "steps": 4})
PIXART = ("pixart", "l40-pcie-8", 4, {"guidance": "none", "steps": 4})
HELD = ("pixart", "a100-nvlink-8", 4, {"resolution": 1024, "steps": 4, "ulysses_degree": 2})
XDIT = ("flux-dev", "h100-ib", 4, {"steps": 4, "runtime": "xdit"})


@pytest.mark.parametrize(
    ("objective", "asked"),
    [
        *(("latency", one) for one in (L40, HELD, XDIT)),
        ("memory", PIXART),
        ("cost", PIXART),
        ("pareto", PIXART),
    ],
)
def test_several_images_at_once_are_what_the_sweep_of_them_finds(objective, asked):
    *where, given = asked
    sweep = sim.sweep(*where, objective=objective, workers=1, **given)
    several = sim.sweep(*where, objective=objective, batch_size=4, workers=1, **given)
    change = next(one for one in sweep.verdict.changes if one.name == "4 images at once")
    best, then = sweep.best_point(), several.best_point()
    assert (change.flags, change.strategy) == ("--batch-size 4", then.name)
    assert change.speed == several.samples_per_s(then) / sweep.samples_per_s(best)
    assert change.memory == several.best.peak_memory_bytes / sweep.best.peak_memory_bytes
    assert change.stays == (then.name == best.name)
    assert change.num_gpus == (None if then.num_gpus == best.num_gpus else then.num_gpus)
    assert bool(change.how) == (change.stays and then.parameters != best.parameters)


FLAGS = {
    "stack fused-graphs": {"stack": "fused-graphs"},
    "twice the link in a node": {"link": "intra=2x"},
    "checkpointing": {"checkpointing": "block"},
    "no checkpointing": {"checkpointing": "none"},
    "encoders cached": {"frozen": "cached"},
    "encoders online": {"frozen": "online"},
    "twice the link between nodes": {"link": "inter=2x"},
}


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (L40[:3], L40[3]),
        (("sd21", "p4de", 16), {"strategy": "fsdp,interleaved", "batch_size": 64}),
        (("sd3.5-large", "p4de", 16), {"frozen": "cached", "strategy": "fsdp,zero3,1f1b"}),
    ],
)
def test_other_changes_are_at_least_what_is_said_and_nearly_always_no_more(asked, given):
    sweep = sim.sweep(*asked, workers=1, **given)
    changes = [change for change in sweep.verdict.changes if not change.exact]
    assert len(changes) >= 2
    for change in changes:
        then = sim.sweep(*asked, workers=1, **{**given, **FLAGS[change.name]})
        speed = then.samples_per_s(then.best_point()) / sweep.samples_per_s(sweep.best_point())
        assert change.speed <= speed * (1 + 1e-12)
        assert change.speed > 0.9 * speed
        assert change.name == "checkpointing" or change.speed == pytest.approx(speed)


def test_an_answer_that_lacked_memory_is_looked_at_where_a_change_frees_some():
    """FLUX trains with four stages in place of eight once nothing is encoded."""
    asked = {"gpus": 16, "batch_size": 64, "strategy": "1f1b", "workers": 1, "memory": "90GiB"}
    sweep = sim.sweep("flux-dev", **asked)
    cached = next(change for change in sweep.verdict.changes if change.name == "encoders cached")
    then = sim.sweep("flux-dev", frozen="cached", **asked)
    assert sweep.best.parameters["pipeline_degree"] > then.best.parameters["pipeline_degree"]
    assert cached.speed == pytest.approx(then.best.samples_per_s / sweep.best.samples_per_s)
    assert cached.how.startswith(f"P {then.best.parameters['pipeline_degree']}, M ")


def test_more_videos_at_once_that_slow_the_answer_say_that_it_would_not_fit():
    sweep = sim.sweep("wan2.1-14b", "l40-pcie-8", 8, steps=2, memory="50GiB", strategy="hybrid", workers=1)
    four = next(change for change in sweep.verdict.changes if change.name == "4 videos at once")
    assert four.speed < 1
    assert four.words("hybrid").endswith("since what is best now would not fit")
    best = sweep.best_point().strategy
    assert not sim.run("wan2.1-14b", best, "l40-pcie-8", 8, steps=2, batch_size=4, memory="50GiB").fits_memory


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (("sd21", "p4de", 8), {"batch_size": 64, "strategy": "ddp,zero2,fsdp,1f1b", "exhaustive": True}),
        (L40[:3], L40[3]),
    ],
)
def test_the_fastest_is_what_a_sweep_by_time_finds(asked, given):
    by_memory = {key: value for key, value in given.items() if key != "exhaustive"}
    sweep = sim.sweep(*asked, objective="memory", workers=1, **by_memory)
    known = [(point.bound_s, point.result) for point in sweep.points]
    found, fastest = sweep.verdict.fastest, sim.sweep(*asked, workers=1, **given).fastest_point().result
    assert (found.strategy, found.parameters, found.times) == (
        fastest.strategy,
        fastest.parameters,
        fastest.times,
    )
    assert [(point.bound_s, point.result) for point in sweep.points] == known
