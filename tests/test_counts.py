"""Several numbers of GPUs: each is a sweep of its own, and the knee is where more of them stop paying."""

import pytest

import sim
from profiles.errors import DiffusimNote, InputError
from profiles.software.reserved import reserved_bytes
from profiles.units import GIB
from sim.cli.main import main
from sim.explore.scaling import Scaling, Step, gpus_in, knee_of
from sim.outcomes.results import OUT_OF_MEMORY
from sim.report.rankings import table_of


@pytest.fixture(scope="module")
def scaling():
    return sim.sweep("sd21", gpus=[8, 2, 4, 4], batch_size=64, strategy="ddp,zero2", workers=1)


def test_each_number_has_the_sweep_that_it_would_have_alone(scaling):
    assert isinstance(scaling, Scaling)
    assert [sweep.scenario.workload.num_gpus for sweep in scaling] == [2, 4, 8]
    alone = sim.sweep("sd21", gpus=4, batch_size=64, strategy="ddp,zero2", workers=1)
    assert scaling.sweeps[1].rows() == alone.rows()
    assert [row["num_gpus"] for row in scaling.rows(best_of_each=True)] == [2, 2, 4, 4, 8, 8]
    assert len(scaling.frame()) == sum(map(len, scaling))


def test_the_knee_is_the_last_number_before_one_that_does_not_pay():
    def steps(*gains):
        return [Step(2**n, None, 1.0, gain) for n, gain in enumerate(gains)]

    assert knee_of(steps(1.0, 0.9, 0.5, 0.4, 0.9)).gpus == 4
    assert knee_of(steps(1.0, 0.9)).gpus == 2
    assert knee_of(steps(1.0, 0.1)).gpus == 1
    assert knee_of([]) is None


def test_numbers_on_which_nothing_fits_are_told_with_what_the_nearest_lacks():
    asked = {"steps": 4, "strategy": "hybrid,tensor,single", "memory": "27GiB", "workers": 1}
    found = sim.sweep("wan2.1-14b", "rtx4090-pcie-8", [1, 4, 8], **asked)
    knee, one, four, best, *_ = found.verdict.lines
    assert knee == ("sweet spot", "none: something fits on 8 GPUs alone, of these numbers")
    assert one[1].startswith("1 GPU: out of memory, the nearest is single: needs at least ")
    for sweep, (_, said) in zip(found, (one, four), strict=False):
        short = [point for point in sweep.points if point.kind == OUT_OF_MEMORY]
        least = min(max(point.least_memory_bytes, point.costs[1]) for point in short)
        workload, device = sweep.scenario.workload, sweep.scenario.cluster.device
        lack = (reserved_bytes(least, workload.num_gpus).middle - device.memory_bytes) / GIB
        assert said.endswith(f": {lack:.1f} GiB too much")
    assert (one[0], four[0], best[0]) == ("not on", "", "best")


def test_numbers_of_gpus_are_read_as_people_write_them():
    assert gpus_in("12") == 12
    assert gpus_in("8,2,4") == (2, 4, 8)
    assert gpus_in("8-64") == (8, 16, 32, 64)
    assert gpus_in("1,8-48") == (1, 8, 16, 32, 48)


@pytest.fixture(scope="module")
def costs():
    return sim.sweep("pixart", "a100-nvlink-8", [1, 2, 4], objective="cost", steps=4, workers=1)


def test_by_cost_gpus_that_a_copy_leaves_draw_other_images(costs):
    assert [(step.gpus, step.copies) for step in costs.steps] == [(1, 1), (2, 2), (4, 4)]
    alone = costs.steps[0].result
    for step in costs.steps:
        assert step.result.strategy == "single"
        assert step.samples_per_s == pytest.approx(step.gpus * alone.samples_per_s)
        assert step.efficiency == pytest.approx(1.0)
        assert step.gpus / step.samples_per_s == pytest.approx(
            step.result.gpu_s_per_sample
        )  # all GPUs are paid
    by_latency = sim.sweep("pixart", "a100-nvlink-8", [1, 2], steps=4, workers=1, strategy="single")
    assert [step.copies for step in by_latency.steps] == [
        1,
        1,
    ]  # one batch was asked, and the other GPU waits
    assert by_latency.steps[1].efficiency == pytest.approx(0.5)
    assert all(f"{alone.gpu_s_per_sample:.3g}" in row for row in table_of(costs).rows)


CLUSTERS = "l20-pcie-8,h100-nvlink-8,t4-pcie-8"


def test_of_several_clusters_each_has_the_best_of_its_sweep_and_prices_name_the_cheapest(tmp_path, capsys):
    asked = {"steps": 28, "strategy": "ulysses,tensor", "gpus": 8, "workers": 1}
    prices = tmp_path / "prices.toml"
    prices.write_text("l20-pcie-8 = 0.36\nh100-nvlink-8 = 36\nt4-pcie-8 = 1\n")
    found = sim.sweep("flux-dev", CLUSTERS.split(","), price=str(prices), **asked)
    alone = [sim.sweep("flux-dev", name, **asked).best for name in ("h100-nvlink-8", "l20-pcie-8")]
    assert [knee.result for knee, _ in found.ranked()] == alone
    dollars = [
        price * best.num_gpus * best.expected.duration_s / 3.6
        for price, best in zip((36, 0.36), alone, strict=True)
    ]
    assert [found.dollars_per_1000(knee) for knee, _ in found.ranked()] == pytest.approx(dollars)
    assert set(found.frame()["cluster"]) == set(CLUSTERS.split(","))
    flags = f"--model flux-dev --steps 28 --strategy ulysses,tensor --gpus 8 --cluster {CLUSTERS} --price {prices}"
    assert main(["sweep", *flags.split()]) == 0
    said = capsys.readouterr().out
    assert "h100-nvlink-8 fastest " in said and "l20-pcie-8 cheapest " in said
    assert "not on t4-pcie-8: out of memory" in said and "on l20-pcie-8: sim launch --model flux-dev" in said


def test_by_cost_the_cluster_of_fewest_dollars_is_first_and_without_prices_that_of_fewest_gpu_seconds(
    tmp_path,
):
    prices = tmp_path / "prices.toml"
    prices.write_text("l20-pcie-8 = 0.36\nh100-nvlink-8 = 36\n")
    asked = {"steps": 28, "strategy": "ulysses", "gpus": 2, "workers": 1, "objective": "cost"}
    for price, first in ((None, "h100-nvlink-8"), (str(prices), "l20-pcie-8")):
        found = sim.sweep("flux-dev", "l20-pcie-8,h100-nvlink-8", price=price, **asked)
        assert found.ranked()[0][0].result.cluster == first == found.leading.chosen.scenario.cluster_name


def test_a_cluster_is_named_once_and_a_price_alone_is_told(capsys):
    with pytest.raises(InputError, match="cluster is l20-pcie-8,l20-pcie-8, must name each once"):
        sim.sweep("sd21", ["l20-pcie-8", "l20-pcie-8"])
    assert main(["sweep", "--model", "sd21", "--gpus", "2", "--strategy", "ddp", "--price", "36"]) == 0
    asked = {"gpus": 2, "strategy": "ddp", "workers": 1}
    with pytest.warns(DiffusimNote, match=r"^`price` 36 is of every cluster; a \.toml file has one of each$"):
        sim.sweep("sd21", "p4de,p5", price=36, **asked)
    each_s = sim.sweep("sd21", **asked).best.gpu_s_per_sample
    assert f"${each_s * 10:,.2f} per 1,000 samples" in " ".join(
        capsys.readouterr().out.replace("│", "").split()
    )


def test_clusters_of_the_same_gpus_that_have_enough_are_named():
    with pytest.raises(sim.InputError, match=r"gpus is 64, .* = 8; h100-ib or p5 has more of them"):
        sim.sweep("sd21", "h100-nvlink-8", 64)
