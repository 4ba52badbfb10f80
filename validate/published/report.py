"""The report: all sections, then every published row with what covers it, or why nothing does."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from validate.published import ratios, speedups
from validate.published.rows import Prediction, Published, Section, all_published

SECTIONS: Final[tuple[Callable[[], Section], ...]] = (
    ratios.frozen_ratios,
    ratios.synchronisation_shares,
    ratios.unfilled_bubbles,
    speedups.one_node,
    speedups.eight_nodes,
    speedups.ablation,
)
WORKERS: Final = 2

REASONS: Final = {
    "3.3": "sampling: covered where the sampling strategies are",
}
"""Why a row is not predicted, by item."""


def print_published(sections: Sequence[Callable[[], Section]] = SECTIONS) -> None:
    """Print sections, made side by side, then every published row, as Markdown."""
    predictions: list[Prediction] = []
    for section in _made(sections):
        print(section.markdown(), end="\n\n", flush=True)
        predictions += section.predictions
    print(coverage(all_published(), predictions).markdown())


def _made(sections: Sequence[Callable[[], Section]]) -> Iterator[Section]:
    with ProcessPoolExecutor(WORKERS) as executor:
        for future in [executor.submit(section) for section in sections]:
            yield future.result()


def coverage(rows: Sequence[Published], predictions: Iterable[Prediction]) -> Section:
    """Return each published row with its predictions, or with the reason why there is none."""
    by_row: dict[Published, list[Prediction]] = {}
    for prediction in predictions:
        by_row.setdefault(prediction.row, []).append(prediction)
    cells = [cell for row in rows for cell in _cells(row, by_row.get(row, []))]
    covered = sum(row in by_row for row in rows)
    return Section(
        f"Every published number: {covered} of {len(rows)} predicted",
        ("where", "number", "published", "simulated", "error", "setting, or why not"),
        cells,
    )


def _cells(row: Published, predictions: Sequence[Prediction]) -> Iterator[list[str]]:
    head = [f"{row.source}, {row}", row.metric.replace("_", " "), f"{row.value:g}"]
    if not predictions:
        yield [*head, "-", "-", REASONS.get(row.item, "not predicted")]
    for prediction in predictions:
        error = prediction.relative_error
        words = "-" if error is None else f"{error:+.1%}"
        yield [*head, f"{prediction.simulated:.4g}", words, prediction.setting]
