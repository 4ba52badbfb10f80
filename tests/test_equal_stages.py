"""Equal stages on free links: iterations take what a closed form says, and hold as much; f = 1 and b = 2."""

import pytest

from profiles.errors import InfeasibleError
from sim.outcomes.parts import replay
from sim.replay.engine import simulate
from sim.replay.memory import peak_memory_bytes, resident_bytes
from strategies.registry import all_strategies, make_strategy

TRAINING = [name for name, cls in all_strategies().items() if cls.task == "train"]
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


def balanced_s(strategy):
    """(M + P - 1)(f + b): GPipe, and 1F1B on any partition that is equal."""
    return 3.0 * (strategy.micro_batches + strategy.pipeline_degree - 1)


def zero_bubble_s(strategy):
    """ZB-H1: M (F + B + W) + (P - 1)(F + B - W) with F = B = W = 1, for M >= P."""
    return 3.0 * strategy.micro_batches + strategy.pipeline_degree - 1


def interleaved_s(strategy):
    """(M v + P - 1)(f + b) per chunk, where P divides M and v >= 2."""
    return 3.0 * (strategy.micro_batches * strategy.chunks + strategy.pipeline_degree - 1)


def wave_s(strategy):
    """One wave, 2P stages: 10P - 4 where M = P; from M = 2P on the least any order can take, 6M + 3(P - 1)."""
    degree, count = strategy.pipeline_degree, strategy.micro_batches
    return 10.0 * degree - 4.0 if count == degree else 6.0 * count + 3.0 * (degree - 1)


def one_gpu_s(strategy):
    """Everything on one GPU, one micro-batch after the other."""
    return 3.0 * strategy.micro_batches


CLOSED_FORMS = {
    "ddp": (one_gpu_s, {}),
    "zero2": (one_gpu_s, {}),
    "zero3": (one_gpu_s, {}),
    "gpipe": (balanced_s, {}),
    "1f1b": (balanced_s, {}),
    "spp": (balanced_s, {}),
    "diffusionpipe": (balanced_s, {"fill": "none"}),
    "interleaved": (interleaved_s, {"chunks": 2}),
    "zero-bubble": (zero_bubble_s, {}),
    "wave": (wave_s, {"waves": 1}),
}


def on_free_links(make, name, micro_batches, degree, parameters):
    """A strategy, and its scenario of one layer for each stage."""
    gpus, stages = 1, 1
    if name in PIPELINES:
        gpus, parameters = degree, {"pipeline_degree": degree, **parameters}
        stages = degree * parameters.get("chunks", 2 * parameters.get("waves", 0) or 1)
    strategy = make_strategy(name, {"micro_batches": micro_batches, **parameters})
    model = make.model(make.component("unet", [1.0] * stages, saved_bytes=1.0))
    return strategy, make.scenario(model, make.cluster(), gpus, micro_batches)


@pytest.mark.parametrize(("degree", "micro_batches"), [(2, 4), (4, 4), (4, 16)])
@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_on_free_links_equal_stages_take_the_closed_form(make, name, degree, micro_batches):
    closed_form_s, parameters = CLOSED_FORMS[name]
    strategy, scenario = on_free_links(make, name, micro_batches, degree, parameters)
    trace = simulate(strategy.plan(scenario))
    assert trace.end_s == pytest.approx(closed_form_s(strategy), rel=1e-12)
    assert strategy.bound(scenario) <= trace.end_s
    if name in HELD:
        activations = peak_memory_bytes(trace) - resident_bytes(trace)
        assert list(activations) == [HELD[name](degree, micro_batches, at) for at in range(degree)]
        assert strategy.least_memory_bytes(scenario) == peak_memory_bytes(trace).max()


def one_forward_one_backward_held(degree, count, position):
    return min(count, degree - position)


HELD = {
    "gpipe": lambda degree, count, position: count,
    "1f1b": one_forward_one_backward_held,
    "spp": one_forward_one_backward_held,
    "diffusionpipe": one_forward_one_backward_held,
}
"""Activations held by each position, in stages times micro-batches."""
