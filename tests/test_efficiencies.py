"""The links of 8-card PCIe machines are what the fit to the published rows of one node gives."""

from functools import cache
from statistics import median

import pytest

from profiles.machines.clusters import load_cluster
from profiles.machines.fabrics import OPERATIONS
from validate.fitting.efficiencies import (
    ALL_TO_ALL,
    CLUSTER,
    FITTED,
    RING,
    USES,
    error_of,
    links_at,
    rows,
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
            reached = cluster.collectives.efficiency_of(operation, size, 1)
            assert reached == pytest.approx(efficiency, rel=PLACES)


@pytest.mark.parametrize("kind", [RING, ALL_TO_ALL])
@pytest.mark.parametrize("size", FITTED)
def test_the_median_error_of_fitted_rows_vanishes_inside_the_bounds(kind, size):
    errors = [
        error_of(row, fitted()) for row in rows() if (USES[row["method"]], row.num_gpus) == (kind, size)
    ]
    assert abs(median(errors)) < 0.02 and dict(fitted().curve(kind))[size] < 1


def test_four_cards_on_one_bridge_share_it_whatever_they_do():
    cluster = load_cluster("a100-pcie-4")
    link = cluster.intra_node
    for operation in OPERATIONS:
        for size in (2, 4):
            share = cluster.collectives.efficiency_of(operation, size, 1) * link.bandwidth_bytes_per_s * size
            assert share == pytest.approx(link.host_bandwidth_bytes_per_s, rel=1e-3)
    assert link.switch_size == 1
