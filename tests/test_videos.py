"""Videos: the models that draw them, their tokens at any number of frames, and which numbers they can have."""

import json

import pytest

from profiles.architectures.components import Component, Layer, MeasuredTime
from profiles.architectures.kernels import Kernel, class_flop
from profiles.architectures.models import Model, load_model
from profiles.costs.resolutions import resized, with_frames
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from profiles.machines.devices import load_device
from sim import api
from sim.asking.experiments import load_experiment
from sim.cli.main import main
from sim.report.numbers import image_words
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario

H100 = load_device("h100-80gb-sxm")


def part(model: Model, name: str) -> Component:
    return next(component for component in model.components if component.name == name)


# What the folders hold, against what is published


@pytest.mark.parametrize(
    ("model", "name", "gigaparameters"),
    [
        ("wan2.1-1.3b", "transformer", 1.419),
        ("wan2.1-14b", "transformer", 14.289),
        ("wan2.1-14b", "text_encoder", 5.681),
        ("hunyuanvideo", "transformer", 12.821),
        ("hunyuanvideo", "text_encoder", 8.030 - 0.525),  # Llama 3 8B without its head
        ("qwen-image", "transformer", 20.430),
        ("qwen-image", "text_encoder", 8.292 - 0.545 - 0.677),  # Qwen2.5-VL 7B without head and vision tower
        ("ltx-video", "transformer", 1.923),
        ("flux2-dev", "transformer", 32.2),
        (
            "flux2-dev",
            "text_encoder",
            24.011 - 0.671 - 0.439,
        ),  # Mistral Small 3.1 without head and vision tower
        ("mochi", "transformer", 10.03),
        ("mochi", "vae_decoder", 0.362),
        ("z-image", "transformer", 6.15),
        ("z-image", "text_encoder", 4.022),
        ("sd3.5-large", "transformer", 8.057),
        ("cogvideox-5b", "transformer", 5.570),
        ("flux-schnell", "transformer", 11.891),
    ],
)
def test_a_component_has_as_many_parameters_as_its_weights_that_are_published(model, name, gigaparameters):
    assert part(load_model(model), name).parameters / 1e9 == pytest.approx(gigaparameters, rel=4e-3)


@pytest.mark.parametrize(
    ("model", "megaparameters"),
    [("wan2.1-14b", 127), ("hunyuanvideo", 246), ("cogvideox-5b", 215.6), ("ltx-video", 419), ("mochi", 460)],
)
def test_both_halves_of_a_video_autoencoder_are_all_of_it(model, megaparameters):
    halves = [component for component in load_model(model).components if "vae" in component.name]
    assert [half.tasks for half in halves] == [("train",), ("sample",)]
    assert sum(half.parameters for half in halves) / 1e6 == pytest.approx(megaparameters, rel=4e-3)


@pytest.mark.parametrize(
    ("model", "half", "layer", "flop"),
    [
        ("wan2.1-14b", "decoder", "conv_in", 21 * 2 * 27 * 16 * 384 * 60 * 104),
        ("wan2.1-14b", "decoder", "conv_out", 81 * 2 * 27 * 96 * 3 * 480 * 832),
        ("wan2.1-14b", "encoder", "conv_in", 81 * 2 * 27 * 3 * 96 * 480 * 832),
        ("qwen-image", "decoder", "conv_out", 2 * 27 * 96 * 3 * 1328**2),
        ("cogvideox-5b", "decoder", "conv_in", 13 * 2 * 27 * 16 * 512 * 60 * 90),
        ("hunyuanvideo", "decoder", "conv_in", (10 * 5 + 3) * 2 * 27 * 512 * 16 * 90 * 160),
        ("ltx-video", "decoder", "conv_in", 21 * 2 * 27 * 128 * 512 * 16 * 22),
    ],
)
def test_the_outer_convolutions_of_an_autoencoder_see_every_frame_once_or_where_tiles_overlap_again(
    model, half, layer, flop
):
    (found,) = (of for of in part(load_model(model), f"vae_{half}").layers if of.name.endswith(layer))
    assert found.conv_flop == pytest.approx(flop)


# Tokens


@pytest.mark.parametrize(
    ("model", "frames", "height", "width", "tokens"),
    [
        ("wan2.1-14b", 81, 480, 832, 21 * 30 * 52),
        ("wan2.1-14b", 81, 720, 1280, 21 * 45 * 80),
        ("wan2.1-1.3b", 49, 480, 832, 13 * 30 * 52),
        ("wan2.1-1.3b", 1, 480, 832, 30 * 52),
        ("hunyuanvideo", 129, 720, 1280, 33 * 45 * 80),
        ("hunyuanvideo", 61, 544, 960, 16 * 34 * 60),
        ("ltx-video", 121, 480, 704, 16 * 15 * 22),
        ("mochi", 85, 480, 848, 15 * 30 * 53),
        ("cogvideox-5b", 25, 480, 720, 7 * 30 * 45),
        ("qwen-image", 1, 1024, 1024, 64 * 64),
    ],
)
def test_the_tokens_of_a_video_follow_from_its_frames_and_sides(model, frames, height, width, tokens):
    found = resized(with_frames(load_model(model), frames, H100), height, width, H100)
    (backbone,) = (found.components[i] for i in found.backbones)
    assert backbone.image_tokens == tokens
    assert backbone.frames * model_tokens_of_a_frame(backbone) == tokens


def model_tokens_of_a_frame(component: Component) -> int:
    each, rest = divmod(component.image_tokens, component.frames)
    assert rest == 0
    return each


def work(component: Component) -> dict[str, float]:
    names = ("conv_flop", "matmul_flop", "attention_flop")
    return {name: sum(getattr(layer, name) for layer in component.layers) for name in names}


def test_a_backbone_attends_with_the_square_of_its_frames_and_its_kernels_with_it():
    whole = load_model("wan2.1-1.3b")
    shorter = with_frames(whole, 41, H100)
    long, short = (part(model, "transformer") for model in (whole, shorter))
    grown = 11 / 21
    assert work(short)["attention_flop"] == pytest.approx(work(long)["attention_flop"] * grown**2)
    assert class_flop(k for of in short.kernels for k in of)["attention_flop"] == pytest.approx(
        work(short)["attention_flop"]
    )
    assert [e.elements for e in short.exchanges] == [round(grown * e.elements) for e in long.exchanges]
    assert part(shorter, "text_encoder") == part(whole, "text_encoder")


def test_an_autoencoder_that_takes_frames_in_turn_makes_more_passes_that_are_as_large():
    whole = load_model("wan2.1-14b")
    longer = with_frames(whole, 161, H100)
    short, long = (part(model, "vae_decoder") for model in (whole, longer))
    assert (short.passes, long.passes) == (21, round(21 * 161 / 81))
    assert work(long)["conv_flop"] == pytest.approx(work(short)["conv_flop"] * 161 / 81)
    assert [layer.output_bytes for layer in long.layers] == [layer.output_bytes for layer in short.layers]
    assert {k.m for of in long.kernels for k in of} == {k.m for of in short.kernels for k in of}


def test_an_autoencoder_that_takes_all_frames_at_once_grows_with_them():
    whole = load_model("ltx-video")
    short, long = (part(with_frames(whole, frames, H100), "vae_decoder") for frames in (161, 321))
    assert long.passes == short.passes == 1
    assert long.layers[5].output_bytes == pytest.approx(short.layers[5].output_bytes * 321 / 161)


def test_kernels_of_other_frames_do_the_work_of_their_layers():
    for name in ("wan2.1-1.3b", "hunyuanvideo", "ltx-video"):
        (backbone,) = (c for c in with_frames(load_model(name), 33, H100).components if c.trainable)
        of_kernels = class_flop(kernel for of in backbone.kernels for kernel in of)
        of_layers = work(backbone)
        assert sum(of_kernels.values()) == pytest.approx(sum(of_layers.values()), rel=0.02)


def test_times_measured_at_a_models_frames_follow_the_work_to_others():
    assert timed(41).forward_s / timed(81).forward_s == pytest.approx(11 / 21)


def timed(frames: int) -> MeasuredTime:
    """Times of a layer of 21 latent frames, measured on a device without laws, at some frames."""
    device = load_device("ideal")
    layer = Layer(0, "block", 1, "full", 0, 1e9, 0, 0, 1, 8, 8)
    backbone = Component(
        "net",
        True,
        (),
        21 * 4,
        0,
        0,
        0,
        (layer,),
        times=(("ideal", (MeasuredTime(0, 1, 2.0, 4.0),)),),
        frames=21,
    )
    whole = Model("small", "Small", "made up", "float16", 16, 16, (backbone,), frames=81, frame_step=4)
    return dict(with_frames(whole, frames, device).components[0].times)["ideal"][0]


# Frames in questions


def test_training_is_asked_about_frames_and_sides_together():
    model, cluster = load_model("ltx-video"), load_cluster("h100-nvlink-8")
    scenario = Scenario(model, cluster, TrainingWorkload(8, 8, resolution="704x480", frames=121))
    (backbone,) = (c for c in scenario.model.components if c.trainable)
    assert backbone.image_tokens == 16 * 15 * 22
    assert scenario.options["frames"] == 121
    assert "121 frames" in scenario.departures


def test_sampling_is_asked_about_frames_and_says_so():
    result = api.run(
        "wan2.1-1.3b", "single", cluster="h100-nvlink-8", frames=17, resolution="832x480", steps=2
    )
    assert result.flags["frames"] == 17
    assert "17 frames" in result.title
    assert api.run(**result.flags).latency_s == result.latency_s
    longer = api.run(
        "wan2.1-1.3b", "single", cluster="h100-nvlink-8", frames=33, resolution="832x480", steps=2
    )
    assert longer.latency_s > 1.8 * result.latency_s  # 9 latent frames for 5, and attention among them


@pytest.mark.parametrize(
    "asked",
    [{"strategy": "ulysses", "gpus": 2, "steps": 4}, {"strategy": "fsdp", "gpus": 8, "memory": "400GiB"}],
)
def test_one_frame_of_a_model_of_videos_is_asked_for_again(asked, tmp_path):
    result = api.run("wan2.1-1.3b", frames=1, **asked)
    assert result.options["frames"] == 1
    assert ", 1 frame" in result.title
    written = tmp_path / "result.json"
    written.write_text(json.dumps(result.to_json()))
    for flags in (result.flags, load_experiment(written)):
        assert api.run(**flags) == result


def test_a_run_of_one_frame_is_measured_as_one(tmp_path):
    asked = {"model": "wan2.1-1.3b", "strategy": "ulysses", "gpus": 2, "steps": 4, "frames": 1}
    measured = api.run(**asked, measured="latency_s=0.4")
    written = tmp_path / "measured.json"
    written.write_text(json.dumps(measured.to_json()))
    again = api.run(**asked, measured_run=written)
    assert again.compute_factor == measured.compute_factor
    assert again.latency_s == pytest.approx(0.4)


def test_what_is_drawn_is_called_by_its_number_of_frames():
    model, cluster = load_model("wan2.1-1.3b"), load_cluster("p4de")
    for frames, words in ((1, ("image", "images")), (5, ("video", "videos")), (None, ("video", "videos"))):
        scenario = SamplingScenario(model, cluster, SamplingWorkload(1, 480, 832, frames=frames))
        assert image_words(scenario.options) == words


def test_a_model_knows_that_it_draws_videos_whatever_the_frames_it_is_asked_for():
    whole, single = load_model("wan2.1-1.3b"), with_frames(load_model("wan2.1-1.3b"), 1, H100)
    assert (whole.frames_from, single.frames_from) == (None, 81)
    assert whole.draws_videos and single.draws_videos
    assert not load_model("sd21").draws_videos
    assert with_frames(single, 1, H100) is single


def test_of_a_video_the_rows_are_those_of_one_frame():
    model, cluster = load_model("wan2.1-14b"), load_cluster("h100-nvlink-8")
    for frames in (81, 5):
        assert SamplingScenario(model, cluster, SamplingWorkload(1, 480, 832, frames=frames)).rows == 30


def test_models_of_images_say_nothing_of_frames():
    scenario = Scenario(load_model("sd21"), load_cluster("p4de"), TrainingWorkload(8, 8, frames=1))
    assert "frames" not in scenario.options


@pytest.mark.parametrize(
    ("model", "frames", "problem"),
    [
        (
            "wan2.1-1.3b",
            80,
            "--frames is 80, must be 1 more than a multiple of 4, such as 5 or 17, for wan2.1-1.3b",
        ),
        (
            "ltx-video",
            81 + 4,
            "--frames is 85, must be 1 more than a multiple of 8, such as 9 or 33, for ltx-video",
        ),
        ("mochi", 84, "--frames is 84, must be 1 more than a multiple of 6, such as 7 or 25, for mochi"),
        ("sd21", 9, "--frames is 9, but sd21 draws images, which have one"),
        ("wan2.1-1.3b", 0, "--frames is 0, must be at least 1"),
        ("wan2.1-1.3b", 65537, "--frames is 65537, must be at most 65536"),
    ],
)
@pytest.mark.parametrize("command", [["run", "--strategy", "single"], ["sweep", "--gpus", "8"]])
def test_frames_that_a_model_cannot_have_are_refused_in_one_line(model, frames, problem, command, capsys):
    assert main([*command, "--model", model, "--frames", str(frames)]) == 2
    assert capsys.readouterr().err == f"sim: error: {problem}\n"


def test_python_names_the_parameter():
    with pytest.raises(InputError, match=r"^frames is 80, must be 1 more than a multiple of 4"):
        api.run("wan2.1-1.3b", "single", frames=80)


def test_a_kernel_of_very_few_frames_keeps_at_least_a_row():
    assert Kernel("matmul", 1, 1, 21, 4, 4, image_m=21).at(1 / 161).m == 1
