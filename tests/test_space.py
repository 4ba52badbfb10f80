"""The space around a sweep: scaled clusters, the best of each strategy, and the Pareto front."""

from dataclasses import replace

import pytest

from profiles.architectures.models import load_model
from profiles.errors import InfeasibleError
from profiles.machines.clusters import load_cluster
from sim.api import sweep
from sim.explore.points import find_points
from sim.explore.sweep import pareto_front, samples_per_s
from sim.outcomes.runs import run_point
from strategies.plans.workloads import TrainingWorkload
from strategies.scenario import Scenario

NAMES = ["1f1b", "ddp", "diffusionpipe", "gpipe", "spp"]


@pytest.fixture(scope="module")
def p4de():
    return load_cluster("p4de")


@pytest.fixture(scope="module")
def sd21():
    return load_model("sd21")


@pytest.fixture(scope="module")
def scenarios(sd21, p4de):
    asked = [TrainingWorkload(gpus, 4 * gpus, self_conditioning=0.0) for gpus in (4, 8)]
    return [Scenario(sd21, p4de, workload) for workload in asked]


@pytest.fixture(scope="module")
def everything(scenarios):
    """Every point of some strategies on eight GPUs, simulated without any bound: rows."""
    rows = []
    for point in find_points(scenarios[1], NAMES):
        try:
            rows.append(run_point(point.strategy, scenarios[1]).to_json())
        except InfeasibleError as error:
            rows.append({"strategy": point.name, "reason": str(error)})
    return rows


def best_of_each(model, names, **asked):
    return sweep(model, strategy=names, top=1, workers=1, **asked).rows(best_of_each=True)


def fits(row):
    return row.get("fits_memory", False)


# Scenarios


def test_a_scaled_cluster_multiplies_bandwidth_and_says_so(p4de):
    scaled = p4de.scaled(intra_node=1.5, inter_node=2.0)
    assert scaled.name == "p4de, intra-node x 1.5, inter-node x 2"
    assert scaled.source.startswith(p4de.source)
    assert scaled.source.endswith("Bandwidth hypothetical: intra-node x 1.5, inter-node x 2.")
    for before, after, factor in (
        (p4de.intra_node, scaled.intra_node, 1.5),
        (p4de.inter_node, scaled.inter_node, 2.0),
    ):
        assert after.bandwidth_bytes_per_s == factor * before.bandwidth_bytes_per_s
        same = {key: getattr(before, key) for key in ("bandwidth_bytes_per_s", "rail_bytes_per_s")}
        assert replace(after, **same) == before
    assert replace(scaled, name=p4de.name, source=p4de.source, intra_node=p4de.intra_node,
                   inter_node=p4de.inter_node) == p4de  # fmt: skip


# The best of each strategy


def test_the_best_of_each_strategy_is_that_of_a_simulation_of_every_point(scenarios, everything):
    rows = best_of_each(scenarios[1], NAMES)
    expected = {
        name: max(samples_per_s(row) for row in everything if row["strategy"] == name and fits(row))
        for name in NAMES
    }
    assert {row["strategy"]: samples_per_s(row) for row in rows} == expected
    assert [samples_per_s(row) for row in rows] == sorted(expected.values(), reverse=True)


# The Pareto front


def test_the_pareto_front_of_a_sweep_is_that_of_a_simulation_of_every_point(scenarios, everything):
    found = sweep(scenarios[1], strategy=NAMES, objective="pareto", workers=1).rows()
    fronts = [
        [(row["peak_memory_bytes"], samples_per_s(row)) for row in pareto_front(rows)]
        for rows in (found, everything)
    ]
    assert len(fronts[1]) > 2
    assert fronts[0] == fronts[1]
