"""What ``links`` prints: measured bandwidths and times beside those of the cluster file it wrote.

Its errors are of rounds that the file was not fitted to; of logs, which have no rounds, of what it was fitted to.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.table import Table

from profiles.clusters import Cluster, Link
from profiles.units import GB, MICROSECOND
from validate.linking.fitting import Key, bus_GB_per_s, predict
from validate.linking.pairs import by_pair, law_of
from validate.linking.samples import Measurement, Sample


def print_links(measurement: Measurement, cluster: Cluster, notes: Sequence[str]) -> None:
    """Print one row for each operation and group, then the links, the slowdowns and the notes."""
    console = Console(width=120)
    console.print(curve_table(measurement, cluster))
    if by_pair(measurement.idle()):
        console.print(pair_table(measurement, cluster))
    lines = (judged_line(measurement, cluster), *link_lines(cluster), *beside_lines(measurement), *notes)
    for line in lines:
        console.print(line, highlight=False, markup=False)


def curve_table(measurement: Measurement, cluster: Cluster) -> Table:
    """Return what was measured idle, and how far the file's cluster is from it."""
    result = Table(
        title=f"{_judges(measurement)}, and what the cluster file makes of them", title_justify="left"
    )
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
    for (operation, group), samples in by_key(measurement.judges()).items():
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


def pair_table(measurement: Measurement, cluster: Cluster) -> Table:
    """Return one row for each pair of neighbours: its own fixed time and bandwidth, and the file's error."""
    result = Table(title="messages between neighbours", title_justify="left")
    for column in ("ranks", "nodes", "fixed us", "GB/s", "median error of the file"):
        result.add_column(column, justify="left" if column == "ranks" else "right")
    judges = by_pair(measurement.judges())
    for pair, samples in by_pair(measurement.idle()).items():
        law = law_of(samples)
        errors = [predict(cluster, sample) / sample.seconds - 1 for sample in judges.get(pair, samples)]
        result.add_row(
            "-".join(map(str, pair)),
            f"{samples[0].group.num_nodes}",
            f"{law.fixed_s / MICROSECOND:.4g}",
            f"{1 / law.s_per_unit / GB:.4g}" if law.s_per_unit > 0 else "does not grow",
            f"{100 * median(map(abs, errors)):.1f} %",
        )
    return result


def judged_line(measurement: Measurement, cluster: Cluster) -> str:
    """Return the errors of all times by which the file is judged, and whether it was fitted to them."""
    errors = [abs(predict(cluster, sample) / sample.seconds - 1) for sample in measurement.judges()]
    found = f"median error {100 * median(errors):.1f} %, worst {100 * max(errors):.0f} %, of {len(errors)}"
    if measurement.held_back:
        return f"held back (even rounds; the file is fitted to the odd ones): {found} times"
    return f"nothing was held back: {found} times that the file is fitted to"


def _judges(measurement: Measurement) -> str:
    return "times held back from the fit" if measurement.held_back else "times"


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
