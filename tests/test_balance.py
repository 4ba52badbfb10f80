"""Training on mixed shapes: what waiting for the slowest rank costs, and what evens it out."""

from itertools import product
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sim
from sim.explore.balance import packed_s, slowest_s

VIDEOS = {"model": "wan2.1-14b", "cluster": "h100-ib", "strategy": "fsdp", "checkpointing": "block"}
"""The shipped mixtures are of its shapes."""


@pytest.fixture(scope="module")
def found():
    return sim.balance(**VIDEOS, gpus=8, shapes="images-and-videos")


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 1)), min_size=2, max_size=3), st.integers(1, 5))
def test_the_slowest_of_some_ranks_is_the_mean_over_everything_that_they_may_draw(shapes, ranks):
    seconds, weights = zip(*shapes, strict=True)
    shares = [weight / sum(weights) for weight in weights]
    every = product(range(len(seconds)), repeat=ranks)
    mean = sum(prod(shares[kind] for kind in drawn) * max(seconds[kind] for kind in drawn) for drawn in every)
    assert slowest_s(seconds, shares, ranks) == pytest.approx(mean, rel=1e-9)


def test_two_shapes_follow_their_closed_forms(found):
    """Of n ranks none draws the slow shape of share p with probability (1 - p)^n."""
    fast_s, slow_s = (result.iteration_s for result in found.results)
    ways = {way.name: way for way in found.ways}
    none = 0.5**8
    assert ways["random"].iteration_s == pytest.approx(fast_s * none + slow_s * (1 - none), rel=1e-12)
    assert ways["one shape"].iteration_s == pytest.approx((fast_s + slow_s) / 2, rel=1e-12)
    waiting = 1 - ways["one shape"].iteration_s / ways["random"].iteration_s
    assert ways["random"].waiting == pytest.approx(waiting, rel=1e-12)


def test_larger_batches_of_fast_shapes_keep_the_shares_of_samples_and_the_slowest_iteration(found):
    way = next(way for way in found.ways if way.name == "larger batches")
    batch = int(way.does.split(" of ")[1].split(",")[0])
    image = {"resolution": "832x480", "frames": 1}
    alone = sim.run(**VIDEOS, gpus=8, batch_size=8 * batch, **image)
    slow_s = found.results[1].iteration_s
    assert alone.iteration_s <= slow_s < sim.run(**VIDEOS, gpus=8, batch_size=16 * batch, **image).iteration_s
    drawn = 1 / (1 + batch)  # of images: as many samples of each shape
    assert way.samples == pytest.approx(8 * (drawn * batch + (1 - drawn)), rel=1e-12)
    videos = 1 - drawn**8
    assert way.iteration_s == pytest.approx(alone.iteration_s * (1 - videos) + slow_s * videos, rel=1e-12)


def test_larger_batches_are_no_larger_than_memory():
    small = VIDEOS | {"model": "wan2.1-1.3b", "memory": "32GiB", "gpus": 8}
    found = sim.balance(**small, shapes="images-and-videos")
    way = next(way for way in found.ways if way.name == "larger batches")
    batch = int(way.does.split(" of ")[1].split(",")[0])
    fits, not_any_more = (
        sim.run(**small, batch_size=8 * of, resolution="832x480", frames=1) for of in (batch, batch * 9 // 8)
    )
    assert fits.fits_memory
    assert not not_any_more.fits_memory


def test_packed_samples_fill_ranks_as_worked_out_by_hand():
    assert packed_s([3.0], [1], [1.0], ranks=4, samples=4) == 3.0
    assert packed_s([3.0], [1], [1.0], ranks=4, samples=5) == 6.0  # one rank gets two
    assert packed_s([3.0], [2], [1.0], ranks=4, samples=4) == 6.0  # two teams of two, two samples each
    assert 19.0 <= packed_s([1.0, 10.0], [1, 1], [0.9, 0.1], ranks=4, samples=40) < 20.0  # of a mean of 19
    one_rank = packed_s([1.0, 3.0], [1, 1], [0.5, 0.5], ranks=1, samples=7)
    assert one_rank == pytest.approx(14)  # it gets all, whatever is drawn


def test_one_rank_waits_for_nobody_however_samples_are_given_to_it():
    found = sim.balance(**VIDEOS | {"model": "wan2.1-1.3b"}, gpus=1, shapes="video-lengths")
    ways = {way.name: way for way in found.ways}
    assert {round(way.waiting, 12) for way in found.ways} == {0.0}
    assert ways["packed"].samples_per_s == pytest.approx(ways["random"].samples_per_s, rel=1e-12)


@pytest.mark.long
def test_a_mixture_of_lengths_makes_ranks_wait_39_percent_and_dividing_long_samples_halves_that():
    found = sim.balance(**VIDEOS, gpus=64, shapes="video-lengths")
    ways = {way.name: way for way in found.ways}
    assert ways["random"].waiting == pytest.approx(0.39, abs=0.01)
    assert ways["sequence parallel"].waiting < 0.2
    assert ways["sequence parallel"].samples_per_s > 1.2 * ways["random"].samples_per_s
    # a sample a rank: nothing to pack
    assert ways["packed"].samples_per_s == pytest.approx(ways["random"].samples_per_s)


def test_packing_evens_out_several_samples_a_rank(tmp_path: Path):
    shape = '[[shape]]\nshare = {}\nresolution = "832x480"\nframes = {}\nbatch = 8\n'
    mixture = tmp_path / "mixture.toml"
    mixture.write_text(shape.format(0.75, 1) + shape.format(0.25, 33))
    found = sim.balance(**VIDEOS | {"model": "wan2.1-1.3b"}, gpus=8, shapes=mixture)
    ways = {way.name: way for way in found.ways}
    assert ways["packed"].waiting < 0.15 < ways["random"].waiting
    assert ways["packed"].samples == ways["random"].samples == 64


@pytest.mark.parametrize(
    ("options", "text", "says"),
    [
        ({}, "", "mixture.toml: share: those of all [[shape]] add up to 0, must be 1"),
        ({}, '[[shape]]\nshare = 0.5\nresolution = 512\n' * 3, "those of all [[shape]] add up to 1.5, must be 1"),
        ({}, "[[shape]]\nshare = 1\nresolution = 0\n", "resolution is 0, must be at least 1"),
        ({}, '[[shape]]\nshare = 0.5\nresolution = "wide"\n' * 2, "wide"),
        ({}, "[[shape]]\nshare = 0.5\nresolution = 512\nsteps = 3\n" * 2, "steps"),
        ({"strategy": "gpipe"}, None, "strategy is gpipe, must be data parallel"),
        ({"batch_size": 3}, None, "batch_size is given, but the shapes say it"),
        ({"measured": {"step_s": 1}}, None, "give measured_run"),
        ({"shapes": "imges"}, None, "unknown mix 'imges'"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_refused(tmp_path: Path, options, text, says):
    mixture = tmp_path / "mixture.toml"
    mixture.write_text("[[shape]]\nshare = 0.5\nresolution = 512\n" * 2 if text is None else text)
    question = {"model": "sd21", "strategy": "ddp", "gpus": 8, "shapes": mixture} | options
    with pytest.raises(sim.InputError) as error:
        sim.balance(**question)
    assert says in str(error.value)


def test_a_shape_that_does_not_fit_is_named_with_what_is_lacking():
    with pytest.raises(sim.InfeasibleError, match="832x480, 33 frames in batches of 1 does not fit: needs"):
        sim.balance("wan2.1-14b", "fsdp", "h100-ib", 8, shapes="video-lengths")
