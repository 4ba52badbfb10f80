"""Clusters: the shipped ones load, every rule of the file is kept, efficiencies interpolate."""

import pytest
from making import DEVICE

from profiles.errors import InputError
from profiles.machines.clusters import cluster_names, load_cluster, read_cluster

GOOD = """\
name = "small"
source = "made by a test"
device = "ideal"
devices_per_node = 4
max_nodes = 2
overlap_slowdown = 1.5
[intra_node]
kind = "nvswitch"
bandwidth_GB_per_s = 300
latency_us = 5
call_us = 20
[inter_node]
kind = "nic"
bandwidth_GB_per_s = 50
latency_us = 10
call_us = 30
[collectives]
call_us = 40
all_reduce = { 2 = 0.9, 8 = 0.6 }
nodes = { 1 = 1.0, 3 = 0.5 }
"""

PCIE = """\
kind = "pcie"
bandwidth_GB_per_s = 25
latency_us = 5
call_us = 20
switch_size = 4
switch_bandwidth_GB_per_s = 25
host_bandwidth_GB_per_s = 20
"""


@pytest.fixture
def read(tmp_path):
    """A function that reads a cluster file after one replacement in it."""

    def of(old="", new=""):
        assert old in GOOD
        path = tmp_path / "small.toml"
        path.write_text(GOOD.replace(old, new, 1))
        return read_cluster(path)

    return of


def test_every_shipped_cluster_loads_under_its_name():
    assert [load_cluster(name).name for name in cluster_names()] == cluster_names()


def test_the_efficiency_is_that_of_the_size_times_that_of_the_nodes(read):
    collectives = read().collectives
    assert collectives.efficiency_of("all_reduce", 2, 1) == 0.9
    assert collectives.efficiency_of("all_reduce", 5, 1) == pytest.approx(0.75)
    assert collectives.efficiency_of("all_reduce", 100, 1) == 0.6
    assert collectives.efficiency_of("all_reduce", 8, 2) == pytest.approx(0.6 * 0.75)
    assert collectives.efficiency_of("all_to_all", 8, 1) == 1.0


IN_PLACE = "[device]\n" + DEVICE.replace("[rates", "[device.rates")


@pytest.mark.parametrize("named", ["my-gpu.toml", "./cards/mine"])
def test_a_device_is_brought_by_its_path_from_the_cluster_file(read, tmp_path, named):
    (tmp_path / "cards").mkdir()
    for path in ("my-gpu.toml", "cards/mine"):
        (tmp_path / path).write_text(DEVICE)
    for name in (named, str(tmp_path / "my-gpu.toml")):
        device = read('device = "ideal"', f'device = "{name}"').device
        assert (device.name, device.memory_bytes) == ("my-gpu", 24 * 2**30)
        assert device.rates.kernel_s == pytest.approx(5e-6)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('device = "ideal"', 'device = "abacus"', "device is 'abacus', must be one of a100-40gb-sxm, "),
        ("devices_per_node = 4", "devices_per_node = 0", "devices_per_node is 0, must be at least 1"),
        ('"nvswitch"', '"string"', "intra_node.kind is 'string', must be one of nvswitch, pcie, ideal"),
        ("latency_us = 5", "latency_us = 5\nswitch_size = 2", "unknown key intra_node.switch_size"),
        ("8 = 0.6", "8 = 1.6", "collectives.all_reduce.8 is 1.6, must be at most 1"),
        ("nodes = { 1", "nodes = { 0", "collectives.nodes key is 0, must be at least 1"),
        ("[inter_node]", "[outer_node]", "inter_node is missing, and max_nodes is 2"),
    ],
)
def test_a_broken_rule_is_refused_by_file_key_and_value(read, old, new, problem):
    with pytest.raises(InputError) as error:
        read(old, new)
    assert problem in str(error.value)
