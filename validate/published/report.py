"""The command ``published``: the runs of each task, then every number with its prediction, or why it has none."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from statistics import mean, median
from typing import Final

from profiles.errors import InputError
from profiles.files import read_text
from profiles.measuring.tables import grouped
from sim.report.plots.charts import ENDINGS, save_figure
from validate.published import training
from validate.published.bands import write_bands, write_trust
from validate.published.clusters import tables
from validate.published.contests import side_by_side
from validate.published.figure import plot_published
from validate.published.ledger import Ledger, all_training, check_path, coverage, settings
from validate.published.pages import sampling, todays_models
from validate.published.records import LATENCY, SAMPLES_PER_S, TASKS, UNSAID, Record, Standing
from validate.published.sampling.alone import kernels_alone
from validate.published.sampling.runs import all_runs
from validate.published.sampling.tables import sampling_ledger, sections
from validate.tables import Section, parts_around, percent, print_sections, signed, write_tables

END: Final = "<!-- end -->"
MARKERS: Final = "<!-- python -m validate published --readme -->", END
"""Lines before and after the tables of the summary in a text."""
SHORT: Final = "<!-- python -m validate published --readme: in short -->", END
DETAIL: Final = "<!-- python -m validate published --readme: training in detail -->", END
TODAY: Final = "<!-- python -m validate published --readme: today's models -->", END
SAMPLED: Final = "<!-- python -m validate published --readme: sampling -->", END
ALONE: Final = "<!-- python -m validate published --readme: kernels alone -->", END
UNTOLD: Final = ("Fig. 4", "Table III", "Table 5")
"""Items of training left out of the details: too many numbers, or those of another machine's solver."""
CLUSTERS: Final = ("MosaicML", "MLPerf")
"""Beginnings of the sources that publish throughputs of real clusters."""
PAPERS: Final = ("DiffusionPipe", "PULSE")
"""Beginnings of the papers that are shown in detail."""
ALIKE: Final = attrgetter("paper", "item", "model", "machine", "method", "quantity")
"""What the numbers in one line of the details share."""
Show = Callable[[str, Section], None]
"""Takes each table as soon as it is made, after its task."""


def run_published(options: argparse.Namespace) -> None:
    """Print the report and the summary, and write what was asked for."""
    check_path("--figure", options.figure, ENDINGS)
    check_path("--output", options.output)
    regions = {path: regions_of(path) for path in options.readme or ()}
    for flag in ("readme", "bands", "trust"):
        if options.task is not None and getattr(options, flag) is not None:
            raise InputError(f"--task is '{options.task}', but --{flag} is of both tasks: leave it out")
    ledger = report(options.task, lambda _, section: print_sections([section]))
    print_sections(ledger.sections())
    ledger.write(options.output)
    for path, own in regions.items():
        write_between(path, ledger, own)
    if options.bands is not None:
        write_bands(options.bands, ledger, all_runs())
    if options.trust is not None:
        write_trust(options.trust, ledger)
    if options.figure is not None:
        save_figure(plot_published(ledger), options.figure)


def report(task: str | None, show: Show) -> Ledger:
    """The ledger of one task, or of both; every table of the report is shown on the way."""
    ledger = Ledger(())
    if task in (None, TASKS[0]):
        numbers = all_training(training.all_records())
        show(TASKS[0], coverage(numbers))
        show(TASKS[0], settings(numbers))
        for section in tables():
            show(TASKS[0], section)
        ledger += Ledger(tuple(base for base, *_ in numbers))
    if task in (None, TASKS[1]):
        runs = all_runs()
        for section in sections(runs):
            show(TASKS[1], section)
        ledger += sampling_ledger(runs)
    return ledger


Region = tuple[str, str]
"""The lines before and after some tables of a text."""


def regions_of(path: Path) -> list[Region]:
    """The regions that a text holds.

    Raises:
        InputError: it holds none.
    """
    lines = read_text(path).splitlines()
    found = [region for region in TABLES if region[0] in lines]
    for region in found or [MARKERS]:
        parts_around(path, *region)
    return found


def write_between(path: Path, ledger: Ledger, regions: Iterable[Region] = (MARKERS,)) -> None:
    """Write the tables of some regions of a text between their markers."""
    for region in regions:
        write_tables(path, region, TABLES[region](ledger))


def summary(ledger: Ledger) -> list[Section]:
    """The shortest tables of the summary."""
    return [ledger.by_source(), side_by_side(ledger.contests)]


def in_short(ledger: Ledger) -> list[Section]:
    """The errors of the numbers in four lines."""
    judged = [one for one in ledger.of(Standing.INDEPENDENT) if one.error is not None]
    real = [
        one
        for one in judged
        if one.row.group.startswith(CLUSTERS) and one.row.quantity == SAMPLES_PER_S and one.row.num_gpus == 64
    ]
    several = [one for one in judged if one.row.quantity == LATENCY and (one.row.num_gpus or 1) > 1]
    losses = [contest.loss for contest in ledger.contests]
    every = f"all independent published numbers ({len(judged)} of {len(ledger.records)})"
    trained = "training of Stable Diffusion on 64 A100 or H100 (MosaicML, MLPerf;"
    rows = [
        [every, _median(judged)],
        [f"{trained} {len(real)} runs, none fitted)", _range(real)],
        [f"sampling on several GPUs ({len(several)} independent latencies)", _median(several)],
    ]
    if losses:
        right = f"right winner in {losses.count(0)} of {len(losses)}"
        rows.append(
            ["methods published side by side", f"{right}, mean loss by a wrong pick {percent(mean(losses))}"]
        )
    return [Section("In short", ("compared with", "error"), rows)]


def _median(records: Sequence[Record]) -> str:
    errors = [abs(one.error) for one in records if one.error is not None]
    return f"median {percent(median(errors))}" if errors else "-"


def _range(records: Sequence[Record]) -> str:
    errors = [one.error for one in records if one.error is not None]
    return f"{signed(min(errors))} to {signed(max(errors))}" if errors else "-"


def in_detail(ledger: Ledger) -> list[Section]:
    """The numbers of papers on training, one line for each table, model, method and quantity."""
    told = [
        one
        for one in ledger.records
        if one.row.task == TASKS[0] and one.row.paper.startswith(PAPERS) and one.row.item not in UNTOLD
    ]
    alike = grouped(told, lambda one: ALIKE(one.row))
    rows = [[_what(key), *_values(records)] for key, records in alike.items()]
    return [Section("Training in detail", ("what", "published", "simulated", "standing"), rows)]


def _what(key: Sequence[str]) -> str:
    return ", ".join(word.replace("_", " ") for word in key if word != UNSAID)


def _values(records: Sequence[Record]) -> list[str]:
    """Cells of the published numbers, the simulated ones, and their standings."""
    published = " / ".join(f"{one.row.value:.4g}" for one in records)
    predicted = " / ".join("-" if one.predicted is None else f"{one.predicted:.3g}" for one in records)
    return [published, predicted, " / ".join(dict.fromkeys(str(one.standing) for one in records))]


TABLES: Final[Mapping[Region, Callable[[Ledger], list[Section]]]] = {
    MARKERS: summary,
    SHORT: in_short,
    DETAIL: in_detail,
    TODAY: todays_models,
    SAMPLED: sampling,
    ALONE: kernels_alone,
}
"""The tables of each region."""
