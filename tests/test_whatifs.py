"""What-ifs: a cluster with other links, nodes, devices or memory; what was changed is named and asked for again."""

from dataclasses import replace

import pytest

import sim
from profiles.errors import DiffusimWarning
from profiles.machines.clusters import load_cluster
from profiles.machines.devices import load_device
from profiles.machines.whatifs import changed, idle
from profiles.units import GB, GIB

P4DE = load_cluster("p4de")


def test_a_factor_multiplies_every_bandwidth_of_a_link_and_nothing_else():
    cluster = changed(P4DE, {"link": "inter=2x"})
    assert cluster.inter_node == P4DE.inter_node.scaled(2)
    assert cluster.intra_node == P4DE.intra_node
    assert (cluster.inter_node.latency_s, cluster.inter_node.call_s) == (
        P4DE.inter_node.latency_s,
        P4DE.inter_node.call_s,
    )


@pytest.mark.parametrize(
    ("words", "bandwidth"), [("150GB/s", 150 * GB), ("400Gbit/s", 50 * GB), ("100Gbps", 12.5 * GB)]
)
def test_a_bandwidth_is_set_and_what_shares_the_port_changes_in_proportion(words, bandwidth):
    link = changed(P4DE, {"link": f"inter={words}"}).inter_node
    assert link.bandwidth_bytes_per_s == bandwidth
    before = P4DE.inter_node
    assert link.rail_bytes_per_s / before.rail_bytes_per_s == pytest.approx(
        bandwidth / before.bandwidth_bytes_per_s
    )


def test_links_are_words_a_list_or_a_mapping():
    for value in ("inter=2x,intra=150GB/s", ["inter=2x", "intra=150GB/s"], {"inter": 2, "intra": "150GB/s"}):
        assert changed(P4DE, {"link": value}).changes == (("link", "inter=2x,intra=150GB/s"),)


def test_nodes_say_how_many_there_are_and_of_how_many_devices():
    assert changed(P4DE, {"nodes": 2}).max_devices == 16
    assert changed(P4DE, {"nodes": "4x2"}).max_devices == 8
    assert changed(P4DE, {"nodes": "2"}).changes == changed(P4DE, {"nodes": 2}).changes == (("nodes", 2),)


@pytest.mark.parametrize(("of_node", "gpus"), [(4, 4), (16, 8)])
def test_a_run_takes_the_devices_of_a_node_by_default_but_eight_at_most(of_node, gpus):
    assert sim.run("sd21", "ddp", replace(P4DE, devices_per_node=of_node)).num_gpus == gpus


def test_a_device_is_a_name_another_name_a_file_or_a_value(tmp_path):
    card = tmp_path / "card.toml"
    card.write_text('name = "card"\nsource = "made by a test"\nmemory_GiB = 10\n')
    assert changed(P4DE, {"device": "h200-141gb-sxm"}).device == load_device("h200-141gb-sxm")
    with pytest.warns(match="device h200 is h200-141gb-sxm"):
        assert changed(P4DE, {"device": "h200"}).changes == (("device", "h200-141gb-sxm"),)
    cluster = changed(P4DE, {"device": str(card)})
    assert (cluster.device.name, cluster.changes) == ("card", (("device", str(card)),))
    assert changed(P4DE, {"device": cluster.device}).device is cluster.device


@pytest.mark.parametrize(("value", "size"), [("40GB", 40e9), (40 * GIB, 40 * GIB)])
def test_memory_is_of_each_device(value, size):
    cluster = changed(P4DE, {"memory": value})
    assert cluster.device.memory_bytes == size
    assert cluster.device.name == P4DE.device.name  # so that its measured times hold
    assert changed(P4DE, dict(cluster.changes)).device.memory_bytes == size


@pytest.mark.parametrize(
    ("given", "gpus", "told"),
    [
        ({"link": "intra=2x"}, 1, "what if link intra=2x changes nothing: one GPU has no link inside a node"),
        ({"link": "inter=2x"}, 8, "what if link inter=2x changes nothing: 8 GPUs have no link between nodes"),
    ],
)
def test_what_can_change_nothing_is_said(given, gpus, told):
    assert list(idle(changed(P4DE, given), gpus)) == [told]
    assert not list(idle(changed(P4DE, given), 32))
    with pytest.warns(DiffusimWarning, match=told):
        sim.run("sd21", "ddp", gpus=gpus, batch_size=32, **given)


@pytest.mark.parametrize(
    ("model", "degree", "samples", "memory"),
    [("flux-dev", 8, 128, 88), ("flux-dev", 2, 64, 116), ("sd3-medium", 2, 128, 34), ("pixart", 4, 128, 27)],
)
def test_a_faster_link_or_more_memory_makes_no_pipeline_slower(model, degree, samples, memory):
    asked = {"gpus": 16, "batch_size": samples, "pipeline_degree": degree, "optimizer": "sharded"}
    asked |= {"micro_batches": degree * samples // 16, "memory": f"{memory}GiB"}
    plain, *better = (
        sim.run(model, "1f1b", "h100-ib", **asked | changed)
        for changed in ({}, {"link": "inter=2x"}, {"memory": f"{memory + 10}GiB"})
    )
    assert all(result.fits_memory for result in (plain, *better))
    assert all(result.iteration_s <= plain.iteration_s * (1 + 1e-9) for result in better)
