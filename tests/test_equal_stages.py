"""Equal stages on free links: iterations take what a closed form says, and hold as much; f = 1 and b = 2."""

import pytest

from profiles.errors import InfeasibleError
from sim.outcomes.parts import replay
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes, resident_bytes
from strategies.registry import make as make_strategy
from strategies.registry import strategies_of

TRAINING = [name for name, cls in strategies_of("train").items() if cls.task == "train"]
PIPELINES = [name for name in TRAINING if hasattr(make_strategy(name, {}), "pipeline_degree")]
ONE_POSITION_REFUSED = ("an odd pipeline_degree in two directions",)


@pytest.mark.parametrize("strategy_name", PIPELINES)
def test_a_pipeline_of_one_position_is_the_model_on_one_gpu(make, strategy_name):
    encoder = make.component("encoder", [1.0], trainable=False)
    model = make.model(encoder, make.component("unet", [1.0] * 4, inputs=["encoder"]))
    strategy = make_strategy(strategy_name, {"pipeline_degree": 1, "micro_batches": 2})
    try:
        trace = replay(strategy, make.scenario(model, make.cluster(), 1, 4))
    except InfeasibleError as error:
        assert error.kind in ONE_POSITION_REFUSED
        return
    assert trace.end_s == pytest.approx(4 * (1.0 + 4 * 3.0))


def least(degree, count, position):
    """Micro-batches that a position of 1F1B holds."""
    return min(count, degree - position)


HELD = {"gpipe": lambda degree, count, position: count, "1f1b": least, "spp": least, "diffusionpipe": least}
"""Activations held by each position, in micro-batches."""


@pytest.mark.parametrize(("degree", "micro_batches"), [(2, 4), (4, 4), (4, 16)])
@pytest.mark.parametrize("name", HELD)
def test_on_free_links_equal_stages_take_the_closed_form(make, name, degree, micro_batches):
    """(M + P - 1)(f + b); the closed forms of the other orders stand in their own files."""
    parameters = {"pipeline_degree": degree, "micro_batches": micro_batches}
    strategy = make_strategy(name, parameters | ({"fill": "none"} if name == "diffusionpipe" else {}))
    model = make.model(make.component("unet", [1.0] * degree, saved_bytes=1.0))
    scenario = make.scenario(model, make.cluster(), degree, micro_batches)
    trace = simulate(strategy.plan(scenario))
    assert trace.end_s == pytest.approx(3.0 * (micro_batches + degree - 1), rel=1e-12)
    activations = peak_memory_bytes(trace) - resident_bytes(trace)
    assert list(activations) == [HELD[name](degree, micro_batches, at) for at in range(degree)]
    assert strategy.least_memory_bytes(scenario) == peak_memory_bytes(trace).max()
