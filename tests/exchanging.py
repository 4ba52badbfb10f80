"""Exchanges of a team, as drawn for clocks that a replay is held against, and telling them to both."""

from hypothesis import strategies as st

from strategies.patching.builder import GroupCollectives
from strategies.plans.actions import PatchAction

WORK = PatchAction(0, 0, 0)

EXCHANGES = st.lists(
    st.tuples(
        st.sampled_from(["ring", "ulysses", "tensor"]),
        st.sampled_from(["all_gather", "all_to_all", "all_reduce", "send_recv"]),
        st.lists(st.sampled_from([0.1, 1.0, 2.5, 8.0, 20.0]), min_size=1, max_size=2),
        st.booleans(),
        st.sampled_from([0.0, 0.5, 3.0, 9.0, 12.0]),
    ),
    min_size=1,
    max_size=7,
)
"""Whose groups exchange, by which operation, how many bytes, whether they wait, and the seconds computed after it."""


def tell(recorder, team, told):
    """Tell a builder of plans or clocks what a team exchanges and computes."""
    for family, operation, sizes, wait, work_s in told:
        groups = tuple(getattr(team, f"{family}_groups")())
        if len(groups[0]) > 1:
            what = GroupCollectives(operation, groups, tuple(sizes), wait=wait)
            results = recorder.exchange(what, WORK)
            recorder.compute_together(team.devices, WORK, work_s)
            if not wait:
                recorder.expect_each(groups, results)
    recorder.compute_together(team.devices, WORK, 0.0)


def cluster_of(make, link, slowdown, per_node):
    """A cluster with such a link in its nodes, and slow cards between them."""
    inside = make.link(**{"kind": "nvswitch", "bandwidth": 8.0, **link})
    return make.cluster(
        inside, make.link("nic", 1.5), slowdown=slowdown, devices_per_node=per_node, call_s=0.25
    )
