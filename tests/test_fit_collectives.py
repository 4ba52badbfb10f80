"""Laws of collectives fitted to measured times: known laws are found again, and errors are of rows not seen."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from making import make_cluster, make_link

from profiles.machines.clusters import CLUSTERS
from profiles.machines.collectives import Group, collective_law
from profiles.machines.fabrics import GATHERS, OPERATIONS, Between, Collectives
from profiles.measuring.fitting.collective_laws import fit_between, fit_inside
from validate.__main__ import main
from validate.fitting.collective_files import (
    BOXES,
    FILES,
    bare,
    curves_of,
    errors_of,
    file_text,
    fitted_cluster,
    held_out,
    judged,
)

DATA = Path(__file__).parents[2] / "shared" / "measured"
MEASURED = pytest.mark.skipif(not DATA.exists(), reason="needs the measurements beside the checkout")
FLAT = ((1.0, 1.0),)
SIZES = [512 * 2**power for power in range(21)]
WHAT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def flat(value):
    return tuple((operation, ((1.0, value),)) for operation in OPERATIONS)


def curved(least, most):
    return tuple((name, ((2.0, least), (4.0, (least + most) / 2), (8.0, most))) for name in OPERATIONS)


KNOWN = replace(
    make_cluster(make_link(bandwidth=300e9), make_link("nic", 50e9), devices_per_node=8, max_nodes=8),
    collectives=Collectives(
        0.0,
        curved(0.7, 0.9),
        FLAT,
        middle=curved(2.0, 1.0),
        fixed_s=flat(8e-6),
        step_s=1e-6,
        between=Between(
            flat(0.8),
            ((2.0, 0.85),),
            tuple(of for of in flat(1.5) if of[0] not in GATHERS),
            (flat(8e-6)[0], ("all_to_all", ((1.0, 100e-6),))),
            40e-6,
            6.0,
            rank_s=tuple(of for of in flat(12e-6) if of[0] in GATHERS),
        ),
    ),
)


def rows_of(cluster, groups, disturbed=0.0):
    """Times of a cluster as a table of measurements has them."""
    noise, rows = np.random.default_rng(7), []
    for operation in WHAT:
        for group in groups:
            law = collective_law(cluster, operation, group)
            for size in SIZES:
                seconds = law.time(size).total_s * float(np.exp(disturbed * noise.standard_normal()))
                rows.append((group.num_nodes, group.size, operation, size, seconds * 1e6, "NCCL", "made"))
    names = ["nodes", "gpus", "operation", "size_bytes", "latency_us", "implementation", "source_id"]
    return pd.DataFrame(rows, columns=names)


def test_a_known_law_inside_a_node_is_found_again():
    rows = rows_of(KNOWN, [Group(size, 1) for size in (2, 4, 8)])
    result = fit_inside(bare(KNOWN, "ring"), curves_of(rows)).collectives
    assert result.step_s == pytest.approx(1e-6, rel=0.01)  # what values are taken for draws at them a little
    for key in ("efficiency", "middle", "fixed_s"):
        for operation, curve in getattr(KNOWN.collectives, key):
            there = dict(getattr(result, key))[operation]
            assert [value for _, value in there] == pytest.approx([value for _, value in curve], rel=0.05)


def test_a_known_law_between_nodes_is_found_again():
    inside = replace(KNOWN, collectives=replace(KNOWN.collectives, between=None))
    rows = rows_of(KNOWN, [Group(8 * nodes, nodes) for nodes in (2, 4, 8)])
    result = fit_between(inside, curves_of(rows))
    assert errors_of(result, curves_of(rows)).worst < 0.02  # what values are taken for draws at them a little
    between = result.collectives.between
    assert between.step_s == pytest.approx(40e-6, rel=0.02)
    assert [curve[0][1] for _, curve in between.rank_s] == pytest.approx([12e-6, 12e-6], rel=0.02)
    assert dict(between.efficiency)["all_gather"][0][1] == pytest.approx(0.8, rel=0.02)
    assert between.tree[0][1] == pytest.approx(0.85, rel=0.02)


def test_errors_are_of_rows_that_the_fit_has_not_seen():
    """One group size that obeys no law of the others shows where it is left out, and nowhere else."""
    rows = rows_of(KNOWN, [Group(size, 1) for size in (2, 4, 8)])
    rows.loc[rows["gpus"] == 4, "latency_us"] *= 3
    result = {of[:2]: of[2] for of in held_out(fit_inside, bare(KNOWN, "ring"), rows)}
    assert result["each group size", "all_gather"].worst > 0.6
    assert result["every other size", "all_gather"].median < 0.4
    assert len(result["every other size", "all_reduce"]) == len(result["each group size", "all_reduce"]) == 63


def test_a_folder_without_the_measurements_is_refused_in_one_line(tmp_path, capsys):
    assert main(["fit-collectives", "--data", str(tmp_path)]) == 2
    assert main(["fit-kernels", "--device", "l40s-48gb", "--data", str(tmp_path)]) == 2
    collectives, kernels = capsys.readouterr().err.splitlines()
    assert "collectives.csv: cannot be read: " in collectives
    assert "gemm.csv: no such file; --data must name the folder of measured kernels" in kernels


@MEASURED
@pytest.mark.slow
def test_a_refit_reproduces_the_shipped_files():
    for name in FILES:
        text = (CLUSTERS / f"{name}.toml").read_text(encoding="utf-8")
        assert file_text(name, *fitted_cluster(DATA, name)) == text


@MEASURED
@pytest.mark.long
def test_rows_left_out_are_predicted_within_15_percent():
    """Sizes of all machines and networks, groups of the NVSwitch machines, nodes of p5; each median over one operation.

    Groups of the trays of GB200 and GB300 are two and four: one says as much of the other as it can.
    """
    result = {(name, scheme, operation): errors.median for name, (scheme, operation, errors) in judged(DATA)}
    sizes = {key: error for key, error in result.items() if key[1] == "every other size"}
    others = ("gb200", "gb300", "rtxpro6000")
    groups = {key: e for key, e in result.items() if key[1] == "each group size" and key[0] not in others}
    assert len(sizes) >= 25 and len(groups) == 20
    assert max(sizes.values()) < 0.15 and max(groups.values()) < 0.15
    for nodes in ("16 GPUs", "32 GPUs", "64 GPUs"):
        for operation, most in (("all_reduce", 0.15), ("all_gather", 0.08), ("all_to_all", 0.15)):
            assert result["efa-32x100", nodes, operation] < most
    assert all(result[box, "above 64 MB", operation] < 0.18 for box in BOXES for operation in WHAT)
