"""Videos: the models that draw them, their tokens at any number of frames, and which numbers they can have."""

import pytest
from making import refused

from profiles.architectures.components import Component
from profiles.architectures.kernels import class_flop
from profiles.architectures.models import Model, load_model
from profiles.costs.resolutions import named_size, resized, with_frames
from profiles.errors import DiffusimNote
from profiles.machines.devices import load_device
from sim import api

H100 = load_device("h100-80gb-sxm")


def part(model: Model, name: str) -> Component:
    return next(component for component in model.components if component.name == name)


# What the folders hold, against what is published


@pytest.mark.parametrize(
    ("model", "name", "gigaparameters"),
    [
        ("wan2.1-1.3b", "transformer", 1.419),
        # DiffSynth 2.1.12 counts; its names and shapes of weights have the hashes of the published files
        ("wan2.2-t2v-a14b", "transformer", 14.288491584),
        ("wan2.2-i2v-a14b", "transformer", 14.288901184),
        ("wan2.2-ti2v-5b", "transformer", 4.999787712),
        ("wan2.2-ti2v-5b", "vae_encoder", 0.149637088),
        ("wan2.2-ti2v-5b", "vae_decoder", 0.555051580),
        ("hunyuanvideo", "text_encoder", 8.030 - 0.525),  # Llama 3 8B without its head
        ("hunyuanvideo-1.5", "transformer", 8.3),
        ("qwen-image", "text_encoder", 8.292 - 0.545 - 0.677),  # Qwen2.5-VL 7B without head and vision tower
        ("qwen-image-2512", "transformer", 20.430),  # as DiffSynth's own class has
        ("qwen-image-edit", "vision_encoder", 0.677),
        ("qwen-image-edit-2511", "transformer", 20.430),
        ("flux2-klein-4b", "transformer", 3.8755),  # as DiffSynth's own class has, as for 9b
        ("flux2-klein-base-4b", "text_encoder", 4.022),
        ("flux2-klein-9b", "transformer", 9.0786),
        ("flux2-klein-base-9b", "text_encoder", 8.191),  # Qwen3 8B
        ("sana-1.6b", "transformer", 1.604),  # SANA (2024), table of models, as for 0.6b
        ("sana-0.6b", "transformer", 0.590),
        ("sana-sprint-1.6b", "transformer", 1.604),
        ("flux-kontext", "transformer", 11.901),
        ("sana-1.6b", "text_encoder", 2.614),  # Gemma 2 2B
        ("lumina-image-2.0", "transformer", 2.61),
        ("hunyuanimage-2.1", "vae_decoder", 0.4056 - 0.1450),  # 811 MB in half precision
        ("hunyuanimage-3", "transformer", 83.0 - 1.261 - 0.975),  # without autoencoder, head and vision tower
        ("cosmos-predict2-2b", "transformer", 1.956413440),  # as NVIDIA's own class has, as for 14b
        ("cosmos-predict2-14b", "transformer", 14.265285632),
        ("cosmos-predict2.5-2b", "transformer", 2.059174912),  # these two with that class's projection
        ("cosmos-predict2.5-14b", "transformer", 14.368047104),
        ("cosmos3-nano", "transformer", 72 * 0.192946432 + 2 * 0.622329856),  # Qwen3 8B twice; its ends once
        ("qwen-image-2.1", "transformer", 7.115124736),  # DiffSynth 2.1.12's own classes have as many
        ("qwen-image-2.1", "vae_encoder", 0.078675680 + 0.000016512),
        ("qwen-image-2.1", "vae_decoder", 0.259044052 + 0.000004160),
        ("sd15", "unet", 0.8595),
        ("sd-turbo", "unet", 0.8659),
        ("sdxl-turbo", "unet", 2.5675),
        ("sdxl-lightning", "unet", 2.5675),
        ("ltx-video", "transformer", 1.923),
        ("ltx-2", "transformer", 18.876174592),  # DiffSynth 2.1.12 counts these two
        ("ltx-2", "vae_decoder", 0.528380976),
        ("ltx-2", "text_encoder", 12.187 - 0.42),  # Gemma 3 12B without its vision tower
        ("flux2-dev", "transformer", 32.2),
        # DiffSynth 2.1.12's own classes have as many
        ("flux3-klein", "transformer", 5.548681984),
        ("flux3-klein-base", "transformer", 5.538458368),
        ("ideogram-4", "transformer", 9.279288448),
        ("ltx-2.3", "transformer", 18.988838144),
        ("ltx-2.3", "connectors", 22.16 - 18.989),  # ltx-2.3-22b is the name of both
        ("ltx-2.3", "vae_decoder", 0.407169072),
        ("minimax-h3", "transformer", 33.122992912),
        ("minimax-h3", "vae_decoder", 2.603868984 - 0.180337888),
        ("mochi", "transformer", 10.03),
        ("z-image", "transformer", 6.15),
        ("sd3.5-large", "transformer", 8.057),
    ],
)
def test_a_component_has_as_many_parameters_as_its_weights_that_are_published(model, name, gigaparameters):
    assert part(load_model(model), name).parameters / 1e9 == pytest.approx(gigaparameters, rel=4e-3)


@pytest.mark.parametrize(
    ("model", "blocks", "width", "inner", "channels"),
    [
        ("wan2.1-14b", 40, 5120, 13824, (16, 16)),
        ("wan2.2-i2v-a14b", 40, 5120, 13824, (36, 16)),
        ("wan2.2-ti2v-5b", 30, 3072, 14336, (48, 48)),
    ],
)
def test_a_wan_transformer_does_the_work_of_its_closed_form(model, blocks, width, inner, channels):
    backbone = part(load_model(model), "transformer")
    tokens, words, (taken, made) = backbone.image_tokens, 512, (4 * of for of in channels)
    times = tokens if model == "wan2.2-ti2v-5b" else 1  # its tokens have a time each
    macs = tokens * blocks * (6 * width**2 + 2 * width * inner)
    macs += words * (blocks * 2 * width**2 + 4096 * width + width**2) + times * (256 * width + 7 * width**2)
    macs += tokens * (made * width + blocks * 2 * width * words)  # attention to text counts as matmul
    pairs = blocks * 2 * width * tokens**2
    flop = {"conv_flop": 2 * tokens * taken * width, "matmul_flop": 2 * macs, "attention_flop": 2 * pairs}
    assert work(backbone) == pytest.approx(flop, rel=1e-9)


def test_ltx_2_draws_audio_beside_video_as_its_closed_form_has_it():
    backbone = part(load_model("ltx-2"), "transformer")
    wide, narrow, video, audio, words, blocks = 4096, 2048, 16 * 16 * 24, 126, 1024, 48

    def stream(width: int, tokens: int, modulations: int) -> int:  # attention, text's, MLP; ends; time
        block = 14 * width**2 * tokens + 2 * words * (width**2 + tokens * width)
        ends = 2 * 128 * width * tokens + words * (3840 * width + width**2)
        return blocks * block + ends + 3 * (256 * width + width**2) + modulations * width**2

    between = (4 * wide * narrow * video + 4 * narrow**2 * audio) + 4 * video * audio * narrow
    macs = stream(wide, video, 6 + 4 + 1) + stream(narrow, audio, 6 + 4 + 1) + blocks * between
    pairs = blocks * 2 * (wide * video**2 + narrow * audio**2)
    flop = {"conv_flop": 0, "matmul_flop": 2 * macs, "attention_flop": 2 * pairs}
    assert work(backbone) == pytest.approx(flop, rel=1e-9)


def test_hunyuanvideo_1_5_attends_to_its_video_and_all_its_prompts():
    backbone = part(load_model("hunyuanvideo-1.5"), "transformer")
    tokens, words, width, blocks = 31 * 45 * 80, 1000 + 256 + 729, 2048, 54
    assert backbone.text_tokens == words
    pairs = blocks * (tokens + words) ** 2 + 2 * 1000**2  # the last refine the prompt
    assert work(backbone)["attention_flop"] == pytest.approx(4 * width * pairs)
    of_blocks = 2 * 12 * width**2 * blocks * (tokens + words)
    assert work(backbone)["matmul_flop"] == pytest.approx(of_blocks, rel=1e-3)


@pytest.mark.parametrize(
    ("model", "blocks", "width", "states"),
    [("cosmos-predict2-2b", 28, 2048, 0), ("cosmos-predict2.5-14b", 36, 5120, 28 * 3584)],
)
def test_cosmos_modulates_every_token_as_its_closed_form_has_it(model, blocks, width, states):
    tokens, words = 24 * 44 * 80, 512
    block = 14 * width**2 + 3 * (1 + 3) * 256 * width + 2 * words * width
    macs = tokens * (blocks * block + 3 * 256 * width)
    macs += tokens * 4 * (18 + 16) * width + 24 * 4 * width**2
    macs += words * 1024 * (blocks * 2 * width + states)
    flop = {"conv_flop": 0, "matmul_flop": 2 * macs, "attention_flop": 4 * tokens**2 * width * blocks}
    assert work(part(load_model(model), "transformer")) == pytest.approx(flop, rel=1e-9)


# Experts


@pytest.mark.parametrize(
    ("strategy", "asked", "networks"), [("ulysses", {"steps": 4}, 1), ("fsdp", {"frozen": "cached"}, 0)]
)
def test_a_step_runs_one_of_two_experts_and_sampling_holds_both_but_training_one(strategy, asked, networks):
    where = {"cluster": "h200-ib", "gpus": 8, "resolution": "832x480", "frames": 17}
    one, two = (api.run(name, strategy, **where, **asked) for name in ("wan2.1-14b", "wan2.2-t2v-a14b"))
    assert two.expected.duration_s == pytest.approx(one.expected.duration_s, rel=1e-3)
    experts = part(load_model("wan2.2-t2v-a14b"), "transformer")
    assert experts.held_parameters == 2 * experts.parameters == 2 * 14_288_491_584
    more = 2 * networks * part(load_model("wan2.1-14b"), "transformer").parameters
    assert two.peak_memory_bytes - one.peak_memory_bytes == pytest.approx(more, abs=2e8)  # of activations


def test_of_offloaded_experts_two_blocks_of_the_running_one_lie_on_a_gpu():
    asked = {"cluster": "h200-ib", "gpus": 1, "steps": 1, "resolution": "832x480"}
    whole, away = (api.run("wan2.2-t2v-a14b", "single", offload=of, **asked) for of in ("none", "layers:40"))
    blocks = sorted(layer.parameters for layer in part(load_model("wan2.2-t2v-a14b"), "transformer").layers)
    gone = 2 * sum(blocks) - sum(blocks[-2:])
    assert whole.peak_memory_bytes - away.peak_memory_bytes == pytest.approx(2 * gone)


# Tokens


def test_a_size_by_its_lines_is_the_reference_of_that_height_or_one_of_whole_multiples():
    for model, size in (("wan2.2-ti2v-5b", "1280x704"), ("mochi", "1280x720")):
        assert named_size(load_model(model), "720p") == size
    assert [named_size(load_model("mochi"), of) for of in ("480p", "480P")] == ["848x480"] * 2
    first, second = load_model("hunyuanvideo"), load_model("hunyuanvideo-1.5")
    assert [named_size(first, of) for of in ("544p", "540p", "720p")] == ["960x544", "960x544", "1280x720"]
    assert (
        named_size(second, "480p") == "848x480" and named_size(second, "544p") == "544p"
    )  # refused as pixels
    with refused(
        "resolution is 480p, must be 540p or 544p or 720p, which hunyuanvideo was trained for, or pixels"
    ):
        named_size(first, "480p")
    for resolution in (480, "480"):  # a square, beside the name
        with pytest.warns(DiffusimNote, match=r"^resolution 480 is 480x480; 480p is 848x480$"):
            assert named_size(second, resolution) == resolution


@pytest.mark.parametrize(
    ("model", "frames", "height", "width", "tokens"),
    [
        ("wan2.1-14b", 81, 480, 832, 21 * 30 * 52),
        ("wan2.1-1.3b", 1, 480, 832, 30 * 52),
        ("ltx-video", 121, 480, 704, 16 * 15 * 22),
        ("cogvideox-5b", 25, 480, 720, 7 * 30 * 45),
        ("minimax-h3", 124, 768, 1344, 37 * 24 * 42),  # 17 n + 5 frames of 5 n + 2 latent ones
        ("qwen-image", 1, 1024, 1024, 64 * 64),
    ],
)
def test_the_tokens_of_a_video_follow_from_its_frames_and_sides(model, frames, height, width, tokens):
    video = resized(with_frames(load_model(model), frames, H100), height, width, H100)
    (backbone,) = (video.components[i] for i in video.backbones)
    assert backbone.image_tokens == tokens
    assert tokens % backbone.frames == 0


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


# Frames in questions
