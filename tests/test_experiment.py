"""Results: expectations over self-conditioning, bytes, first iterations, and what reproduces them."""

import pytest

from sim.outcomes.parts import variants
from sim.outcomes.runs import bound, run_point
from strategies.registry import make as make_strategy


@pytest.fixture
def scenario(make):
    """Return a scenario on eight GPUs of one node with self-conditioning, unless told otherwise."""

    def build(num_gpus=8, batch_size=32, memory_bytes=None, **workload):
        encoder = make.component("encoder", [0.3, 0.2], trainable=False, output_bytes=1e6)
        unet = make.component(
            "unet", [0.1, 0.3, 0.2, 0.2], inputs=["encoder"], output_bytes=1e7, saved_bytes=1e6,
            parameters=10**7, self_conditioning=0.25,
        )  # fmt: skip
        cluster = make.cluster(
            make.link("nvswitch", 1e9, 0.001), devices_per_node=8, slowdown=1.5, memory_bytes=memory_bytes
        )
        return make.scenario(make.model(encoder, unet), cluster, num_gpus, batch_size, **workload)

    return build


@pytest.fixture
def pipeline():
    return make_strategy("1f1b", {"pipeline_degree": 2, "micro_batches": 4})


def shares(strategy, scenario):
    """Probabilities of iterations without and with the extra forward."""
    found = {v.scenario.workload.extra_forward: v.probability for v in variants(strategy, scenario)}
    return found.get(False, 0.0), found.get(True, 0.0)


@pytest.mark.parametrize(("group_size", "groups"), [(2, 4), (4, 2), (8, 1)])
def test_when_each_group_draws_the_slowest_decides(scenario, group_size, groups):
    strategy = make_strategy("1f1b", {"pipeline_degree": 2, "micro_batches": 4, "group_size": group_size})
    found = shares(strategy, scenario(self_conditioning_draw="rank"))
    assert found == (pytest.approx(0.75**groups), pytest.approx(1 - 0.75**groups))


@pytest.mark.parametrize(
    ("name", "parameters", "draws"),
    [
        ("ddp", {}, 8),
        ("zero2", {"shard_size": 2}, 8),
        ("fsdp", {"tensor_degree": 1}, 8),
        ("1f1b", {"pipeline_degree": 2, "micro_batches": 4}, 1),
    ],
)
def test_each_rank_of_data_parallelism_draws_and_a_pipeline_once_for_all(scenario, name, parameters, draws):
    found = shares(make_strategy(name, parameters), scenario())
    assert found == (pytest.approx(0.75**draws), pytest.approx(1 - 0.75**draws))
    once = shares(make_strategy(name, parameters), scenario(self_conditioning_draw="iteration"))
    assert once == (0.75, 0.25)


def test_a_result_says_who_draws(tell):
    asked = ("run", "--model", "sd21", "--gpus", 8, "--batch-size", 64, "--self-conditioning", 0.5)
    _, out, _ = tell(*asked, "--strategy", "ddp")
    assert "each of 8 groups by itself: 99.6% of the iterations wait for an extra forward" in out
    _, out, _ = tell(*asked, "--strategy", "1f1b", "--pipeline-degree", 2)
    assert "all at once: 50.0% of the iterations run the extra forward" in out


@pytest.mark.parametrize("strategy", ["ddp", "1f1b", "diffusionpipe"])
def test_a_result_is_the_expectation_over_both_iterations(scenario, strategy):
    parameters = {"micro_batches": 4} if strategy == "ddp" else {"pipeline_degree": 2, "micro_batches": 4}
    point = make_strategy(strategy, parameters)
    mixed = run_point(point, scenario(self_conditioning=0.25, self_conditioning_draw="iteration"))
    never, always = (run_point(point, scenario(self_conditioning=p)) for p in (0.0, 1.0))

    def mean(quantity):
        return pytest.approx(0.75 * quantity(never.expected) + 0.25 * quantity(always.expected))

    assert mixed.iteration_s == mean(lambda iteration: iteration.duration_s)
    assert mixed.expected.p2p_bytes == mean(lambda iteration: iteration.p2p_bytes)
    assert mixed.expected.collective_bytes == mean(lambda iteration: iteration.collective_bytes)
    assert mixed.expected.collective_s == mean(lambda iteration: iteration.collective_s)
    assert mixed.expected.exposed_communication_s == mean(lambda iteration: iteration.exposed_communication_s)
    assert mixed.first_iteration_s == mean(lambda iteration: iteration.first_s)
    assert mixed.expected.peak_memory_bytes == max(
        never.expected.peak_memory_bytes, always.expected.peak_memory_bytes
    )
    assert mixed.samples_per_s == pytest.approx(32 / mixed.iteration_s)
    assert mixed.bubble_ratio == pytest.approx(
        (0.75 * never.expected.idle_s + 0.25 * always.expected.idle_s) / mixed.iteration_s
    )


def test_the_extra_forward_costs_the_forwards_of_all_micro_batches(make):
    unet = make.component("unet", [1.0] * 4, [2.0] * 4)
    for strategy, parameters, expected_s in [
        ("ddp", {"micro_batches": 4}, (4 * 12.0, 4 * 16.0)),
        ("1f1b", {"pipeline_degree": 4, "micro_batches": 4}, (7 * 3.0, 7 * 3.0 + 4 * 1.0)),
        ("gpipe", {"pipeline_degree": 4, "micro_batches": 4}, (7 * 3.0, 7 * 3.0 + 4 * 1.0)),
    ]:
        gpus = parameters.get("pipeline_degree", 1)
        point = make_strategy(strategy, parameters)
        found = tuple(
            run_point(
                point, make.scenario(make.model(unet), make.cluster(), gpus, 4, self_conditioning=p)
            ).iteration_s
            for p in (0.0, 1.0)
        )
        assert found == expected_s


def test_the_bound_is_an_expectation_too(scenario, pipeline):
    whole = scenario(self_conditioning=0.25)
    alone = [pipeline.bound(whole.with_extra_forward(extra)) for extra in (False, True)]
    assert bound(pipeline, whole) == pytest.approx(0.75 * alone[0] + 0.25 * alone[1])
    assert bound(pipeline, whole) <= run_point(pipeline, whole).iteration_s


def test_where_groups_draw_the_slowest_decides_the_time_but_each_sends_its_own_bytes(scenario, pipeline):
    alike = run_point(pipeline, scenario(self_conditioning=0.25)).expected
    drawn = run_point(pipeline, scenario(self_conditioning=0.25, self_conditioning_draw="rank")).expected
    assert drawn.duration_s > alike.duration_s
    assert (drawn.p2p_bytes, drawn.collective_bytes) == (alike.p2p_bytes, alike.collective_bytes)
    assert drawn.busy_s == pytest.approx(alike.busy_s)
