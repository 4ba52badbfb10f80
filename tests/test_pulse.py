"""PULSE: skips that move nothing, on a wave ordered by the stages' real times."""

import pytest

from profiles.architectures.models import load_model
from profiles.machines.clusters import load_cluster
from profiles.units import MIB
from sim.outcomes.parts import replay
from strategies.plans.workloads import TrainingWorkload
from strategies.scenario import Scenario
from strategies.training.pulse import Pulse
from validate.published.pulse import all_reduce_s, schedule_s


def shipped(model, cluster, gpus, batch_size, **workload):
    return Scenario(load_model(model), load_cluster(cluster), TrainingWorkload(gpus, batch_size, **workload))


def by_role(trace, *roles):
    """Bytes that messages of some roles carry."""
    tensors = trace.plan.tensors
    return sum(t.size_bytes for t in trace.wiring.transfers if t and tensors[t.tensor].role in roles)


def dense(make, blocks, **rest):
    skips = [(i, blocks - 1 - i) for i in range(blocks // 2)]
    return make.component("unet", [1.0] * blocks, output_bytes=1.0, skips=skips, **rest)


@pytest.mark.parametrize(("degree", "per_stage"), [(2, 3), (6, 1)])
def test_only_hidden_states_move(make, degree, per_stage):
    scenario = make.scenario(make.model(dense(make, 2 * degree * per_stage)), make.cluster(), degree, 3)
    trace = replay(Pulse(degree, 3), scenario)
    assert by_role(trace, "hidden") == 3 * 2 * (degree - 1)
    assert trace.p2p_bytes == 2 * 3 * 2 * (degree - 1)


def test_uvit_moves_what_the_paper_measured():
    per_sample = {}
    for degree, gpus in ((4, 4), (8, 8)):
        scenario = shipped("uvit-2.7b", "p4de", gpus, degree)
        trace = replay(Pulse(degree, degree), scenario)
        per_sample[degree] = (
            by_role(trace, "hidden", "gradient") / degree / MIB,
            by_role(trace, "hidden") / degree / MIB,
        )
    assert per_sample[4][0] == pytest.approx(24.19, abs=0.005)  # both directions
    assert per_sample[8][1] == pytest.approx(28.22, abs=0.005)  # one


@pytest.mark.parametrize("model", ["sd21", "uvit-h", "hunyuan-1.5b", "sdv2-1.7b"])
def test_every_skip_of_the_shipped_models_stays_on_its_device(model):
    scenario = shipped(model, "p4de", 4, 32)
    strategy = Pulse(4, 4)
    assert strategy.remarks(scenario) == []
    stages = strategy.layout(scenario).stages
    at = {layer: s.position for s in stages for layer in range(s.first_layer, s.last_layer + 1)}
    skips = scenario.model.components[scenario.backbone_index].skips
    assert skips
    assert all(at[skip.source] == at[skip.target] for skip in skips)


def test_a_skip_that_no_symmetric_cut_keeps_is_sent_and_named(make):
    chain = make.component("net", [1.0] * 8, output_bytes=1.0, skips=[(0, 7), (1, 6), (2, 5), (0, 4), (1, 5)])
    scenario = make.scenario(make.model(chain), make.cluster(), 4, 1)
    strategy = Pulse(4, 1)
    (remark,) = strategy.remarks(scenario)
    assert "0->4" in remark
    assert "0->7" not in remark
    trace = replay(strategy, scenario)
    assert trace.p2p_bytes == 2 * (2 * 3 + remark.count("->"))


def test_an_iteration_by_the_equations_takes_every_stage_for_the_longest(make):
    unet = make.component(
        "unet", [1.0] * 8, output_bytes=10.0, saved_bytes=1000.0, parameters=100,
        skips=[(i, 7 - i) for i in range(4)],
    )  # fmt: skip
    scenario = make.scenario(make.model(unet), make.cluster(make.link("nvswitch", 100.0, 0.25)), 8, 8)
    layout = Pulse(4, 4, 4).layout(scenario)  # one block per stage
    reduce_s = 0.25 + 2 * (2 - 1) / 2 * 200 / 100
    assert all_reduce_s(scenario, layout) == reduce_s
    assert schedule_s(scenario, layout) == pytest.approx(36 * 1.0 + 28 * (0.25 + 10 / 100) + reduce_s)
