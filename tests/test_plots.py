"""Plots: what they draw, by value; and that they draw it, without a display and without pyplot."""

import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import sim
from profiles.architectures.synthetic import equal_blocks_transformer
from profiles.errors import InputError
from sim.outcomes.parts import replay, replay_parts
from sim.plots import (
    BubbleRatioInfo,
    ScalingInfo,
    SweepInfo,
    SweepPoint,
    Winner,
    WinnersInfo,
    plot_bubble_ratios,
    plot_bubble_ratios_info,
    plot_memory,
    plot_memory_info,
    plot_scaling,
    plot_scaling_info,
    plot_sweep,
    plot_sweep_info,
    plot_timeline,
    plot_timeline_info,
    plot_timelines,
    plot_timelines_info,
    plot_winners,
    plot_winners_info,
    save_figure,
)
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes
from sim.replay.timelines import Bar
from sim.report.plots import timeline
from sim.report.plots.charts import IDLE_FACE
from sim.report.plots.patches import PatchColours
from sim.report.plots.timeline import COLOURS
from strategies.plans.actions import parse_action
from strategies.registry import make_sampler, make_strategy

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


def test_a_timeline_lists_bars_idle_spans_and_the_bubble_ratio(hand_off):
    info = plot_timeline_info(hand_off)
    assert info.bars == [
        Bar(0, 0.0, 1.0, "forward", parse_action("0F0")),
        Bar(1, 1.0, 4.0, "forward", parse_action("1F0")),
    ]
    assert info.idle == [[(1.0, 4.0)], [(0.0, 1.0)]]
    assert (info.collectives, info.end_s, info.bubble_ratio) == ([], 4.0, 0.5)
    assert not info.cross_iteration


def test_a_timeline_says_how_long_it_is_and_how_much_of_it_is_idle(hand_off):
    assert title(plot_timeline(hand_off)) == "4,000.0 ms  |  bubble ratio 50.0 %"
    assert title(plot_timeline(hand_off, "Two stages")) == "Two stages  |  4,000.0 ms  |  bubble ratio 50.0 %"


def test_a_timeline_has_a_row_per_device_and_its_axis_in_ms(hand_off):
    axes = plot_timeline(hand_off).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["GPU 0", "GPU 1"]
    assert axes.get_xlim() == (0.0, 4000.0)
    assert axes.yaxis_inverted()


def test_a_title_has_as_many_lines_as_the_width_of_its_axes_asks_for(hand_off):
    figure = plot_timeline(hand_off, "a word " * 40)
    assert title(figure).count("\n") == 2
    assert title(figure).replace("\n", " ").startswith("a word a word")
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert axes.get_tightbbox().x1 <= figure.bbox.x1
    assert max(map(len, title(plot_sweep([result()], "a word " * 40)).split("\n"))) < 90


def test_bars_are_drawn_at_their_times(hand_off):
    idle, forward, collectives = plot_timeline(hand_off).axes[0].collections
    boxes = [path.get_extents() for path in forward.get_paths()]
    assert [(box.x0, box.x1) for box in boxes] == [(0.0, 1000.0), (1000.0, 4000.0)]
    assert [(path.get_extents().x0, path.get_extents().x1) for path in idle.get_paths()] == [
        (1000.0, 4000.0),
        (0.0, 1000.0),
    ]
    assert idle.get_hatch()
    assert not collectives.get_paths()


def test_micro_batches_are_written_only_where_they_fit(make):
    plan = make.plan(
        [[make.op("0F7", 1.0), make.op("0F8", 1e-4), make.op("0O", 1.0), make.op("X0.0:4", 1.0)]]
    )
    assert texts(plot_timeline(simulate(plan))) == ["7"]


def test_sampling_steps_carry_the_number_of_their_patch_and_of_the_step(make):
    assert texts(plot_timeline(simulate(make.plan([[make.op("0P3@9", 1.0)]])))) == ["3@9"]


def test_the_legend_names_what_there_is_and_nothing_else(pipeline, hand_off):
    assert legend(plot_timeline(hand_off)) == ["forward", "idle"]
    assert legend(plot_timeline(pipeline)) == [
        "forward",
        "backward",
        "optimizer",
        "frozen layers of the next iteration",
        "collective",
        "idle",
    ]


def test_several_stages_of_a_device_differ_in_shade(make):
    plan = make.plan([[make.op("0F0", 1.0), make.op("2F0", 1.0)]])
    _, first, second, _ = plot_timeline(simulate(plan)).axes[0].collections
    assert sum(second.get_facecolor()[0]) > sum(first.get_facecolor()[0])


def test_no_stage_is_as_light_as_idle_time(make):
    plan = make.plan([[make.op(f"{stage}F0", 1.0) for stage in range(8)]])
    faces = [bars.get_facecolor()[0] for bars in plot_timeline(simulate(plan)).axes[0].collections[1:-1]]
    assert len(faces) > 4
    assert all(max(face[:3]) - min(face[:3]) > 0.2 for face in faces)


def test_a_title_breaks_in_its_first_part_or_between_parts(pipeline):
    axes = Figure(figsize=(6.0, 3.0)).subplots()
    plot_timeline(pipeline, "a title of several words, which is as long as one line", ax=axes)
    lines = axes.get_title(loc="left").splitlines()
    assert len(lines) == 2
    assert lines[-1] == "1,009.6 ms  |  bubble ratio 37.3 %"
    assert not any(line.endswith("|") for line in lines)


class Counted(list):
    """A list that counts how often it is gone through."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()


def test_a_timeline_goes_through_its_bars_a_few_times_however_many_there_are(pipeline, monkeypatch):
    info = plot_timeline_info(pipeline)
    counted = Counted(10 * info.bars)
    monkeypatch.setattr(timeline, "plot_timeline_info", lambda trace: replace(info, bars=counted))
    plot_timeline(pipeline)
    assert counted.times < 12 < len(counted)


def test_the_units_of_a_shard_are_too_many_for_shades():
    info = plot_timeline_info(sim.run("uvit-h", "fsdp", gpus=4, batch_size=16).trace)
    assert not info.shaded
    drawn = plot_timeline(sim.run("uvit-h", "fsdp", gpus=4, batch_size=16).trace).axes[0].collections
    faces = {to_hex(face) for bars in drawn for face in bars.get_facecolor()}
    assert faces <= {colour.lower() for colour in (*COLOURS.values(), IDLE_FACE)}


def test_timelines_side_by_side_share_an_axis_of_time_and_a_legend(hand_off, pipeline):
    traces = {"toy": hand_off, "filled": pipeline, "again": hand_off}
    assert plot_timelines_info(traces)["filled"] == plot_timeline_info(pipeline)
    figure = plot_timelines(traces, "Three")
    assert len(figure.axes) == 3
    assert {axes.get_xlim() for axes in figure.axes} == {(0.0, 4000.0)}
    assert {axes.get_ylim() for axes in figure.axes} == {(3.55, -0.55)}
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "time in ms", "time in ms"]
    assert title(figure) == "toy  |  4,000.0 ms  |  bubble ratio 50.0 %"
    assert legend(figure) == [
        "forward", "backward", "optimizer", "frozen layers of the next iteration", "collective", "idle"
    ]  # fmt: skip
    figure.draw_without_rendering()
    with pytest.raises(InputError, match="nothing to plot"):
        plot_timelines({})


def test_a_timeline_on_ones_own_axes_has_its_legend_below_its_bars_and_words(pipeline):
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots(2)[1]
    plot_timeline(pipeline, ax=axes)
    figure.draw_without_rendering()
    box, words = (part.get_window_extent() for part in (axes.get_legend(), axes.xaxis.label))
    assert box.y1 <= words.y0 < axes.get_window_extent().y0
    assert box.y0 >= 0 and box.x0 >= 0 and box.x1 <= figure.bbox.x1


def test_no_two_kinds_of_work_have_one_colour():
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_an_iteration_without_work_can_be_drawn(make):
    trace = simulate(make.plan([[], []]))
    assert plot_timeline_info(trace).bubble_ratio == 0.0
    for figure in (plot_timeline(trace), plot_memory(trace)):
        figure.draw_without_rendering()


def test_rounding_never_makes_a_bubble_ratio_negative(make):
    trace = simulate(make.plan([[make.op(f"0F{number}", 0.1) for number in range(20)]]))
    assert 0.0 <= plot_timeline_info(trace).bubble_ratio < 1e-12


def test_many_devices_are_drawn_without_a_warning(make):
    rows = [[make.op(f"{device}F0", 1.0)] for device in range(200)]
    trace = simulate(make.plan(rows, cluster=make.cluster(devices_per_node=200)))
    for figure in (plot_timeline(trace), plot_memory(trace)):
        figure.draw_without_rendering()
    assert len(legend(plot_memory(trace))) <= 16


def test_memory_is_a_curve_per_device_and_the_capacity(pipeline):
    info = plot_memory_info(pipeline)
    assert [curve.peak_bytes for curve in info.curves] == peak_memory_bytes(pipeline).tolist()
    assert info.capacity_bytes == GIB
    lines = plot_memory(pipeline).axes[0].lines
    drawn = [max(line.get_ydata()) * GIB for line in lines]
    assert drawn == pytest.approx([*peak_memory_bytes(pipeline), GIB])


def test_memory_without_a_limit_has_no_capacity_line(hand_off):
    assert plot_memory_info(hand_off).capacity_bytes is None
    assert legend(plot_memory(hand_off)) == ["GPU 0", "GPU 1"]


def test_the_memory_title_names_the_fullest_device(make):
    plan = make.plan([[], [make.op("0F0", 1.0, writes="a")]], sizes={"a": 3 * GIB})
    assert title(plot_memory(simulate(plan), "Toy")) == "Toy  |  peak 3.0 GiB on GPU 1"


def test_bubble_ratios_stand_by_stages_and_micro_batches():
    rows = [
        result(pipeline_degree=4, micro_batches=2, ratio=0.6),
        result(pipeline_degree=2, micro_batches=8, ratio=0.1),
        result(pipeline_degree=4, micro_batches=8, ratio=0.3),
    ]
    assert plot_bubble_ratios_info(rows) == BubbleRatioInfo([2, 4], [2, 8], [[None, 0.1], [0.6, 0.3]])
    figure = plot_bubble_ratios(rows, "1F1B")
    assert texts(figure) == ["-", "10.0", "60.0", "30.0"]
    assert title(figure) == "1F1B"
    assert figure.axes[0].yaxis_inverted()


def test_of_several_results_at_one_point_the_smallest_bubble_ratio_is_shown():
    rows = [result(pipeline_degree=2, micro_batches=2, ratio=ratio) for ratio in (0.5, 0.2, 0.4)]
    assert plot_bubble_ratios_info(rows).ratios == [[0.2]]


def test_rows_without_a_bubble_ratio_or_without_stages_are_left_out():
    nan = result(pipeline_degree=2, micro_batches=4, ratio=float("nan"))
    known = result(pipeline_degree=2, micro_batches=2, ratio=0.0)
    assert plot_bubble_ratios_info([BOUNDED, INFEASIBLE, nan, result("ddp"), known]).ratios == [[0.0]]
    plot_bubble_ratios([known]).draw_without_rendering()
    with pytest.raises(InputError, match="nothing to plot"):
        plot_bubble_ratios_info([BOUNDED, INFEASIBLE])


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
    info = plot_sweep_info(rows)
    assert [point.strategy for point in info.points] == ["a", "b", "c", "d", "e"]
    assert [point.strategy for point in info.front] == ["b", "a"]
    assert info.points[4] == SweepPoint("e", 9 * GIB, 99.0, False)


def test_a_sampling_result_counts_its_images_per_second():
    row = drawn("pipefusion", 1, 4.0, 8, batch_size=2)
    point = SweepPoint("pipefusion", GIB, 0.5, True, 4.0, 8)
    assert plot_sweep_info([row]) == SweepInfo([point], [point], point)


def drawn(strategy, memory_gib, latency_s, num_gpus=1, fits=True, batch_size=1):
    return {
        "task": "sample", "status": "simulated", "model": "m", "strategy": strategy, "num_gpus": num_gpus,
        "latency_s": latency_s, "batch_size": batch_size, "peak_memory_bytes": memory_gib * GIB,
        "fits_memory": fits,
    }  # fmt: skip


def test_a_sampling_sweep_is_drawn_by_latency_beside_the_memory_of_a_device():
    rows = [
        drawn("single", 3, 8.0, 1),
        drawn("ulysses", 4, 2.0, 8),
        drawn("ulysses", 4, 3.0, 4),
        drawn("tensor", 9, 1.0, 8, fits=False),
    ]
    assert "memory of a GPU" not in legend(plot_sweep(rows, memory_bytes=16 * GIB))
    figure = plot_sweep(rows, memory_bytes=8 * GIB)
    (axes,) = figure.axes
    assert (axes.get_ylabel(), texts(figure)) == ("latency in s", ["ulysses, 2 s"])
    front, ring, memory = axes.get_lines()
    assert (ring.get_xdata()[0], ring.get_ydata()[0]) == (4, 2.0)
    assert {"recommended", "larger: more GPUs"} < set(legend(figure))
    assert list(front.get_xdata()) == [3, 4] and list(front.get_ydata()) == [8.0, 2.0]
    assert set(memory.get_xdata()) == {8}
    assert legend(figure)[-3:] == ["Pareto front", "memory of a GPU", "does not fit"]
    sizes = [list(markers.get_sizes()) for markers in axes.collections if len(markers.get_offsets())]
    assert sizes == [[18], [60, 46], [60]]


def test_whiskers_span_the_band_of_what_is_drawn():
    bare = drawn("single", 3, 8.0, 1)
    (with_band,) = plot_sweep_info([bare | {"latency_s_low": 6.0, "latency_s_high": 9.0}]).points
    assert (with_band.band, plot_sweep_info([bare]).points[0].band) == ((6.0, 9.0), None)
    row = {"strategy": "ddp", "peak_memory_bytes": GIB, "samples_per_s": 100.0, "iteration_s": 2.0}
    (trained,) = plot_sweep_info([row | {"iteration_s_low": 1.0, "iteration_s_high": 4.0}]).points
    assert trained.band == (50.0, 200.0)
    figure = plot_sweep([row | {"iteration_s_low": 1.0, "iteration_s_high": 4.0}])
    (whisker,) = (
        segment
        for lines in figure.axes[0].collections
        if hasattr(lines, "get_segments")
        for segment in lines.get_segments()
    )
    assert whisker.tolist() == [[1.0, 50.0], [1.0, 200.0]]


def test_a_map_of_winners_takes_samplers_on_fewer_gpus_than_there_are():
    rows = [
        drawn(name, 1, latency_s, gpus) | {"cluster": cluster, "resolution": resolution}
        for cluster, resolution, name, latency_s, gpus in (
            ("nvlink", "1024", "single", 4.0, 1),
            ("nvlink", "1024", "ulysses", 1.0, 8),
            ("pcie", "1024", "single", 4.0, 1),
            ("pcie", "1024", "ulysses", 2.0, 2),
        )
    ]
    info = plot_winners_info(rows, "cluster", "resolution", "single")
    assert info.winners == [[Winner("ulysses", 1.0, 3.0), Winner("ulysses", 0.5, 1.0)]]
    with pytest.raises(InputError, match="two scenarios have resolution 1024 and model m"):
        plot_winners_info(rows, "model", "resolution", "single")


def test_a_sweep_has_a_marker_per_strategy_and_names_the_best():
    rows = [
        result("ddp", 2, 5.0),
        result("spp", 1, 2.0),
        result("ddp", 3, 6.0),
        result("gpipe", 4, 9.0, fits=False),
    ]
    figure = plot_sweep(rows, "Toy")
    assert legend(figure) == ["ddp", "spp", "gpipe", "recommended", "Pareto front", "does not fit"]
    assert texts(figure) == ["ddp, 6/s"]
    assert title(figure) == "Toy"
    looks = {(line.get_color(), line.get_marker()) for line in figure.legends[0].get_lines()[:3]}
    assert len(looks) == 3


def test_a_sweep_in_which_nothing_fits_is_still_drawn():
    figure = plot_sweep([result(fits=False)])
    assert legend(figure) == ["1f1b", "does not fit"]


def test_a_sweep_without_a_simulated_row_is_refused():
    with pytest.raises(InputError, match="nothing to plot"):
        plot_sweep([BOUNDED, INFEASIBLE])


def best(strategy, num_gpus, samples_per_s, batch_size=64, model="made", status="simulated"):
    row = {
        "status": status, "model": model, "cluster": "made", "num_gpus": num_gpus, "batch_size": batch_size,
        "strategy": strategy,
    }  # fmt: skip
    return row | ({"samples_per_s": samples_per_s} if status == "simulated" else {"reason": "no"})


def test_winners_stand_by_two_axes_with_their_lead_over_a_baseline():
    rows = [
        best("ddp", 16, 10.0),
        best("spp", 16, 12.5),
        best("spp", 16, 11.0),
        best("ddp", 8, 6.0),
        best("spp", 8, 5.0),
        best("spp", 8, 3.0, batch_size=32),
        best("ddp", 16, 0.0, batch_size=32, status="infeasible"),
    ]
    assert plot_winners_info(rows, "num_gpus", "batch_size") == WinnersInfo(
        down=[32, 64],
        across=[8, 16],
        winners=[
            [Winner("spp", 3.0, None), None],
            [Winner("ddp", 6.0, 0.0), Winner("spp", 12.5, 0.25)],
        ],
        baselines=("ddp",),
        unit="samples",
    )
    assert plot_winners_info(rows, "num_gpus", "batch_size", "spp").winners[1][0].lead == 6.0 / 5.0 - 1


def test_what_is_not_recommended_wins_no_scenario_and_one_gpu_is_the_baseline_of_drawing():
    rows = [best("single", 8, 2.0), best("naive-patch", 8, 9.0), best("usp", 8, 5.0)]
    rows = [row | {"task": "sample", "recommended": row["strategy"] != "naive-patch"} for row in rows]
    info = plot_winners_info(rows, "num_gpus", "model")
    assert info.winners == [[Winner("usp", 5.0, 1.5)]]
    assert info.baselines == ("single",)


def test_a_map_of_winners_says_who_by_how_much_and_where_nothing_fits():
    rows = [best("ddp", 8, 6.0), best("spp", 16, 12.5), best("ddp", 16, 10.0), best("spp", 32, 20.0)]
    rows.append(best("spp", 64, 0.0, status="infeasible"))
    figure = plot_winners(rows, "num_gpus", "model", "Toy")
    assert texts(figure) == [
        "ddp\n6 samples/s",
        "spp\n12.5 samples/s\n+25.0 % over ddp",
        "spp\n20 samples/s\nno ddp",
        "nothing fits",
    ]  # fmt: skip
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16", "32", "64"]
    assert (axes.get_xlabel(), axes.get_ylabel(), title(figure)) == ("GPUs", "model", "Toy")
    assert axes.yaxis_inverted()
    assert legend(figure) == ["ddp", "spp"]
    figure.draw_without_rendering()


def test_a_winner_says_whom_the_comparison_cannot_tell_from_it():
    rows = [
        drawn("usp", 1, 1.0, 8) | {"tie": False},
        drawn("usp", 1, 1.01, 8) | {"tie": True},
        drawn("ring", 1, 1.3, 8) | {"tie": True},
        drawn("ulysses", 1, 1.2, 8) | {"tie": True},
        drawn("naive-patch", 1, 1.1, 8) | {"tie": True, "recommended": False},
        drawn("tensor", 1, 1.1, 8) | {"tie": False},
        drawn("usp", 1, 3.0, 8) | {"resolution": "2048"},
    ]
    rows = [{"resolution": "1024"} | row for row in rows]
    info = plot_winners_info(rows, "resolution", "model", "single")
    assert info.winners == [[Winner("usp", 1.0, None, ("ulysses", "ring")), Winner("usp", 1 / 3.0, None)]]
    assert (info.strategies, info.has_ties, info.unit) == (["usp"], True, "images")
    figure = plot_winners(rows, "resolution", "model")
    assert texts(figure) == [
        "usp\n1 images/s\n= ulysses, 1 more\nno single",
        "usp\n0.333 images/s\nno single",
    ]
    assert [patch.get_hatch() for patch in figure.axes[0].patches if patch.get_hatch()] == ["///"]
    assert legend(figure) == ["usp", "a tie (=)"]
    assert figure.axes[0].get_xlabel() == "resolution in pixels"


def test_a_map_without_ties_is_not_hatched():
    figure = plot_winners([best("ddp", 8, 123456.7)], "num_gpus", "model")
    assert texts(figure) == ["ddp\n123,457 samples/s"]
    assert not any(patch.get_hatch() for patch in figure.axes[0].patches)
    assert legend(figure) == ["ddp"]


def test_words_along_an_axis_keep_their_order_and_numbers_ascend():
    rows = [best("ddp", gpus, 1.0, model=model) for model in ("wide", "deep") for gpus in (64, 8)]
    info = plot_winners_info(rows, "num_gpus", "model")
    assert (info.down, info.across) == (["wide", "deep"], [8, 64])


def test_long_words_along_an_axis_break_at_commas():
    rows = [best("ddp", 8, 1.0) | {"cluster": name} for name in ("p4de", "p4de, inter-node x 0.5")]
    axes = plot_winners(rows, "cluster", "model").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["p4de", "p4de,\ninter-node x 0.5"]


def test_two_scenarios_in_one_cell_are_refused():
    rows = [best("ddp", 8, 1.0), best("ddp", 8, 1.0, batch_size=128)]
    with pytest.raises(
        InputError, match=r"^two scenarios have model made and num_gpus 8: .*64\) and .*128\)$"
    ):
        plot_winners_info(rows, "num_gpus", "model")
    with pytest.raises(InputError, match="nothing to plot"):
        plot_winners_info([], "num_gpus", "model")


def test_scaling_is_the_throughput_per_gpu_of_the_best_of_each_strategy():
    rows = [
        best("spp", 8, 80.0),
        best("spp", 8, 88.0),
        best("spp", 16, 0.0, status="infeasible"),
        best("ddp", 16, 240.0),
        best("ddp", 8, 160.0),
        best("gpipe", 8, 0.0, status="infeasible"),
    ]
    assert plot_scaling_info(rows, "num_gpus") == ScalingInfo(
        [8, 16], {"ddp": [20.0, 15.0], "spp": [11.0, None]}
    )
    figure = plot_scaling(rows, "num_gpus", "Toy")
    assert legend(figure) == ["ddp", "spp"]
    assert [line.get_xdata().tolist() for line in figure.axes[0].lines] == [[0, 1], [0]]
    assert title(figure) == "Toy"
    with pytest.raises(InputError, match="nothing to plot"):
        plot_scaling([rows[-1]], "num_gpus")


def test_a_strategy_looks_the_same_in_every_figure():
    lone = plot_sweep([result("spp", 1, 2.0)]).legends[0].get_lines()[0]
    line = plot_scaling([best("ddp", 8, 1.0), best("spp", 8, 1.0)], "num_gpus").axes[0].lines[1]
    assert (lone.get_color(), lone.get_marker()) == (line.get_color(), line.get_marker())


@pytest.mark.parametrize(("ending", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".PDF", b"%PDF")])
def test_a_figure_is_saved_by_its_ending_and_twice_alike(tmp_path, hand_off, ending, magic):
    paths = [tmp_path / f"{number}{ending}" for number in (1, 2)]
    for path in paths:
        save_figure(plot_timeline(hand_off), path)
    assert paths[0].read_bytes().startswith(magic)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("name", ["gantt.jpeg", "gantt"])
def test_an_unknown_ending_is_refused(tmp_path, hand_off, name):
    with pytest.raises(InputError) as caught:
        save_figure(plot_timeline(hand_off), tmp_path / name)
    assert str(caught.value) == f"figure '{tmp_path / name}' must end in .png, .svg or .pdf"


@pytest.mark.parametrize(("folder", "reason"), [("missing", "No such file"), ("file", "Not a directory")])
def test_a_folder_that_cannot_be_written_to_is_refused_in_one_line(tmp_path, hand_off, folder, reason):
    (tmp_path / "file").touch()
    path = tmp_path / folder / "gantt.png"
    with pytest.raises(InputError) as caught:
        save_figure(plot_timeline(hand_off), path)
    assert str(caught.value).startswith(f"figure '{path}' cannot be written: {reason}")
    assert "\n" not in str(caught.value)


def test_a_notebook_can_display_a_figure_that_pyplot_never_saw(hand_off):
    assert plot_timeline(hand_off)._repr_png_().startswith(b"\x89PNG")


def test_plotting_leaves_pyplot_alone():
    code = "import sys, sim.plots as p; p.plot_sweep; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


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
    figure = plot_timeline(patched)
    whole = ["@0", "@0"]
    assert sorted(texts(figure)) == sorted(whole + 2 * ["0@1", "1@1", "0@2", "1@2"])
    assert legend(figure) == ["whole image", "patch 0", "patch 1", "idle"]
    colours = PatchColours.of(plot_timeline_info(patched).bars)
    faces = {colours.face(parse_action(text)) for text in ("0P0@0", "0P0@1", "1P1@1", "0P1@2")}
    assert len(faces) == 3


def test_a_narrow_bar_says_the_patch_alone_or_nothing(patched):
    colours = PatchColours.of(plot_timeline_info(patched).bars)
    action = parse_action("0P1@2")
    assert [colours.label(action, room) for room in (3, 2, 0.5)] == ["1@2", "1", ""]


def test_the_legend_of_many_patches_names_some():
    colours = PatchColours(64, frozenset())
    assert [patch.get_label() for patch in colours.legend()] == [f"patch {n}" for n in range(0, 64, 8)]


def test_a_strategy_whose_seams_show_is_marked_in_the_legend():
    rows = [
        {
            "strategy": name,
            "peak_memory_bytes": GIB,
            "latency_s": 2.0,
            "num_gpus": 2,
            "samples_per_s": 0.5,
            **more,
        }
        for name, more in (("naive-patch", {"recommended": False}), ("ulysses", {"recommended": True}))
    ]
    assert {"naive-patch (seams show)", "ulysses"} <= set(legend(plot_sweep(rows)))


# What is drawn, and along which keys


def test_winners_are_drawn_of_sweeps_as_of_their_rows():
    small = {"batch_size": 16, "strategy": ["ddp", "gpipe"], "workers": 1, "self_conditioning": 0.0}
    both = sim.sweep("sd21", gpus=[2, 4], **small)
    info = plot_winners_info(both.rows(), "num_gpus", "model")
    assert (info.across, info.down) == ([2, 4], ["sd21"])
    for answers in (both, both.sweeps, [both.sweeps[0], *both.sweeps[1].rows()]):
        assert plot_winners_info(answers, "num_gpus", "model") == info
        assert plot_scaling_info(answers, "num_gpus") == plot_scaling_info(both.rows(), "num_gpus")


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (("num_gpu", "model"), "across is 'num_gpu', which a row lacks; did you mean num_gpus?"),
        (
            ("model", "link"),
            "down is 'link', which a row lacks; choose from strategy, model, num_gpus, samples_per_s",
        ),
    ],
)
def test_a_key_that_rows_lack_is_refused_by_those_that_they_have(axes, said):
    row = {"strategy": "ddp", "model": "toy", "num_gpus": 2, "samples_per_s": 1.0}
    with pytest.raises(InputError, match=f"^{re.escape(said)}$"):
        plot_winners_info([row], *axes)


DRAWN = {
    "winners": partial(plot_winners, across="model", down="batch_size"),
    "scaling": partial(plot_scaling, across="batch_size"),
    "sweep": plot_sweep,
    "bubble ratios": plot_bubble_ratios,
}


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"strategy": None}, "a row lacks strategy: give results as they are"),
        ({"strategy": 3}, "strategy of a row is 3, must be a name"),
        ({"num_gpus": "two"}, "num_gpus of a row is 'two', must be a number"),
        ({"samples_per_s": [1.0]}, "samples_per_s of a row is [1.0], must be a number"),
        ({"parameters": 4}, "parameters of a row is 4, must be a mapping"),
        ({"task": "draw"}, "task of a row is 'draw', must be one of train, sample"),
    ],
)
def test_rows_by_hand_that_lack_what_is_drawn_are_refused_by_the_key(draw, change, said):
    row = {"strategy": "1f1b", "model": "toy", "num_gpus": 2, "batch_size": 8, "samples_per_s": 1.0}
    row |= {"peak_memory_bytes": 1e9, "bubble_ratio": 0.5, "pipeline_degree": 2, "micro_batches": 4}
    DRAWN[draw]([row])
    if draw == "bubble ratios" and change == {"strategy": None}:
        return  # which are of whatever strategy
    for changed in (row | change, {key: v for key, v in (row | change).items() if v is not None}):
        with pytest.raises(InputError, match=f"^{re.escape(said)}$"):
            DRAWN[draw]([row, changed])


def test_a_row_that_lacks_an_end_of_its_band_is_drawn_without():
    row = {"strategy": "1f1b", "samples_per_s": 1.0, "peak_memory_bytes": 1e9, "iteration_s_low": 0.5}
    assert plot_sweep_info([row]).points[0].band is None


def test_what_has_no_rows_is_refused():
    such = "must be sweeps, results, or what their rows() or frame() gives"
    for draw in (partial(plot_winners, across="model", down="num_gpus"), plot_sweep, plot_bubble_ratios):
        for asked, said in (
            (3, "rows is 3"), (None, "rows is None"), ("abc", "rows is 'abc'"), ([3], "rows hold a int"),
        ):  # fmt: skip
            with pytest.raises(InputError, match=f"^{re.escape(f'{said}, {such}')}$"):
                draw(asked)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"down": "inputs"}, "down is 'inputs', which holds a dict, must be a key of numbers or words; choose from"),
        ({"down": "num_gpus"}, "across and down are both 'num_gpus', must be two keys, one for each axis"),
        ({"across": ["model"]}, "across is ['model'], which a row lacks; did you mean model?"),
        ({"down": "model", "baseline": "nope"}, "unknown strategy 'nope'; "),
        ({"down": "model", "baseline": 5}, "unknown strategy '5'; "),
    ],
)  # fmt: skip
def test_axes_and_baselines_that_no_map_has_are_refused(given, said):
    swept = sim.sweep("sd21", gpus=4, batch_size=16, strategy="ddp", workers=1)
    with pytest.raises(InputError, match=f"^{re.escape(said)}"):
        plot_winners_info(swept, **{"across": "num_gpus", "down": "model", **given})


def test_a_picture_of_a_sweep_is_that_of_its_rows_and_of_its_frame():
    swept = sim.sweep("sd21", gpus=[4, 8], batch_size=16, strategy="ddp,gpipe", workers=1)
    for info in (partial(plot_winners_info, across="num_gpus", down="model"), plot_sweep_info):
        assert info(swept) == info(swept.rows()) == info(swept.frame()) == info(list(swept))
    assert plot_bubble_ratios_info(swept) == plot_bubble_ratios_info(swept.frame())
    assert plot_scaling_info(swept.frame(), "num_gpus") == plot_scaling_info(swept, "num_gpus")
    result = swept.best
    assert plot_sweep_info(result).best.strategy == result.strategy
    assert plot_memory_info(result) == plot_memory_info(result.trace)
    assert plot_timelines_info({"a": result}) == {"a": plot_timeline_info(result.trace)}


def test_what_has_no_trace_or_is_no_picture_is_refused():
    for draw in (plot_memory, plot_timeline):
        with pytest.raises(InputError, match=r"^trace is None, must be a result or one of its traces$"):
            draw(None)
    with pytest.raises(
        InputError, match=r"^traces is \[3\], must be a dictionary of results, or of traces, by name$"
    ):
        plot_timelines([3])
    with pytest.raises(InputError, match=r"^figure is None and path 5, must be a picture and its file$"):
        save_figure(None, 5)
    with pytest.raises(InputError, match=r"^memory_bytes is '80GB', must be a number$"):
        plot_sweep([], memory_bytes="80GB")
    with pytest.raises(InputError, match=r"^a row lacks samples_per_s, and batch_size with latency_s: "):
        plot_winners([{"strategy": "ddp", "model": "toy", "num_gpus": 2}], "model", "num_gpus")
