"""PipeFusion takes what its closed forms say, and sends what its paper says.

S steps, M patches, N stages of equal layers; t seconds of one patch on one stage.
"""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import accumulate, combinations, pairwise

import numpy as np
import pytest

from profiles.architectures.models import load_model
from profiles.errors import InfeasibleError
from profiles.machines.clusters import load_cluster
from sim.outcomes.runs import run_point
from sim.replay.engine import simulate
from strategies.patching.patch_pipeline import paced_layers, stage_layers
from strategies.sampling.pipefusion import PipeFusion
from validate.equal_blocks import equal_blocks_transformer

LAYERS = 8
LAYER_S = 0.25
ROWS, HIDDEN = 16, 64
HIDDEN_BYTES = 2.0 * ROWS**2 * HIDDEN
A100 = load_cluster("a100-nvlink-8")
LATENT_BYTES = 2.0 * 4 * (2 * ROWS) ** 2


def drawn(make, stages=4, patches=4, steps=5, warmup=0, *, model=None, cluster=None, workload=None, **rest):
    """A scenario of equal blocks on links that are free unless a cluster is given, and its sampler."""
    model = model or equal_blocks_transformer(LAYERS, LAYER_S, rows=ROWS, hidden_size=HIDDEN)
    scenario = make.sampling(
        model, cluster or make.cluster(), **{"num_gpus": stages, "steps": steps, **(workload or {})}
    )
    return PipeFusion(patches=patches, warmup_steps=warmup, **rest), scenario


def replayed(make, *args, **rest):
    sampler, scenario = drawn(make, *args, **rest)
    return simulate(sampler.plan(scenario))


def steady_step_s(make, *args, **rest):
    return run_point(*drawn(make, *args, **rest)).step_s


def sent(trace):
    """Bytes by (role, source, target, step of the op that wrote them)."""
    found = Counter()
    for transfer in trace.wiring.transfers:
        if transfer is not None:
            device, index = trace.wiring.writers[transfer.tensor]
            step = trace.plan.ops[device][index].action.step
            role = trace.plan.tensors[transfer.tensor].role
            found[role, transfer.source, transfer.target, step] += transfer.size_bytes
    return found


def test_as_many_patches_as_stages_leave_no_slack_for_hops(make):
    """A patch comes round after N stages and N hops, the last one back to the first stage."""
    cluster = make.cluster(make.link("nvswitch", float("inf"), 0.01, 0.02))
    patch_s = LAYERS * LAYER_S / 4 / 4
    assert steady_step_s(make, 4, 4, cluster=cluster) == pytest.approx(4 * patch_s + 4 * 0.03)
    assert steady_step_s(make, 4, 8, cluster=cluster) == pytest.approx(max(4 * patch_s, 2 * patch_s + 0.12))


@pytest.mark.parametrize("warmup", [0, 2, 5])
def test_in_synchronous_steps_the_whole_image_passes_one_stage_after_another(make, warmup):
    trace = replayed(make, 4, 8, 5, warmup)
    image_s = LAYERS * LAYER_S
    displaced_s = image_s / 4 / 8 * (8 * (5 - warmup) + 3) if warmup < 5 else 0.0
    assert trace.end_s == pytest.approx(warmup * image_s + displaced_s)
    for ops, starts in zip(trace.plan.ops, trace.starts, strict=True):
        whole = [(op.action.step, start) for op, start in zip(ops, starts, strict=True)][:warmup]
        first = whole[0][1] if whole else 0.0
        assert [start for _, start in whole] == pytest.approx([first + image_s * step for step, _ in whole])


def test_an_empty_stage_takes_a_hop_and_nothing_else(make):
    """Even layers do not help: one of 8 stages must hold 4 of 28 alike layers in any case."""
    model = equal_blocks_transformer(28, LAYER_S, rows=ROWS)
    empty = replayed(make, 8, 8, 4, model=model)
    even = replayed(make, 8, 8, 4, model=model, layers=(4, 4, 4, 4, 3, 3, 3, 3))
    seven = replayed(make, 7, 8, 4, model=model)
    layer_s = LAYER_S / 8
    assert empty.end_s == seven.end_s == even.end_s == (8 * 4 * 4 + 24) * layer_s
    assert sum(op.duration_s for op in empty.plan.ops[-1]) == 0.0
    hop = make.cluster(make.link("nvswitch", float("inf"), 0.0, 0.001))
    late = replayed(make, 8, 8, 4, model=model, cluster=hop).end_s
    assert late - replayed(make, 7, 8, 4, model=model, cluster=hop).end_s == pytest.approx(0.001)


def test_receives_posted_after_computing_expose_the_transfer(make):
    """Between stages a patch of the hidden state takes d seconds; posted before, they pass beside the compute."""
    patches, bandwidth = 16, 1e6
    cluster = make.cluster(make.link("nvswitch", bandwidth))
    patch_s, hop_s = LAYERS * LAYER_S / 4 / patches, HIDDEN_BYTES / patches / bandwidth
    before, after = (
        steady_step_s(make, 4, patches, cluster=cluster, receive=receive) for receive in ("before", "after")
    )
    assert before == pytest.approx(patches * patch_s)
    assert after == pytest.approx(patches * (patch_s + hop_s))


@pytest.mark.parametrize("stages", [2, 4])
def test_each_stage_of_the_first_half_sends_its_skips_to_its_mirror_image(make, stages):
    """(L / N) B p hs e per step, Hunyuan-DiT's."""
    model = equal_blocks_transformer(LAYERS, LAYER_S, rows=ROWS, hidden_size=HIDDEN, skips=True)
    trace = replayed(make, stages, 8, 3, 1, model=model, workload={"guidance": "batch"})
    skips = {key: size for key, size in sent(trace).items() if key[0] == "skip"}
    assert skips == {
        ("skip", stage, stages - 1 - stage, step): LAYERS // stages * 2 * HIDDEN_BYTES
        for stage in range(stages // 2)
        for step in range(3)
    }


def test_guidance_in_parallel_gathers_every_patch_of_two_pipelines(make):
    trace = replayed(make, 8, 8, 3, 1, workload={"guidance": "parallel"})
    gathers = defaultdict(float)
    for collective in trace.plan.collectives:
        gathers[collective.operation, collective.devices] += collective.size_bytes
    assert gathers == {("all_gather", (3, 7)): 3 * 2 * LATENT_BYTES}
    assert len(trace.plan.collectives) == 1 + 2 * 8


def test_what_cannot_be_divided_is_refused_with_its_numbers(make):
    for rest, message in (
        (
            {"layers": (2, 2, 2, 1)},
            r"layers\(2,2,2,1\) are 4 stages of 7 layers, not pipeline_degree\(4\) of 8",
        ),
        ({"layers": (0, 3, 3, 2)}, r"layers\(0,3,3,2\) are 4 stages .* of which the first has some"),
        ({"patches": 17}, r"patches\(17\) exceeds rows\(16\) of transformer at 256"),
        ({"warmup": 6}, r"warmup_steps\(6\) exceeds steps\(5\)"),
        ({"pipeline_degree": 3}, r"pipeline_degree\(3\) is not gpus\(4\)"),
    ):
        sampler, scenario = drawn(make, **rest)
        with pytest.raises(InfeasibleError, match=message):
            sampler.plan(scenario)


def test_paced_layers_are_the_best_of_all_lists_and_leave_no_stage_empty():
    rng = np.random.default_rng(0)
    for _ in range(200):
        count = int(rng.integers(3, 9))
        degree = int(rng.integers(1, count + 1))
        seconds = [float(value) for value in (rng.uniform(0.1, 1.0, count) ** 4).round(2)]  # few are long
        layers = paced_layers(seconds, degree)
        cuts = [(0, *inner, count) for inner in combinations(range(1, count), degree - 1)]
        longest = [max(sum(seconds[a:b]) for a, b in pairwise(cut)) for cut in cuts]
        ends = (0, *accumulate(layers))
        assert min(layers) > 0
        assert ends[-1] == count
        assert max(sum(seconds[a:b]) for a, b in pairwise(ends)) == pytest.approx(min(longest))
    assert paced_layers([1.0] * 28, 8) != stage_layers(28, 8)
    assert max(paced_layers([1.0] * 28, 8)) == 4


def test_each_later_stage_embeds_time_and_text_again_but_does_not_repeat_a_first_layer_of_its_own_kind(make):
    model = load_model("pixart")
    backbone = model.components[model.backbones[0]]
    first, second, *others = backbone.half_kernels

    def second_stage_s(*kernels):
        changed = replace(backbone, half_kernels=kernels)
        components = tuple(changed if one is backbone else one for one in model.components)
        sampler, scenario = drawn(make, 2, 2, model=replace(model, components=components), cluster=A100)
        return sampler.layout(scenario).stage_s(1)

    embedded_s, plain_s = (second_stage_s(of, second, *others) for of in (first, second))
    longer = tuple(replace(kernel, m=3 * kernel.m) for kernel in second)
    assert second_stage_s(longer, second, *others) == plain_s < embedded_s
