"""Blocks of the backbone that lie in the host's memory, or in shards, come one ahead of what is computed."""

import numpy as np
import pytest

import sim
from profiles.architectures.models import load_model
from profiles.errors import InfeasibleError, InputError
from profiles.machines.clusters import load_cluster
from profiles.machines.collectives import Group, collective_time
from profiles.software.runtimes import find_runtime
from sim.outcomes.runs import bound, least_memory_bytes, run_point
from strategies.patching.footprint import held_parameters, waits_s
from strategies.plans.workloads import WEIGHTS, SamplingWorkload
from strategies.registry import make as make_sampler
from strategies.sampling_scenario import SamplingScenario

BLOCKS = 57
"""Of FLUX; each is one layer here."""


def flux(gpus=1, cluster="p5", **asked):
    given = {"steps": 3, "guidance": "embedded", **asked}
    return SamplingScenario(
        load_model("flux-dev"), load_cluster(cluster), SamplingWorkload(gpus, 1024, 1024, **given)
    )


def sizes_of(scenario):
    return [layer.parameters * scenario.weight_bytes for layer in scenario.backbone.layers]


@pytest.mark.parametrize("count", [10, BLOCKS])
def test_the_next_block_comes_up_while_one_is_computed_and_the_first_while_the_last_is(count):
    scenario, each_s = flux(offload=f"layers:{count}"), 5e-3
    sizes = sizes_of(scenario)
    copies = [scenario.host_side.copied_s(size) for size in sizes]
    copies[: BLOCKS - count] = [0.0] * (BLOCKS - count)
    waits = waits_s(scenario, np.full(BLOCKS, each_s))
    assert list(waits) == pytest.approx([max(0.0, after - each_s) for after in [*copies[1:], copies[0]]])
    assert list(waits_s(flux(), np.full(BLOCKS, each_s))) == [0.0] * BLOCKS


@pytest.mark.parametrize("offload", ["none", f"layers:{BLOCKS}"])
@pytest.mark.parametrize(("gpus", "cluster"), [(8, "p5"), (8, "l20-pcie-8"), (16, "p5")])
def test_shards_are_gathered_and_come_up_before_where_they_are_on_the_hosts(gpus, cluster, offload):
    scenario, each_s = flux(gpus, cluster, weights="sharded", offload=offload), 5e-3
    host = flux(gpus, cluster, offload=f"layers:{BLOCKS}").host_side
    group = Group(gpus, gpus // 8)
    comes = [
        collective_time(scenario.streams, "all_gather", size, group).total_s
        + (0.0 if offload == "none" else host.copied_s(size / gpus))
        for size in sizes_of(scenario)
    ]
    hidden_s = [each_s] * (BLOCKS - 1) + [
        0.0 if offload == "none" else each_s
    ]  # FSDP gathers no block across passes
    expected = [max(0.0, one - of) for one, of in zip([*comes[1:], comes[0]], hidden_s, strict=True)]
    assert list(waits_s(scenario, np.full(BLOCKS, each_s))) == pytest.approx(expected)


def test_a_gpu_holds_its_shards_and_two_whole_blocks():
    whole, sharded = flux(8), flux(8, weights="sharded")
    sizes, ulysses = sizes_of(whole), make_sampler("ulysses", {})
    freed = run_point(ulysses, whole).peak_memory_bytes - run_point(ulysses, sharded).peak_memory_bytes
    assert freed == pytest.approx(sum(sizes) * 7 / 8 - sum(sorted(sizes)[-2:]))
    experts = [
        SamplingScenario(
            load_model("wan2.2-t2v-a14b"), load_cluster("p5"), SamplingWorkload(8, 480, 832, weights=of)
        )
        for of in WEIGHTS
    ]
    assert experts[0].backbone.experts == 2 and least_memory_bytes(ulysses, experts[1]) < least_memory_bytes(
        ulysses, experts[0]
    ) - 1.5 * sum(sizes_of(experts[0]))  # both are sharded
    for name in ("tensor", "pipefusion"):
        with pytest.raises(
            InfeasibleError, match="weights is sharded, which gathers blocks of a whole backbone"
        ):
            run_point(make_sampler(name, {}), flux(8, weights="sharded"))


@pytest.mark.parametrize(("count", "held"), [(1, 1), (BLOCKS, 2)])
def test_two_of_the_offloaded_blocks_lie_on_the_gpu_at_once(count, held):
    plain, away = flux(), flux(offload=f"layers:{count}")
    sizes = sizes_of(plain)[-count:]
    single = make_sampler("single", {})
    freed = run_point(single, plain).peak_memory_bytes - run_point(single, away).peak_memory_bytes
    assert freed == pytest.approx(sum(sizes) - sum(sorted(sizes)[-held:]))
    assert least_memory_bytes(single, away) <= run_point(single, away).peak_memory_bytes


def test_a_text_encoder_that_comes_and_goes_is_the_least_that_a_stage_of_few_blocks_holds():
    scenario, stages = flux(8, include=("all",), encoders="offloaded"), make_sampler("pipefusion", {})
    held = run_point(stages, scenario).phases["encode_peak_memory_bytes"]
    assert least_memory_bytes(stages, scenario) == pytest.approx(held, rel=1e-12)


def test_a_step_takes_no_less_than_the_copies_and_no_more_than_they_and_the_compute():
    for name, gpus in (("single", 1), ("ulysses", 4), ("tensor", 4), ("distrifusion", 4)):
        plain, away = flux(gpus), flux(gpus, offload=f"layers:{BLOCKS}")
        parameters = {"warmup_steps": 1} if name == "distrifusion" else {}
        sampler = make_sampler(name, parameters)
        parts = gpus if name == "tensor" else 1
        sizes = away.weight_bytes * held_parameters(away, parts)
        copies_s = sum(away.host_side.copied_s(float(size)) for size in sizes)
        plain_s, away_s = (run_point(sampler, scenario).latency_s / 3 for scenario in (plain, away))
        assert max(plain_s, copies_s) <= away_s <= plain_s + copies_s, name
        assert bound(sampler, away) <= 3 * away_s * (1 + 1e-9)
        assert bound(sampler, away) >= 3 * copies_s * (1 - 1e-8)


def test_layers_that_are_streamed_come_before_each_pass_and_one_lies_on_the_gpu():
    plain, streamed = (flux(include=("all",), offload=of) for of in ("none", "sequential"))
    runs = [run_point(make_sampler("single", {}), scenario).phases for scenario in (plain, streamed)]
    every = plain.model.components
    held = 2 * sum(of.parameters for of in every)
    for phase, of, passes in (
        ("encode", plain.encoders, 1), ("denoise", (plain.backbone_index,), 3), ("decode", plain.decoders, 1)
    ):  # fmt: skip
        copied_s = sum(plain.host_side.copied_s(2 * every[i].parameters, pageable=True) for i in of)
        assert runs[1][f"{phase}_s"] - runs[0][f"{phase}_s"] == pytest.approx(passes * copied_s)
        freed = runs[0][f"{phase}_peak_memory_bytes"] - runs[1][f"{phase}_peak_memory_bytes"]
        layer = max(2 * layer.parameters for i in of for layer in every[i].layers)
        assert freed == pytest.approx(held - layer)
    with pytest.raises(
        InfeasibleError, match="offload is sequential, which brings parts of a whole backbone"
    ):
        run_point(make_sampler("pipefusion", {}), flux(4, offload="sequential"))


def test_shards_are_launched_where_a_runtime_has_them():
    asked = {"gpus": 8, "steps": 2, "strategy": "ulysses", "weights": "sharded"}
    for runtime, offload, flag in (
        ("sglang", "none", "--use-fsdp-inference true"), ("vllm-omni", "none", "--use-hsdp"),
        ("vllm-omni", "layers:40", "--enable-distributed-layerwise-offload"),
    ):  # fmt: skip
        text = sim.launch(
            "wan2.2-t2v-a14b", cluster="l20-pcie-8", runtime=runtime, offload=offload, **asked
        ).text
        assert flag in text and "not set below: --weights" not in text
    of_vllm = find_runtime("vllm-omni")
    assert "weights" in of_vllm.settable("flux-dev") and "weights" not in of_vllm.settable("sd3-medium")


def test_shards_are_proposed_where_a_backbone_does_not_fit_and_refused_on_one_gpu():
    with pytest.raises(InfeasibleError, match="or weights sharded fits"):
        _ = sim.sweep("wan2.1-14b", "rtx4090-pcie-8", 8, steps=2, workers=1).best
    with pytest.raises(
        InputError, match="weights is sharded, but single is on 1 GPU, which shares with none"
    ):
        sim.run("flux-dev", "single", "p5", 1, steps=2, weights="sharded")
