"""Links and clusters made in code, and a device as a file."""

from profiles.machines.clusters import Cluster, Link
from profiles.machines.devices import Device
from profiles.machines.fabrics import OPERATIONS, Collectives
from profiles.machines.laws import Rates

FREE = Link("ideal", float("inf"), 0.0, 0.0)
DEVICE = """\
name = "my-gpu"
source = "a data sheet"
memory_GiB = 24

[rates]
conv_TFLOP_per_s = 100
matmul_TFLOP_per_s = 150
attention_TFLOP_per_s = 120
memory_GB_per_s = 800
kernel_us = 5

[rates.sources]
conv_TFLOP_per_s = "fitted"
matmul_TFLOP_per_s = "fitted"
attention_TFLOP_per_s = "fitted"
memory_GB_per_s = "fitted"
kernel_us = "fitted"
"""
"""A device file."""


def make_link(kind="nvswitch", bandwidth=float("inf"), latency_s=0.0, call_s=0.0, **pcie):
    """A link; without a bandwidth its messages hold no port."""
    return Link(kind, bandwidth, latency_s, call_s, **pcie)


def make_cluster(
    intra=FREE, inter=None, devices_per_node=64, max_nodes=None, slowdown=1.0, call_s=0.0, efficiency=1.0,
    memory_bytes=None, memory_bytes_per_s=None,
):  # fmt: skip
    """A cluster of devices named ideal; optimizer steps take time only where a memory rate is given."""
    rates = None
    if memory_bytes_per_s is not None:
        rates = Rates(1e12, 1e12, 1e12, memory_bytes_per_s, 0.0)
    return Cluster(
        name="made",
        source="made by a test",
        device=Device("ideal", "made by a test", memory_bytes, rates),
        devices_per_node=devices_per_node,
        max_nodes=max_nodes or (64 if inter else 1),
        overlap_slowdown=slowdown,
        intra_node=intra,
        inter_node=inter,
        collectives=Collectives(
            call_s, tuple((operation, ((1.0, efficiency),)) for operation in OPERATIONS), ((1.0, 1.0),)
        ),
    )
