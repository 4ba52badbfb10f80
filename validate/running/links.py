"""Links of a run: a message arrives a fixed time after it was sent, and who reads it waits until then.

The real message travels in that time. So the delay is known to the microsecond however busy the machine is, as long as
the real message takes no longer; and a simulation that leaves it out, or counts it twice, is wrong by a lot.
"""

from typing import Final

from profiles.clusters import OPERATIONS, Cluster, Collectives, Link
from profiles.devices import Device

DEVICE: Final = "ideal"
"""Times of a model on it are those of the run."""


def emulated_cluster(delay_s: float) -> Cluster:
    """One node whose links carry any number of messages at once, each in the same time."""
    return Cluster(
        name="emulated",
        source=f"processes of one machine; every message arrives {delay_s:g} s after it was sent",
        device=Device(DEVICE, "a process", None, None),
        devices_per_node=4096,
        max_nodes=1,
        overlap_slowdown=1.0,
        intra_node=Link("nvswitch", float("inf"), delay_s, 0.0),
        inter_node=None,
        collectives=Collectives(
            0.0, tuple((operation, ((1.0, 1.0),)) for operation in OPERATIONS), ((1.0, 1.0),)
        ),
    )
