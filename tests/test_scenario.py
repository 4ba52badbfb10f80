"""A scenario is a value: whatever is replaced in it, in any way, it answers as one made anew."""

from dataclasses import fields, replace

import pytest

import sim
from profiles.architectures.models import load_model
from profiles.errors import InputError
from profiles.machines.clusters import Link, load_cluster
from profiles.machines.devices import load_device
from profiles.machines.laws import Rates
from profiles.software.stacks import Shares
from sim.outcomes.runs import bound, run_point
from strategies.plans.workloads import SamplingWorkload, TrainingWorkload
from strategies.sampling.pipefusion import PipeFusion
from strategies.sampling.teams import Ulysses
from strategies.sampling_scenario import SamplingScenario
from strategies.scenario import Scenario
from strategies.training.diffusionpipe import DiffusionPipe
from strategies.training.replicas import DDP

LINK = Link("nic", 5e9, 5e-6, 5e-6)


def cluster():
    """Its device has rates beside its laws."""
    found = load_cluster("l20-pcie-8")
    device = replace(found.device, rates=Rates(100e12, 80e12, 60e12, 800e9, 1e-5))
    return replace(found, device=device, devices_per_node=4, max_nodes=3, inter_node=LINK)


def training():
    model = load_model("pixart")
    components = tuple(replace(c, self_conditioning=0.25 * c.trainable) for c in model.components)
    workload = TrainingWorkload(8, 16, self_conditioning_draw="rank")
    return Scenario(replace(model, components=components), cluster(), workload)


def sampling():
    workload = SamplingWorkload(8, 1024, 512, steps=3, include=("vae_decoder",))
    return SamplingScenario(load_model("pixart"), cluster(), workload)


def train(scenario):
    """What some strategies take, what they cannot undercut, and what each layer takes."""
    strategies = DDP(), DiffusionPipe(2, 2, 4)
    results = [run_point(strategy, scenario) for strategy in strategies]
    bounds = [bound(strategy, scenario) for strategy in strategies]
    layers = [costs.forward_s(4).tolist() for costs in scenario.costs.components]
    return [(result.expected, result.fits_memory) for result in results], bounds, layers


def draw(scenario):
    asked = scenario.workload
    whole = not (asked.swapped or asked.cache_steps or asked.weights == "sharded")
    samplers = [
        Ulysses(),
        *[PipeFusion(patches=4)] * whole,
    ]  # which swaps and gathers no blocks, and skips no steps
    results = [run_point(sampler, scenario) for sampler in samplers]
    bounds = [sampler.bound(scenario) for sampler in samplers]
    layers = [scenario.costs.forward_s(i, 2).tolist() for i in range(len(scenario.model.components))]
    return [(result.expected, result.fits_memory) for result in results], bounds, layers


def slower(link):
    return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / 8)


def scaled(component):
    layers = tuple(replace(layer, matmul_flop=3 * layer.matmul_flop) for layer in component.layers)
    wide = {key: tuple(map(widened, getattr(component, key))) for key in ("kernels", "half_kernels")}
    return replace(component, layers=layers, **wide)


def widened(kernels):
    return tuple(replace(of, n=3 * of.n) if of.kind == "matmul" else of for of in kernels)


REPLACED = {
    "model.components": lambda components: tuple(map(scaled, components)),
    "cluster.device": lambda _: load_device("a100-80gb-sxm"),
    "cluster.intra_node": slower,
    "cluster.inter_node": slower,
    "cluster.device.own_laws.memory": lambda law: replace(
        law, pointwise_bytes_per_s=law.pointwise_bytes_per_s / 2
    ),
    "stack.forward_operator_s": lambda seconds: 100 * seconds,
    "stack.rates": lambda _: Shares(matmul=0.5),
}
"""Parts of a scenario on which times are kept."""
WORKLOADS = {
    TrainingWorkload: {
        "num_gpus": lambda _: 4,
        "batch_size": lambda batch: 2 * batch,
        "self_conditioning": lambda _: 0.75,
        "self_conditioning_draw": lambda _: "iteration",
        "checkpointing": lambda _: "full",
        "memory_recipe": lambda _: "fp32",
        "placement": lambda _: "data-inner",
        "extra_forward": lambda extra: not extra,
        "resolution": lambda _: "512",
        "frozen": lambda _: "cached",
        "ema": lambda _: "fp32",
        "trainable": lambda _: "lora:8",
        "offload": lambda _: "optimizer",
        "frames": lambda _: 1,
        "attention": lambda _: "unfused",
        "precision": lambda _: "fp8",
        "encoder_precision": lambda _: "float32",
        "iteration_us": lambda _: 1000,
        "text_tokens": lambda _: None,
    },
    SamplingWorkload: {
        "num_gpus": lambda _: 4,
        "height": lambda height: 2 * height,
        "width": lambda width: 2 * width,
        "steps": lambda steps: 2 * steps,
        "guidance": lambda _: "parallel",
        "batch_size": lambda _: 2,
        "include": lambda _: (),
        "decode_chunks": lambda _: 4,
        "text_tokens": lambda _: None,
        "text": lambda _: "replicated",
        "frames": lambda _: 1,
        "encoders": lambda _: "offloaded",
        "vae_tile": lambda _: 128,
        "vae_parallel": lambda _: 4,
        "heads": lambda _: "padded",
        "precision": lambda _: "fp8",
        "all_to_all": lambda _: "fp8",
        "cache_steps": lambda _: 0.5,
        "offload": lambda _: "layers:2",
        "weights": lambda _: "sharded",
        "attention": lambda _: "unfused",
        "guided_predictions": lambda _: 4,
    },
}
SCENE = ("model", "cluster", "workload", "asked_model", "asked_cluster", "stack", "asked_stack", "measured")


def changed(value, path, change):
    """A value with what lies at the end of a path replaced, each value on the way by ``dataclasses.replace``."""
    name, _, rest = path.partition(".")
    own = getattr(value, name)
    return replace(value, **{name: changed(own, rest, change) if rest else change(own)})


def anew(scenario):
    """The same scenario of parts that nobody has asked anything."""
    model = replace(scenario.model, components=tuple(map(replace, scenario.model.components)))
    return type(scenario)(
        model, replace(scenario.cluster), replace(scenario.workload), stack=replace(scenario.stack)
    )


@pytest.fixture(scope="module")
def warm():
    """A scenario of each task, what asks it, and what it said: it has been asked all that the tests ask."""
    return {
        "train": (found := training(), train, train(found)),
        "sample": (found := sampling(), draw, draw(found)),
    }


def test_every_field_of_a_workload_has_its_replacement():
    for kind, changes in WORKLOADS.items():
        assert set(changes) == {item.name for item in fields(kind)}, kind


@pytest.mark.parametrize("task", ["train", "sample"])
@pytest.mark.parametrize("path", REPLACED)
def test_a_scenario_with_a_part_replaced_answers_as_one_made_anew(warm, task, path):
    scenario, ask, before = warm[task]
    found = changed(scenario, path, REPLACED[path])
    assert ask(found) == ask(anew(found))
    assert ask(found) != before
    assert ask(scenario) == before


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (task, name)
        for task, kind in (("train", TrainingWorkload), ("sample", SamplingWorkload))
        for name in WORKLOADS[kind]
    ],
)
def test_a_scenario_under_another_workload_answers_as_one_made_anew(warm, task, name):
    scenario, ask, before = warm[task]
    found = changed(scenario, f"workload.{name}", WORKLOADS[type(scenario.workload)][name])
    under = scenario.under(found.workload)
    assert under == found
    assert ask(under) == ask(anew(found))
    again = replace(found.workload, batch_size=4 * scenario.workload.batch_size)
    assert ask(scenario.under(again)) == ask(anew(replace(scenario, workload=again)))
    assert ask(scenario) == before


def test_a_scenario_under_another_workload_refuses_what_one_made_anew_does():
    trained, drawn = training(), sampling()
    math = replace(trained, stack=replace(trained.stack, attention="unfused"))
    for scenario, wrong, problem in (
        (trained, {"num_gpus": 16}, "gpus is 16"),
        (math, {"checkpointing": "selective"}, "has no fused attention to keep"),
        (drawn, {"include": ("x",)}, "names 'x', the frozen components"),
        (drawn, {"guidance": "embedded"}, "takes no guidance scale"),
    ):
        workload = replace(scenario.workload, **wrong)
        for ask in (
            lambda of=scenario, w=workload: replace(of, workload=w),
            lambda of=scenario, w=workload: of.under(w),
        ):
            with pytest.raises(InputError, match=problem):
                ask()


def test_a_scenario_of_other_frames_or_of_adapters_refuses_others_again_by_their_rule():
    video = sim.run("wan2.1-1.3b", "single", "h100-nvlink-8", 1, steps=1, frames=1).source.scenario
    tuned = sim.run("sd21", "ddp", gpus=8, batch_size=64, trainable="lora:64").source.scenario
    for scenario, other, rule in (
        (video, {"frames": 33}, r"frames is 33, but this wan2.1-1.3b was made of 1 frame from one of 81,"),
        (video.under(video.workload), {"frames": 81}, r"must be made from that one$"),
        (
            tuned,
            {"trainable": "lora:16"},
            r"asks for rank 16, but this sd21 has adapters of rank 64 already,",
        ),
        (tuned, {"trainable": "all"}, r"asks for all weights, .*must be made from one without$"),
    ):
        with pytest.raises(InputError, match=rule):
            scenario.under(replace(scenario.workload, **other))
