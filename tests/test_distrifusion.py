"""DistriFusion, synchronous and independent patches: closed forms of their steps, their gathers and their memory.

C seconds of compute and G of gathers in a step on each of n devices, over L exchanging layers; s the factor by which
a gather slows compute down beside it.
"""

from collections import Counter

import pytest
from making import refused

from profiles.architectures.models import load_model
from profiles.errors import InfeasibleError
from profiles.machines.clusters import load_cluster
from sim.outcomes.runs import run_point
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make as make_sampler
from strategies.sampling.patches import DistriFusion
from strategies.sampling_scenario import SamplingScenario
from validate.equal_blocks import equal_blocks_transformer

LAYERS, LAYER_S = 6, 0.4
ROWS, HIDDEN = 16, 64
HIDDEN_BYTES = 2.0 * ROWS**2 * HIDDEN
LATENT_BYTES = 2.0 * 4 * (2 * ROWS) ** 2
GPUS = 4


def blocks(**rest):
    return equal_blocks_transformer(LAYERS, LAYER_S, rows=ROWS, hidden_size=HIDDEN, **rest)


def linked(make, bandwidth, slowdown=1.0):
    return make.cluster(make.link("nvswitch", bandwidth), slowdown=slowdown)


def gather_s(size_bytes, bandwidth):
    return (GPUS - 1) / GPUS * size_bytes / bandwidth


def ran(make, sampler, cluster, *, model=None, gpus=GPUS, **workload):
    return run_point(sampler, make.sampling(model or blocks(), cluster, gpus, **{"steps": 4, **workload}))


FAST, SLOW = 4e6, 2e5
"""Bytes per second at which a layer's gather is shorter, or longer, than its compute."""


@pytest.mark.parametrize(("bundle", "slowdown"), [(1, 1.0), (3, 1.6), (60, 1.6)])
@pytest.mark.parametrize("bandwidth", [FAST, SLOW])
def test_a_displaced_step_takes_its_slowed_compute_or_its_chain_of_gathers(make, bandwidth, bundle, slowdown):
    """The gathers of a bundle start once its layers are computed, one after the other; at the end of the step all meet.

    Compute-bound: all but the first bundle run beside the gather before; bound by gathers: all but the first wait.
    """
    bundles = max(1, LAYERS // bundle)
    compute_s = LAYERS * LAYER_S / GPUS / bundles
    gathers_s = gather_s(2 * HIDDEN_BYTES * LAYERS / bundles, bandwidth)
    beside_s = compute_s + gathers_s * (1 - 1 / slowdown)
    if bandwidth == FAST:
        assert gathers_s < compute_s
        chain_s = compute_s + (bundles - 1) * beside_s + gathers_s
    else:
        assert gathers_s > compute_s * slowdown
        chain_s = compute_s + bundles * gathers_s
    drawing = ran(make, DistriFusion(1, bundle), linked(make, bandwidth, slowdown))
    assert drawing.step_s == pytest.approx(chain_s + gather_s(LATENT_BYTES, bandwidth))


def test_a_synchronous_step_pays_every_gather(make):
    step_s = LAYERS * LAYER_S / GPUS + gather_s(2 * HIDDEN_BYTES * LAYERS + LATENT_BYTES, FAST)
    for sampler in (DistriFusion(4), make_sampler("sync-patch", {})):
        assert ran(make, sampler, linked(make, FAST, 1.6)).latency_s == pytest.approx(4 * step_s)


def test_each_bundle_of_layers_reads_what_it_gathered_in_the_step_before(make):
    scenario = make.sampling(blocks(), linked(make, SLOW), GPUS, steps=4)
    plan = DistriFusion(1, 2).plan(scenario)
    made = {t: number for number, c in enumerate(plan.collectives) for t in c.writes}
    first = LAYERS + 1
    """Collectives of the synchronous step."""
    for ops in plan.ops:
        displaced = [op for op in ops if op.action.step > 0 and op.duration_s]
        for number, op in enumerate(displaced):
            step, bundle = divmod(number, 3)
            read = {made[t] for t in op.reads}
            stale = {first + 4 * (step - 1) + bundle} if step else set()  # three bundles and the output
            output = {first - 1 + 4 * step} if bundle == 0 else set()
            assert read == stale | output


def test_keys_and_values_of_all_layers_do_not_shrink_with_the_devices(make):
    held = []
    for gpus in (2, 4, 8):
        scenario = make.sampling(blocks(), make.cluster(), gpus, steps=3, guidance="batch")
        trace = simulate(DistriFusion(1).plan(scenario))
        buffers = [dict(row) for row in trace.plan.resident]
        assert {row["keys and values"] for row in buffers} == {2 * 2 * HIDDEN_BYTES * LAYERS}
        held.append(peak_memory_bytes(trace).max())
        synchronous = simulate(DistriFusion(3).plan(scenario)).plan.resident
        assert all("keys and values" not in dict(row) for row in synchronous)
    assert held[0] == pytest.approx(held[1]) == pytest.approx(held[2])


def test_guidance_in_parallel_gathers_in_each_group_and_the_prediction_over_all(make):
    scenario = make.sampling(blocks(), make.cluster(), 8, steps=2, guidance="parallel")
    plan = DistriFusion(1).plan(scenario)
    found = Counter((c.devices, c.size_bytes) for c in plan.collectives)
    groups = (tuple(range(4)), tuple(range(4, 8)))
    assert found == {
        **{(group, 2 * HIDDEN_BYTES): LAYERS for group in groups},
        **{(group, 2 * HIDDEN_BYTES * LAYERS): 1 for group in groups},
        (tuple(range(8)), 2 * LATENT_BYTES): 2,
    }


def test_what_cannot_be_divided_is_refused_with_its_numbers(make):
    unet = load_model("sdxl")
    for gpus, model, message in (
        (3, blocks(), r"gpus\(3\) is not a power of two"),
        (32, blocks(), r"patches\(32\) exceed rows\(16\) of transformer at 256"),
        (1, blocks(), r"gpus\(1\) is no multiple of guidance_degree\(2\)"),
    ):
        scenario = make.sampling(model, make.cluster(), gpus, guidance="parallel" if gpus == 1 else "none")
        with pytest.raises(InfeasibleError, match=message):
            DistriFusion(1).plan(scenario)
    workload = SamplingWorkload(8, 1024 + 64, 1024, steps=3)
    scenario = SamplingScenario(unet, load_cluster("a100-nvlink-8"), workload)
    with refused(r"rows\(\d+\) / 2\^levels\(2\) of unet is no multiple of patches\(8\)", InfeasibleError):
        DistriFusion(1).plan(scenario)
