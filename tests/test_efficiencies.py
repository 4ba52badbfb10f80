"""The links of 8-card PCIe machines are what the fit to the published rows of one node gives."""

from functools import cache
from statistics import median

import pytest

from profiles.machines.clusters import load_cluster
from profiles.machines.fabrics import OPERATIONS
from validate.__main__ import main
from validate.fitting.efficiencies import (
    ALL_TO_ALL,
    CLUSTER,
    FITTED,
    PRIORS,
    RING,
    SLOWDOWN,
    Links,
    error_of,
    kind_of,
    link_text,
    links_at,
    residuals,
    rows,
    summary,
)

pytestmark = pytest.mark.slow

EIGHT_CARDS = ("l40-pcie-8", "l20-pcie-8", "t4-pcie-8")
PLACES = 0.02
"""Efficiencies are written with two digits; one more or less in the last is no other fit."""

fitted = cache(links_at)


@pytest.mark.parametrize("name", EIGHT_CARDS)
def test_the_committed_clusters_have_the_fitted_links(name):
    cluster, links = load_cluster(name), fitted()
    assert cluster.overlap_slowdown == links.slowdown
    for operation in OPERATIONS:
        if operation == ALL_TO_ALL and name != CLUSTER:
            continue  # that of the box which was measured says nothing of others
        for size, efficiency in links.curve(operation):
            found = cluster.collectives.efficiency_of(operation, size, 1)
            assert found == pytest.approx(efficiency, rel=PLACES)


def test_what_the_rows_do_not_determine_is_measured_elsewhere():
    """Two cards have the shares of measured NCCL on two L40S, and the slowdown is that of all machines."""
    measured = load_cluster("l40s-ib")
    for kind, (size, share) in PRIORS.items():
        operation = "all_reduce" if kind == RING else ALL_TO_ALL
        assert measured.collectives.efficiency_of(operation, size, 1) == pytest.approx(share, rel=PLACES)
    assert load_cluster("a100-nvlink-8").overlap_slowdown == SLOWDOWN


@pytest.mark.parametrize("kind", [RING, ALL_TO_ALL])
@pytest.mark.parametrize("size", FITTED)
def test_the_median_error_of_fitted_rows_vanishes_inside_the_bounds(kind, size):
    errors = [error_of(row, fitted()) for row in rows() if (kind_of(row), row.num_gpus) == (kind, size)]
    assert abs(median(errors)) < 0.02 and dict(fitted().curve(kind))[size] < 1


def test_four_cards_on_one_bridge_share_it_whatever_they_do():
    cluster = load_cluster("a100-pcie-4")
    link = cluster.intra_node
    for operation in OPERATIONS:
        for size in (2, 4):
            share = cluster.collectives.efficiency_of(operation, size, 1) * link.bandwidth_bytes_per_s * size
            assert share == pytest.approx(link.host_bandwidth_bytes_per_s, rel=1e-3)
    assert link.switch_size == 1


def test_a_fit_is_printed_row_by_row_and_as_lines_of_a_cluster_file(tmp_path, monkeypatch, capsys):
    links = Links(1.2, ((2, 0.5), (4, 0.4), (8, 0.3)), ((2, 1.0), (4, 0.2), (8, 0.1)))
    monkeypatch.setattr("validate.fitting.efficiencies.links_at", lambda slowdown=1.2: links)
    monkeypatch.setattr("validate.fitting.efficiencies.error_of", lambda row, links: 0.0)
    assert len(list(residuals(links))) == len(rows())
    assert "all_to_all = { 2 = 1, 4 = 0.2, 8 = 0.1 }" in link_text(links)
    assert list(summary(links))[-1] == "slowdown 1.2: mean error 0.0 %"
    assert main(["efficiencies", "--output", str(tmp_path / "links.toml")]) == 0
    assert (tmp_path / "links.toml").read_text(encoding="utf-8") == link_text(links)
    assert "[collectives]" in capsys.readouterr().out  # and not taken for a style
    assert main(["efficiencies", "--output", str(tmp_path)]) == 2
    assert "--output" in capsys.readouterr().err
