"""Frozen layers laid out over positions: who runs which samples, and what has to be sent for it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from strategies.pipelining.frozen import FrozenWork
from strategies.plans.plan import FilledLayer
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import strategies_of

TRAINING = list(strategies_of("train"))


@pytest.fixture(scope="module")
def two(make):
    """A text encoder of two layers, an image encoder of two that reads it, and a backbone that reads both."""
    text = make.component("text", [1.0, 1.0], trainable=False, output_bytes=1.0)
    image = make.component("image", [1.0, 1.0], trainable=False, inputs=["text"], output_bytes=10.0)
    unet = make.component("unet", [1.0], inputs=["text", "image"])
    return make.scenario(make.model(text, image, unet), make.cluster(), 1, 1)


class Layout:
    """Frozen work over some positions, and the messages between them."""

    def __init__(self, scenario, batch_size, replicas=1):
        self.tensors = []
        self.work = FrozenWork(scenario, batch_size, replicas, self.tensors)

    def place(self, component, layer, samples, positions, bubble=None, shares=None):
        self.work.place(FilledLayer(bubble, component, layer, samples, positions, 0.0, shares))

    def samples(self, component, layer):
        """Samples per device of each op of a layer, by position."""
        found = Counter()
        for placed in self.work.placed:
            if placed.draft.action[:2] == (component, layer):
                found[placed.position] += placed.draft.action.samples
        return dict(found)

    def messages(self):
        """Bytes from position to position."""
        writers = {t: p.position for p in self.work.placed for t in p.draft.writes}
        found = Counter()
        for placed in self.work.placed:
            for tensor in placed.draft.reads:
                if writers[tensor] != placed.position:
                    found[writers[tensor], placed.position] += self.tensors[tensor].size_bytes
        return dict(found)


def test_a_position_takes_the_samples_that_lie_there_and_is_sent_the_rest(two):
    layout = Layout(two, 8)
    layout.place(0, 0, 8, (0, 1))
    layout.place(0, 1, 8, (1, 2))
    assert layout.samples(0, 1) == {1: 4, 2: 4}
    assert layout.messages() == {(0, 2): 4.0}


positions = st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True).map(tuple)


@st.composite
def placements(draw):
    """A batch, and every layer of both components in parts that add up to it, in an order that works."""
    batch = draw(st.integers(1, 40))
    parts = []
    for component, layer in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        left = batch
        while left:
            samples = draw(st.integers(1, left))
            parts.append((component, layer, samples, draw(positions)))
            left -= samples
    return batch, parts


@settings(derandomize=True)
@given(placements())
def test_every_activation_is_read_once_by_the_layer_that_follows(two, placed):
    batch, parts = placed
    layout = Layout(two, batch)
    for part in parts:
        layout.place(*part)
    for key in [(0, 0), (0, 1), (1, 0), (1, 1)]:
        assert sum(layout.samples(*key).values()) == batch
    read = Counter()
    for op in layout.work.placed:
        for tensor in op.draft.reads:
            read[layout.tensors[tensor][1:3]] += layout.tensors[tensor].size_bytes
    assert read == {(0, 0): batch, (0, 1): batch, (1, 0): 10 * batch}


# Cached.


@pytest.mark.parametrize("name", TRAINING)
def test_cached_outputs_cost_neither_time_nor_memory_that_encoders_would(name):
    asked = {"gpus": 8, "batch_size": 128}
    online, cached = (sim.run("sd21", name, frozen=frozen, **asked) for frozen in ("online", "cached"))
    assert cached.iteration_s < online.iteration_s
    assert cached.peak_memory_bytes < online.peak_memory_bytes
    assert cached.first_iteration_s == cached.iteration_s


def test_some_outputs_are_cached_while_the_other_encoders_run():
    asked, text, vae = {"gpus": 8, "batch_size": 128}, "cached:text_encoder", "cached:vae_encoder"
    kinds = ("online", vae, text, "cached:text_encoder,vae_encoder", "cached")
    spent_s = [sim.run("sd21", "ddp", frozen=kind, **asked).iteration_s for kind in kinds]
    online, text, vae, both, cached = spent_s
    assert both == cached
    assert (online - text) + (online - vae) == pytest.approx(online - cached)


def test_an_encoder_of_what_is_noised_cannot_be_cached():
    model = load_model("controlnet").for_task("train")
    workload = TrainingWorkload(8, 64, frozen="cached")
    scenario = sim.Scenario(model, load_cluster("p4de"), workload)
    assert [model.components[i].name for i in scenario.frozen] == ["locked_encoder"]
    cached = sim.run(scenario, "diffusionpipe", fill="partial", pipeline_degree=2)
    online = sim.run("controlnet", "diffusionpipe", gpus=8, batch_size=64, fill="partial", pipeline_degree=2)
    assert cached.iteration_s < online.iteration_s
