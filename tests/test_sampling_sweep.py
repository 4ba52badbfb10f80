"""The sweep over samplers against a simulation of every point: what it finds, on how many GPUs, and what it says."""

import re
from dataclasses import replace
from math import inf

import pandas as pd
import pytest

from profiles.architectures.models import load_model
from profiles.architectures.synthetic import equal_blocks_transformer
from profiles.errors import InfeasibleError, InputError
from profiles.machines.clusters import load_cluster
from profiles.software.stacks import load_stack
from sim.api import sweep as sweep_of
from sim.explore.points import Point, find_points
from sim.explore.search import run_sweep
from sim.explore.space import pareto_front
from sim.explore.sweep import OBJECTIVES, TOP, Sweep, objectives
from sim.outcomes.runs import run_point, run_within
from sim.report.descriptions import how
from sim.report.frames import rows, write_rows
from sim.report.rankings import columns, front, print_sweep, shown_points
from strategies.plans.workloads import SamplingWorkload
from strategies.registry import all_samplers, make_sampler
from strategies.sampling_scenario import SamplingScenario
from strategies.strategy import gpu_counts

SAMPLERS = list(all_samplers())
EXACT = (
    "single", "tensor", "ulysses", "ring", "usp", "pipefusion", "hybrid", "naive-patch", "sync-patch", "distrifusion",
)  # fmt: skip
"""Samplers whose bound knows all that blocks them."""


def pixart(num_gpus=4, cluster="a100-nvlink-8", resolution=512, steps=4, **workload):
    workload = SamplingWorkload(num_gpus, resolution, resolution, steps, **workload)
    return SamplingScenario(load_model("pixart"), load_cluster(cluster), workload)


def swept(scenario, objective="latency", names=None, fixed=None, workers=1, top=TOP):
    sweep = Sweep(scenario, objective, find_points(scenario, names, fixed), top)
    run_sweep(sweep, workers=workers)
    return sweep


def simulated(sweep):
    return [point for point in sweep.ranked() if point.status == "simulated"]


def simulate_everything(scenario):
    """Return every point of every sampler, simulated without any bound."""
    points = [point for point in find_points(scenario) if point.strategy is not None]
    for point in points:
        try:
            point.result = run_point(point.strategy, scenario.on(point.num_gpus))
        except InfeasibleError as error:
            point.reason = str(error)
        else:
            point.reason = point.result.missing_memory
    return points


SCENARIOS = {
    "nvlink": pixart,
    "pcie, three images": lambda: pixart(4, "l40-pcie-8", 1024, batch_size=3),
    "two nodes": lambda: pixart(16, "p4de", 512, 2, guidance="none"),
    "guidance in parallel": lambda: pixart(8, guidance="parallel", batch_size=2),
    "u-net": lambda: SamplingScenario(
        load_model("sdxl"), load_cluster("a100-nvlink-8"), SamplingWorkload(4, 1024, 1024, 3)
    ),
    "six devices": lambda: pixart(6),
}


@pytest.fixture(scope="module", params=SCENARIOS)
def scenario(request):
    return SCENARIOS[request.param]()


@pytest.fixture(scope="module")
def everything(scenario):
    return simulate_everything(scenario)


@pytest.fixture(scope="module")
def sweep():
    return swept(pixart(8))


# The same as simulating everything


@pytest.mark.parametrize("objective", OBJECTIVES["sample"])
def test_the_best_twenty_and_the_best_of_each_are_those_of_a_simulation_of_every_point(
    scenario, everything, objective
):
    exact, found = Sweep(scenario, objective, everything), swept(scenario, objective)
    scores = [[p.score(objective) for p in simulated(each)] for each in (found, exact)]
    if objective != "pareto":
        assert scores[0][:TOP] == scores[1][:TOP]
    for name in {point.name for point in simulated(exact)}:
        best, truth = (next(p for p in simulated(each) if p.name == name) for each in (found, exact))
        assert best.score(objective) == truth.score(objective)


def test_the_pareto_front_is_that_of_a_simulation_of_every_point(scenario, everything):
    fronts = [
        [(item["peak_memory_bytes"], item["latency_s"]) for item in pareto_front(rows(each))]
        for each in (swept(scenario, "pareto"), Sweep(scenario, "pareto", everything))
    ]
    assert fronts[0] == fronts[1]
    assert fronts[0]


def test_no_bound_exceeds_what_the_simulation_takes(scenario, everything):
    for point in everything:
        if point.result is not None:
            there = scenario.on(point.num_gpus)
            assert point.strategy.bound(there) <= point.result.latency_s, point


@pytest.mark.parametrize(
    ("model", "cluster", "resolution"),
    [("pixart", "l40-pcie-8", 2048), ("sd3-medium", "l20-pcie-8", 2048), ("flux-dev", "t4-pcie-8", 1024)],
)
@pytest.mark.parametrize("degrees", [(1, 2, 4), (2, 2, 2), (1, 4, 2)])
def test_no_bound_of_a_hybrid_exceeds_its_simulation_where_switches_are_shared(
    model, cluster, resolution, degrees
):
    loaded = load_model(model)
    guidance = "none" if loaded.guidance != "embedded" else "embedded"
    workload = SamplingWorkload(8, resolution, resolution, 2, guidance)
    scenario = SamplingScenario(loaded, load_cluster(cluster), workload)
    names = ("ulysses_degree", "ring_degree", "tensor_degree")
    sampler = make_sampler("hybrid", {**dict(zip(names, degrees, strict=True)), "warmup_steps": 2})
    assert sampler.bound(scenario) <= run_point(sampler, scenario).latency_s


@pytest.mark.parametrize(
    ("per_node", "gpus", "degrees", "wire", "switch"),
    [
        (
            9,
            36,
            (6, 6, 1, 2),
            (1e4, 1.0, 1e4),
            (3, 1e6, 1e5),
        ),  # some of a stage send to their own node, some do not
        (3, 12, (2, 3, 2, 1), (1e6, 0.1, 1e6), (1, 1e4, 1e5)),  # of a stage's groups one lies in two nodes
    ],
)
def test_no_bound_of_a_hybrid_exceeds_its_simulation_where_nodes_end_within_teams(
    make, per_node, gpus, degrees, wire, switch
):
    (bandwidth, latency_s, between), (size, switch_bandwidth, host_bandwidth) = wire, switch
    rates = {"switch_bandwidth_bytes_per_s": switch_bandwidth, "host_bandwidth_bytes_per_s": host_bandwidth}
    inside = make.link("pcie", bandwidth, latency_s, switch_size=size, **rates)
    cluster = make.cluster(inside, make.link("nic", between, 0.001, 0.01), devices_per_node=per_node)
    pipeline, ulysses, tensor, steps = degrees
    model = equal_blocks_transformer(pipeline, 0.2, text_tokens=32, heads=24)
    scenario = make.sampling(model, cluster, num_gpus=gpus, steps=steps)
    asked = {"pipeline_degree": pipeline, "ulysses_degree": ulysses, "tensor_degree": tensor}
    sampler = make_sampler("hybrid", {**asked, "patches": 2 if steps == 1 else 1, "warmup_steps": 2 - steps})
    assert sampler.bound(scenario) <= run_point(sampler, scenario).latency_s


@pytest.mark.parametrize("parallel", ["ulysses_degree", "tensor_degree"])
def test_the_bound_of_a_pipeline_knows_which_of_its_teams_lie_in_two_nodes(make, parallel):
    cluster = make.cluster(make.link(bandwidth=1e6), make.link("nic", 1e4, 0.1), devices_per_node=3)
    scenario = make.sampling(equal_blocks_transformer(3, 0.2), cluster, num_gpus=6, steps=2)
    sampler = make_sampler("hybrid", {"pipeline_degree": 3, parallel: 2, "patches": 3})
    assert 0.7 < sampler.bound(scenario) / run_point(sampler, scenario).latency_s <= 1


@pytest.mark.parametrize(("ulysses", "tensor", "patches"), [(1, 8, 2), (8, 1, 4), (2, 4, 2)])
def test_the_bound_of_a_pipeline_knows_that_messages_of_a_team_share_its_nodes_port(ulysses, tensor, patches):
    degrees = {"ulysses_degree": ulysses, "tensor_degree": tensor, "pipeline_degree": 2, "patches": patches}
    sampler, model = make_sampler("hybrid", degrees), load_model("hunyuanvideo")
    scenario = SamplingScenario(
        model, load_cluster("p4de"), SamplingWorkload(16, model.width, model.height, 3, "embedded")
    )
    taken = run_point(sampler, scenario).latency_s
    assert 0.97 * taken < sampler.bound(scenario) <= taken


@pytest.mark.parametrize(
    "cluster", ["a100-nvlink-8", "p4de"]
)  # the other slows compute beside collectives down
def test_the_bound_of_a_sampler_is_its_time_where_no_port_is_shared_and_no_host_pays(cluster):
    scenario = replace(pixart(8, cluster, steps=3), stack=load_stack("compiled"))
    for point in simulate_everything(scenario):
        if point.name in EXACT:
            there, taken = scenario.on(point.num_gpus), point.result.latency_s
            bound_s, tensors = point.strategy.bound(there), getattr(point.strategy, "tensor_degree", 1) or 1
            ring = getattr(point.strategy, "ring_degree", 1) or 1
            exact = tensors == ring == 1 and point.name not in ("distrifusion", "ring", "attention2d")
            assert bound_s <= taken * (1 + 1e-9), point
            assert not exact or bound_s == pytest.approx(taken, rel=1e-6), point


def test_no_point_takes_less_memory_than_it_cannot_do_without(scenario, everything):
    for point in everything:
        if point.result is not None and hasattr(point.strategy, "least_memory_bytes"):
            least = point.strategy.least_memory_bytes(scenario.on(point.num_gpus))
            assert 0.8 * point.result.expected.peak_memory_bytes < least, point
            assert least <= point.result.expected.peak_memory_bytes, point


def test_most_points_need_no_replay(sweep):
    assert len(sweep.points) > 5 * TOP
    assert len([point for point in sweep.points if point.result is not None]) < 3 * TOP


def test_a_run_within_a_limit_is_the_run_or_seconds_from_the_limit_on():
    scenario = pixart()
    for name in ("single", "distrifusion", "pipefusion"):
        there = scenario.on(1 if name == "single" else 4)
        sampler = make_sampler(name, {})
        result = run_point(sampler, there)
        taken = result.latency_s
        assert run_within(sampler, there, inf) == result
        assert run_within(sampler, there, taken * 1.0001) == result
        least = run_within(sampler, there, 0.9 * taken)
        assert 0.9 * taken <= least <= taken
        assert run_within(sampler, there, 0.1 * taken) == sampler.bound(there)


# On how many GPUs


@pytest.mark.parametrize(("num_gpus", "counts"), [(8, {8, 4, 2}), (6, {6, 4, 2}), (2, {2})])
def test_samplers_are_looked_at_on_smaller_powers_of_two_and_single_on_one(num_gpus, counts):
    points = find_points(pixart(num_gpus))
    of = {
        name: {p.num_gpus for p in points if p.name == name and p.strategy is not None} for name in SAMPLERS
    }
    assert of["single"] == {1}
    assert of["naive-patch"] == of["tensor"] == counts
    assert of["usp"] == counts - {2}  # two degrees above 1 need four GPUs


def test_on_one_gpu_there_is_single_alone():
    points = find_points(pixart(1))
    assert [point.name for point in points if point.strategy is not None] == ["single"]
    assert {p.kind for p in points if p.strategy is None} == {"no degrees for these GPUs and this batch"}


def test_a_result_says_on_how_many_gpus_it_runs_and_what_an_image_costs(sweep):
    for point in simulated(sweep):
        result = point.result
        assert result.num_gpus == point.num_gpus == result.to_json()["num_gpus"]
        assert result.gpu_s_per_sample == pytest.approx(point.score("cost"))


def test_fewer_gpus_can_win_by_cost():
    scenario = replace(pixart(8), stack=load_stack("compiled"))  # no host to wait for
    best = simulated(swept(scenario, "cost"))[0]
    assert best.num_gpus < 8
    assert best.name != simulated(swept(scenario))[0].name


def test_where_links_are_slow_a_sampler_is_best_kept_to_fewer_gpus():
    """Over PCIe the all-to-alls of eight take longer than their compute saves."""
    best = simulated(swept(pixart(8, "l40-pcie-8"), names=["ulysses"]))[0]
    assert best.num_gpus < 8


def test_images_of_a_batch_are_drawn_on_gpus_left_over():
    sweep = swept(pixart(4, batch_size=4), names=["hybrid"])
    degrees = ("guidance_degree", "ulysses_degree", "ring_degree", "pipeline_degree", "tensor_degree")
    replicated = [p for p in sweep.points if sum(p.parameters[d] > 1 for d in degrees) < 2]
    assert replicated
    assert all(p.status != "infeasible" for p in replicated)


# Fixed parameters


def test_a_fixed_degree_keeps_the_numbers_of_gpus_that_have_it():
    points = find_points(pixart(8), ["pipefusion"], {"pipeline_degree": 4})
    assert {point.num_gpus for point in points} == {4}
    assert {point.strategy.pipeline_degree for point in points} == {4}


def test_a_fixed_value_that_no_candidate_has_is_set_on_all():
    points = find_points(pixart(8), ["pipefusion", "distrifusion", "tensor"], {"warmup_steps": 3})
    warmups = {p.strategy.warmup_steps for p in points if p.name != "tensor"}
    assert warmups == {3}
    assert {point.num_gpus for point in points} == {8, 4, 2}


def test_names_and_parameters_that_do_not_draw_are_refused():
    with pytest.raises(InputError, match="spp trains, it does not draw images"):
        find_points(pixart(), ["spp"])
    with pytest.raises(InputError, match="no strategy of this sweep has the parameter --micro-batches"):
        find_points(pixart(), None, {"micro_batches": 4})


def test_each_task_has_its_objectives_and_its_default():
    assert objectives(pixart())[0] == "latency"
    assert "cost" in objectives(pixart())
    assert "cost" not in OBJECTIVES["train"]


# What does not exist, or does not fit


def test_points_that_do_not_exist_are_infeasible_with_their_equation():
    scenario = SamplingScenario(
        load_model("sdxl"), load_cluster("a100-nvlink-8"), SamplingWorkload(4, 1024, 1024, 3)
    )
    sweep = swept(scenario, names=["pipefusion", "ring", "distrifusion"])
    assert sweep.infeasible_by_reason()["needs a transformer"] >= 4
    assert {point.name for point in simulated(sweep)} == {"distrifusion"}


def test_a_point_out_of_memory_is_infeasible_whether_replayed_or_not():
    model = equal_blocks_transformer(4, 0.1, parameters=10**9, saved_bytes=2e9)
    cluster = load_cluster("ideal")
    device = replace(cluster.device, memory_bytes=9 * 2.0**30)
    workload = SamplingWorkload(4, model.height, model.width, 3, guidance="none")
    scenario = SamplingScenario(model, replace(cluster, device=device), workload)
    sweep = swept(scenario)
    lacking = [point for point in sweep.points if point.kind == "out of memory"]
    assert {point.name for point in lacking} >= {"single", "ulysses", "naive-patch"}
    assert {point.name for point in simulated(sweep)} >= {"pipefusion", "tensor"}
    for point in lacking:
        assert (point.status, point.score("latency")) == ("infeasible", inf)
        assert "GiB too much" in point.reason
        assert point.result is not None or point.least_memory_bytes > 9 * 2.0**30


# What a person and a file get


@pytest.mark.parametrize("objective", OBJECTIVES["sample"])
def test_what_leaves_seams_ranks_below_all_that_does_not_and_is_never_the_best(objective):
    sweep = swept(replace(pixart(8), stack=load_stack("compiled")), objective)  # no host to wait for
    ranked = simulated(sweep)
    seams = [point for point in ranked if point.name == "naive-patch"]
    assert seams
    assert ranked[-len(seams) :] == seams
    if objective in ("latency", "throughput"):
        assert seams[0].score(objective) < ranked[0].score(objective), "or the test shows nothing"
    assert sweep.best_point() is ranked[0]
    items = rows(sweep)
    assert {item["strategy"] for item in items if not item["recommended"]} == {"naive-patch"}
    assert "naive-patch" not in {item["strategy"] for item in pareto_front(items)}
    assert "naive-patch" not in {point.name for point in front(ranked)}


def test_a_sweep_over_nothing_but_seams_has_no_best(capsys):
    sweep = swept(pixart(2), names=["naive-patch"])
    assert simulated(sweep)
    assert sweep.best_point() is None
    print_sweep(sweep)
    assert (
        "best: none; every point that fits leaves seams, which is not recommended" in capsys.readouterr().out
    )
    assert Sweep(pixart(), points=[Point(None, "usp", reason="none")]).best_point() is None


def test_a_sampler_of_any_name_that_says_it_leaves_seams_is_not_recommended(monkeypatch):
    before = swept(pixart(4)).best_point().name
    assert before != "usp"
    monkeypatch.setattr(all_samplers()[before], "seamless", False, raising=False)
    sweep = swept(pixart(4))
    assert sweep.best_point().name not in (before, "naive-patch")
    assert {item["seamless"] for item in rows(sweep) if item["strategy"] == before} == {False}


def test_the_result_of_a_run_says_whether_it_is_seamless():
    for name, seamless in (("naive-patch", False), ("distrifusion", True)):
        assert run_point(make_sampler(name, {}), pixart(2)).to_json()["seamless"] is seamless


def test_a_sampler_that_runs_on_some_numbers_of_gpus_alone_says_which():
    assert gpu_counts(all_samplers()["single"], 8) == [1]
    assert gpu_counts(all_samplers()["usp"], 12) == [12, 8, 4, 2]
    assert gpu_counts(all_samplers()["usp"], 1) == []


def test_every_status_has_its_keys(sweep):
    items = rows(sweep)
    by_status = {item["status"]: item for item in items}
    asked = {
        "task",
        "model",
        "cluster",
        "stack",
        "num_gpus",
        "strategy",
        "parameters",
        "batch_size",
        "resolution",
    }
    asked |= {"steps", "guidance", "status", "seamless", "recommended", "inputs", "runs_in"}
    assert set(by_status["bounded"]) == asked | {"bound_s"}
    assert asked | {"latency_s", "step_s", "gpu_s_per_sample"} < set(by_status["simulated"])
    assert {item["task"] for item in items} == {"sample"}
    assert {item["num_gpus"] for item in items} == {1, 2, 4, 8}
    infeasible = rows(Sweep(pixart(), points=[Point(None, "usp", reason="it does not")]))[0]
    assert set(infeasible) == asked | {"reason"}
    assert infeasible["num_gpus"] == 4


def test_rows_in_a_file_have_a_column_for_each_parameter(tmp_path):
    sweep = swept(pixart(2), names=["pipefusion"], fixed={"layers": (10, 18)})
    write_rows(sweep, tmp_path / "rows.csv")
    frame = pd.read_csv(tmp_path / "rows.csv")
    assert set(frame["layers"]) == {"10,18"}
    assert {"patches", "pipeline_degree", "latency_s", "status"} < set(frame.columns)
    assert frame["num_gpus"].tolist() == [2] * len(sweep.ranked())


def table_rows(text):
    """The cells of the lines below the head of the only table, by two spaces or more between them."""
    below = text[text.index("─\n", text.index("within")) :].split("\n\n")[0]
    return [re.split(r" {2,}", line.strip()) for line in below.splitlines()[1:] if re.match(r" *\d", line)]


def test_a_sweep_prints_the_verdict_then_the_best_and_the_best_of_each_strategy(sweep, capsys):
    print_sweep(sweep)
    text = capsys.readouterr().out
    cells = table_rows(text)
    assert {row[1] for row in cells} == {point.name for point in simulated(sweep)}
    ties = set(map(id, sweep.ties()))
    for row in cells:
        rank = int(row[0].split()[0])
        point = simulated(sweep)[rank - 1]
        assert row[:3] == [f"{rank} tie" if id(point) in ties else str(rank), point.name, str(point.num_gpus)]
    (single,) = (row for row in cells if row[1] == "single")
    assert "1.00" in single
    assert f"best       {sweep.best_point().name}" in text
    again = next(line for line in text.splitlines() if line.startswith("again: "))
    assert f"--strategy {sweep.best_point().name}" in again
    assert f"--gpus {sweep.best_point().num_gpus} " in again


def test_what_is_not_recommended_stands_below_a_line(sweep, capsys):
    print_sweep(sweep)
    text = capsys.readouterr().out
    assert "below the line not recommended: seams show (naive-patch)" in " ".join(text.split())
    table = text[text.index("within") :].split("\n\n")[0].splitlines()
    lines = [number for number, line in enumerate(table) if "──" in line]
    assert len(lines) == 2
    assert "naive-patch" not in "".join(table[: lines[1]])
    assert all("naive-patch" in line for line in table[lines[1] + 1 :])


def test_degrees_are_named_and_those_of_one_are_not(capsys):
    fixed = {"guidance_degree": 2, "pipeline_degree": 2, "patches": 4}
    sweep = swept(pixart(4), names=["hybrid"], fixed=fixed)
    found = sweep.best
    values = {"hybrid": dict.fromkeys(found.parameters, (0, 1))}
    assert "guidance 2, " in how(found, values)
    assert "P 2, " in how(found, values)
    assert "ring" not in how(found, values)


def test_the_front_is_printed_where_it_is_asked_for(capsys):
    sweep = swept(pixart(4), "pareto")
    print_sweep(sweep)
    cells = table_rows(capsys.readouterr().out)
    front = pareto_front(rows(sweep))
    starred = [row for row in cells if "*" in row[0]]
    latencies = [
        next(float(cell) for cell in row[3:] if re.fullmatch(r"\d+\.\d{3}", cell)) for row in starred
    ]
    assert sorted(latencies) == sorted(round(item["latency_s"], 3) for item in front)


def test_the_best_of_each_strategy_on_several_scenarios():
    scenarios = [pixart(4), pixart(4, resolution=1024)]
    names = ["ulysses", "pipefusion", "single"]
    sweeps = [sweep_of(scenario, strategy=names, top=1, workers=1) for scenario in scenarios]
    found = [item for one in sweeps for item in one.rows(best_of_each=True)]
    assert [item["resolution"] for item in found] == ["512"] * 3 + ["1024"] * 3
    for scenario, items in zip(scenarios, (found[:3], found[3:]), strict=True):
        for item in items:
            every = [p for p in simulate_everything(scenario) if p.name == item["strategy"]]
            assert item["latency_s"] == min(p.result.latency_s for p in every)


def test_points_of_equal_degrees_are_one_row_of_two_names():
    found = sweep_of("pixart", "a100-nvlink-8", 4, strategy="hybrid,usp", exhaustive=True, steps=4, workers=1)
    twins = [row for row in found.rows() if "same_as" in row]
    assert {row["strategy"] for row in twins} == {"usp"}
    for row in twins:
        same = [other for other in found.rows() if other["latency_s"] == row["latency_s"]]
        assert {(other["strategy"], other["tie"]) for other in same} == {
            ("usp", row["tie"]),
            ("hybrid", row["tie"]),
        }
        degrees = ("ulysses_degree", "ring_degree")
        first, second = ([other["parameters"][key] for key in degrees] for other in same)
        assert first == second
    shown = shown_points(found)
    names = next(column for column in columns(found, shown) if column.name == "strategy").cells
    assert (
        names.count("usp = hybrid") == 1
    )  # the best of usp; of hybrid it is the eleventh, and named with it
    assert not {"usp"} & set(names)
