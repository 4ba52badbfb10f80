"""The report: all sections, then every published row with what covers it, or why nothing does."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Final

from validate.published import cascades, hybrids, imbalance, ratios, solving, speedups, throughput, volumes
from validate.published.rows import Prediction, Published, Section, all_published

SECTIONS: Final[tuple[Callable[[], Section], ...]] = (
    ratios.frozen_ratios,
    ratios.synchronisation_shares,
    ratios.unfilled_bubbles,
    ratios.useful_share,
    speedups.eight_nodes,
    speedups.one_node,
    speedups.ablation,
    cascades.cascades,
    volumes.pipeline_volumes,
    volumes.reduction_volumes,
    throughput.two_nodes,
    throughput.eight_nodes,
    throughput.larger_models,
    imbalance.longest_stages,
    imbalance.partition_speed_ups,
    hybrids.degrees,
    hybrids.messages,
    solving.solution_times,
)
WORKERS: Final = 2

NOTHING_TO_FILL: Final = "the model folder has no frozen part to fill with"
REASONS: Final = {
    ("Table 5", "filling", "cdm-lsun"): NOTHING_TO_FILL,
    ("Table 5", "filling", "cdm-imagenet"): NOTHING_TO_FILL,
}
"""Why a row is not predicted, by item, method and model."""


def print_published(sections: Sequence[Callable[[], Section]] = SECTIONS) -> list[Prediction]:
    """Print sections, made side by side, then every published row, as Markdown; return the predictions."""
    predictions: list[Prediction] = []
    for section in made(sections):
        print(section.markdown(), end="\n\n", flush=True)
        predictions += section.predictions
    print(coverage(all_published(), predictions).markdown(), end="\n\n", flush=True)
    return predictions


def made(sections: Sequence[Callable[[], Section]] = SECTIONS) -> Iterator[Section]:
    """Yield sections in their order, made side by side."""
    with ProcessPoolExecutor(WORKERS) as executor:
        for future in [executor.submit(section) for section in sections]:
            yield future.result()


def coverage(rows: Sequence[Published], predictions: Iterable[Prediction]) -> Section:
    """Return each published row with its base prediction, which comes first, or the reason why there is none."""
    by_row: dict[Published, list[Prediction]] = {}
    for prediction in predictions:
        by_row.setdefault(prediction.row, []).append(prediction)
    cells = [_cells(row, by_row.get(row, [])) for row in rows]
    covered = sum(row in by_row for row in rows)
    return Section(
        f"Every published number: {covered} of {len(rows)} predicted",
        ("where", "number", "published", "simulated", "error", "base setting, or why not", "all settings"),
        cells,
    )


def why_not(row: Published) -> str:
    """Return why no section predicts a row."""
    return REASONS.get((row.item, row.method, row.model), "not predicted")


def _cells(row: Published, predictions: Sequence[Prediction]) -> list[str]:
    head = [f"{row.source}, {row}", row.metric.replace("_", " "), f"{row.value:g}"]
    if not predictions:
        return [*head, "-", "-", why_not(row), "-"]
    base, values = predictions[0], [prediction.simulated for prediction in predictions]
    others = "-" if len(values) == 1 else f"{min(values):.4g} to {max(values):.4g}"
    return [*head, f"{base.simulated:.4g}", base.error, base.words, others]
