"""What-ifs: a cluster with other links, nodes, devices or memory than its file says.

Each is the value of one flag, so that what was changed can be asked for again.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from sys import float_info
from typing import Any, Final

from profiles.checks import is_number
from profiles.errors import counted, shown, wrong
from profiles.machines.clusters import Cluster, Link, cluster_names, load_cluster
from profiles.machines.devices import Device, find_device
from profiles.units import GB, GIB

LINKS: Final = {"intra": "intra_node", "inter": "inter_node"}
"""Names of links, and their fields of a cluster."""
BYTES_PER_S: Final = {"MB/s": GB / 1e3, "GB/s": GB, "TB/s": GB * 1e3, "Gbit/s": GB / 8, "Gbps": GB / 8}
BYTES: Final = {"MiB": GIB / 1024, "GiB": GIB, "TiB": GIB * 1024, "MB": GB / 1e3, "GB": GB, "TB": GB * 1e3}
QUANTITY: Final = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([A-Za-z/]+)", re.ASCII)
LEAST: Final = 1e-6
MOST: Final = 1e6
"""Factors, and quantities in GB/s or GiB, lie between ``LEAST`` and ``MOST``."""


def changed(cluster: Cluster, values: Mapping[str, Any]) -> Cluster:
    """Return a cluster with the what-ifs of some values; it remembers them in ``changes``.

    Args:
        cluster: as its file says.
        values: by the names of ``WHAT_IFS``; None changes nothing, and other names are left alone.
    """
    result = cluster
    for name in WHAT_IFS:
        if values.get(name) is None:
            continue
        if name in dict(cluster.changes):
            raise wrong(
                name, f"is {values[name]!r}, but this cluster {cluster.name} was changed by it already"
            )
        result, words = CHANGES[name](result, values[name])
        result = replace(result, changes=(*result.changes, (name, words)))
    return result


def whatif_words(changes: Iterable[tuple[str, Any]]) -> tuple[str, ...]:
    """What-ifs for a title, with what they leave as it is; nothing where there are none."""
    asked = dict(changes)
    kept = {"device": " on the links of the cluster"} if "link" not in asked else {}
    words = ", ".join(f"{name} {value}{kept.get(name, '')}" for name, value in asked.items())
    return (f"what if {words}",) if words else ()


def idle(cluster: Cluster, gpus: int) -> Iterator[str]:
    """Notes on changed links that none of so many GPUs uses, and on nodes that they leave empty."""
    changes, each, nodes = dict(cluster.changes), cluster.devices_per_node, cluster.max_nodes
    empty = nodes - -(-gpus // each)
    if "nodes" in changes and gpus > 1 and empty > 0:
        spread = "" if gpus % nodes else f"; nodes {nodes}x{gpus // nodes} spreads them over all"
        words = f"{empty} of {nodes} empty, as {counted(gpus, 'GPU')} fill whole nodes first"
        yield f"what if nodes {changes['nodes']} leaves {words}{spread}"
    unused = {"inter": gpus <= each, "intra": gpus == 1 or each == 1}
    for change in filter(None, str(changes.get("link", "")).split(",")):
        name, _, words = change.partition("=")
        if unused[name] and words != "1x":
            where = "between nodes" if name == "inter" else "inside a node"
            have = "one GPU has" if gpus == 1 else f"{gpus} GPUs have"
            yield f"what if link {change} changes nothing: {have} no link {where}"


def _with_nodes(cluster: Cluster, value: Any) -> tuple[Cluster, int | str]:  # noqa: ANN401
    """The cluster of so many nodes; ``2x4`` are two of four devices each."""
    text = value if isinstance(value, str) else shown(value)
    match = re.fullmatch(r"([1-9]\d{0,6})(?:x([1-9]\d{0,6}))?", text, re.ASCII)
    if match is None:
        raise wrong("nodes", f"is {shown(value)}, must be nodes such as 2, or nodes x devices such as 2x4")
    nodes, each = int(match[1]), int(match[2] or cluster.devices_per_node)
    if each > cluster.devices_per_node:
        raise wrong(
            "nodes", f"is {value}, but a node of {cluster.name} has {cluster.devices_per_node} devices"
        )
    if nodes > 1 and cluster.inter_node is None:
        shipped = map(load_cluster, cluster_names())
        like = [peer.name for peer in shipped if peer.inter_node and peer.device == cluster.device]
        rule = f"its file has no inter_node link, as {' or '.join(like or ['h100-ib'])} has"
        raise wrong("nodes", f"is {value}, but {cluster.name} is one node: {rule}")
    words = str(value) if match[2] else nodes
    return replace(cluster, max_nodes=nodes, devices_per_node=each), words


def _with_device(cluster: Cluster, value: Any) -> tuple[Cluster, str]:  # noqa: ANN401
    if isinstance(value, Device):
        return replace(cluster, device=value), value.name
    if not isinstance(value, str):
        raise wrong("device", f"is {shown(value)}, must be the name or the file of a device")
    name, device = find_device(value)
    return replace(cluster, device=device), name


def _with_memory(cluster: Cluster, value: Any) -> tuple[Cluster, str]:  # noqa: ANN401
    """The cluster with so much memory per device: words, or a number of bytes."""
    words = str(value).strip() if isinstance(value, str) else f"{value / GIB!r}GiB" if _real(value) else ""
    size = _quantity(words, BYTES)
    if size is None or not LEAST <= size / GIB <= MOST:
        rule = f"must be a size above 0, such as 40GiB, in {', '.join(BYTES)}, at most {MOST:g} GiB"
        raise wrong("memory", f"is {shown(value)}, {rule}")
    return replace(cluster, device=replace(cluster.device, memory_bytes=size)), words


def _real(value: Any) -> bool:  # noqa: ANN401
    """Return whether a value is a number that a float can hold."""
    return is_number(value) and abs(value) < float_info.max


def _quantity(words: str, units: Mapping[str, float]) -> float | None:
    """A number times its unit; None where the words are something else."""
    match = QUANTITY.fullmatch(words)
    return None if match is None or match[2] not in units else float(match[1]) * units[match[2]]


def _with_link(cluster: Cluster, value: Any) -> tuple[Cluster, str]:  # noqa: ANN401
    changes = _link_changes(value)
    for name, words in changes.items():
        if name not in LINKS:
            raise wrong("link", f"names {shown(name)}, must be one of {', '.join(LINKS)}")
        field = LINKS[name]
        link: Link | None = getattr(cluster, field)
        if link is None:
            raise wrong("link", f"is {name}={words}, but cluster {cluster.name} has no {field} link")
        other: dict[str, Any] = {field: _changed_link(link, name, words)}
        cluster = replace(cluster, **other)
    return cluster, ",".join(f"{name}={words}" for name, words in changes.items())


def _link_changes(value: Any) -> dict[str, str]:  # noqa: ANN401
    """Changes in words by link, from ``inter=2x,intra=150GB/s``, a list of such, or a mapping."""
    if isinstance(value, Mapping):
        return {str(name): f"{by!r}x" if _real(by) else str(by).strip() for name, by in value.items()}
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    changes = dict[str, str]()
    for part in str(text).split(","):
        name, equals, words = (word.strip() for word in part.partition("="))
        if not equals:
            raise wrong("link", f"is {shown(text)}, must be NAME=CHANGE, such as inter=2x or intra=150GB/s")
        if name in changes:
            raise wrong("link", f"names {name} twice")
        changes[name] = words
    return changes


def _changed_link(link: Link, name: str, words: str) -> Link:
    """The link with its bandwidth multiplied or set; what shares its port changes in proportion."""
    bandwidth = _quantity(words, BYTES_PER_S)
    factor = _quantity(words, {"x": 1.0})
    if bandwidth is not None and link.kind != "ideal":
        factor = bandwidth / link.bandwidth_bytes_per_s
    elif bandwidth is not None:
        raise wrong("link", f"is {name}={words}, but the {name} links are ideal: free at any bandwidth")
    too_wide = bandwidth is not None and not LEAST <= bandwidth / GB <= MOST
    if factor is None or too_wide or not LEAST <= factor <= MOST:
        rule = f"must be a factor such as 2x, or a bandwidth such as 150GB/s or 400Gbit/s, at most {MOST:g} of either"
        raise wrong("link", f"is {name}={words}, {rule}")
    scaled = link.scaled(factor)
    return scaled if bandwidth is None else replace(scaled, bandwidth_bytes_per_s=bandwidth)


CHANGES: Final[Mapping[str, Callable[[Cluster, Any], tuple[Cluster, int | str]]]] = {
    "nodes": _with_nodes,
    "device": _with_device,
    "memory": _with_memory,
    "link": _with_link,
}
"""Functions to the changed cluster, and the value of the flag that asks for it again, in the order of the changes."""
WHAT_IFS: Final = tuple(CHANGES)
