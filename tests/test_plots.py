"""Plots: what they draw, by value; and that they draw it, without a display and without pyplot."""

import subprocess
import sys
from functools import partial

import matplotlib as mpl
import matplotlib.style
import pytest
from making import refused
from matplotlib.figure import Figure

import sim
from profiles.errors import InputError
from sim import plots
from sim.outcomes.parts import replay, replay_parts
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes
from sim.replay.timelines import compute_bars
from sim.report.plots.space import SweepPoint, Winner, WinnersInfo
from sim.report.plots.timeline import bar_kinds
from strategies.registry import make as make_sampler
from strategies.registry import make as make_strategy
from validate.equal_blocks import equal_blocks_transformer

GIB = 2.0**30


@pytest.fixture
def hand_off(make):
    """Two devices, one forward each, the second after the first."""
    return simulate(
        make.plan([[make.op("0F0", 1.0, writes="h")], [make.op("1F0", 3.0, reads="h")]], sizes={"h": 5.0})
    )


@pytest.fixture(scope="module")
def pipeline(make):
    """A filled pipeline with frozen layers, messages, collectives and optimizer steps."""
    encoder = make.component("encoder", [0.003, 0.004], trainable=False, output_bytes=3e5)
    backbone = make.component("backbone", [0.003] * 8, inputs=["encoder"], saved_bytes=4e6, parameters=1000)
    cluster = make.cluster(memory_bytes=GIB, memory_bytes_per_s=1e8, call_s=1e-3)
    scenario = make.scenario(make.model(encoder, backbone), cluster, 8, 64)
    parameters = {"pipeline_degree": 4, "micro_batches": 4, "group_size": 4}
    return replay(make_strategy("diffusionpipe", parameters), scenario)


def result(strategy="1f1b", memory_gib=1.0, samples_per_s=1.0, fits=True, ratio=0.5, **parameters):
    return {
        "status": "simulated",
        "strategy": strategy,
        "parameters": parameters,
        "samples_per_s": samples_per_s,
        "bubble_ratio": ratio,
        "peak_memory_bytes": memory_gib * GIB,
        "fits_memory": fits,
    }


BOUNDED = {"status": "bounded", "strategy": "gpipe", "parameters": {"pipeline_degree": 2, "micro_batches": 2}}
INFEASIBLE = {"status": "infeasible", "strategy": "gpipe", "parameters": {}, "reason": "no"}


def texts(figure):
    axes = figure.axes[0]
    return [text.get_text() for text in axes.texts]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def title(figure):
    return figure.axes[0].get_title(loc="left")


def test_timelines_side_by_side_share_an_axis_of_time_and_a_legend(hand_off, pipeline):
    traces = {"toy": hand_off, "filled": pipeline, "again": hand_off}
    figure = plots.plot_timelines(traces, "Three")
    assert len(figure.axes) == 3
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, 4000.0)}
    assert {axes.get_ylim() for axes in figure.axes} == {(3.55, -0.55)}
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "time in ms", "time in ms"]
    assert title(figure) == "toy  |  4,000.0 ms  |  bubble ratio 50.0 %"
    assert legend(figure) == [
        "forward", "backward", "optimizer", "frozen layers of the next iteration", "collective", "idle"
    ]  # fmt: skip
    forward = figure.axes[0].collections[1].get_paths()
    assert [(of.get_extents().x0, of.get_extents().x1) for of in forward] == [(0.0, 1e3), (1e3, 4e3)]
    figure.draw_without_rendering()


def test_memory_is_what_the_fullest_device_holds_a_curve_per_device_and_the_capacity(pipeline):
    figure, peaks = plots.plot_memory(pipeline), peak_memory_bytes(pipeline)
    (axes,) = figure.axes
    drawn = [max(line.get_ydata()) * GIB for line in axes.lines]
    assert drawn == pytest.approx([*peaks, GIB])
    assert max(area.get_datalim(axes.transData).y1 for area in axes.collections) * GIB == pytest.approx(
        max(peaks)
    )
    assert {"weights", "saved activations", "each GPU", "capacity"} <= {*legend(figure)}
    assert axes.get_xlim() == (0.0, pipeline.end_s * 1e3)


def test_words_are_light_on_a_dark_style_and_a_legend_is_inside_axes_of_ones_own(pipeline):
    with mpl.style.context("dark_background"):
        assert plots.plot_timeline(pipeline).axes[0]._left_title.get_color() == "white"
    axes = Figure((4, 2)).subplots()
    plots.plot_timeline(pipeline, ax=axes).draw_without_rendering()
    box = axes.get_legend().get_window_extent()
    assert axes.bbox.x0 <= box.x0 <= box.x1 <= axes.bbox.x1


def test_the_pareto_front_holds_what_no_fitting_point_beats():
    rows = [
        result("a", memory_gib=4, samples_per_s=10.0),
        result("b", memory_gib=2, samples_per_s=5.0),
        result("c", memory_gib=3, samples_per_s=5.0),
        result("d", memory_gib=2, samples_per_s=4.0),
        result("e", memory_gib=9, samples_per_s=99.0, fits=False),
        BOUNDED,
        INFEASIBLE,
    ]
    info = plots.plot_sweep_info(rows)
    assert [point.strategy for point in info.points] == ["a", "b", "c", "d", "e"]
    assert [point.strategy for point in info.front] == ["b", "a"]
    assert info.points[4] == SweepPoint("e", 9 * GIB, 99.0, False)


def drawn(strategy, memory_gib, latency_s, num_gpus=1, fits=True, batch_size=1):
    return {
        "task": "sample", "status": "simulated", "model": "m", "strategy": strategy, "num_gpus": num_gpus,
        "latency_s": latency_s, "batch_size": batch_size, "peak_memory_bytes": memory_gib * GIB,
        "samples_per_s": batch_size / latency_s,
        "fits_memory": fits,
    }  # fmt: skip


def test_a_sampling_sweep_is_drawn_by_latency_beside_the_memory_of_a_device():
    rows = [
        drawn("single", 3, 8.0, 1),
        drawn("ulysses", 4, 2.0, 8),
        drawn("ulysses", 4, 3.0, 4),
        drawn("tensor", 9, 1.0, 8, fits=False),
    ]
    assert "memory of a GPU" not in legend(plots.plot_sweep(rows, memory_bytes=16 * GIB))
    figure = plots.plot_sweep(rows, memory_bytes=8 * GIB)
    (axes,) = figure.axes
    assert (axes.get_ylabel(), texts(figure)) == ("latency in s", ["ulysses, 2 s"])
    ring, front, memory = axes.get_lines()
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (4, 2.0)
    assert axes.get_xlabel().endswith("(larger: more GPUs, hollow: does not fit)")
    assert list(front.get_xdata()) == [3, 4] and list(front.get_ydata()) == [8.0, 2.0]
    assert set(memory.get_xdata()) == {8}
    assert legend(figure)[-3:] == ["recommended", "Pareto front", "memory of a GPU"]
    sizes = [list(markers.get_sizes()) for markers in axes.collections if len(markers.get_offsets())]
    assert sizes == [[18], [60, 46], [60]]


def test_whiskers_span_the_band_of_what_is_drawn():
    bare = drawn("single", 3, 8.0, 1)
    (with_band,) = plots.plot_sweep_info([bare | {"latency_s_low": 6.0, "latency_s_high": 9.0}]).points
    assert (with_band.band, plots.plot_sweep_info([bare]).points[0].band) == ((6.0, 9.0), None)
    row = {"strategy": "ddp", "peak_memory_bytes": GIB, "samples_per_s": 100.0, "iteration_s": 2.0}
    (trained,) = plots.plot_sweep_info([row | {"iteration_s_low": 1.0, "iteration_s_high": 4.0}]).points
    assert trained.band == (50.0, 200.0)


def best(strategy, num_gpus, samples_per_s, batch_size=64, model="made", status="simulated"):
    row = {
        "status": status, "model": model, "cluster": "made", "num_gpus": num_gpus, "batch_size": batch_size,
        "strategy": strategy,
    }  # fmt: skip
    return row | ({"samples_per_s": samples_per_s} if status == "simulated" else {"reason": "no"})


def test_winners_stand_by_two_axes_with_what_the_plain_choice_loses():
    rows = [
        best("ddp", 16, 10.0),
        best("spp", 16, 12.5),
        best("spp", 16, 11.0),
        best("ddp", 8, 6.0),
        best("spp", 8, 5.0),
        best("spp", 8, 3.0, batch_size=32),
        best("ddp", 16, 0.0, batch_size=32, status="infeasible"),
    ]
    assert plots.plot_winners_info(rows, "num_gpus", "batch_size") == WinnersInfo(
        down=[32, 64],
        across=[8, 16],
        winners=[
            [Winner("spp", 3.0), None],
            [Winner("ddp", 6.0, "ddp", 0.0), Winner("spp", 12.5, "ddp", 1 - 10.0 / 12.5)],
        ],
        plain=("ddp", "fsdp"),
        unit="samples",
    )


def test_a_cell_says_what_the_plain_choice_loses_or_that_nothing_is_lost():
    rows = [
        drawn("usp", 1, 1.0, 8),
        drawn("ulysses", 1, 1.25, 8),
        drawn("naive-patch", 1, 0.5, 8) | {"recommended": False},
        drawn("usp", 1, 3.0, 8) | {"resolution": "2048"},
        drawn("ring", 1, 2.0, 8) | {"resolution": "4096"},
        drawn("ulysses", 1, 2.01, 8) | {"resolution": "4096"},
    ]
    rows = [{"resolution": "1024"} | row for row in rows]
    figure = plots.plot_winners(rows, "resolution", "model")
    assert texts(figure) == [
        "usp\n1 images/s\nulysses loses 20.0%",
        "usp\n0.333 images/s\nno ulysses or single",
        "ring\n0.5 images/s\nnothing to gain over ulysses",
    ]
    assert (legend(figure), figure.axes[0].get_xlabel()) == (["ring", "usp"][::-1], "resolution in pixels")
    assert plots.plot_winners_info(rows, "resolution", "model").unit == "images"


def test_two_scenarios_in_one_cell_are_refused():
    rows = [best("ddp", 8, 1.0), best("ddp", 8, 1.0, batch_size=128)]
    with refused(r"^two scenarios have model made and num_gpus 8: .*64\) and .*128\)$"):
        plots.plot_winners_info(rows, "num_gpus", "model")
    with pytest.raises(InputError, match="nothing to plot"):
        plots.plot_winners_info([], "num_gpus", "model")


def test_scaling_is_the_throughput_per_gpu_of_the_best_of_each_strategy():
    rows = [
        best("spp", 8, 80.0),
        best("spp", 8, 88.0),
        best("spp", 16, 0.0, status="infeasible"),
        best("ddp", 16, 240.0),
        best("ddp", 8, 160.0),
        best("gpipe", 8, 0.0, status="infeasible"),
    ]
    figure = plots.plot_scaling(rows, "num_gpus", "Toy")
    assert legend(figure) == ["ddp", "spp"]
    assert [line.get_xdata().tolist() for line in figure.axes[0].lines] == [[0, 1], [0]]
    assert [line.get_ydata().tolist() for line in figure.axes[0].lines] == [[20.0, 15.0], [11.0]]
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["8", "16"]
    assert title(figure) == "Toy"
    with pytest.raises(InputError, match="nothing to plot"):
        plots.plot_scaling([rows[-1]], "num_gpus")


@pytest.mark.parametrize(("ending", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_a_figure_is_saved_by_its_ending_and_twice_alike(tmp_path, hand_off, ending, magic):
    paths = [tmp_path / f"{number}{ending}" for number in (1, 2)]
    for path in paths:
        plots.save_figure(plots.plot_timeline(hand_off), path)
    assert paths[0].read_bytes().startswith(magic)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_plotting_leaves_pyplot_alone_but_a_figure_is_its_current_one_where_it_is_used(tmp_path):
    code = """
import sys, sim
result = sim.run("sd21", "ddp", gpus=2)
alone = sim.plots.plot_timelines({"ddp": result})
assert 'matplotlib.pyplot' not in sys.modules
import matplotlib.pyplot as plt
plt.switch_backend("module://matplotlib_inline.backend_inline")
figure = sim.plots.plot_timelines({"ddp": result})
plt.savefig("current.png")
alone.savefig("own.png")
assert plt.gcf() is figure
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)
    assert (tmp_path / "current.png").read_bytes() == (tmp_path / "own.png").read_bytes()


# Patches


@pytest.fixture(scope="module")
def patched(make):
    """Two stages, one step of the whole image, then two of two patches."""
    model = equal_blocks_transformer(4, 0.1)
    scenario = make.sampling(model, make.cluster(), 2, steps=3)
    ((_, _, trace, _),) = replay_parts(
        make_sampler("pipefusion", {"patches": 2, "warmup_steps": 1}), scenario
    )
    return trace


def test_bars_of_a_sampler_say_patch_and_step_and_are_coloured_by_patch(patched):
    figure = plots.plot_timeline(patched)
    assert sorted(texts(figure)) == sorted(2 * ["0@0", "0@1", "1@1", "0@2", "1@2"])
    assert legend(figure) == ["whole image", "patch 0", "patch 1", "idle"]
    assert title(figure).startswith("3 steps of ")
    kinds = bar_kinds(compute_bars(patched))
    assert [kind.name for kind in kinds] == ["whole image", "patch 0", "patch 1"]
    assert len({kind.colour for kind in kinds}) == 3


# What is drawn, and along which keys


@pytest.mark.parametrize(
    ("draw", "problem"),
    [
        (partial(plots.plot_memory, None), "trace is None, must be a result or one of its traces"),
        (partial(plots.plot_timelines, []), "traces is [], must be a dict of results, or of their traces"),
        (
            partial(plots.plot_winners, [{"strategy": "ddp", "num_gpus": 2}], "num_gpu", "num_gpus"),
            "across is 'num_gpu', which a row lacks; did you mean num_gpus?",
        ),
        (
            partial(plots.plot_scaling, [{"strategy": "ddp", "num_gpus": 2, "iteration_s": 1.0}], "num_gpus"),
            "a row lacks samples_per_s: give results as they are",
        ),
        (
            partial(plots.plot_sweep, [{"strategy": "ddp", "peak_memory_bytes": 1.0, "latency_s": 1.0}]),
            "a row lacks samples_per_s: give results as they are",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, problem):
    with pytest.raises(InputError) as caught:
        draw()
    assert str(caught.value).startswith(problem)


def test_a_picture_of_a_sweep_is_that_of_its_rows_and_of_its_frame():
    swept = sim.sweep("sd21", gpus=[4, 8], batch_size=16, strategy="ddp,gpipe", workers=1)
    for info in (partial(plots.plot_winners_info, across="num_gpus", down="model"), plots.plot_sweep_info):
        assert info(swept) == info(swept.rows()) == info(swept.frame()) == info(list(swept))
    result = swept.best
    near = [sim.sweep("sd21", gpus=16, batch_size=16, strategy="ddp", link=f"inter={x}x") for x in (2, 4)]
    assert plots.plot_winners_info(near, "link", "model").across == ["inter=2x", "inter=4x"]
    assert title(plots.plot_timeline(result)).endswith(f"each row stands for {result.num_gpus} GPUs")
    assert plots.plot_sweep_info(result).best.strategy == result.strategy
    passed = sim.sweep("sd21", gpus=8, batch_size=256, strategy="1f1b,diffusionpipe", workers=1)
    ((winner,),) = plots.plot_winners_info(passed, "num_gpus", "model").winners
    assert winner.strategy == passed.best.strategy != passed.fastest_point().name
