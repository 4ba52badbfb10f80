"""Ulysses, ring, USP and tensor parallelism: what their layers send, and how long they take.

A is the hidden state of the whole image in bytes, for all samples of a pass; L layers, N devices.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import product

import pytest
from making import refused

from profiles.architectures.components import Exchange
from profiles.errors import InfeasibleError
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import make as make_sampler
from strategies.registry import strategies_of
from strategies.sampling_scenario import SamplingScenario
from validate.equal_blocks import equal_blocks_transformer

LAYERS = 6
ROWS, HIDDEN, HEADS = 16, 64, 8
HIDDEN_BYTES = 2.0 * ROWS**2 * HIDDEN
LATENT_BYTES = 2.0 * 4 * (2 * ROWS) ** 2
LINEAR_S, ATTENTION_S, MEMORY_S = 0.3, 0.2, 0.1
"""Of one layer on one sample, by the rates of the device below."""


def blocks(**rest):
    return equal_blocks_transformer(LAYERS, 0.1, rows=ROWS, hidden_size=HIDDEN, heads=HEADS, **rest)


def worked(**rest):
    """Equal blocks that cost by the rates of the device: linear work, attention and traffic."""
    model = blocks(**rest)
    (transformer,) = model.components
    work = LINEAR_S * 1e12, ATTENTION_S * 1e12, MEMORY_S * 1e9
    columns = dict(zip(("matmul_flop", "attention_flop", "moved_bytes"), work, strict=True))
    layers = tuple(replace(layer, **columns) for layer in transformer.layers)
    return replace(model, components=(replace(transformer, layers=layers, times=()),))


def rated(make, *args, **rest):
    return make.cluster(*args, memory_bytes_per_s=1e9, **rest)


def replayed(make, name, gpus, *, model=None, cluster=None, parameters=None, **workload):
    scenario = make.sampling(model or blocks(), cluster or make.cluster(), gpus, **{"steps": 1, **workload})
    return simulate(make_sampler(name, parameters or {}).plan(scenario))


def output_gather_bytes(gpus, batch):
    """Bytes of the noise prediction, gathered from all devices by all of them."""
    return (gpus - 1) * LATENT_BYTES * batch


# How long it takes.


@pytest.mark.parametrize("gpus", [2, 8])
def test_ulysses_divides_all_work_and_adds_its_all_to_alls(make, gpus):
    cluster = rated(make, make.link("nvswitch", 1e6), call_s=0.001, efficiency=0.5)
    trace = replayed(make, "ulysses", gpus, model=worked(), cluster=cluster)
    sent_s = 4 * (gpus - 1) / gpus**2 * HIDDEN_BYTES / 1e6 / 0.5
    gather_s = (gpus - 1) / gpus * LATENT_BYTES / 1e6 / 0.5 + 0.001
    layer_s = (LINEAR_S + ATTENTION_S + MEMORY_S) / gpus + sent_s + 4 * 0.001
    assert trace.end_s == pytest.approx(LAYERS * layer_s + gather_s)


@pytest.mark.parametrize(("slowdown", "bandwidth"), [(1.0, 1e5), (1.5, 1e5), (1.5, 1e6)])
def test_around_a_ring_rounds_take_the_slower_of_attention_and_transfer(make, bandwidth, slowdown):
    """R - 1 rounds pass keys and values on beside attention, which is slower then; the last one has all of them."""
    ring = 4
    cluster = rated(make, make.link("nvswitch", bandwidth), slowdown=slowdown)
    trace = replayed(make, "ring", ring, model=worked(), cluster=cluster)
    attention_s = ATTENTION_S / ring / ring
    sent_s = 2 * HIDDEN_BYTES / ring / bandwidth
    beside = min(attention_s * slowdown, sent_s)
    round_s = max(sent_s, beside + attention_s - beside / slowdown)
    layer_s = (LINEAR_S + MEMORY_S) / ring + (ring - 1) * round_s + attention_s
    gather_s = (ring - 1) / ring * LATENT_BYTES / bandwidth
    assert trace.end_s == pytest.approx(LAYERS * layer_s + gather_s)


@pytest.mark.parametrize("gpus", [2, 8])
def test_tensor_parallelism_divides_matrices_and_heads_but_not_all_traffic(make, gpus):
    cluster = rated(make, make.link("nvswitch", 1e6), call_s=0.001, efficiency=0.5)
    trace = replayed(make, "tensor", gpus, model=worked(), cluster=cluster)
    sent_s = 4 * (gpus - 1) / gpus * HIDDEN_BYTES / 1e6 / 0.5 + 2 * 0.001
    compute_s = sum(op.duration_s for op in trace.plan.ops[0]) / LAYERS
    divided_s = (LINEAR_S + ATTENTION_S) / gpus
    assert divided_s + MEMORY_S / gpus < compute_s <= divided_s + MEMORY_S
    assert trace.end_s == pytest.approx(LAYERS * (compute_s + sent_s))


def test_a_model_without_exchanges_is_refused(make):
    model = blocks()
    bare = replace(model, components=(replace(model.components[0], exchanges=()),))
    for name, kind in (("ulysses", "key_value"), ("tensor", "reduce")):
        with pytest.raises(InfeasibleError, match=f"has no exchanges.csv with rows of kind {kind}"):
            replayed(make, name, 4, model=bare)


def test_heads_of_a_unet_are_padded_under_tensor_parallelism(make):
    """5 heads on 4 devices: the fullest computes 2 of them, 8/5 of an even share."""
    model = worked()
    (backbone,) = model.components
    convolved = [Exchange(0, "halo", 64, 0)] + [
        replace(e, heads=5) if e.kind == "key_value" else e for e in backbone.exchanges
    ]
    unet = replace(model, components=(replace(backbone, exchanges=tuple(convolved)),))
    even, padded = (replayed(make, "tensor", 4, model=m, cluster=rated(make)).end_s for m in (model, unet))
    assert padded - even == pytest.approx(LAYERS * ATTENTION_S / 4 * (8 / 5 - 1))
    with pytest.raises(InfeasibleError, match=r"5 heads, tensor 8: more GPUs than heads"):
        replayed(make, "tensor", 8, model=unet, cluster=rated(make))
    refused = {
        "ulysses": r"5 heads, ulysses 4: 5 % 4 = 1",
        "ring": "sequence parallelism needs a transformer, transformer has 1 convolutions",
    }
    for name, message in refused.items():
        with pytest.raises(InfeasibleError, match=message):
            replayed(make, name, 4, model=unet, cluster=rated(make))


# Predictions one after the other.


@pytest.mark.parametrize(
    ("name", "gpus"), [("single", 1), ("ulysses", 4), ("ring", 4), ("tensor", 4), ("sync-patch", 4)]
)
def test_predictions_one_after_the_other_are_two_steps_without_guidance(make, name, gpus):
    """Twice the time of one; twice the collectives of a batch of both, each of half the bytes, and less memory."""
    cluster = rated(make, make.link("nvswitch", 1e6, 1e-3), call_s=0.001)
    model = worked(saved_bytes=1e6)
    one, both, in_turn = (
        replayed(make, name, gpus, model=model, cluster=cluster, guidance=guidance)
        for guidance in ("none", "batch", "sequential")
    )
    assert in_turn.end_s == pytest.approx(2 * one.end_s, rel=1e-12)
    asked = {"guidance": "sequential", "guided_predictions": 3, "model": model, "cluster": cluster}
    assert replayed(make, name, gpus, **asked).end_s == pytest.approx(3 * one.end_s, rel=1e-12)
    sizes = [sorted(c.size_bytes for c in trace.plan.collectives) for trace in (both, in_turn)]
    assert sizes[1] == [size / 2 for size in sizes[0] for _ in range(2)]
    peaks = [max(peak_memory_bytes(trace)) for trace in (one, both, in_turn)]
    assert peaks[0] <= peaks[2] <= peaks[0] + LATENT_BYTES < peaks[1]


def test_patches_that_read_the_step_before_refuse_predictions_one_after_the_other(make):
    for name in ("distrifusion", "pipefusion"):
        said = "guidance is sequential: displaced patches would read the step's other"
        with refused(said, InfeasibleError):
            replayed(make, name, 4, steps=4, guidance="sequential")


# Rows and columns of devices.


@pytest.mark.parametrize(("rows", "columns", "ulysses"), [(2, 4, 1), (4, 2, 2)])
def test_rows_of_columns_send_queries_along_rows_and_keys_along_columns(make, rows, columns, ulysses):
    """Per device 2 (C - 1) / P of the hidden state and 2 (R - 1) / P, and 4 bytes for each query and head."""
    gpus = rows * columns * ulysses
    parameters = {"rows": rows, "columns": columns, "ulysses_degree": ulysses}
    trace = replayed(make, "attention2d", gpus, parameters=parameters, guidance="batch")
    hidden = 2 * HIDDEN_BYTES * LAYERS
    weights = 2 * hidden * HEADS / HIDDEN
    each = (2 * (columns - 1) + 2 * (rows - 1)) * hidden / gpus + (columns - 1) * weights / gpus
    each += 4 * (ulysses - 1) / ulysses * hidden / gpus
    assert trace.collective_bytes == pytest.approx(gpus * each + output_gather_bytes(gpus, 2), rel=1e-12)


def test_the_devices_of_a_row_lie_together(make):
    parameters = {"rows": 2, "columns": 2, "ulysses_degree": 2}
    trace = replayed(make, "attention2d", 8, parameters=parameters)
    groups = defaultdict(set)
    for collective in trace.plan.collectives:
        groups[collective.operation].add(collective.devices)
    rows, columns = {(0, 2), (1, 3), (4, 6), (5, 7)}, {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert groups == {
        "all_to_all": {(0, 1), (2, 3), (4, 5), (6, 7), *rows},
        "all_gather": {tuple(range(8)), *rows, *columns},
    }


def test_padded_heads_cost_the_fullest_device(make):
    """Eight heads on three devices: three each, one of them for nothing, and so are the exchanges."""
    asked = {"model": worked(), "cluster": rated(make), "guidance": "none"}
    padded, ring = (
        replayed(make, name, 3, heads=of, **asked)
        for name, of in (("ulysses", "padded"), ("ring", "divided"))
    )
    assert padded.end_s - ring.end_s == pytest.approx(LAYERS * ATTENTION_S / 3 * (9 / 8 - 1))
    even = 4 * 2 / 9 * 3 * HIDDEN_BYTES * LAYERS
    assert padded.collective_bytes - output_gather_bytes(3, 1) == pytest.approx(9 / 8 * even)
    said = "8 heads, ulysses 5: 2 heads of padding, must be fewer than the 2 of a GPU"
    with refused(said, InfeasibleError):
        replayed(make, "ulysses", 5, heads="padded")


def test_a_video_is_divided_among_more_devices_than_a_frame_has_rows(make):
    """A sequence is one of tokens of all frames; patches of a pipeline are of rows."""
    model = blocks()
    video = replace(model, components=(replace(model.components[0], frames=2, image_tokens=2 * ROWS**2),))
    assert replayed(make, "ring", 24, model=video, parameters={"keys_values": "freed"}).end_s > 0
    with pytest.raises(InfeasibleError, match=r"sequence\(33\) exceeds rows\(16\) \* frames\(2\)"):
        replayed(make, "ring", 33, model=video)
    with pytest.raises(InfeasibleError, match=r"patches\(17\) exceeds rows\(16\)"):
        replayed(make, "pipefusion", 2, model=video, parameters={"patches": 17})


@pytest.mark.parametrize("heads", [40, 24])
def test_nine_nodes_find_legal_points_for_heads_that_72_does_not_divide(make, heads):
    """Ulysses inside, a ring or rows and columns outside; guidance may take half of the GPUs."""
    model = equal_blocks_transformer(2, 0.1, rows=72, hidden_size=128 * heads, heads=heads)
    cluster = make.cluster(inter=make.link("nic"), devices_per_node=8, max_nodes=9)
    for guidance, name in product(("batch", "parallel"), ("usp", "attention2d")):
        workload = SamplingWorkload(72, model.height, model.width, 1, guidance)
        scenario, legal = SamplingScenario(model, cluster, workload), []
        for sampler in strategies_of("sample")[name].candidates(scenario):
            try:
                sampler.bound(scenario)
            except InfeasibleError as error:
                assert f"{heads} heads, ulysses" in str(error)
            else:
                legal.append(sampler.ulysses_degree)
        assert max(legal) > 1, (name, guidance)
