"""Times scale with costs: four times every cost is four times every time, in the same order."""

from dataclasses import asdict, replace

import pytest
from conformance.training_scenes import chained, conditioned, free, node, nodes, with_skips

from sim.outcomes.parts import replay, variants
from strategies.registry import all_strategies

TRAINING = [name for name, cls in all_strategies().items() if cls.task == "train"]


def scaled(make, scenario, factor):
    """The scenario with every cost multiplied: layers, optimizer, wires, latencies and calls."""

    def slower(link):
        return link and replace(
            link,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / factor,
            latency_s=link.latency_s * factor,
            call_s=link.call_s * factor,
            switch_bandwidth_bytes_per_s=link.switch_bandwidth_bytes_per_s / factor,
            host_bandwidth_bytes_per_s=link.host_bandwidth_bytes_per_s / factor,
        )

    cluster = scenario.cluster
    rates = cluster.device.rates
    if rates is not None:
        rates = replace(rates, memory_bytes_per_s=rates.memory_bytes_per_s / factor)
    cluster = replace(
        cluster,
        device=replace(cluster.device, rates=rates),
        intra_node=slower(cluster.intra_node),
        inter_node=slower(cluster.inter_node),
        collectives=replace(cluster.collectives, call_s=cluster.collectives.call_s * factor),
    )
    components = tuple(
        replace(
            component,
            times=tuple(
                (
                    device,
                    tuple(
                        replace(t, forward_s=t.forward_s * factor, backward_s=t.backward_s * factor)
                        for t in times
                    ),
                )
                for device, times in component.times
            ),
        )
        for component in scenario.model.components
    )
    model = replace(scenario.model, components=components)
    return make.scenario(model, cluster, **asdict(scenario.workload))


def heavy(make):
    """The gradients of its smallest stages, too, take longer than 64 ms to reduce."""
    return conditioned(make, parameters=2 * 10**6)


# Bubbles shorter than 10 ms stay empty and collectives move in 1 to 64 chunks of a millisecond: seconds, not
# ratios. Where all messages are short, or all collectives long, neither is met on the way from 1 to 4.
SCALING = {
    "free links": (chained, free, {"num_gpus": 4, "batch_size": 32}),
    "one node": (heavy, node, {"num_gpus": 4, "batch_size": 16, "self_conditioning": 1.0}),
    "skips, small nodes": (with_skips, nodes, {"num_gpus": 4, "batch_size": 8}),
}


@pytest.mark.parametrize("name", SCALING)
@pytest.mark.parametrize("strategy_name", TRAINING)
def test_times_scale_with_all_costs(make, strategy_name, name):
    build_model, build_cluster, workload = SCALING[name]
    scenario = make.scenario(build_model(make), build_cluster(make), **workload)
    slower = scaled(make, scenario, 4.0)
    for strategy in list(all_strategies()[strategy_name].candidates(scenario))[::2]:
        both = zip(variants(strategy, scenario), variants(strategy, slower), strict=True)
        for variant, slower_variant in ((one.scenario, other.scenario) for one, other in both):
            trace, slower_trace = replay(strategy, variant), replay(strategy, slower_variant)
            assert slower_trace.end_s == pytest.approx(4.0 * trace.end_s, rel=1e-9), strategy
            assert slower_trace.plan.order == trace.plan.order, strategy
            assert strategy.bound(slower_variant) == pytest.approx(4.0 * strategy.bound(variant), rel=1e-9), (
                strategy
            )
