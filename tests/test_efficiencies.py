"""The links of 8-card PCIe machines are what the fit to the published rows of one node gives."""

from functools import cache
from itertools import product

import pytest

from profiles.machines.clusters import load_cluster
from profiles.machines.fabrics import OPERATIONS
from validate.fitting.boxes import (
    CLUSTER,
    SLOWDOWN,
    fitted_cluster,
)

pytestmark = pytest.mark.slow

EIGHT_CARDS = ("l40-pcie-8", "l20-pcie-8", "t4-pcie-8")
PLACES = 0.02
"""Efficiencies are written with two digits; one more or less in the last is no other fit."""

fitted = cache(fitted_cluster)


@pytest.mark.long
def test_the_committed_clusters_have_the_fitted_cluster():
    """All-to-all across sockets was measured on two boxes, which those that were not measured stand between."""
    for name, operation in product(EIGHT_CARDS, OPERATIONS):
        cluster = load_cluster(name)
        assert cluster.overlap_slowdown == SLOWDOWN and cluster.intra_node.socket_size == 2
        for size, efficiency in dict(fitted().collectives.efficiency)[operation]:
            reached = cluster.collectives.efficiency_of(operation, int(size))
            assert reached == pytest.approx(efficiency, rel=PLACES)
        rel = PLACES if name == CLUSTER else 0.2
        for size, efficiency in dict(fitted().collectives.across).get(operation, ()):
            reached = cluster.collectives.efficiency_of(operation, int(size), across=True)
            assert reached == pytest.approx(efficiency, rel=rel)


def test_four_cards_on_one_bridge_share_it_whatever_they_do():
    cluster = load_cluster("a100-pcie-4")
    link = cluster.intra_node
    for operation in OPERATIONS:
        for size in (2, 4):
            share = cluster.collectives.efficiency_of(operation, size, 1) * link.bandwidth_bytes_per_s * size
            assert share == pytest.approx(link.host_bandwidth_bytes_per_s, rel=1e-3)
    assert link.switch_size == 1
