"""A model of equal layers costs what its formula says, and its bubbles are those of Figure 4 of DiffusionPipe."""

import pytest

from profiles.architectures.synthetic import equal_layers_model
from profiles.costs.layers import ModelCosts
from profiles.errors import InputError
from profiles.machines.clusters import load_cluster
from profiles.machines.devices import load_device
from sim.outcomes.runs import run_point
from strategies.plans.workloads import TrainingWorkload
from strategies.registry import make as make_strategy
from strategies.scenario import Scenario
from validate.equal_blocks import equal_blocks_transformer

FIGURE_4 = {
    0.4384: {  # Stable Diffusion 2.1: per cent by stages, for 1 to 4 micro-batches
        4: (67.6, 51.0, 41.0, 34.3),
        3: (58.2, 41.0, 31.7, 25.8),
        2: (41.0, 25.8, 18.8, 14.8),
    },
    0.8945: {  # ControlNet 1.0
        4: (61.3, 44.2, 34.5, 28.4),
        3: (51.4, 34.5, 26.0, 20.9),
        2: (34.5, 20.9, 15.0, 11.7),
    },
}


def times(model, batch, backward=False):
    costs = ModelCosts(model, load_device("ideal"))
    return [list(c.backward_s(batch) if backward else c.forward_s(batch)) for c in costs.components]


def test_the_frozen_encoder_takes_its_share_of_forward_and_backward():
    model = equal_layers_model(3, 0.5, frozen_share=0.25, num_frozen_layers=2)
    assert [component.name for component in model.components] == ["encoder", "backbone"]
    assert [component.trainable for component in model.components] == [False, True]
    assert model.inputs_of(1) == (0,)
    assert times(model, 1) == [[0.5625, 0.5625], [0.5, 0.5, 0.5]]
    assert times(model, 1, backward=True) == [[0.0, 0.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize("share", FIGURE_4)
def test_bubble_ratios_are_those_of_the_paper(share):
    for stages, ratios in FIGURE_4[share].items():
        scenario = Scenario(
            equal_layers_model(12, frozen_share=share), load_cluster("ideal"), TrainingWorkload(stages, 144)
        )
        for number, percent in enumerate(ratios, 1):
            strategy = make_strategy("1f1b", {"pipeline_degree": stages, "micro_batches": number})
            assert 100 * run_point(strategy, scenario).bubble_ratio == pytest.approx(percent, abs=0.051)


def test_equal_blocks_have_the_tokens_exchanges_and_skips_that_were_asked_for():
    model = equal_blocks_transformer(5, rows=8, hidden_size=32, heads=4, text_tokens=6, skips=True)
    transformer = model.components[0]
    assert (model.height, transformer.image_tokens, transformer.text_tokens) == (128, 64, 6)
    assert [layer.output_bytes for layer in transformer.layers] == [2.0 * 70 * 32] * 4 + [2.0 * 4 * 16**2]
    assert [(e.kind, e.elements, e.heads) for e in transformer.exchanges if e.layer == 2] == [
        ("key_value", 2 * 64 * 32, 4), ("reduce", 64 * 32, 0), ("reduce", 64 * 32, 0),
    ]  # fmt: skip
    assert [(skip.source, skip.target) for skip in transformer.skips] == [(0, 4), (1, 3)]
    with pytest.raises(InputError, match="heads is 0, must be at least 1"):
        equal_blocks_transformer(5, heads=0)
