"""Layouts: what follows from a scenario and a shape is derived in one place."""

import pytest

from strategies.pipelining.layout import Layout
from strategies.pipelining.stages import Cut, Shape
from strategies.registry import make_strategy


@pytest.mark.parametrize("name", ["1f1b", "wave", "interleaved", "bidirectional", "pulse"])
def test_iterations_with_and_without_the_extra_forward_share_what_is_alike(make, name):
    model = make.model(make.component("unet", [1.0] * 8))
    scenario = make.scenario(model, make.cluster(), 2, 8)
    strategy = make_strategy(name, {"pipeline_degree": 2, "micro_batches": 4})
    without, extra = (strategy.layout(scenario.with_extra_forward(on)) for on in (False, True))
    assert (without.scenario, extra.scenario) == (scenario, scenario.with_extra_forward(True))
    assert strategy.layout(scenario) is without
    assert extra.stages == without.stages
    assert extra.hops == without.hops
    assert strategy.bound(extra.scenario) > strategy.bound(scenario)


def test_a_layout_knows_batches_stages_and_messages(make):
    chain = make.component("unet", [1.0] * 4, output_bytes=2.0, carried_bytes=1.0, parameters=3, locked=(3,))
    cluster = make.cluster(make.link("nvswitch", 4.0, 0.5))
    scenario = make.scenario(make.model(chain), cluster, 4, 12)
    layout = Layout(scenario, Shape(2, 3, 4), (Cut(0, (0, 1, 4)),))
    assert (layout.group_batch, layout.local_batch) == (12, 2)
    assert [stage.forward_s for stage in layout.stages] == [2.0, 6.0]
    assert layout.hosted == ((0,), (1,))
    assert layout.trained_parameters == (3, 6)
    assert layout.handovers_bytes[0] == 4.0
    (there, back), last = layout.hops
    assert (there.wire_s, back.wire_s, there.delay_s) == ((4.0 + 2.0) / 4.0, 4.0 / 4.0, 0.5)
    assert [hop.duration_s for hop in last] == [0.0, 0.0]
