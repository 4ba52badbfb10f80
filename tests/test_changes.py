"""What would change an answer, and the fastest where memory is ranked by, are what the sweeps of it find."""

from dataclasses import replace

import pytest

import sim
from profiles.machines.clusters import load_cluster
from profiles.machines.whatifs import changed
from sim.report.changes import Change

L40 = ("flux-dev", "l40-pcie-8", 4, {"resolution": 1024, "steps": 4})
PIXART = ("pixart", "l40-pcie-8", 4, {"guidance": "none", "steps": 4})
HELD = ("pixart", "a100-nvlink-8", 4, {"resolution": 1024, "steps": 4, "ulysses_degree": 2})
HALF = {"strategy": "fsdp,zero2", "batch_size": 64, "link": "inter=0.5x"}
CACHED = {"frozen": "cached", "strategy": "fsdp,zero3"}
XDIT = ("flux-dev", "h100-ib", 4, {"steps": 4, "runtime": "xdit"})
LONG = (pytest.mark.slow, pytest.mark.long)
QUESTIONS = [
    pytest.param("sd21", "p4de", 64, {}, marks=LONG),
    pytest.param("pixart", "l20-pcie-8", 8, {"resolution": 2048, "steps": 20}, marks=LONG),
    pytest.param("flux-dev", "h100-ib", 16, {}, marks=LONG),
    pytest.param("wan2.1-14b", "l20-pcie-8", 8, {"steps": 8}, marks=LONG),
    pytest.param("flux-dev", "h100-ib", 16, {"steps": 8, "include": "all"}, marks=LONG),
    pytest.param("sd21", "p4de", 8, {"batch_size": 64}, marks=LONG),
    pytest.param(*L40, marks=LONG),
    pytest.param(*PIXART[:3], PIXART[3] | {"objective": "memory"}, marks=LONG),
    pytest.param(
        "flux-dev", "p4de", 16, {"batch_size": 64, "strategy": "1f1b", "memory": "86GiB"}, marks=LONG
    ),
    HELD,
    XDIT,
    *((*PIXART[:3], PIXART[3] | {"objective": objective}) for objective in ("cost", "pareto")),
    ("sd21", "p4de", 16, HALF),
    pytest.param("sd3.5-large", "p4de", 16, CACHED, marks=LONG),
    ("hunyuan-1.5b", "p4de", 8, {"batch_size": 64, "memory": "24GiB", "strategy": "ddp,fsdp,1f1b,pulse"}),
]


def asked_again(change, model, cluster, gpus, given):
    """The sweep that the flags of a change ask for; without flags, with twice the links that were changed already."""
    flags = change.flags.split()
    values = {
        flag.removeprefix("--").replace("-", "_"): int(value) if value.isdigit() else value
        for flag, value in zip(flags[::2], flags[1::2], strict=True)
    }
    if not values:
        assert change.name == "twice the link between nodes"
        cluster = changed(load_cluster(cluster), given).scaled(inter_node=2.0)
        given = {name: value for name, value in given.items() if name != "link"}
    return sim.sweep(model, cluster, gpus, workers=1, **given | values)


@pytest.mark.parametrize(("model", "cluster", "gpus", "given"), QUESTIONS)
def test_a_change_is_what_the_sweep_with_its_flags_answers(model, cluster, gpus, given):
    sweep = sim.sweep(model, cluster, gpus, workers=1, **given)
    best, changes = sweep.best_point(), sweep.verdict.changes
    assert len(changes) >= 2
    for change in changes:
        several = asked_again(change, model, cluster, gpus, given)
        then = several.best_point()
        alike = {of.name for of in several if of.identity and of.identity[1:] == then.identity[1:]}
        assert change.strategy in alike, change.name
        assert change.speed == several.samples_per_s(then) / sweep.samples_per_s(best), change.name
        assert change.memory == several.best.peak_memory_bytes / sweep.best.peak_memory_bytes
        assert change.num_gpus == (None if then.num_gpus == best.num_gpus else then.num_gpus)
        assert change.stays == (best.name in alike)
        assert not change.how or change.stays
        if change.enough:
            kept = next(
                of for of in several.points if (of.strategy, of.num_gpus) == (best.strategy, best.num_gpus)
            )
            assert change.speed < 1 <= several.result_of(kept).samples_per_s / sweep.best.samples_per_s


def test_a_change_after_which_a_simpler_point_or_fewer_gpus_tie_says_that_they_are_enough():
    change = Change("twice the link", "", "ulysses", 0.984, stays=True, tie=False, num_gpus=4, enough=True)
    assert change.words("ulysses") == "ulysses on 4 GPUs is enough, 1.6% slower"
    faster = replace(change, speed=1.25, enough=False)
    assert faster.words("ulysses") == "25% faster, ulysses still best on 4 GPUs"


@pytest.mark.long
def test_more_videos_at_once_that_slow_the_answer_say_that_it_would_not_fit():
    sweep = sim.sweep("wan2.1-14b", "l40-pcie-8", 8, steps=2, memory="50GiB", strategy="hybrid", workers=1)
    four = next(change for change in sweep.verdict.changes if change.name == "4 videos at once")
    assert four.speed < 1
    assert four.words("hybrid").endswith("since what is best now would not fit")
    best = sweep.best_point().strategy
    assert not sim.run("wan2.1-14b", best, "l40-pcie-8", 8, steps=2, batch_size=4, memory="50GiB").fits_memory


def test_a_change_with_which_something_better_fits_says_so():
    asked = {"batch_size": 32, "memory": "18.6GiB", "checkpointing": "block"}
    sweep = sim.sweep("sd21", "p4de", 8, strategy="ddp", workers=1, **asked)
    said = {of.name: of.words("ddp") for of in sweep.verdict.changes}
    better = " faster, ddp still best with M 1, which does not fit without that"
    assert said["encoders cached"].endswith(better)
    assert not any("without that" in words for name, words in said.items() if name != "encoders cached")
    assert not sim.run("sd21", "ddp", "p4de", 8, **asked, micro_batches=1).fits_memory


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
    both = sweep.verdict.fastest, sim.sweep(*asked, workers=1, **given).fastest_point().result
    found, fastest = ((of.strategy, of.parameters, of.times) for of in both)
    assert found == fastest
    assert [(point.bound_s, point.result) for point in sweep.points] == known
