"""Data parallelism: reductions, and several backbones one after the other or side by side."""

from dataclasses import replace

import pytest

import sim
from profiles.architectures.models import load_model
from profiles.errors import InfeasibleError
from profiles.machines.clusters import load_cluster
from sim.outcomes.parts import replay
from sim.outcomes.runs import bound, least_memory_bytes, run_point
from sim.replay.memory import peak_memory_bytes, resident_bytes
from strategies.plans.actions import format_order
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make as make_strategy

FIRST_S, SECOND_S = [0.5, 0.5], [1.0, 1.5, 0.5]
"""Forward seconds per sample of the layers of two backbones: 1 and 3 together; backwards take twice that."""


def ddp(**parameters):
    return make_strategy("ddp", parameters)


@pytest.fixture
def pair(make):
    """Two backbones, the first with 10 M parameters per layer and the second with 20 M; one encoder feeds both."""

    def build(num_gpus=4, batch_size=8, encoder_s=None, conditioned=(0.0, 0.0), **workload):
        frozen = []
        if encoder_s is not None:
            frozen.append(make.component("encoder", [encoder_s], trainable=False, parameters=10**6))
        inputs = [component.name for component in frozen]
        first, second = (
            make.component(
                name, forward_s, inputs=inputs, parameters=parameters, saved_bytes=1e6, output_bytes=1e3,
                self_conditioning=probability,
            )
            for name, forward_s, parameters, probability in (
                ("small", FIRST_S, 10**7, conditioned[0]), ("large", SECOND_S, 2 * 10**7, conditioned[1]),
            )
        )  # fmt: skip
        cluster = make.cluster(
            make.link("nvswitch", 1e9), devices_per_node=8, slowdown=1.5, memory_bytes_per_s=1e10
        )
        model = make.model(second, *frozen, first)
        return make.scenario(model, cluster, num_gpus, batch_size, **workload)

    return build


def alone(scenario, num_gpus=None):
    """The scenarios of both backbones, each by itself."""
    gpus = num_gpus or scenario.workload.num_gpus
    return [scenario.only(backbone, gpus) for backbone in scenario.model.backbones]


def test_a_distillation_takes_the_seconds_of_all_its_passes_and_holds_each_network_once(make):
    """A teacher scores with and without the prompt, a critic scores, a student samples for the critic's own step."""
    student = make.component("student", [1.0], parameters=10)
    critic = make.component("critic", [0.5], parameters=5)
    teacher = make.component("large", [4.0], parameters=20)
    teachers = teacher.frozen_copy("guided", ()), teacher.frozen_copy("unguided", (), held=False)
    scored, drawn = critic.frozen_copy("scored", (), held=False), student.frozen_copy("drawn", (), held=False)
    student = replace(student, inputs=("guided", "unguided", "scored"))
    model = make.model(*teachers, scored, drawn, student, replace(critic, inputs=("drawn",)))
    trace = replay(ddp(), make.scenario(model, make.cluster(memory_bytes_per_s=1e3), 1, 1, frozen="cached"))
    step_s = (2 + 4 + 2 * 12) * (10 + 5) / 1e3
    assert trace.end_s == pytest.approx(2 * 4 + 0.5 + 1 + 3 * (1 + 0.5) + step_s, rel=1e-12)
    assert resident_bytes(trace)[0] == (2 + 4 + 12) * (10 + 5) + 2 * 20


# Reductions.


@pytest.mark.parametrize(
    ("name", "parameters", "millions"),
    [
        ("ddp", {"overlap": "none"}, 361 + 860),
        ("ddp", {}, 361 + 860),
        ("gpipe", {"pipeline_degree": 2, "micro_batches": 4}, 361 + 511),
        ("zero2", {}, 361),
    ],
)
def test_gradients_of_frozen_weights_are_summed_but_not_scattered(name, parameters, millions):
    """The copy has 361 M parameters, the locked U-Net 860, its decoder 511; a pipeline does not hold the encoder."""
    model = load_model("controlnet-cldm").for_task("train")
    scenario = sim.Scenario(model, load_cluster("p4de"), TrainingWorkload(8, 64))
    point = make_strategy(name, parameters)
    trace = replay(point, scenario)
    summed = [of.size_bytes for of in trace.plan.collectives if of.operation != "all_gather"]
    assert sum(summed) / 4e6 == pytest.approx(millions, rel=1e-3)
    assert bound(point, scenario) <= trace.end_s * (1 + 1e-12)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_reducing_after_the_backward_adds_the_whole_reduction(make, micro_batches):
    unet = make.component("unet", [1.0, 2.0], parameters=10**7)
    cluster = make.cluster(make.link("nvswitch", 1e8), devices_per_node=4)
    scenario = make.scenario(make.model(unet), cluster, 4, 16)
    point = ddp(overlap="none", micro_batches=micro_batches)
    # Four samples, 3 s forward and 6 s backward each; 2 * 3/4 of 80 MB of fp32 gradients at 100 MB/s.
    assert replay(point, scenario).end_s == pytest.approx(4 * 9.0 + 1.2)
    assert point.bound(scenario) == pytest.approx(4 * 9.0 + 1.2)


def test_buckets_are_reduced_during_the_last_backward(make):
    unet = make.component("unet", [1.0, 2.0], parameters=10**7)
    cluster = make.cluster(make.link("nvswitch", 1e8), devices_per_node=4)
    scenario = make.scenario(make.model(unet), cluster, 4, 16)
    # The last layer's 40 MB are reduced beside the first one's backward, 40 MB after it.
    trace = replay(ddp(micro_batches=2), scenario)
    assert trace.end_s == pytest.approx(4 * 9.0 + 0.6)
    assert [start for start, _ in trace.collectives] == pytest.approx([32.0, 36.0])


# Accumulation.


@pytest.fixture
def encoded(make):
    """A backbone behind a frozen encoder that keeps and hands on much more than it gives in the end."""

    def build(batch_size=32, bandwidth=1e9, **workload):
        encoder = make.component("encoder", [0.1, 0.1], trainable=False, output_bytes=1e9, parameters=10**6)
        thin = replace(encoder.layers[-1], output_bytes=1e3)
        encoder = replace(encoder, layers=(encoder.layers[0], thin))
        unet = make.component(
            "unet", [1.0, 2.0], inputs=["encoder"], parameters=10**7, saved_bytes=1e8, output_bytes=1e3
        )
        cluster = make.cluster(
            make.link("nvswitch", bandwidth), devices_per_node=8, memory_bytes_per_s=1e10, memory_bytes=1e12
        )
        return make.scenario(make.model(encoder, unet), cluster, 4, batch_size, **workload)

    return build


@pytest.mark.parametrize("name", ["ddp", "zero2", "zero3"])
@pytest.mark.parametrize("micro_batches", [1, 8])
def test_a_device_holds_the_activations_of_one_micro_batch(encoded, name, micro_batches):
    point = make_strategy(name, {"micro_batches": micro_batches, "overlap": "none"})
    trace = replay(point, encoded())
    samples = 8 // micro_batches
    fixed = float(resident_bytes(trace).max())
    backward = samples * 2 * 1e8 + 2 * 10**7 * (6 if name == "zero3" else 4 if name == "zero2" else 0)
    encoding = samples * (1e9 + 1e3)  # the first layer of the encoder is read while the second writes
    outputs = samples * 1e3 * micro_batches
    held = float(peak_memory_bytes(trace).max()) - fixed
    assert max(backward, encoding) <= held * (1 + 1e-9)
    assert held <= max(backward, encoding) + outputs


@pytest.mark.parametrize(("every", "times"), [(1, 8), (3, 3), (9, 1)])
def test_zero2_that_keeps_whole_gradients_scatters_less_often(encoded, every, times):
    point = make_strategy("zero2", {"micro_batches": 8, "scatter_every": every, "overlap": "none"})
    trace = replay(point, encoded())
    scattered = [c.size_bytes for c in trace.plan.collectives if c.operation == "reduce_scatter"]
    assert scattered == times * [2 * 10**7 * 4]
    resident = {buffer.name: buffer.size_bytes for buffer in trace.plan.resident[0]}
    assert resident["gradients"] == 2 * 10**7 * 4 / (4 if every == 1 else 1)
    assert point.least_memory_bytes(encoded()) <= peak_memory_bytes(trace).max()


def test_each_micro_batch_is_encoded_before_its_first_pass(encoded):
    order = "X0.0:4 X0.1:4 0F0 0B0 X0.0:4 X0.1:4 0F1 0B1 0O\n"
    assert format_order(ddp(micro_batches=2).plan(encoded()).order) == order
    conditioned = encoded().with_extra_forward(True)
    order = "X0.0:4 X0.1:4 0E0 X0.0:4 X0.1:4 0E1 0F0 0B0 0F1 0B1 0O\n"
    assert format_order(ddp(micro_batches=2).plan(conditioned).order) == order


def test_the_published_run_of_stable_diffusion_2_fits_an_a100_of_40_gb():
    """MosaicML, January 2023: DDP on 8 GPUs, batch 2048, micro-batch 4, encoders in the loop, EMA in every step."""
    result = sim.run("sd21", "ddp", gpus=8, batch_size=2048, micro_batches=64, ema="fp32")
    weights = 865_910_724 * (18 + 4) + 2 * (340_387_840 + 34_163_664)
    saved = 4 * result.source.scenario.costs.components[2].saved_bytes.sum()
    assert result.peak_memory_bytes == pytest.approx(weights + saved, rel=0.01)
    assert result.peak_memory_bytes < 40e9


# Moving averages.


@pytest.mark.parametrize(("name", "parts"), [("ddp", 1), ("zero2", 4), ("zero3", 4)])
def test_a_moving_average_takes_four_bytes_per_parameter_divided_as_the_optimizer_is(encoded, name, parts):
    plain, averaged = (replay(make_strategy(name, {}), encoded(ema=ema)) for ema in ("none", "fp32"))
    more = resident_bytes(averaged) - resident_bytes(plain)
    assert more == pytest.approx(2 * 10**7 * 4 / parts)
    # master weight read, average read and written, at 10 GB/s
    assert averaged.end_s - plain.end_s == pytest.approx(2 * 10**7 * 12 / parts / 1e10)


# One backbone after the other.


@pytest.mark.parametrize(
    ("overlap", "micro_batches", "extra_forward"), [("buckets", 1, True), ("none", 2, False)]
)
def test_backbones_one_after_the_other_take_their_sum(pair, overlap, micro_batches, extra_forward):
    scenario = pair().with_extra_forward(extra_forward)
    point = ddp(overlap=overlap, micro_batches=micro_batches)
    parts = [one.with_extra_forward(extra_forward) for one in alone(scenario)]
    assert replay(point, scenario).end_s == pytest.approx(sum(replay(point, p).end_s for p in parts))
    assert point.bound(scenario) == pytest.approx(sum(point.bound(p) for p in parts))


# Backbones side by side.


@pytest.mark.parametrize(("overlap", "probability"), [("buckets", 0.25), ("none", 0.0)])
def test_throughputs_of_backbones_side_by_side_add_up(pair, overlap, probability):
    scenario = pair(self_conditioning=probability)
    result = run_point(ddp(overlap=overlap, backbones="parallel"), scenario)
    apart = [run_point(ddp(overlap=overlap), one) for one in alone(scenario, 2)]
    assert [one.num_gpus for one in apart] == [2, 2]
    assert result.samples_per_s == pytest.approx(sum(8 / one.iteration_s for one in apart))
    assert result.bubble_ratio == pytest.approx(sum(one.bubble_ratio for one in apart) / 2)
    rate = sum(one.expected.collective_bytes / one.iteration_s for one in apart)
    assert result.expected.collective_bytes / result.iteration_s == pytest.approx(rate)
    for quantity in ("first_s", "collective_s", "exposed_communication_s"):
        shares = [getattr(one.expected, quantity) / one.iteration_s for one in apart]
        found = getattr(result.expected, quantity) / result.iteration_s
        assert found == pytest.approx(sum(shares) / 2), quantity


def test_side_by_side_each_gpu_holds_one_backbone(pair):
    point, scenario = ddp(backbones="parallel"), pair(encoder_s=0.1)
    result = run_point(point, scenario)
    assert result.expected.peak_memory_bytes == 18 * 3 * 2 * 10**7 + 2 * 10**6 + 4 * 3 * 1e6
    assert least_memory_bytes(point, scenario) == result.expected.peak_memory_bytes
    held = [(stage["devices"], stage["parameters"]) for stage in result.stages]
    assert held == [((0,), 6 * 10**7), ((2,), 2 * 10**7)]


def test_each_job_runs_the_frozen_work_of_its_own_backbone(make):
    text, image = (make.component(name, [0.5], trainable=False) for name in ("text", "image"))
    pixels = make.component("pixels", [0.25], trainable=False, inputs=["image"])
    first = make.component("first", [1.0], inputs=["text"])
    second = make.component("second", [1.0], inputs=["text", "pixels", "first"])
    scenario = make.scenario(make.model(first, text, image, pixels, second), make.cluster(), 2, 2)
    found = [job.scenario.model for job in ddp(backbones="parallel").jobs(scenario)]
    names = [[component.name for component in model.components] for model in found]
    assert names == [["first", "text"], ["text", "image", "pixels", "second"]]
    assert found[1].components[-1].inputs == ("text", "pixels")
    assert [replay(*job).end_s for job in ddp(backbones="parallel").jobs(scenario)] == [7.0, 8.5]


def test_gpus_that_the_backbones_do_not_divide_are_refused(pair):
    for ask in (bound, run_point):
        with pytest.raises(InfeasibleError, match=r"gpus\(3\) is no multiple of the 2 backbones"):
            ask(ddp(backbones="parallel"), pair(num_gpus=3, batch_size=6))
