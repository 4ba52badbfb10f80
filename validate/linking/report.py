"""What ``links`` prints: measured bandwidths and times beside those of the cluster file it wrote."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from profiles.clusters import Cluster, Link
from profiles.units import GB, MICROSECOND
from validate.linking.fitting import Key, bus_GB_per_s, predict
from validate.linking.samples import Measurement, Sample


def print_links(measurement: Measurement, cluster: Cluster, notes: Sequence[str]) -> None:
    """Print one row for each operation and group, then the links, the slowdowns and the notes."""
    console = Console(width=120)
    console.print(curve_table(measurement, cluster))
    for line in (*link_lines(cluster), *beside_lines(measurement), *notes):
        console.print(line, highlight=False, markup=False)


def curve_table(measurement: Measurement, cluster: Cluster) -> Table:
    """Return what was measured idle, and how far the file's cluster is from it."""
    result = Table(title="measured, and what the cluster file makes of it", title_justify="left")
    for column in (
        "operation",
        "ranks",
        "nodes",
        "least us",
        "bus GB/s at most",
        "median error",
        "worst",
        "at bytes",
    ):
        result.add_column(column, justify="left" if column == "operation" else "right")
    for (operation, group), samples in by_key(measurement.idle()).items():
        errors = [(predict(cluster, sample) / sample.seconds - 1, sample.size_bytes) for sample in samples]
        worst, at = max(errors, key=lambda pair: abs(pair[0]))
        result.add_row(
            operation,
            f"{group.size}",
            f"{group.num_nodes}",
            f"{min(sample.seconds for sample in samples) / MICROSECOND:.1f}",
            f"{max(bus_GB_per_s(sample) for sample in samples):.3g}",
            f"{100 * median(abs(error) for error, _ in errors):.1f} %",
            f"{100 * worst:+.0f} %",
            f"{at:.0f}",
        )
    return result


def link_lines(cluster: Cluster) -> Iterator[str]:
    """Yield one line for each kind of link."""
    links: dict[str, Link | None] = {"inside a node": cluster.intra_node, "between nodes": cluster.inter_node}
    for where, link in links.items():
        if link and link.kind != "ideal":
            yield (
                f"messages {where}: {link.call_s / MICROSECOND:.4g} us software + {link.latency_s / MICROSECOND:.4g} "
                f"us wire + bytes / {link.bandwidth_bytes_per_s / GB:.4g} GB/s"
            )
    yield f"collectives: {cluster.collectives.call_s / MICROSECOND:.4g} us per call"


def beside_lines(measurement: Measurement) -> Iterator[str]:
    """Yield how compute and communication slow one another down; the file holds the former alone."""
    beside = [sample for sample in measurement.samples if sample.beside_compute]
    idle = {
        (sample.operation, sample.group, sample.size_bytes): sample.seconds for sample in measurement.idle()
    }
    slowdowns = dict(measurement.slowdowns)
    for (operation, group), samples in by_key(beside).items():
        factors = [
            sample.seconds / idle[key]
            for sample in samples
            if (key := (sample.operation, sample.group, sample.size_bytes)) in idle
        ]
        if factors:
            compute = f", compute {slowdowns[operation]:.2f} times" if operation in slowdowns else ""
            yield f"{operation} of {group.size} beside compute: takes {median(factors):.2f} times as long{compute}"


def by_key(samples: Sequence[Sample]) -> dict[Key, list[Sample]]:
    """Return samples by operation and group, in their order."""
    result: dict[Key, list[Sample]] = defaultdict(list)
    for sample in samples:
        result[sample.operation, sample.group].append(sample)
    return dict(result)
