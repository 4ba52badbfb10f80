"""Writes the work of every (model, resolution) that was observed, so that a fit needs no counting."""

import csv
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from validate.counting.component import ComponentCount, count_component
from validate.counting.tally import total
from validate.counting.zoo import architecture
from validate.fitting.equations import OBSERVATIONS, RATIO, WORK_COLUMNS, read_observations
from validate.writing import write_file


def write_work(path: Path) -> None:
    """Count what every observation file names and write one table.

    Raises:
        InputError: an observation file breaks a rule, or the table cannot be written.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(WORK_COLUMNS)
    for (model, height, width), frozen in sorted(_wanted().items()):
        writer.writerows(work_rows(model, height, width, bool(frozen)))
    write_file(path, text.getvalue())


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
