"""Text encoders run before the first step and the decoder after the last, where they are included."""

from dataclasses import replace

import pytest

from profiles.clusters import load_cluster
from profiles.errors import InputError
from profiles.models import load_model
from profiles.shares import Share
from profiles.synthetic import equal_blocks_transformer
from sim.parts import replay_parts
from sim.runs import run_point
from strategies.patching.frozen import with_frozen
from strategies.plans.actions import FrozenAction
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make_sampler
from strategies.sampling_scenario import SamplingScenario

TEXT_S, DECODER_S = (0.1, 0.2), (0.3, 0.4, 0.5)
LAYERS, LAYER_S = 4, 1.0


def model(make):
    """A text encoder, whose work does not depend on the pixels, four blocks, and a decoder."""
    (transformer,) = equal_blocks_transformer(LAYERS, LAYER_S, parameters=10**6).components
    text = replace(
        make.component("text", TEXT_S, trainable=False, parameters=10**6), image_tokens=0, text_tokens=77
    )
    decoder = make.component(
        "vae", DECODER_S, trainable=False, inputs=["transformer"], output_bytes=1e6, parameters=10**5
    )
    parts = (text, replace(transformer, inputs=("text",)), decoder)
    return replace(equal_blocks_transformer(LAYERS, LAYER_S), components=parts)


def sampling(make, gpus=4, **workload):
    return make.sampling(model(make), make.cluster(), gpus, **{"steps": 3, **workload})


def latency_s(make, name="ulysses", parameters=None, **workload):
    return run_point(make_sampler(name, parameters or {}), sampling(make, **workload)).latency_s


BOTH = ("text", "vae")


def test_nothing_frozen_runs_unless_it_is_included(make):
    assert latency_s(make) == pytest.approx(3 * LAYERS * LAYER_S / 4)
    scenario = sampling(make)
    phases = make_sampler("ulysses", {}).phases(scenario)
    assert with_frozen(scenario, phases, 1) == phases


def test_encoders_come_first_and_the_decoder_last(make):
    for name in ("ulysses", "pipefusion", "distrifusion"):
        scenario = sampling(make, include=BOTH)
        replayed = replay_parts(make_sampler(name, {}), scenario)
        assert (replayed[0].phase.name, replayed[-1].phase.name) == ("encode", "decode")
        assert [phase.steps * phase.times for _, phase, _, _ in (replayed[0], replayed[-1])] == [0, 0]
        assert sum(phase.steps * phase.times for _, phase, _, _ in replayed) == 3
        encode_s, decode_s = replayed[0].trace.end_s, replayed[-1].trace.end_s
        assert (encode_s, decode_s) == pytest.approx((sum(TEXT_S), sum(DECODER_S)))
        whole = latency_s(make, name, include=BOTH)
        assert whole == pytest.approx(latency_s(make, name) + encode_s + decode_s)


@pytest.mark.parametrize(
    ("guidance", "batch_size", "prompts"),
    [("none", 1, 1), ("batch", 1, 2), ("parallel", 1, 1), ("batch", 3, 6)],
)
def test_every_device_encodes_the_prompts_of_its_predictions(make, guidance, batch_size, prompts):
    scenario = sampling(make, guidance=guidance, batch_size=batch_size, include=("text",))
    _, phase, trace, _ = replay_parts(make_sampler("ulysses", {}), scenario)[0]
    assert [[op.action for op in ops] for ops in phase.plan.ops] == [
        [FrozenAction(0, 0, prompts), FrozenAction(0, 1, prompts)]
    ] * 4
    assert trace.end_s == pytest.approx(prompts * sum(TEXT_S))


def test_one_device_of_each_group_decodes_its_images(make):
    cases = {"ulysses": ({}, 0, 2), "pipefusion": ({}, 3, 2), "hybrid": ({"pipeline_degree": 2}, 1, 1)}
    for name, (parameters, device, images) in cases.items():
        scenario = sampling(make, include=("vae",), batch_size=2)
        _, phase, trace, _ = replay_parts(make_sampler(name, parameters), scenario)[-1]
        assert [number for number, ops in enumerate(phase.plan.ops) if ops] == [device], name
        assert {op.action.samples for op in phase.plan.ops[device]} == {images}
        assert trace.end_s == pytest.approx(images * sum(DECODER_S)), name


def test_decoding_in_bands_takes_as_long_and_less_memory(make):
    whole, banded = (
        run_point(make_sampler("ulysses", {}), sampling(make, include=("vae",), decode_chunks=n)).expected
        for n in (1, 4)
    )
    assert banded.duration_s == pytest.approx(whole.duration_s)
    assert banded.peak_memory_bytes <= whole.peak_memory_bytes


def test_attention_over_a_band_of_rows_sees_that_band_alone():
    """Of each kernel as many rows and keys as the band has."""
    workload = SamplingWorkload(1, 1024, 1024, steps=2, include=("vae_decoder",), decode_chunks=4)
    scenario = SamplingScenario(load_model("pixart"), load_cluster("p4de"), workload)
    decoder = next(i for i, c in enumerate(scenario.model.components) if c.name == "vae_decoder")
    parts = replay_parts(make_sampler("single", {}), scenario)
    seconds = 4 * scenario.costs.forward_s(decoder, 1, Share(0.25, 0.25)).sum()
    assert parts[-1].trace.end_s == pytest.approx(seconds)
    assert seconds < 4 * scenario.costs.forward_s(decoder, 1, Share(0.25)).sum()


def test_between_the_phases_weights_stay_and_activations_do_not(make):
    scenario = sampling(make, include=BOTH)
    replayed = replay_parts(make_sampler("pipefusion", {}), scenario)
    names = [[buffer.name for buffer in phase.plan.resident[3]] for _, phase, _, _ in replayed]
    stays = ["weights", "text encoders and VAE", "runtime"]
    assert names[0] == stays
    assert names[1] == [*stays, "activations", "keys and values"]
    assert names[-1] == [*stays, "decoded rows"]


def test_only_frozen_components_can_be_included(make):
    with pytest.raises(
        InputError, match=r"include names 'transformer', the frozen components of .* are text, vae"
    ):
        sampling(make, include=("transformer",))


def test_pixart_at_8192_decodes_only_in_bands():
    """The decoder's largest layer alone outgrows 80 GiB; PipeFusion v1, section 5, splits it into chunks."""
    fits = {}
    for chunks in (1, 64):
        workload = SamplingWorkload(4, 8192, 8192, 4, include=("vae_decoder",), decode_chunks=chunks)
        scenario = SamplingScenario(load_model("pixart"), load_cluster("a100-nvlink-8"), workload)
        fits[chunks] = run_point(make_sampler("pipefusion", {"warmup_steps": 2}), scenario).fits_memory
    assert fits == {1: False, 64: True}


def test_groups_of_a_hybrid_encode_the_prompts_of_their_own_predictions(make):
    scenario = sampling(make, guidance="batch", include=("text",))
    for degree, prompts in ((1, 2), (2, 1)):
        sampler = make_sampler("hybrid", {"guidance_degree": degree, "ulysses_degree": 4 // degree})
        (_, phase, *_), *_ = replay_parts(sampler, scenario)
        actions = {op.action for ops in phase.plan.ops for op in ops}
        assert {action.samples for action in actions if isinstance(action, FrozenAction)} == {prompts}
