"""Writes the work of every (model, resolution) that was observed, so that a fit needs no counting."""

import argparse
from collections import Counter
from collections.abc import Iterator

from validate.counting.component import ComponentCount, count_component
from validate.counting.tally import total
from validate.counting.zoo import architecture
from validate.fitting.equations import OBSERVATIONS, RATIO, WORK_COLUMNS, read_observations
from validate.writing import csv_text, write_file


def run_work(options: argparse.Namespace) -> None:
    """Count what every observation file names and write one table."""
    rows = (row for where, frozen in sorted(_wanted().items()) for row in work_rows(*where, bool(frozen)))
    write_file(options.output, csv_text(WORK_COLUMNS, rows))


def work_rows(model: str, height: int, width: int, frozen: bool) -> Iterator[list[str]]:
    """Yield one row per trainable component, and per frozen one where asked for, at a resolution in pixels."""
    for spec in architecture(model).components:
        if spec.trainable or (frozen and "train" in spec.tasks):
            yield [model, *_totals(count_component(spec, height, width), height, width)]


def _wanted() -> Counter[tuple[str, int, int]]:
    """The observed (model, height, width), each with how many of its rows need the frozen part."""
    wanted: Counter[tuple[str, int, int]] = Counter()
    for path in sorted(OBSERVATIONS.glob("*.toml")):
        for row in read_observations(path.with_suffix(".csv")):
            wanted[row.model, row.height, row.width] += row.quantity == RATIO
    return wanted


def _totals(count: ComponentCount, height: int, width: int) -> list[str]:
    whole = total(count.work)
    flop = (whole.conv_flop, whole.matmul_flop, whole.attention_flop)
    return [
        *(count.spec.name, "full" if count.spec.trainable else "none", str(height), str(width)),
        *(str(number / 1e9) for number in flop),
        *(str(whole.moved_bytes / 1e6), str(whole.kernels)),
    ]
