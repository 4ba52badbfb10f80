"""The report on sampling: predicted beside published, in sections and as a table."""

import csv
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Final

from profiles.errors import InputError
from profiles.units import GIB
from validate.published import sampling_sections as sections
from validate.published.rows import Section
from validate.published.sampling_misses import why
from validate.published.sampling_rows import SamplingRow
from validate.published.sampling_scenes import SamplingPrediction, predictions

COLUMNS: Final = (
    "source",
    "table_or_figure",
    "model",
    "hardware",
    "interconnect",
    "num_gpus",
    "method",
    "method_config",
    "resolution_px",
    "steps",
    "published_s",
    "predicted_s",
    "error",
    "published_GiB",
    "predicted_GiB",
    "used_for_links",
    "remark",
    "why",
)


def print_sampling(output: Path | None = None) -> list[SamplingPrediction]:
    """Print the report on sampling as Markdown, and write every row as CSV if asked to; return the predictions.

    Raises:
        InputError: the file cannot be written.
    """
    predicted = predictions(told)
    for section in report(predicted):
        print(section.markdown(), end="\n\n", flush=True)
    if output is not None:
        write_predictions(predicted, output)
    return predicted


def told(row: SamplingRow) -> bool:
    """Return whether a row is reported on: several GPUs, or memory."""
    return row.num_gpus != 1 or row.memory_gib is not None


def report(predicted: Sequence[SamplingPrediction]) -> Iterator[Section]:
    """Yield the sections of the report."""
    yield from sections.summaries(predicted)
    yield sections.winners(predicted)
    yield sections.out_of_memory(predicted)
    yield sections.memory(predicted)
    yield sections.volumes(predicted)
    yield sections.misses(predicted)
    yield sections.every_row(predicted)
    yield sections.uncovered(predicted)


def write_predictions(predicted: Sequence[SamplingPrediction], path: Path) -> None:
    """Write one line per row.

    Raises:
        InputError: the file cannot be written.
    """
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(one) for one in predicted)
    try:
        path.write_text(text.getvalue(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--output {path}: {error.strerror}") from error


def _cells(prediction: SamplingPrediction) -> list[str]:
    row, outcome, error = prediction.row, prediction.outcome, prediction.error
    latency_s = "" if outcome is None else f"{outcome.latency_s:.5g}" if outcome.fits else "OOM"
    return [
        *(row[column] for column in COLUMNS[:10]),
        row["latency_s"],
        latency_s,
        "" if error is None else f"{error:.4f}",
        row["memory_GB"],
        "" if outcome is None else f"{outcome.memory_bytes / GIB:.2f}",
        "yes" if prediction.for_links else "no",
        prediction.remark,
        why(prediction),
    ]
