"""Text encoders run before the first step and the decoder after the last, where they are included."""

from collections import Counter
from dataclasses import replace

import pytest

import sim
from profiles.architectures.models import load_model
from profiles.architectures.shares import Share
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from profiles.machines.hosts import CALLS_S
from profiles.software.stacks import load_stack
from sim.outcomes.parts import replay_parts
from sim.outcomes.runs import run_point
from sim.report.reasons import account_of
from strategies.patching.frozen import seams, tile_shares, whole_layers
from strategies.plans.actions import FrozenAction
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make as make_sampler
from strategies.sampling_scenario import SamplingScenario
from validate.equal_blocks import equal_blocks_transformer

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


def test_encoders_come_first_and_the_decoder_last(make):
    for name in ("ulysses", "pipefusion", "distrifusion"):
        scenario = sampling(make, include=BOTH)
        replayed = replay_parts(make_sampler(name, {}), scenario)
        assert (replayed[0].phase.name, replayed[-1].phase.name) == ("encode", "decode")
        assert [phase.steps * phase.times for _, phase, *_ in (replayed[0], replayed[-1])] == [0, 0]
        assert sum(phase.steps * phase.times for _, phase, _, _ in replayed) == 3
        encode_s, decode_s = replayed[0].trace.end_s, replayed[-1].trace.end_s
        assert (encode_s, decode_s) == pytest.approx((sum(TEXT_S), sum(DECODER_S)))
        whole = latency_s(make, name, include=BOTH)
        assert whole == pytest.approx(latency_s(make, name) + encode_s + decode_s)


@pytest.mark.parametrize(
    ("guidance", "batch_size", "prompts"),
    [("none", 1, 1), ("batch", 1, 2), ("sequential", 1, 2), ("parallel", 1, 1), ("batch", 3, 6)],
)
def test_every_device_encodes_the_prompts_of_its_predictions(make, guidance, batch_size, prompts):
    scenario = sampling(
        make, guidance=guidance, batch_size=batch_size, guided_predictions=4, include=("text",)
    )
    _, phase, trace, _ = replay_parts(make_sampler("ulysses", {}), scenario)[0]
    assert [[op.action for op in ops] for ops in phase.plan.ops] == [
        [FrozenAction(0, 0, prompts), FrozenAction(0, 1, prompts)]
    ] * 4
    assert trace.end_s == pytest.approx(prompts * sum(TEXT_S))


def test_the_encoder_of_a_given_video_runs_once_for_both_predictions_where_it_is_named():
    names = ("text_encoder", "vae_encoder", "vae_decoder")
    asked = SamplingWorkload(1, 480, 832, frames=9, steps=2, batch_size=2, include=names)
    given = SamplingScenario(load_model("wan2.1-1.3b"), load_cluster("p4de"), asked)
    usual = replace(given, workload=replace(asked, include=("all",)), model=load_model("wan2.1-1.3b"))
    run, alone = (run_point(make_sampler("single", {}), of) for of in (given, usual))
    added_s = given.costs.forward_s(given.encoders[1], 2).sum()
    assert run.phases["encode_s"] - alone.phases["encode_s"] == pytest.approx(added_s)
    video = run.phases["encode_peak_memory_bytes"] - alone.phases["encode_peak_memory_bytes"]
    assert video > 2 * given.model.components[given.encoders[1]].parameters


PIXART_VAE = {"include": ("vae_decoder",)}


def pixart(gpus=1, pixels=1024, cluster="p4de", **workload):
    asked = SamplingWorkload(gpus, pixels, pixels, **{"steps": 2, "guidance": "none", **workload})
    return SamplingScenario(load_model("pixart"), load_cluster(cluster), asked)


def phase_of(scenario, name, sampler="ulysses"):
    parts = replay_parts(make_sampler(sampler, {}), scenario)
    return next(part for part in parts if part.phase.name == name)


def test_the_phases_of_a_run_add_up_to_its_latency(make):
    """So do the seconds, and the fullest phase is the peak; without frozen components there are none."""
    result = run_point(make_sampler("pipefusion", {"warmup_steps": 1}), sampling(make, include=("all",)))
    names = ("encode", "denoise", "decode")
    assert set(result.phases) == {f"{name}_{of}" for name in names for of in ("s", "peak_memory_bytes")}
    assert sum(result.phases[f"{name}_s"] for name in names) == pytest.approx(result.latency_s)
    assert max(result.phases[f"{name}_peak_memory_bytes"] for name in names) == result.peak_memory_bytes
    assert result.to_json()["decode_s"] == pytest.approx(sum(DECODER_S))
    assert run_point(make_sampler("single", {}), sampling(make, 1)).phases == {}


def test_offloaded_encoders_come_and_go_over_the_link_and_leave_memory_free():
    stays, goes = (pixart(include=("all",), encoders=of) for of in ("resident", "offloaded"))
    weights = 2 * stays.model.components[stays.encoders[0]].parameters
    plain, moved = (run_point(make_sampler("single", {}), scenario).phases for scenario in (stays, goes))
    assert moved["encode_s"] - plain["encode_s"] == pytest.approx(2 * weights / (0.4 * 0.8 * 31.5e9))
    freed = {name: plain[name] - moved[name] for name in plain if name.endswith("bytes")}
    assert [*freed.values()] == pytest.approx([0.0, weights, weights], abs=1.0)
    with pytest.raises(InputError, match="the link of device toy to its host is not known"):
        replace(goes, cluster=replace(goes.cluster, device=replace(goes.cluster.device, name="toy")))


@pytest.mark.parametrize("name", ["pixart", "wan2.2-t2v-a14b"])  # one expert, and two
def test_moved_components_lie_on_the_gpu_one_at_a_time_and_come_and_go_over_the_link(name):
    asked = {"steps": 2, "include": "all"}
    stays, goes = (sim.run(name, "single", "p4de", 1, **asked, offload=of) for of in ("none", "model"))
    scenario, experts = goes.source.scenario, goes.source.scenario.backbone.experts
    parts = {
        "encode": scenario.encoders[0],
        "denoise": scenario.backbone_index,
        "decode": scenario.decoders[0],
    }
    sizes = {phase: 2 * scenario.model.components[part].parameters for phase, part in parts.items()}
    for phase, size in sizes.items():
        moved_s = 2 * size * (experts if phase == "denoise" else 1) / (0.4 * 0.8 * 31.5e9)  # pageable memory
        assert goes.phases[f"{phase}_s"] - stays.phases[f"{phase}_s"] == pytest.approx(moved_s)
        freed = (of.phases[f"{phase}_peak_memory_bytes"] for of in (stays, goes))
        others = sum(sizes.values()) + (experts - 1) * sizes["denoise"] - size
        assert next(freed) - next(freed) == pytest.approx(others)
    share = 1 - stays.latency_s / goes.latency_s
    told = f"{share:.0%} of the time components are copied" in str(account_of(goes).reasons)
    assert told == (share > 0.1) == (name == "pixart")
    with pytest.raises(InputError, match="encoders is offloaded, but offload model moves all components"):
        sim.run(name, "single", encoders="offloaded", offload="model")


def test_tiles_cost_their_overlap_and_hold_one_tile_and_the_image():
    whole, tiled = (pixart(include=("vae_decoder",), vae_tile=of) for of in (None, 512))
    shares = list(tile_shares(1024, 1024, 512))
    seconds = sum(whole.costs.forward_s(whole.decoders[0], 1, Share(of, of)).sum() for of in shares)
    assert sum(shares) == pytest.approx((512 + 512 + 256) ** 2 / 1024**2)
    assert phase_of(tiled, "decode", "single").trace.end_s == pytest.approx(seconds)
    held = [phase_of(of, "decode", "single").phase.plan.resident[0][-1].size_bytes for of in (whole, tiled)]
    image = 3 * 1024**2 * 2
    assert held[1] == pytest.approx(held[0] / 4 + sum(shares) * image)


@pytest.mark.parametrize("gpus", [2, 3])
def test_devices_that_divide_a_decoder_exchange_rows_and_gather_the_image(gpus):
    scenario = pixart(gpus, vae_parallel=gpus, **PIXART_VAE)
    decoder = scenario.decoders[0]
    layers = scenario.model.components[decoder].layers
    whole = whole_layers(scenario.model.components[decoder])
    assert layers[whole - 1].name == "middle.attention"
    part = phase_of(scenario, "decode", "ring")
    plan = part.phase.plan
    assert all(len(ops) == len(layers) for ops in plan.ops)
    most = -(-128 // gpus) / 128
    divided = scenario.costs.components[decoder].gpu_s(1, Share(most, most))[whole:].sum()
    first = scenario.costs.components[decoder].gpu_s(1)[:whole].sum()
    assert sum(op.duration_s for op in plan.ops[0]) == pytest.approx(first + divided)
    rows = sum(min(2, gpus - 1) * seam.row_bytes for seam in seams(scenario, decoder)[whole:])
    sent = Counter()
    for collective in plan.collectives:
        sent[collective.operation] += collective.size_bytes
    assert sent["send_recv"] == pytest.approx(rows)
    assert sent["all_gather"] == 3 * 1024**2 * 2
    alone = phase_of(pixart(gpus, **PIXART_VAE), "decode", "ring")
    assert part.measures.peak_memory_bytes < alone.measures.peak_memory_bytes
    assert part.trace.end_s < alone.trace.end_s


@pytest.mark.parametrize("stack", ["compiled", "fused", "eager-graphs"])
def test_who_captures_the_backbone_alone_encodes_and_decodes_as_eager(stack):
    """On the host that posts every exchange a divided decoder waits, and at last it divides no further."""
    asked = {"include": ("all",), "vae_parallel": 8}
    taken, eager = (
        run_point(make_sampler("ring", {}), replace(pixart(8, 512, **asked), stack=load_stack(of))).phases
        for of in (stack, "eager")
    )
    frozen = ("encode_s", "decode_s")
    assert [taken[of] for of in frozen] == pytest.approx([eager[of] for of in frozen])
    assert taken["denoise_s"] < eager["denoise_s"]
    halos = sum(seam.halos for seam in seams(pixart(8, 512, **asked), pixart().decoders[0]))
    assert taken["decode_s"] > halos * CALLS_S["send_recv"]


def test_a_decoder_whose_kernels_nobody_counted_cannot_be_divided(make):
    with pytest.raises(InputError, match="vae_parallel needs the kernels of vae"):
        sampling(make, include=("vae",), vae_parallel=2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"vae_tile": 512, "encoders": "offloaded"},
        {"vae_parallel": 3},
        {"guidance": "parallel", "batch_size": 4},
    ],
)
@pytest.mark.parametrize("name", ["pipefusion", "distrifusion", "hybrid"])
def test_a_bound_knows_what_frozen_components_take_but_for_what_a_divided_decoder_exchanges(name, options):
    degrees = {"pipeline_degree": 2} if name == "hybrid" else {}
    sampler, denoising = make_sampler(name, degrees), pixart(4, **{"batch_size": 2, **options})
    included = pixart(4, **{"batch_size": 2, "include": ("all",), **options})
    phases = run_point(sampler, included).phases
    known_s, taken_s = (
        sampler.bound(included) - sampler.bound(denoising),
        phases["encode_s"] + phases["decode_s"],
    )
    least = 0.8 if "vae_parallel" in options else 1 - 1e-6
    assert least * taken_s < known_s <= taken_s
