"""Fitting: the links of a cluster file from measured times.

Every column of the fit is asked of ``profiles.machines.collectives.collective_time``, so what is fitted is what
is simulated.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from profiles.errors import InputError
from profiles.machines.clusters import Cluster, Link
from profiles.machines.collectives import Group, bus_volume, collective_time
from profiles.machines.devices import load_device
from profiles.machines.fabrics import FULL, FULL_CURVES, OPERATIONS, Collectives, Curve, interpolate
from profiles.measuring.fitting.least_squares import Errors, Law, fit_law, robust_fit
from profiles.measuring.linking.samples import PING_PONG, CurveKey, Measurement, Sample, by_curve, seconds_of
from profiles.measuring.machine import disturbance
from profiles.units import FloatArray

NVSWITCH: Final = "nvswitch"
PCIE: Final = "pcie"
STAND_INS: Final = {
    "all_reduce": ("all_gather", "reduce_scatter", "send_recv"),
    "all_gather": ("reduce_scatter", "all_reduce", "send_recv"),
    "reduce_scatter": ("all_gather", "all_reduce", "send_recv"),
    "all_to_all": ("send_recv", "all_gather", "all_reduce", "reduce_scatter"),
    "send_recv": ("all_gather", "all_reduce", "reduce_scatter"),
}
"""Operations whose efficiencies stand in for those of one that was not measured, the best first."""

Laws = dict[CurveKey, Law]


class LinkFit(NamedTuple):
    """A fitted cluster, and notes on what was not measured, was bounded or does not fit, one sentence each."""

    cluster: Cluster
    notes: tuple[str, ...]


def fit_links(measurement: Measurement, name: str, device: str, kind: str = NVSWITCH) -> LinkFit:
    """Cluster that fits the measured times; InputError where they do not determine a link.

    A PCIe link is fitted by its ports alone: what devices share shows in the efficiencies of groups.
    """
    warning = disturbance(measurement.other_cores)
    notes = [warning] if warning else []
    cluster = _ports(measurement, name, device, kind, notes)
    curves = _collective_curves(measurement.idle())
    laws = {key: fit_law(_volumes(cluster, samples), seconds_of(samples)) for key, samples in curves.items()}
    cluster = _with_latencies(cluster, laws, notes)
    reached = {key: _efficiency(cluster, samples, laws[key]) for key, samples in curves.items()}
    cluster = replace(cluster, collectives=_collectives(cluster, reached, notes))
    return LinkFit(cluster, tuple(notes))


def predict(cluster: Cluster, sample: Sample) -> float:
    """Simulated seconds of an operation that nothing disturbs."""
    if sample.operation == PING_PONG:  # a message that has all ports on its way to itself
        link = cluster.intra_node if sample.group.num_nodes == 1 else cluster.inter_node
        assert link is not None
        return link.latency_s + link.call_s + sample.size_bytes / link.bandwidth_bytes_per_s
    return collective_time(cluster, sample.operation, sample.size_bytes, sample.group).total_s


def errors_of(cluster: Cluster, samples: Sequence[Sample]) -> Errors:
    """Errors of the simulated times on a cluster."""
    return Errors.of((sample.seconds, predict(cluster, sample)) for sample in samples)


def _ports(measurement: Measurement, name: str, device: str, kind: str, notes: list[str]) -> Cluster:
    """Cluster with its ports' bandwidths; the fixed time of each link still counts as software."""
    slowdowns = [factor for _, factor in measurement.slowdowns]
    inside, idle = Link("ideal", float("inf"), 0.0, 0.0), measurement.idle()
    if measurement.devices_per_node > 1:
        inside = _link(idle, 1, kind, notes, measurement.devices_per_node)
    between = _link(idle, 2, "nic", notes) if measurement.num_nodes > 1 else None
    slowdown = max(1.0, median(slowdowns)) if slowdowns else 1.0
    size = measurement.devices_per_node, measurement.num_nodes
    free = Collectives(0.0, FULL_CURVES, FULL)
    of = load_device(device)
    return Cluster(name, measurement.environment, of, *size, slowdown, inside, between, free)


def _link(samples: Sequence[Sample], num_nodes: int, kind: str, notes: list[str], devices: int = 0) -> Link:
    where = "inside a node" if num_nodes == 1 else "between nodes"
    single = _messages(samples, num_nodes)
    if single:
        law = law_of(single)
        if law.break_at:
            lines = f"two lines, below and from {law.break_at:.0f} bytes on"
            notes.append(f"messages {where}: {lines}, would fit them better than the one law of this file")
    else:
        law = _fastest(samples, num_nodes, where)
        estimate = "an estimate, the bandwidth and fixed time of the fastest collective"
        notes.append(f"messages {where}: not measured; {estimate}")
    if law.s_per_unit <= 0:
        rule = "their times do not grow with their bytes; measure larger ones, or on a quieter machine"
        raise InputError(f"messages {where}: {rule}")
    bandwidth = 1 / law.s_per_unit
    shared = (devices, bandwidth, bandwidth) if kind == PCIE else ()
    return Link(kind, bandwidth, 0.0, law.fixed_s, *shared)


def _fastest(samples: Sequence[Sample], num_nodes: int, where: str) -> Law:
    """Law of the collective with the highest bus bandwidth, inside nodes or between them."""
    laws = []
    for (operation, group), curve in _collective_curves(samples).items():
        if (group.num_nodes > 1) == (num_nodes > 1):
            volumes = np.array([sample.size_bytes for sample in curve]) * bus_volume(operation, group.size)
            laws.append(fit_law(volumes, seconds_of(curve)))
    if not laws:
        raise InputError(f"nothing was measured {where}: pass send_recv of 2 ranks, or any collective, there")
    return min(laws, key=lambda law: law.s_per_unit)


def _collective_curves(samples: Sequence[Sample]) -> dict[CurveKey, list[Sample]]:
    return by_curve(sample for sample in samples if sample.operation != PING_PONG)


def _volumes(cluster: Cluster, samples: Sequence[Sample]) -> FloatArray:
    """Seconds for which each sample would hold a port that it has to itself, at efficiency 1."""
    times = [collective_time(cluster, s.operation, s.size_bytes, s.group) for s in samples]
    return np.array([max(time.device_port_s, time.node_port_s) for time in times])


def _with_latencies(cluster: Cluster, laws: Laws, notes: list[str]) -> Cluster:
    """Split fixed times into software per call and one latency per step, whose number differs by operation and size."""
    if not laws:
        notes.append("collectives: not measured; as fast as their ports allow")
        return cluster
    inner, outer = cluster.intra_node, cluster.inter_node
    steps = [[1.0, *(_steps(cluster, key, which) for which in ("intra_node", "inter_node"))] for key in laws]
    fixed = np.array([law.fixed_s for law in laws.values()])
    limits = np.array([np.inf, inner.call_s, outer.call_s if outer else 0.0])
    least = max(float(fixed.max()) * 1e-3, 1e-9)
    call_s, inner_s, outer_s = robust_fit(np.array(steps), fixed, np.maximum(fixed, least), limits)
    if len({tuple(row) for row in steps}) == 1:
        notes.append("latency and software per call: not told apart by operations of one kind")
    called = replace(cluster.collectives, call_s=float(call_s))
    inner, outer = _split(inner, float(inner_s)), _split(outer, float(outer_s)) if outer else None
    return replace(cluster, intra_node=inner, inter_node=outer, collectives=called)


def _split(link: Link, latency_s: float) -> Link:
    latency_s = min(latency_s, link.call_s)
    return replace(link, latency_s=latency_s, call_s=link.call_s - latency_s)


def _steps(cluster: Cluster, key: CurveKey, which: str) -> float:
    """Number of latencies of one link that an operation takes: its fixed time where that latency is 1 s."""
    links = {name: getattr(cluster, name) for name in ("intra_node", "inter_node")}
    alone = {name: replace(of, latency_s=float(name == which)) for name, of in links.items() if of}
    return collective_time(replace(cluster, **alone), key[0], 1.0, key[1]).fixed_s


def _efficiency(cluster: Cluster, samples: Sequence[Sample], law: Law) -> float:
    """Share of the port's bandwidth reached, given the fixed times; may exceed 1.

    The fixed time is the curve's own where that is less than the one fitted to all curves, which would make its wire
    seem too fast.
    """
    first = samples[0]
    fixed_s = collective_time(cluster, first.operation, first.size_bytes, first.group).fixed_s
    seconds, fixed_s = seconds_of(samples), min(fixed_s, law.fixed_s)
    (stretch,) = robust_fit(_volumes(cluster, samples)[:, None], seconds - fixed_s, seconds)
    return 1 / float(stretch) if stretch > 0 else float("inf")


def _collectives(cluster: Cluster, reached: dict[CurveKey, float], notes: list[str]) -> Collectives:
    """Efficiencies by operation and group size inside a node, and one factor for the nodes spanned.

    PCIe's efficiencies say nothing of the network, whose factor stands alone.
    """
    pcie = cluster.intra_node.kind == PCIE
    inside: dict[str, dict[float, float]] = defaultdict(dict)
    for (operation, group), value in reached.items():
        if group.num_nodes == 1:
            inside[operation][group.size] = _bounded(f"{operation} of {group.size}", value, notes)
    curves = {operation: tuple(sorted(points.items())) for operation, points in inside.items()}
    factors: dict[int, list[float]] = defaultdict(list)
    for (operation, group), value in reached.items():
        if group.num_nodes > 1 and operation in curves:
            of_ports = 1.0 if pcie else interpolate(curves[operation], group.size)
            factors[group.num_nodes].append(value / of_ports)
    bounded = {
        n: _bounded(f"collectives over {n} nodes", median(of), notes) for n, of in sorted(factors.items())
    }
    nodes = FULL + tuple((float(number), value) for number, value in bounded.items())
    for (operation, group), value in reached.items():
        if operation not in curves and not pcie:
            share = value / interpolate(nodes, group.num_nodes)
            inside[operation][group.size] = _bounded(f"{operation} of {group.size}", share, notes)
    curves = {operation: tuple(sorted(points.items())) for operation, points in inside.items()}
    completed = tuple((operation, _curve(operation, curves, notes)) for operation in OPERATIONS)
    return Collectives(cluster.collectives.call_s, completed, nodes)


def _bounded(what: str, efficiency: float, notes: list[str]) -> float:
    if np.isfinite(efficiency) and efficiency > 1.02:
        notes.append(f"{what}: reached {efficiency:.2f} of the bandwidth of single messages, bounded to 1")
    return min(efficiency, 1.0)


def _curve(operation: str, curves: Mapping[str, Curve], notes: list[str]) -> Curve:
    """Curve of an operation, or of its stand-in where it was not measured."""
    if operation in curves:
        return curves[operation]
    stand_in = next((other for other in STAND_INS[operation] if other in curves), None)
    notes.append(f"{operation}: not measured; {f'as {stand_in}' if stand_in else '1 is a bound'}")
    return curves[stand_in] if stand_in else FULL


def _messages(samples: Iterable[Sample], num_nodes: int) -> list[Sample]:
    """Single messages: ping-pong, else a round of two."""
    pairs = [sample for sample in samples if sample.group == Group(2, num_nodes)]
    chosen = [sample for sample in pairs if sample.operation == PING_PONG]
    return chosen or [sample for sample in pairs if sample.operation == "send_recv"]


def law_of(samples: Sequence[Sample]) -> Law:
    """Law of messages by their bytes."""
    return fit_law(np.array([sample.size_bytes for sample in samples]), seconds_of(samples))
