"""The cluster file: its text, and writing it whole or not at all."""

import json
import textwrap
from pathlib import Path

from profiles.clusters import OPERATIONS, Cluster, Curve, Link, read_cluster
from profiles.errors import InputError
from profiles.units import GB, MICROSECOND
from validate.fitting.links import LinkFit
from validate.fitting.pairs import PCIE
from validate.writing import whole_file


def cluster_text(found: LinkFit, slowdown_measured: bool) -> str:
    """Text of a cluster file; what has to be said about the fit stands in comments."""
    cluster = found.cluster
    slowdown = f"overlap_slowdown = {cluster.overlap_slowdown:.4g}"
    lines = [
        f"name = {json.dumps(cluster.name, ensure_ascii=False)}",
        f"source = {json.dumps(cluster.source, ensure_ascii=False)}",
        f'device = "{cluster.device.name}"',
        f"devices_per_node = {cluster.devices_per_node}",
        f"max_nodes = {cluster.max_nodes}",
        slowdown if slowdown_measured else f"{slowdown}          # not measured",
        "",
        "[intra_node]",
        *_link_lines(cluster.intra_node),
    ]
    if cluster.inter_node:
        lines += ["", "[inter_node]", *_link_lines(cluster.inter_node)]
    for note in found.notes:
        lines += ["", *textwrap.wrap(note, 118, initial_indent="# ", subsequent_indent="# ")]
    lines += ["", "[collectives]", f"call_us = {cluster.collectives.call_s / MICROSECOND:.4g}"]
    curves = dict(cluster.collectives.efficiency)
    lines += [f"{operation} = {_curve_text(curves[operation])}" for operation in OPERATIONS]
    lines.append(f"nodes = {_curve_text(cluster.collectives.nodes)}")
    return "\n".join(lines) + "\n"


def _link_lines(link: Link) -> list[str]:
    if link.kind == "ideal":
        return ['kind = "ideal"                  # one device per node: nothing runs inside it']
    lines = [
        f'kind = "{link.kind}"',
        f"bandwidth_GB_per_s = {link.bandwidth_bytes_per_s / GB:.4g}",
        f"latency_us = {link.latency_s / MICROSECOND:.4g}",
        f"call_us = {link.call_s / MICROSECOND:.4g}",
    ]
    if link.kind == PCIE:
        lines += [
            f"switch_size = {link.switch_size}",
            f"switch_bandwidth_GB_per_s = {link.switch_bandwidth_bytes_per_s / GB:.4g}",
            f"host_bandwidth_GB_per_s = {link.host_bandwidth_bytes_per_s / GB:.4g}",
        ]
    return lines


def _curve_text(curve: Curve) -> str:
    return "{ " + ", ".join(f"{at:.0f} = {value:.4g}" for at, value in curve) + " }"


def write_cluster(path: Path, text: str) -> Cluster:
    """Write a cluster file under its name once it reads back, and read it.

    Raises:
        InputError: the file cannot be written; nothing is left behind.
    """
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")
        return read_cluster(partial)


def check_output(flag: str, path: Path) -> None:
    """Refuse a path that could not be written, before anything is measured.

    Raises:
        InputError: its folder does not exist, or it is a folder.
    """
    if path.is_dir():
        raise InputError(f"{flag} {path}: is a folder, must be a file")
    if not path.parent.is_dir():
        raise InputError(f"{flag} {path}: there is no folder {path.parent}")
