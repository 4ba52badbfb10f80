"""What is made from Python checks itself like what is read from a file, cannot change, and prints in one line."""

import pickle
import re
from dataclasses import FrozenInstanceError, replace

import pytest
from making import refused

from profiles.architectures.components import Anchor, Component, Exchange, Layer, MeasuredTime, Read, Skip
from profiles.architectures.kernels import Kernel
from profiles.architectures.models import load_model
from profiles.costs.bands import Band
from profiles.costs.calibration import Calibration
from profiles.costs.layers import ComponentCosts
from profiles.errors import InputError
from profiles.machines.clusters import Link, load_cluster
from profiles.machines.devices import Device, load_device
from profiles.machines.fabrics import OPERATIONS, Between, Collectives
from profiles.machines.hosts import BOX
from profiles.machines.laws import Rates
from profiles.mappings import FrozenMapping
from profiles.software.stacks import Fusion, Shares, load_stack

NAN, INF = float("nan"), float("inf")
FLAT = ((1.0, 1.0),)
LAYER = Layer(0, "a", 1, "full", 1.0, 1.0, 1.0, 1.0, 1, 1.0, 1.0)
NET = Component("net", True, (), 1, 0, 0.0, 0.0, (LAYER, replace(LAYER, block=1), replace(LAYER, block=1)))
EFFICIENCY = tuple((operation, FLAT) for operation in OPERATIONS)
VALUES = {
    "link": Link("nvswitch", 1e9, 0.0, 0.0),
    "pcie": Link("pcie", 1e9, 0.0, 0.0, 4, 1e9, 1e9),
    "rates": Rates(1.0, 1.0, 1.0, 1.0, 0.0),
    "device": Device("d", "s", 1.0, None),
    "collectives": Collectives(0.0, EFFICIENCY, FLAT),
    "between": Between(EFFICIENCY),
    "host": BOX,
    "kernel": Kernel("matmul", 1, 1, 8, 8, 8),
    "shares": Shares(),
    "fusion": Fusion(),
    "stack": load_stack(),
    "cluster": load_cluster("p4de"),
    "layer": LAYER,
    "skip": Skip(0, 1),
    "read": Read("text", 0, 1.0),
    "exchange": Exchange(0, "halo", 1, 0),
    "time": MeasuredTime(0, 1, 1.0, 1.0),
    "component": NET,
    "model": load_model("sd21"),
    "anchor": Anchor("d", 1, 1, 1, 1, 1.0, "s"),
    "band": Band(),
    "calibration": Calibration(),
}


@pytest.mark.parametrize(
    ("name", "field", "value", "problem"),
    [
        ("link", "kind", "string", "link: kind is 'string', must be one of nvswitch, mesh, pcie, nic, ideal"),
        ("link", "bandwidth_bytes_per_s", 0.0, "nvswitch link: bandwidth_bytes_per_s is 0.0, must be positive"),
        ("link", "latency_s", -1.0, "latency_s is -1.0, must not be negative"),
        ("link", "latency_s", INF, "latency_s is inf, must be finite"),
        ("link", "call_s", "1", "call_s is '1', must be a number"),
        ("pcie", "switch_size", 0, "pcie link: switch_size is 0, must be at least 1"),
        ("pcie", "host_bandwidth_bytes_per_s", NAN, "host_bandwidth_bytes_per_s is nan, must be positive"),
        ("rates", "matmul_flop_per_s", NAN, "rates: matmul_flop_per_s is nan, must be positive"),
        ("rates", "memory_bytes_per_s", INF, "rates: memory_bytes_per_s is inf, must be finite"),
        ("rates", "kernel_s", -1e-6, "rates: kernel_s is -1e-06, must not be negative"),
        ("device", "memory_bytes", 0, "device d: memory_bytes is 0, must be positive"),
        ("host", "low", NAN, "host: low is nan, must be finite"),
        ("collectives", "call_s", True, "collectives: call_s is True, must be a number"),
        ("collectives", "own_part", 1.5, "collectives: own_part is 1.5, must be at most 1"),
        ("collectives", "all_reduce_by", "tree", "all_reduce_by is 'tree', must be one of ring, switch"),
        ("collectives", "nodes", ((1.0, 1.5),), "collectives: nodes[1] is 1.5, must be at most 1"),
        ("collectives", "fixed_s", (("send_recv", ((8.0, -1.0),)),), "fixed_s.send_recv[8] is -1.0, must not be"),
        ("between", "step_s", -1.0, "collectives.between: step_s is -1.0, must not be negative"),
        ("cluster", "overlap_slowdown", 0.5, "cluster p4de: overlap_slowdown is 0.5, must be at least 1"),
        ("cluster", "max_nodes", 1.5, "cluster p4de: max_nodes is 1.5, must be an integer"),
        ("layer", "backward", "half", "layer 'a': backward is 'half', must be one of full, input, none"),
        ("layer", "moved_bytes", -1.0, "layer 'a': moved_bytes is -1.0, must not be negative"),
        ("kernel", "kind", "gemm", "kernel: kind is 'gemm', must be one of matmul, conv, "),
        ("kernel", "m", 0, "kernel: m is 0, must be at least 1"),
        ("exchange", "kind", "all", "exchange: kind is 'all', must be one of key_value, halo, "),
        ("read", "size_bytes", NAN, "read of text: size_bytes is nan, must be finite"),
        ("time", "batch_size", 0, "measured time: batch_size is 0, must be at least 1"),
        ("anchor", "latency_s", 0.0, "anchor of d: latency_s is 0.0, must be positive"),
        ("component", "self_conditioning", 1.5, "component net: self_conditioning is 1.5, must be at most 1"),
        ("component", "passes", 0, "component net: passes is 0, must be at least 1"),
        ("component", "experts", 0, "component net: experts is 0, must be at least 1"),
        ("component", "kernels", ((),), "component net: kernels are of 1 layers, must be of its 3"),
        ("component", "exchanges", (Exchange(3, "halo", 1, 0),), "layer of an exchange is 3, must be below 3"),
        ("model", "dtype", "int8", "model sd21: dtype is 'int8', must be one of float16, "),
        ("model", "steps", 0, "model sd21: steps is 0, must be at least 1"),
        ("shares", "conv", 0.0, "rates: conv is 0.0, must be positive"),
        ("fusion", "copy", 2.0, "fusion: copy is 2.0, must be at most 1"),
        ("stack", "forward_operator_s", NAN, "stack eager: forward_operator_s is nan, must be finite"),
        ("band", "low", 1.5, "band: low is 1.5, must be at most 1"),
        ("band", "high", 0.9, "band: high is 0.9, must be at least 1"),
        ("calibration", "factor", 0.0, "calibration: factor is 0.0, must be positive"),
        ("component", "layers", (), "component net: num_layers is 0, must be at least 1"),
        ("component", "skips", (Skip(0, 1), Skip(0, 1)), "skips names Skip(source=0, target=1) twice"),
        ("model", "components", (NET, NET), "model sd21: components names net twice"),
    ],
)  # fmt: skip
def test_a_value_that_breaks_a_rule_cannot_be_made(name, field, value, problem):
    with refused(re.escape(problem)):
        replace(VALUES[name], **{field: value})


def test_a_value_cannot_change_and_survives_the_way_to_a_worker():
    for value in VALUES.values():
        with pytest.raises((FrozenInstanceError, TypeError)):
            value.name = "other"
        again = pickle.loads(pickle.dumps(value))
        assert (again, hash(again)) == (value, hash(value))


def test_times_that_are_kept_for_the_next_question_cannot_be_written_to():
    costs = ComponentCosts(load_model("sd21").components[-1], load_device("a100-80gb-sxm"))
    for seconds in (costs.forward_s(4), costs.backward_s(4)):
        with pytest.raises(ValueError, match="read-only"):
            seconds[0] = 0.0


def test_a_cluster_gives_itself_with_its_bandwidths_scaled():
    cluster = load_cluster("p4de")
    slow = cluster.scaled(inter_node=0.5)
    assert slow.inter_node.bandwidth_bytes_per_s == cluster.inter_node.bandwidth_bytes_per_s / 2
    assert (slow.intra_node, slow.name) == (cluster.intra_node, "p4de, inter-node x 0.5")
    assert cluster.scaled(intra_node=2).intra_node.bandwidth_bytes_per_s == 536e9
    assert cluster.scaled() is cluster
    shared = load_cluster("a100-pcie-4").scaled(intra_node=2).intra_node
    assert (shared.switch_bandwidth_bytes_per_s, shared.host_bandwidth_bytes_per_s) == (46e9, 64e9)
    for factor in (0, -2, NAN, INF, "2"):
        with pytest.raises(InputError, match=r"the intra-node bandwidth is .*, must be positive and finite$"):
            cluster.scaled(intra_node=factor)
    with pytest.raises(InputError, match="cluster a100-pcie-4 has no inter-node link to multiply"):
        load_cluster("a100-pcie-4").scaled(inter_node=2)


def test_a_frozen_mapping_is_looked_up_as_the_dictionary_it_was_made_of_and_stays_as_it_is():
    made_of = {"a": 1, "b": None}
    frozen = FrozenMapping(made_of)
    made_of["a"] = made_of["c"] = 2
    assert [frozen.get(name, "none") for name in "abc"] == [1, None, "none"]
    assert ["a" in frozen, "b" in frozen, "c" in frozen] == [True, True, False]
    assert (dict(frozen.items()), frozen) == ({"a": 1, "b": None}, {"a": 1, "b": None})
