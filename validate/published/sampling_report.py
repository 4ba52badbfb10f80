"""The report on sampling: predicted beside published, in sections and as a table."""

from collections.abc import Iterator, Sequence

from validate.published import sampling_sections as sections
from validate.published.rows import Section
from validate.published.sampling_scenes import SamplingPrediction, predictions


def print_sampling() -> list[SamplingPrediction]:
    """Print the report on sampling as Markdown; return the predictions."""
    predicted = every_prediction()
    for section in report(predicted):
        print(section.markdown(), end="\n\n", flush=True)
    return predicted


def every_prediction() -> list[SamplingPrediction]:
    """Return the predictions of all rows, those of one GPU too."""
    return predictions(lambda _: True)


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
